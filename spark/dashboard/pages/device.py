"""One device: a series of one metric, and the newest value of each."""

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from spark.dashboard.layout import charts, parts, words
from spark.dashboard.layout.links import Where, device_link, href
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import device
from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import range_named


def page(where: Where, _sources: Sources) -> Any:
    """The name of the device, and a place for its figures."""
    return html.Div(
        [
            dcc.Link("← Fleet", href=href("/fleet", range=where.range)),
            dmc.Title(where.device or "(unnamed)", order=2, size="h4", my="xs", className="mono"),
            html.Div(id="device-body"),
        ]
    )


def body(sources: Sources, where: Where) -> Any:
    """The chart of the metric that the address names, by default the first, and the values."""
    return with_tables(sources, lambda reading: _body(reading, where, sources.now_ms))


def _body(reading: Reading, where: Where, now_ms: int) -> Any:
    values = device.latest(reading, where.device)
    if not values:
        return parts.trouble(
            "This device is not known", f"No record of “{where.device}” is in the tables. The fleet lists all devices."
        )
    names = [row["metric"] for row in values]
    metric = where.query.get("metric", names[0])
    rows = [_row(row, where, metric, now_ms) for row in values]
    return html.Div(
        [
            _chart(reading, where, metric, {row["metric"]: row["unit"] or "" for row in values}, now_ms),
            parts.section(
                "Last values",
                parts.table(["Metric", "Value", "Reported", "Address", "Queue, offset"], rows, empty="", numbers=(1,)),
            ),
        ]
    )


def _chart(reading: Reading, where: Where, metric: str, units: dict[str, str], now_ms: int) -> Any:
    if metric not in units:
        return parts.trouble("No such metric", f"This device reports no “{metric}”; choose one of those below.")
    chosen = range_named(where.range)
    found = device.series(reading, where.device, metric, chosen, now_ms)
    export = html.A(
        "CSV",
        href=href("/export/series.csv", device=where.device, metric=metric, range=where.range),
        download="series.csv",
    )
    if found.num_rows == 0:
        content = parts.note(f"No number was reported in the last {chosen.words}. Choose a longer time range above.")
    else:
        columns = device.with_gaps(found, chosen.width_ms)
        keep = f"{where.device} {metric} {where.range}"
        content = charts.band("series", columns, unit=units[metric], keep=keep)
    return parts.section(metric, content, right=export)


def _row(row: dict[str, Any], where: Where, chosen: str, now_ms: int) -> list[Any]:
    name = row["metric"]
    shown = row["text"] if row["text"] is not None else words.number(row["value"])
    link = dcc.Link(name, href=device_link(where.device, metric=name, range_=where.range))
    return [
        html.Strong(link) if name == chosen else link,
        f"{shown} {row['unit'] or ''}",
        html.Span(words.ago(row["time_ms"], now_ms), title=words.instant(row["time_ms"])),
        html.Span(row["address"] or "-", className="mono"),
        f"{row['queue']}, {row['offset']}",
    ]
