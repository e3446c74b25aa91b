"""Anomalies: the job's findings about devices and series, the newest first."""

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from spark.dashboard.layout import formatting, parts
from spark.dashboard.layout.links import PageAddress, device_link, href
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import findings
from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import range_named

KINDS = {  # and the color of each
    "spike": "red",
    "level_shift": "orange",
    "stuck": "yellow",
    "rate_spike": "pink",
    "silent": "gray",
    "back": "green",
    "flapping": "grape",
}


def page(where: PageAddress, _sources: Sources) -> Any:
    """Returns the choice of device and kind, and a place for the list."""
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.TextInput(
                        id="anomalies-search",
                        placeholder="Search by device",
                        value=where.query.get("device", ""),
                        debounce=300,
                        style={"flex": "1 1 180px", "maxWidth": 320},
                        **{"aria-label": "Search"},
                    ),
                    dmc.Select(
                        id="anomalies-kind",
                        data=[{"value": "", "label": "All kinds"}]
                        + [{"value": kind, "label": kind.replace("_", " ")} for kind in KINDS],
                        value=where.query.get("kind", "") if where.query.get("kind") in KINDS else "",
                        allowDeselect=False,
                        w=140,
                        **{"aria-label": "Kind"},
                    ),
                    html.A("CSV", id="anomalies-csv", href="/export/anomalies.csv", download="anomalies.csv"),
                ],
                mb="sm",
            ),
            html.Div(id="anomalies-body"),
        ]
    )


def body(sources: Sources, search: str, kind: str, range_name: str) -> tuple[Any, str]:
    """Returns the list, and the address of all of it as CSV."""
    wanted = (search, kind if kind in KINDS else "")
    content = with_tables(sources, lambda reading: _body(reading, wanted, range_name, sources.now_ms))
    export = href("/export/anomalies.csv", device=search or None, kind=wanted[1] or None, range=range_name)
    return content, export


def _body(reading: Reading, wanted: findings.Wanted, range_name: str, now_ms: int) -> Any:
    chosen = range_named(range_name)
    rows = findings.newest(reading, wanted, chosen, now_ms)
    counted = findings.by_kind(reading, chosen, now_ms)
    empty = f"Nothing was found in the last {chosen.words}."
    if any(wanted):
        empty = f"Nothing like that was found in the last {chosen.words}."
    shown = [
        parts.figure(kind.replace("_", " "), formatting.count(count), f"in {chosen.words}")
        for kind, count in counted.items()
    ]
    return html.Div(
        [
            parts.figures(*shown) if shown else None,
            parts.section(
                "Anomalies",
                parts.table(
                    ["Time", "Kind", "Device", "Metric", "Score", "Found"],
                    [_row(row, range_name, now_ms) for row in rows],
                    empty=empty,
                    numbers=(4,),
                ),
                parts.note(f"The newest {findings.ROWS_SHOWN} are shown; the CSV file has all.")
                if len(rows) == findings.ROWS_SHOWN
                else None,
            ),
        ]
    )


def _row(row: dict[str, Any], range_name: str, now_ms: int) -> list[Any]:
    device, metric = row["device"], row["metric"]
    return [
        html.Span(formatting.ago(row["time_ms"], now_ms), title=formatting.instant(row["time_ms"])),
        parts.badge(row["kind"].replace("_", " "), KINDS.get(row["kind"], "blue")),
        dcc.Link(device, href=device_link(device, metric=metric, range_=range_name)) if device else "(unnamed)",
        metric or "-",
        formatting.number(row["score"]),
        row["sentence"],
    ]
