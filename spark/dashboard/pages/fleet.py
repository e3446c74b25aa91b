"""Fleet: all devices, searched, sorted and paged by the server."""

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from spark.dashboard.layout import charts, formatting, parts
from spark.dashboard.layout.links import PageAddress, device_link, href
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import fleet
from spark.dashboard.queries.reading import Reading

DEFAULT_SORT = {"column": "device", "descending": False}
COLUMNS = {"device": "Device", "heard": "Heard", "metrics": "Metrics", "address": "Address"}  # to sort by


def page(where: PageAddress, _sources: Sources) -> Any:
    """Returns the search, the pages, and a place for the devices."""
    return html.Div(
        [
            dcc.Store(id="fleet-sort", data=DEFAULT_SORT),
            dmc.Group(
                [
                    dmc.TextInput(
                        id="fleet-search",
                        placeholder="Search by device or address",
                        value=where.query.get("search", ""),
                        debounce=300,
                        style={"flex": "1 1 220px", "maxWidth": 420},
                        **{"aria-label": "Search"},
                    ),
                    html.A("CSV", id="fleet-csv", href="/export/fleet.csv", download="fleet.csv"),
                ],
                mb="sm",
            ),
            html.Div(id="fleet-body"),
            dmc.Group(dmc.Pagination(id="fleet-page", total=1, value=1, size="sm"), justify="center", mt="md"),
        ]
    )


def sorted_by(before: dict[str, Any], column: str) -> dict[str, Any]:
    """Returns the order after a click on a column: by it, and the other way round when it was that already."""
    if before["column"] == column:
        return {"column": column, "descending": not before["descending"]}
    return {"column": column, "descending": column in {"heard", "metrics"}}


def body(
    sources: Sources, search: str, order: dict[str, Any], page_number: int, range_name: str
) -> tuple[Any, int, str]:
    """Returns the devices of a page, the count of pages, and the address of all of them as CSV."""
    pages = 1

    def make(reading: Reading) -> Any:
        nonlocal pages
        found = fleet.devices(
            reading, search=search, sort=order["column"], descending=order["descending"], page=page_number
        )
        pages = found.pages
        lines = fleet.sparklines(
            reading, [(row["device"], row["metric"]) for row in found.rows if row["device"] and row["metric"]], now_ms
        )
        rows = [_row(row, lines, range_name, now_ms) for row in found.rows]
        empty = f"No device has “{search}” in its name or address." if search else "No device was heard yet."
        return html.Div(
            [
                parts.note(f"{formatting.count(found.total)} {'device' if found.total == 1 else 'devices'}")
                if found.total
                else None,
                parts.table(_heads(order), rows, empty=empty, numbers=(5,)),
            ]
        )

    now_ms = sources.now_ms
    content = with_tables(sources, make)
    return content, pages, href("/export/fleet.csv", search=search or None)


def _heads(order: dict[str, Any]) -> list[Any]:
    arrow = "↓" if order["descending"] else "↑"
    device, *others = [
        html.Button(
            f"{title} {arrow}" if order["column"] == name else title,
            id={"type": "fleet-by", "column": name},
            className="sort",
            title=f"Sort by {title.lower()}",
        )
        for name, title in COLUMNS.items()
    ]
    return [device, "State", "Last value", "Last hour", *others]


def _row(row: dict[str, Any], lines: dict[str, list[float]], range_name: str, now_ms: int) -> list[Any]:
    device, state = row["device"], row["state"] or "-"
    return [
        dcc.Link(device, href=device_link(device, range_=range_name)) if device else html.Span("(unnamed)"),
        parts.badge(state, parts.STATES.get(state, "gray")),
        "-" if row["metric"] is None else f"{row['metric']}: {_shown(row['shown'])} {row['unit'] or ''}",
        charts.sparkline(lines.get(device, [])),
        formatting.ago(row["heard_ms"], now_ms),
        str(row["metrics"]),
        html.Span(row["address"] or "-", className="mono"),
    ]


def _shown(text: str | None) -> str:
    try:
        return formatting.number(float(text or "nan"))
    except ValueError:
        return str(text)[:40]
