"""The application and its process: addresses to pages, refreshes, CSV files, and the HTTP server."""

import functools
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
from dash import ALL, Dash, Input, Output, State, ctx, no_update
from flask import Flask, Response, request
from werkzeug.routing import PathConverter

from spark.dashboard import connections
from spark.dashboard.clients.admin import AdminApi
from spark.dashboard.clients.gateway import GatewayApi
from spark.dashboard.guard import EXPORTS, CheckPassword, credentials, guard, is_loopback
from spark.dashboard.layout import charts, parts
from spark.dashboard.layout.frame import frame
from spark.dashboard.layout.links import PageAddress
from spark.dashboard.pages import anomalies, device, explorer, fleet, overview, quality, raw_messages, topics
from spark.dashboard.pages.sources import Sources
from spark.dashboard.queries import device as device_queries
from spark.dashboard.queries import explorer as explorer_queries
from spark.dashboard.queries import findings as findings_queries
from spark.dashboard.queries import fleet as fleet_queries
from spark.dashboard.queries.csv_export import to_csv
from spark.dashboard.queries.reading import Reading, TelemetryTables
from spark.dashboard.queries.time_ranges import DEFAULT_RANGE, range_named
from spark.decode.rules import DecodeRules, load_rules
from spark.errors import BadOption, SparkError

THREADS_COUNT = 6
BODY_BYTES_MAX = 1024 * 1024  # of a request
TITLE = "Headgate"

_PAGES: Mapping[str, Callable[[PageAddress, Sources], Any]] = {
    "overview": overview.page,
    "fleet": fleet.page,
    "device": device.page,
    "anomalies": anomalies.page,
    "topics": topics.page,
    "quality": quality.page,
    "explorer": explorer.page,
}


class _AnyPath(PathConverter):
    """Takes line breaks too: a device's name may have any character."""

    regex = r"(?s:[^/].*?)"


class DashboardOptions(NamedTuple):
    """The addresses of the dashboard, of the tables and of the gateway."""

    tables: str
    storage_options: Mapping[str, str] = {}
    admin: str = "http://127.0.0.1:8088"
    gateway: str = "http://127.0.0.1:8080"  # its HTTP port: consumer groups, messages, commands
    host: str = "127.0.0.1"
    port: int = 8050
    check: CheckPassword | None = None  # None: no login, which loopback alone allows
    rules: Path | None = None  # a file with the job's [[devices]] and [[decode]]


def run(options: DashboardOptions, *, ready: Callable[[str], None]) -> None:
    """Serves the dashboard until the process is stopped; `ready` gets its address. Raises `SparkError`."""
    if options.check is None and not is_loopback(options.host):
        raise BadOption(
            "host",
            f"cannot be {options.host} without users: everybody there could read the tables. Name the gateway's file "
            "with --config, whose [auth.users] log in, or listen on 127.0.0.1",
        )
    try:
        tables = TelemetryTables(options.tables, options.storage_options)
    except BadOption as error:
        raise BadOption("tables", error.why) from error
    for name, url, port in (("gateway", options.gateway, "HTTP port"), ("admin", options.admin, "admin port")):
        if not is_url(url):
            raise BadOption(name, f"cannot be {url}: the URL of the gateway's {port}, as http://127.0.0.1:8080")
    rules = DecodeRules() if options.rules is None else load_rules(options.rules)
    sources = Sources(tables, AdminApi(options.admin), gateway=GatewayApi(options.gateway), rules=rules)
    app = application(sources, check=options.check)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listening = socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        why = error.strerror or error
        raise SparkError(f"the dashboard cannot listen on {options.host}:{options.port}: {why}; see --port") from error
    server = wsgi_server(app, listening)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    ready(f"http://{shown}:{listening.getsockname()[1]}/")
    server.run()


def wsgi_server(app: Dash, listening: socket.socket) -> Any:
    """Returns the server of an application at a socket; its `run` serves until the process is stopped."""
    return connections.create(
        app.server,
        sockets=[listening],
        threads=THREADS_COUNT,
        max_request_body_size=BODY_BYTES_MAX,
        ident="headgate",
    )


def is_url(text: str) -> bool:
    """Returns whether a text is the URL of a host."""
    try:
        return httpx.URL(text).scheme in ("http", "https") and bool(httpx.URL(text).host)
    except httpx.InvalidURL:
        return False


def application(sources: Sources, *, check: CheckPassword | None = None) -> Dash:
    """Returns the application over some tables and a gateway; its `server` is a WSGI application."""
    flask = Flask(__name__)
    flask.url_map.converters["path"] = _AnyPath
    app = Dash(
        __name__, server=False, title=TITLE, update_title="", suppress_callback_exceptions=True, assets_folder="assets"
    )
    app.init_app(flask)
    app.layout = frame()
    guard(app.server, check=check)
    _frame(app, sources)
    _bodies(app, sources)
    _fleet(app, sources)
    _anomalies(app, sources)
    _device(app, sources)
    _explorer(app, sources)
    _exports(app, sources)
    return app


