"""One device: a series of one metric, the newest value of each, its messages in the log, and a command to it."""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import dash_mantine_components as dmc
import msgspec
from dash import dcc, html

from spark.dashboard.clients.gateway import Credentials, GatewayRefused
from spark.dashboard.layout import charts, formatting, parts
from spark.dashboard.layout.links import PageAddress, Place, device_link, href
from spark.dashboard.pages import clients
from spark.dashboard.pages.anomalies import KINDS
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import device, findings, quality
from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import range_named, range_since
from spark.telemetry.liveness import COUNTS

BODY_CHARS_SHOWN = 4_000
FINDINGS_SHOWN = 20
CHART = "series"  # the id of the chart
HIDDEN = {"display": "none"}


def page(where: PageAddress, sources: Sources) -> Any:
    """Returns the name of the device, a place for its figures, and the command."""
    return html.Div(
        [
            dcc.Link("← Fleet", href=href("/fleet", range=where.range)),
            dmc.Title(where.device or "(unnamed)", order=2, size="h4", my="xs", className="mono"),
            html.Div(id="device-message"),
            html.Div(id="device-body"),
            dmc.Paper(
                [html.Div(id="device-chart-head"), charts.empty(CHART)],
                id="device-chart",
                withBorder=True,
                p="md",
                radius="md",
                mb="sm",
                style=HIDDEN,
            ),
            html.Div(id="device-raw"),
            html.Div(id="device-more"),
            _command(where) if sources.gateway is not None else None,
        ]
    )


class DeviceParts(NamedTuple):
    """The parts of the page that follow the tables.

    The chart is one component whose figure changes: one that is made anew would end what its reader does with it.
    """

    upper: Any
    chart_head: Any = None  # None: there is no chart
    figure: Mapping[str, Any] | None = None  # None: a note is in the place of the chart
    lower: Any = None


def body(sources: Sources, where: PageAddress, who: Credentials | None = None) -> DeviceParts:
    """Returns the chart of the metric that the address names, by default the first, and the parts above and below."""
    made = with_tables(sources, lambda reading: _body(reading, where, sources.now_ms))
    found = made if isinstance(made, DeviceParts) else DeviceParts(made)
    return found._replace(lower=html.Div([found.lower, clients.of_device(sources, where.device, who)]))


def message(sources: Sources, where: PageAddress, who: Credentials | None) -> Any:
    """Returns the message that the address names by its queue and offset, as the gateway has it."""
    place = Place.parse(where.query.get("message", ""))
    if place is None or sources.gateway is None:
        return None
    kept = {"metric": where.query.get("metric"), "page": where.query.get("page")}
    close = dcc.Link("Close", href=device_link(where.device, range_=where.range, zoom=where.zoom, **kept))
    try:
        found = sources.gateway.message(*place, where.query.get("at", ""), who)
    except GatewayRefused as refused:
        return parts.section("Message", parts.trouble("It is not shown", str(refused), color="orange"), right=close)
    if found is None:
        text = "It is not in the log any more."
        return parts.section("Message", parts.note(text), right=close)
    rows = [[name, html.Span(_text(value), className="mono")] for name, value in found.items() if "data" not in name]
    content = html.Pre(
        _body_text(found), className="mono", style={"whiteSpace": "pre-wrap", "overflowWrap": "anywhere"}
    )
    return parts.section(
        f"Message at queue {place.queue}, offset {place.offset}",
        content,
        parts.table(["Attribute", "Value"], rows, empty=""),
        right=close,
    )


def send(sources: Sources, address: str, text: str, who: Credentials | None) -> Any:
    """Publishes a command in the name of the logged-in user, and returns its outcome."""
    assert sources.gateway is not None
    if not address.strip():
        return parts.trouble("Not sent", "A command needs an address.")
    try:
        msgspec.json.decode(text)
        kind = "application/json"
    except msgspec.DecodeError:
        kind = "text/plain; charset=utf-8"
    try:
        position = sources.gateway.publish(address.strip(), text.encode(), kind, who)
    except GatewayRefused as refused:
        return parts.trouble("Not sent", str(refused), color="red")
    return parts.trouble("Sent", f"It is in the log at {position}, as {kind.partition(';')[0]}.", color="green")


