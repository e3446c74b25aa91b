"""Figures, sections, tables, and states in words."""

from collections.abc import Iterable, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html

STATES = {"alive": "green", "silent": "gray", "flapping": "grape", "new": "blue"}  # of devices, and the color of each


def figure(title: str, value: str, more: str = "", *, color: str | None = None) -> Any:
    """Returns a number with a title above it and a word below."""
    return dmc.Paper(
        [
            dmc.Text(title, size="sm", c="dimmed"),
            dmc.Text(value, className="figure-value", **({"c": color} if color else {})),
            dmc.Text(more, size="xs", c="dimmed"),
        ],
        withBorder=True,
        p="md",
        radius="md",
    )


def figures(*those: Any) -> Any:
    """Shows figures in a row; two beside each other on a phone."""
    return dmc.SimpleGrid(list(those), cols={"base": 2, "md": min(4, len(those))}, spacing="sm", mb="sm")


def title(text: str, *, right: Any = None) -> Any:
    """Returns the title of a part of a page."""
    return dmc.Group([dmc.Title(text, order=3, size="h5"), right or html.Span()], justify="space-between", mb="xs")


def section(words: str, *content: Any, right: Any = None) -> Any:
    """Returns a part of a page with its title."""
    return dmc.Paper([title(words, right=right), *content], withBorder=True, p="md", radius="md", mb="sm")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], *, empty: str, numbers: Sequence[int] = ()) -> Any:
    """Shows a table that scrolls sideways where it is wider than the page; `numbers` are set to the right."""
    body = list(rows)
    if not body:
        return note(empty)

    def align(at: int) -> str:
        return "right" if at in numbers else "left"

    return dmc.TableScrollContainer(
        dmc.Table(
            [
                dmc.TableThead(dmc.TableTr([dmc.TableTh(one, ta=align(at)) for at, one in enumerate(head)])),
                dmc.TableTbody(
                    [dmc.TableTr([dmc.TableTd(one, ta=align(at)) for at, one in enumerate(row)]) for row in body]
                ),
            ],
            striped=True,
            verticalSpacing=6,
        ),
        minWidth=min(700, 120 * len(head)),
        type="native",
    )


def note(text: str) -> Any:
    """Returns a sentence where there is nothing to show."""
    return dmc.Text(text, c="dimmed", py="md", ta="center")


def trouble(title: str, text: str, *, color: str = "yellow") -> Any:
    """Shows a sentence about a fault, with a remedy."""
    return dmc.Alert(text, title=title, color=color, mb="sm", variant="light", className="trouble")


def badge(text: str, color: str) -> Any:
    """Returns a word with a color."""
    return dmc.Badge(text, color=color, variant="light", radius="sm", miw="max-content")
