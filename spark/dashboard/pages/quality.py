"""Data quality: late and undecodable records, where they come from, and examples."""

from typing import Any

from dash import dcc, html

from spark.dashboard.layout import charts, formatting, parts
from spark.dashboard.layout.links import PageAddress, device_link
from spark.dashboard.pages.overview import by_name
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import overview, quality
from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import range_named
from spark.telemetry.liveness import COUNTS


def page(_where: PageAddress, _sources: Sources) -> Any:
    """Returns the page, still empty."""
    return html.Div(id="quality-body")


def body(sources: Sources, range_name: str) -> Any:
    """Returns the figures of now."""
    return with_tables(sources, lambda reading: _body(reading, range_name, sources.now_ms))


def _body(reading: Reading, range_name: str, now_ms: int) -> Any:
    chosen, totals = range_named(range_name), quality.totals(reading)
    counted = sum(totals.values())
    named = by_name(overview.traffic(reading, "quality", chosen, now_ms), chosen.width_ms, chosen.since_ms(now_ms))
    bad = {name.replace("_", " "): series for name, series in named.items() if name not in quality.GOOD}
    if bad:
        chart = charts.stacked("quality", bad, unit="records/min", keep=range_name)
    else:
        chart = parts.note(f"Every record of the last {chosen.words} was in time and decoded.")
    good = sum(totals.get(name, 0) for name in quality.GOOD)
    share = 100 * good / counted if counted else 100.0
    others = [(name, count) for name, count in totals.items() if name not in quality.GOOD]
    forgotten = reading.progress.forgotten_devices
    return html.Div(
        [
            parts.figures(
                parts.figure(
                    "In order", f"{share:.2f} %", f"of {formatting.count(counted)} records since the job began"
                ),
                parts.figure(
                    "Windows corrected", formatting.count(reading.progress.corrected), "by records that came late"
                ),
                *(
                    [parts.figure("Devices forgotten", formatting.count(forgotten), "silent for long")]
                    if forgotten
                    else []
                ),
                *(
                    parts.figure(name.replace("_", " "), formatting.count(count), "records in all")
                    for name, count in others
                ),
            ),
            parts.section("Not in order, by kind", chart),
            parts.section(
                "By topic",
                parts.table(
                    ["Topic", "Records", "Not in order", "Share"],
                    [
                        [
                            row["topic"],
                            formatting.count(row["records"]),
                            formatting.count(row["bad"]),
                            f"{100 * row['share']:.2f} %",
                        ]
                        for row in quality.topics(reading, chosen, now_ms)
                    ],
                    empty=f"No record was stored in the last {chosen.words}.",
                    numbers=(1, 2, 3),
                ),
            ),
            parts.section(
                "By device, since it was first heard",
                parts.table(
                    ["Device", "Address", "Records", *(formatting.words(name) for name in COUNTS), "Clock"],
                    [_device(row, range_name) for row in quality.devices(reading)],
                    empty="Every device's records come in order and once, and their clocks are right.",
                    numbers=range(2, 3 + len(COUNTS)),
                ),
            ),
            parts.section(
                "Quarantine, by reason",
                parts.table(
                    ["Reason", "Records", "Devices"],
                    [
                        [row["reason"], formatting.count(row["records"]), formatting.count(row["devices"])]
                        for row in quality.reasons(reading, chosen, now_ms)
                    ],
                    empty=f"Nothing went to the quarantine in the last {chosen.words}.",
                    numbers=(1, 2),
                ),
            ),
            parts.section(
                "Quarantine, newest records",
                parts.table(
                    ["Stored", "Device", "Address", "Reason", "Queue, offset", "Bytes"],
                    [_example(row, range_name) for row in quality.examples(reading, chosen, now_ms)],
                    empty=f"Nothing went to the quarantine in the last {chosen.words}.",
                ),
            ),
        ]
    )


def _device(row: dict[str, Any], range_name: str) -> list[Any]:
    return [
        dcc.Link(row["device"] or "(unnamed)", href=device_link(row["device"], range_=range_name)),
        html.Span(row["address"] or "-", className="mono"),
        formatting.count(row["records"]),
        *(formatting.share(row[name], row[f"{name}_rate"]) for name in COUNTS),
        formatting.skew(row["skew_s"]),
    ]


def _example(row: dict[str, Any], range_name: str) -> list[Any]:
    device = row["device"]
    return [
        formatting.instant(row["stored_ms"]),
        dcc.Link(device, href=device_link(device, range_=range_name)) if device else "-",
        html.Span(row["address"] or "-", className="mono"),
        row["reason"],
        f"{row['queue']}, {row['offset']}",
        html.Span(row["body"], className="mono"),
    ]