def _command(where: PageAddress) -> Any:
    return parts.section(
        "Send a command",
        dmc.Group(
            [
                dmc.TextInput(
                    id="command-address",
                    value=f"commands/{where.device}",
                    style={"flex": "1 1 200px"},
                    label="Address",
                ),
                dmc.TextInput(
                    id="command-body", placeholder='{"reboot": true}', style={"flex": "2 1 260px"}, label="Body"
                ),
                dmc.Button("Send", id="command-send"),
            ],
            align="end",
            mb="sm",
        ),
        html.Div(id="command-answer"),
    )


def _body(reading: Reading, where: PageAddress, now_ms: int) -> DeviceParts:
    values, known = device.latest(reading, where.device), device.state(reading, where.device)
    if not values and known is None:
        text = f"No record of “{where.device}” is in the tables. The fleet lists all devices."
        return DeviceParts(parts.trouble("This device is not known", text))
    if not values:
        none = parts.trouble(
            "No value yet",
            "None of its records had a number or state that counts: they cannot be decoded, or their times are "
            "ahead of the store's clock. The table quality says how many of each, and the page Data quality "
            "shows bodies that cannot be decoded.",
        )
        return DeviceParts(html.Div([_liveness(known, now_ms), none]), lower=html.Div(_more(reading, where, now_ms)))
    names = [row["metric"] for row in values]
    metric = where.query.get("metric", names[0])
    rows = [_row(row, where, metric, now_ms) for row in values]
    lower = [
        parts.section(
            "Last values",
            parts.table(["Metric", "Value", "Reported", "Address", "Queue, offset"], rows, empty="", numbers=(1,)),
        ),
        _raw(reading, where, metric, now_ms),
        *_more(reading, where, now_ms),
    ]
    found = DeviceParts(_liveness(known, now_ms), lower=html.Div(lower))
    if metric not in names:
        text = f"This device reports no “{metric}”; choose one of those below."
        return found._replace(upper=html.Div([found.upper, parts.trouble("No such metric", text)]))
    unit = next(row["unit"] for row in values if row["metric"] == metric) or ""
    head, figure = _chart(reading, where, metric, unit, now_ms)
    return found._replace(chart_head=head, figure=figure)


def _more(reading: Reading, where: PageAddress, now_ms: int) -> list[Any]:
    return [_found(reading, where, now_ms), _quality(reading, where), _sessions(reading, where, now_ms)]


def _liveness(known: Mapping[str, Any] | None, now_ms: int) -> Any:
    if known is None:
        return None
    silent = known["silent_ms"]
    heard = (
        f"every {formatting.duration(1000 * known['interval_s'])}" if known["interval_s"] else "interval not known yet"
    )
    return parts.figures(
        parts.figure(
            "State",
            known["state"],
            f"silent since {formatting.instant(silent)}"
            if silent
            else f"last heard {formatting.ago(known['last_ms'], now_ms)}",
            color=parts.STATES.get(known["state"]),
        ),
        parts.figure(
            "Heard", heard, f"by {known['protocol']}, give or take {formatting.duration(1000 * known['jitter_s'])}"
        ),
        parts.figure("Records", formatting.count(known["records"]), f"since {formatting.instant(known['first_ms'])}"),
        parts.figure("Came back", formatting.count(known["flaps"]), "times within an hour"),
    )


def _chart(reading: Reading, where: PageAddress, metric: str, unit: str, now_ms: int) -> tuple[Any, Any]:
    """Returns the head of the chart, and its figure; None where there is nothing to draw."""
    chosen, zoom = range_named(where.range), where.zoom
    if zoom is not None:
        chosen = range_since(chosen, zoom.from_ms, now_ms)
    found = device.series(reading, where.device, metric, chosen, now_ms)
    export = html.A(
        "CSV",
        href=href("/export/series.csv", device=where.device, metric=metric, range=where.range),
        download="series.csv",
    )
    if found.num_rows == 0:
        text = f"No number was reported in the last {chosen.words}. Choose a longer time range above."
        return html.Div([parts.title(metric, right=export), parts.note(text)]), None
    columns = device.with_gaps(found, chosen.width_ms)
    keep = f"{where.device} {metric} {where.range}"
    marks = [
        (row["time_ms"], row["value"], row["sentence"])
        for row in findings.of_series(reading, where.device, metric, chosen, now_ms)
    ]
    hint = None if zoom else html.Div("Drag over a part of the chart to see its messages.", className="dimmed")
    graph = charts.band(CHART, columns, unit=unit, keep=keep, marks=marks, zoom=zoom)
    return html.Div([parts.title(metric, right=export), hint]), graph.figure