def _frame(app: Dash, sources: Sources) -> None:
    in_browser: Callable[..., None] = app.clientside_callback

    @app.callback(
        Output("page", "children"),
        Output("shown", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        State("shown", "data"),
    )
    def _show(pathname: str, search: str, shown: list[object] | None) -> tuple[Any, Any]:
        where = PageAddress.parse(pathname, search)
        made_of = where.shown
        if made_of == shown:
            return no_update, no_update  # a part of the page follows by itself, and the rest stays where it is
        make = _PAGES.get(where.page)
        if make is None:
            return parts.trouble("There is no such page", f"{pathname} is no page of the dashboard."), made_of
        return make(where, sources), made_of

    @app.callback(Output("tick", "interval"), Output("tick", "disabled"), Input("refresh", "value"))
    def _pace(seconds: str) -> tuple[Any, bool]:
        return (int(seconds) * 1000, False) if seconds in {"5", "30"} else (no_update, True)

    # The range is in the address and in its field; whichever was changed last gives it to the other.
    in_browser(
        f"""(search, range) => {{
            const none = window.dash_clientside.no_update, query = new URLSearchParams(search);
            const there = query.get("range") || "{DEFAULT_RANGE}";
            if (there === range) return [none, none];
            if (window.dash_clientside.callback_context.triggered_id !== "range") return [none, there];
            if (range === "{DEFAULT_RANGE}") query.delete("range"); else query.set("range", range);
            ["from", "to", "page"].forEach(name => query.delete(name));
            const text = query.toString();
            return [text ? "?" + text : "", none];
        }}""",
        Output("url", "search"),
        Output("range", "value"),
        Input("url", "search"),
        Input("range", "value"),
    )
    # Links of the frame keep the range, and show which page this is.
    in_browser(
        f"""(path, search, ids) => {{
            const range = new URLSearchParams(search).get("range");
            const tail = range && range !== "{DEFAULT_RANGE}" ? "?range=" + encodeURIComponent(range) : "";
            return [ids.map(id => id.path + tail),
                    ids.map(id => "page-link" + (id.path === path ? " here" : ""))];
        }}""",
        Output({"type": "link", "path": ALL}, "href"),
        Output({"type": "link", "path": ALL}, "className"),
        Input("url", "pathname"),
        Input("url", "search"),
        State({"type": "link", "path": ALL}, "id"),
    )


def _bodies(app: Dash, sources: Sources) -> None:
    @app.callback(Output("overview-body", "children"), Input("tick", "n_intervals"), Input("range", "value"))
    def _overview(_tick: int, range_name: str) -> Any:
        return overview.body(sources, range_name)

    @app.callback(Output("quality-body", "children"), Input("tick", "n_intervals"), Input("range", "value"))
    def _quality(_tick: int, range_name: str) -> Any:
        return quality.body(sources, range_name)

    @app.callback(Output("topics-body", "children"), Input("tick", "n_intervals"))
    def _topics(_tick: int) -> Any:
        return topics.body(sources, credentials())

    @app.callback(
        Output("device-body", "children"),
        Output("device-chart", "style"),
        Output("device-chart-head", "children"),
        Output(device.CHART, "figure"),
        Output(device.CHART, "style"),
        Output("device-more", "children"),
        Input("tick", "n_intervals"),
        Input("url", "search"),
        State("url", "pathname"),
    )
    def _device(_tick: int, search: str, pathname: str) -> Any:
        found = device.body(sources, PageAddress.parse(pathname, search), credentials())
        chart = {} if found.chart_head is not None else device.HIDDEN
        graph = {**charts.SHOWN, **({} if found.figure is not None else device.HIDDEN)}
        return found.upper, chart, found.chart_head, found.figure or {}, graph, found.lower


def _fleet(app: Dash, sources: Sources) -> None:
    @app.callback(
        Output("fleet-sort", "data"),
        Input({"type": "fleet-by", "column": ALL}, "n_clicks"),
        State("fleet-sort", "data"),
        prevent_initial_call=True,
    )
    def _sort(clicks: list[int | None], before: dict[str, Any]) -> Any:
        return fleet.sorted_by(before, ctx.triggered_id["column"]) if any(clicks) else no_update

    @app.callback(
        Output("fleet-body", "children"),
        Output("fleet-page", "total"),
        Output("fleet-csv", "href"),
        Input("tick", "n_intervals"),
        Input("fleet-search", "value"),
        Input("fleet-sort", "data"),
        Input("fleet-page", "value"),
        State("range", "value"),
    )
    def _devices(_tick: int, search: str | None, order: dict[str, Any], page: int, range_name: str) -> Any:
        return fleet.body(sources, search or "", order, page, range_name)


def _anomalies(app: Dash, sources: Sources) -> None:
    @app.callback(
        Output("anomalies-body", "children"),
        Output("anomalies-csv", "href"),
        Input("tick", "n_intervals"),
        Input("anomalies-search", "value"),
        Input("anomalies-kind", "value"),
        Input("range", "value"),
    )
    def _anomalies(_tick: int, search: str | None, kind: str | None, range_name: str) -> Any:
        return anomalies.body(sources, search or "", kind or "", range_name)


def _device(app: Dash, sources: Sources) -> None:
    @app.callback(Output("device-message", "children"), Input("url", "pathname"), Input("url", "search"))
    def _message(pathname: str, search: str) -> Any:
        return device.message(sources, PageAddress.parse(pathname, search), credentials())

    @app.callback(Output("device-raw", "children"), Input("url", "pathname"), Input("url", "search"))
    def _raw(pathname: str, search: str) -> Any:
        return raw_messages.of_zoom(sources, PageAddress.parse(pathname, search), credentials())

    in_browser: Callable[..., None] = app.clientside_callback
    # A part of the chart that is drawn over is in the address. Plotly's times are of UTC, without a zone.
    in_browser(
        """(moved, search) => {
            const none = window.dash_clientside.no_update, query = new URLSearchParams(search);
            if (!moved) return none;
            const ends = [moved["xaxis.range[0]"], moved["xaxis.range[1]"]];
            if (ends[0] !== undefined && ends[1] !== undefined) {
                const [from, to] = ends.map(text => {
                    const [date, time] = String(text).split(" ");
                    return new Date(date + "T" + (time || "00:00").slice(0, 12) + "Z").toISOString();
                });
                query.set("from", from); query.set("to", to);
            } else if (moved["xaxis.autorange"] && query.has("from")) {
                query.delete("from"); query.delete("to");
            } else return none;
            ["page", "message", "at"].forEach(name => query.delete(name));
            const text = query.toString();
            return text ? "?" + text : "";
        }""",
        Output("url", "search", allow_duplicate=True),
        Input(device.CHART, "relayoutData"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    # A link leads to the top, where a message is shown, and another page of messages is not: that is brought into view.
    in_browser(
        """(made, search) => {
            const query = new URLSearchParams(search);
            if (made && query.has("page") && !query.has("message"))
                document.getElementById("device-raw").scrollIntoView({block: "start"});
        }""",
        Input("device-raw", "children"),
        State("url", "search"),
    )

    @app.callback(
        Output("command-answer", "children"),
        Input("command-send", "n_clicks"),
        State("command-address", "value"),
        State("command-body", "value"),
        prevent_initial_call=True,
        running=[(Output("command-send", "loading"), True, False)],
    )
    def _send(clicks: int | None, address: str | None, text: str | None) -> Any:
        return device.send(sources, address or "", text or "", credentials()) if clicks else no_update


def _explorer(app: Dash, sources: Sources) -> None:
    @app.callback(
        Output("explorer-body", "children"),
        Input("explorer-run", "n_clicks"),
        State("explorer-sql", "value"),
        prevent_initial_call=True,
        running=[(Output("explorer-run", "loading"), True, False)],
    )
    def _run(clicks: int | None, sql: str) -> Any:
        return explorer.body(sources, sql) if clicks else no_update

    @app.callback(Output("explorer-sql", "value"), Input("explorer-example", "value"), prevent_initial_call=True)
    def _example(name: str | None) -> Any:
        return explorer_queries.EXAMPLES.get(name or "", no_update)


def _exports(app: Dash, sources: Sources) -> None:
    def series(reading: Reading) -> pa.Table:
        wanted = [request.args.get(name, "") for name in ("device", "metric")]
        chosen = range_named(request.args.get("range"))
        return device_queries.series(reading, wanted[0], wanted[1], chosen, sources.now_ms)

    def found(reading: Reading) -> pa.Table:
        wanted = request.args.get("device", ""), request.args.get("kind", "")
        return findings_queries.all_findings(reading, wanted, range_named(request.args.get("range")), sources.now_ms)

    files: Mapping[str, Callable[[Reading], pa.Table]] = {
        "fleet": lambda reading: fleet_queries.every_device(reading, request.args.get("search", "")),
        "anomalies": found,
        "series": series,
        "explorer": lambda reading: explorer_queries.explore(reading, request.args.get("sql", "")).rows,
    }
    for name, make in files.items():
        view = functools.partial(_csv, sources, make)
        app.server.add_url_rule(f"{EXPORTS}{name}.csv", f"export-{name}", view)


def _csv(sources: Sources, make: Callable[[Reading], pa.Table]) -> Response:
    try:
        with sources.tables.read() as reading:
            return Response(to_csv(make(reading)), content_type="text/csv; charset=utf-8")
    except SparkError as error:
        return Response(f"{error}\n", 400, content_type="text/plain; charset=utf-8")