def _raw(reading: Reading, where: PageAddress, metric: str, now_ms: int) -> Any:
    chosen = range_named(where.range)
    rows = device.raw(reading, where.device, metric, chosen, now_ms)
    if rows is None:
        return None
    shown = [
        [
            html.Span(formatting.instant(row["time_ms"]), title=formatting.ago(row["time_ms"], now_ms)),
            f"{row['text'] if row['text'] is not None else formatting.number(row['value'])} {row['unit'] or ''}",
            row["quality"],
            row["protocol"] or "-",
            _place(row, where, metric),
        ]
        for row in rows
    ]
    head = ["Time", "Value", "Quality", "Protocol", "Queue, offset"]
    empty = f"No sample came in the last {chosen.words}."
    return parts.section(f"Newest samples of {metric}", parts.table(head, shown, empty=empty, numbers=(1,)))


def _found(reading: Reading, where: PageAddress, now_ms: int) -> Any:
    chosen = range_named(where.range)
    mine = findings.of_device(reading, where.device, chosen, now_ms, rows_max=FINDINGS_SHOWN)
    if not mine:
        return None
    rows = [
        [
            formatting.instant(row["time_ms"]),
            parts.badge(row["kind"].replace("_", " "), KINDS.get(row["kind"], "blue")),
            row["metric"] or "-",
            row["sentence"],
        ]
        for row in mine
    ]
    link = dcc.Link("All", href=href("/anomalies", device=where.device, range=where.range))
    return parts.section("Anomalies", parts.table(["Time", "Kind", "Metric", "Found"], rows, empty=""), right=link)


def _quality(reading: Reading, where: PageAddress) -> Any:
    found = quality.of_device(reading, where.device)
    if found is None:
        return None
    head = [*(formatting.words(name) for name in COUNTS), "Clock"]
    row = [*(formatting.share(found[name], found[f"{name}_rate"]) for name in COUNTS), formatting.skew(found["skew_s"])]
    link = dcc.Link("All devices", href=href("/quality", range=where.range))
    return parts.section("Quality of its records", parts.table(head, [row], empty=""), right=link)


def _sessions(reading: Reading, where: PageAddress, now_ms: int) -> Any:
    rows = [
        [
            formatting.instant(row["first_ms"]),
            formatting.instant(row["last_ms"]) if row["settled"] else parts.badge("going on", "green"),
            formatting.duration(row["lasted_ms"]),
            formatting.count(row["records"]),
            html.Span(row["address"] or "-", className="mono"),
        ]
        for row in device.sessions(reading, where.device, range_named(where.range), now_ms)
    ]
    if not rows:
        return None
    head = ["From", "To", "Lasted", "Records", "Address"]
    return parts.section("Sessions of activity", parts.table(head, rows, empty="", numbers=(2, 3)))


def _row(row: dict[str, Any], where: PageAddress, chosen: str, now_ms: int) -> list[Any]:
    name = row["metric"]
    shown = row["text"] if row["text"] is not None else formatting.number(row["value"])
    link = dcc.Link(name, href=device_link(where.device, metric=name, range_=where.range, zoom=where.zoom))
    return [
        html.Strong(link) if name == chosen else link,
        f"{shown} {row['unit'] or ''}",
        html.Span(formatting.ago(row["time_ms"], now_ms), title=formatting.instant(row["time_ms"])),
        html.Span(row["address"] or "-", className="mono"),
        _place(row, where, chosen),
    ]


def _place(row: Mapping[str, Any], where: PageAddress, metric: str) -> Any:
    """Returns queue and offset, which lead to the message."""
    text = f"{row['queue']}, {row['offset']}"
    kept = {"metric": metric, "page": where.query.get("page"), "message": str(Place(row["queue"], row["offset"]))}
    link = device_link(where.device, range_=where.range, zoom=where.zoom, **kept, at=row["address"])
    return dcc.Link(text, href=link) if row["address"] else text


def _body_text(found: Mapping[str, Any]) -> str:
    if "data_base64" in found:
        data = base64.b64decode(found["data_base64"])
        text = data[:BODY_CHARS_SHOWN].decode("utf-8", "backslashreplace")
    else:
        data = found.get("data", "")
        text = data if isinstance(data, str) else msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return text[:BODY_CHARS_SHOWN] + ("…" if len(text) > BODY_CHARS_SHOWN else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
