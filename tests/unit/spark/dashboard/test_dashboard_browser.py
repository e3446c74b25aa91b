"""Every page of the dashboard in a real Chromium: its texts, its width, and no error on the console."""

import json
import re
import socket
import struct
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("duckdb")
pytest.importorskip("dash_mantine_components")
playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("waitress")

from spark.dashboard.clients.admin import AdminApi  # noqa: E402
from spark.dashboard.clients.gateway import GatewayApi  # noqa: E402
from spark.dashboard.pages.sources import Sources  # noqa: E402
from spark.dashboard.queries.reading import TelemetryTables  # noqa: E402
from spark.dashboard.server import application, wsgi_server  # noqa: E402
from tests.support.spark.dashboard_server import in_a_thread  # noqa: E402
from tests.support.spark.message_log import MessageLog  # noqa: E402
from tests.support.spark.sample_tables import make_tables, samples  # noqa: E402

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MS = 180_000
PNG = b"\x89PNG\r\n\x1a\n"
STATUS = {
    "version": "0.1.0",
    "ready": True,
    "warnings": ["replica 3 of store group 1 is silent"],
    "uptime_s": 7_300.0,
    "connections": {"mqtt": 12, "http": 3},
    "stored": {"mqtt": 920, "http": 307},
    "topics": [{"name": "telemetry", "queues": 8, "records": 1_227, "config": "retention_ms=3600000"}],
    "log": {"end": 9_000_000, "confirmed": 8_388_608},
    "groups": [{"number": 1, "master": 2, "master_epoch": 4, "sync_set": [1, 2], "writable": True, "troubles": []}],
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: apt-get install chromium"),
]


SESSION = {
    "protocol": "mqtt",
    "client": "sensor-003",
    "user": "fleet",
    "state": "connected",
    "peer": "10.0.0.7:5012",
    "listener": "mqtt",
    "expiry_s": 3_600,
    "left_ms": None,
    "subscriptions": [{"filter": "commands/sensor-003/#", "qos": 1}, {"filter": "open/+", "qos": None}],
    "partial": True,
}
AWAY = SESSION | {"client": "sensor-003-old", "state": "away", "left_ms": 1, "expiry_s": None, "subscriptions": None}


def gateway(request):
    if request.url.path == "/metrics":
        return httpx.Response(200, text="headgate_subscribers 4.0\n")
    if request.url.path == "/sessions":
        rows = [SESSION, AWAY] if request.url.params["client"] == "sensor-003" else []
        return httpx.Response(200, json={"rows": rows, "more": False})
    return httpx.Response(200, text=json.dumps(STATUS))


class HttpPort:
    """The gateway's HTTP port: a group that lags, one message, and commands."""

    def __init__(self):
        self.commands = []

    def __call__(self, request):
        path = request.url.path
        if path == "/groups":
            return httpx.Response(200, json=[{"group": "billing", "topic": "telemetry", "strategy": "averaged"}])
        if path == "/groups/billing":
            queues = [{"queue": 16, "offset": 10, "end": 52, "lag": 42, "member": "m1"}]
            found = {"group": "billing", "topic": "telemetry", "members": ["m1"], "queues": queues, "lag": 42}
            return httpx.Response(200, json=found)
        if path == "/messages":
            offset = request.url.params["offset"]
            event = {"id": "7.0", "type": "t", "headgateoffset": offset, "data": {"temperature": 21.5}}
            return httpx.Response(200, json=[event])
        if path.startswith("/topics/forbidden"):
            return httpx.Response(403, json={"title": "Forbidden", "detail": "no rule allows it"})
        self.commands.append((path, request.headers["content-type"], request.content))
        return httpx.Response(201, json={"id": "7.0", "position": "7.0"})


def empty(environ, start_response):
    """Answers the page that keeps the browser's process."""
    start_response("200 OK", [("content-type", "text/plain")])
    return [b""]


class Served:
    """One server for all tests, whose address stays: a browser's process compiles the scripts of an address once."""

    def __init__(self):
        self.shown = empty  # the WSGI application of the test
        self.url = ""

    @property
    def server(self):
        return self

    def __call__(self, environ, start_response):
        return self.shown(environ, start_response)

    @contextmanager
    def running(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = wsgi_server(self, listening)
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with in_a_thread(server):
                yield self

    @contextmanager
    def dashboard(self, where, transport, port=None):
        """Shows tables, a gateway's admin API and its HTTP port at the address of the server."""
        admin = AdminApi("http://gateway:8088", transport=transport)
        port = GatewayApi("http://gateway:8080", transport=httpx.MockTransport(port or HttpPort()))
        before, self.shown = self.shown, application(Sources(TelemetryTables(where), admin, gateway=port)).server
        try:
            yield self.url
        finally:
            self.shown = before


@pytest.fixture(scope="module")
def served():
    with Served().running() as running:
        yield running


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    where = tmp_path_factory.mktemp("tables")
    make_tables(where, round(time.time() * 1000), devices=30, minutes=90)
    return where


@pytest.fixture
def dashboard(served, tables):
    with served.dashboard(tables, httpx.MockTransport(gateway)) as url:
        yield url


@pytest.fixture(scope="module")
def chromium(served):
    """Yields a browser with one process for all pages, and a page that keeps the process, with its compiled scripts."""
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--process-per-site"])
        context = browser.new_context()
        context.new_page().goto(f"{served.url}/")
        yield context
        browser.close()


@pytest.fixture(params=["light", "dark", "phone"])
def kind(request):
    return request.param


def opened(browser, kind):
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.set_viewport_size({"width": 390, "height": 844} if kind == "phone" else {"width": 1280, "height": 900})
    page.emulate_media(color_scheme="dark" if kind == "dark" else "light")
    return page


@pytest.fixture
def page(chromium, kind):
    page, errors = opened(chromium, kind), []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def shows(page, *texts):
    for text in texts:
        page.locator("#page").get_by_text(text).first.wait_for()
    # A chart gets its width behind its words.
    page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")


def test_every_page_shows_what_is_in_the_tables(dashboard, page):
    page.goto(f"{dashboard}/")
    shows(page, "Devices alive", "29 of 30", "Records by protocol", "degraded", "replica 2, epoch 4", "is silent")
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(2).wait_for(state="attached")
    page.get_by_role("link", name="Fleet").click()
    shows(page, "30 devices", "sensor-000")
    page.goto(f"{dashboard}/device/sensor-003?metric=humidity&range=6h")
    shows(page, "humidity", "Last values", "telemetry/site1/sensor-003/battery")
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(2).wait_for(state="attached")
    shows(page, "commands/sensor-003/#", "10.0.0.7:5012", "kept for 1 h after its connection", "kept for ever")
    shows(page, "and others, which are not shown", "they cannot be read by this version of the gateway")
    assert page.locator("#range").input_value() == "6 hours"
    client = page.locator("td .mono", has_text=re.compile("^sensor-003$"))
    assert client.evaluate("cell => cell.getBoundingClientRect().width") < 120, (
        "the user stands beside the client's name"
    )
    page.goto(f"{dashboard}/quality")
    shows(page, "97.80 %", "is no JSON", '{"temperature": 21,', "Out of order", "12 (10.00 %)", "1 min behind")
    page.goto(f"{dashboard}/topics")
    shows(page, "retention_ms=3600000", "8.0 MiB", "1 h", "billing", "16: 42")
    page.get_by_role("link", name="Anomalies").click()
    shows(page, "48.25 is 31.4 sigmas", "nothing was heard for 90 s")
    page.goto(f"{dashboard}/explorer")
    page.get_by_role("button", name="Run").click()
    shows(page, "90 rows", "sensor-029")
    page.goto(f"{dashboard}/device/sensor-000?metric=temperature")
    shows(page, "last heard", "Newest samples of temperature", "48.25 is 31.4 sigmas", "Send a command")
    shows(page, "The gateway has no connection and no session of a client “sensor-000”.")
    page.goto(f"{dashboard}/nowhere")
    shows(page, "There is no such page")


@pytest.mark.parametrize("kind", ["light"], indirect=True)
def test_the_fleet_is_searched_sorted_and_paged(dashboard, page):
    page.goto(f"{dashboard}/fleet")
    shows(page, "sensor-000")
    page.get_by_role("button", name="Device").click()
    shows(page, "sensor-029")
    page.get_by_role("button", name="2", exact=True).click()
    shows(page, "sensor-000")
    page.get_by_label("Search").fill("SENSOR-007")
    shows(page, "1 device", "sensor-007")
    page.get_by_role("link", name="sensor-007").click()
    page.wait_for_url("**/device/sensor-007")
    shows(page, "Last values")
    page.get_by_role("link", name="temperature").click()
    page.wait_for_url("**/device/sensor-007?metric=temperature")
    page.locator("#range").click()
    page.get_by_role("option", name="24 hours").click()
    page.wait_for_url("**/device/sensor-007?metric=temperature&range=24h")
    shows(page, "Last values")


@pytest.mark.parametrize("kind", ["light"], indirect=True)
def test_what_is_missing_is_said_in_words(served, tmp_path, page):
    def refused(request):
        raise httpx.ConnectError("Connection refused")

    with served.dashboard(tmp_path / "none", httpx.MockTransport(refused)) as url:
        page.goto(f"{url}/")
        shows(page, "No tables yet", "headgate spark telemetry", "The gateway is not reached", "Connection refused")
        page.goto(f"{url}/device/x")
        shows(
            page,
            "No tables yet",
            "They are not shown",
            "The gateway's admin API at http://gateway:8088 does not answer",
        )
        page.goto(f"{url}/topics")
        shows(page, "The gateway is not reached")
        page.goto("about:blank")


@pytest.mark.parametrize("kind", ["light"], indirect=True)
def test_the_explorer_says_why_a_query_was_not_run(dashboard, page):
    page.goto(f"{dashboard}/explorer")
    page.get_by_label("SQL").fill("SELECT * FROM read_text('/etc/hostname')")
    page.get_by_role("button", name="Run").click()
    shows(page, "The query was not run", "file system operations are disabled")


@pytest.mark.parametrize("kind", ["light"], indirect=True)
def test_messages_are_shown_by_offset_and_commands_sent(served, tmp_path, page):
    make_tables(tmp_path, round(time.time() * 1000), devices=2, minutes=40)
    port = HttpPort()
    with served.dashboard(tmp_path, httpx.MockTransport(gateway), port) as url:
        page.goto(f"{url}/device/sensor-000?metric=temperature")
        shows(page, "Newest samples of temperature")
        page.locator("a[href*='message=']").first.click()
        shows(page, "Message at", '"temperature": 21.5')
        page.get_by_role("link", name="Close").click()
        page.get_by_text("Message at").wait_for(state="detached")
        page.get_by_label("Body").fill('{"reboot": true}')
        page.get_by_role("button", name="Send").click()
        shows(page, "It is in the log at 7.0, as application/json.")
        page.get_by_label("Address").fill("forbidden/sensor-000")
        page.get_by_role("button", name="Send").click()
        shows(page, "Clients without a name may not do that: no rule allows it.")
        page.close()  # its refresh would ask a server that is gone
    assert port.commands == [("/topics/commands/sensor-000", "application/json", b'{"reboot": true}')]


def drag(page, start, end):
    """Draws over a part of the first chart, between two shares of its width."""
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(2).wait_for(state="attached")
    area = page.locator(".js-plotly-plot .nsewdrag").first
    page.wait_for_function(
        "() => document.querySelector('.js-plotly-plot .nsewdrag').getBoundingClientRect().width > 0"
    )
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], middle, steps=5)
    page.mouse.up()


def span_ms(page):
    """Returns the length of the time that the first chart shows."""
    return page.evaluate(
        "() => { const [a, b] = document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range;"
        " return new Date(b) - new Date(a); }"
    )


@pytest.mark.parametrize("kind", ["light", "phone"], indirect=True)
def test_a_part_of_a_chart_that_is_drawn_over_shows_its_messages_and_is_a_link(served, tmp_path, page, kind):
    now_ms = round(time.time() * 1000)
    make_tables(tmp_path, now_ms, devices=2, minutes=80)
    log = MessageLog(samples(now_ms, 2, 80))
    with served.dashboard(tmp_path, httpx.MockTransport(gateway), log) as url:
        page.goto(f"{url}/device/sensor-000?metric=temperature&range=6h")
        shows(page, "Drag over a part of the chart to see its messages.")
        drag(page, 0.2, 0.3)
        page.wait_for_url(re.compile("from=.*to="))
        title = page.locator("#device-raw h3")
        title.wait_for()
        shows(page, "Next page", "temperature ", "telemetry", "mqtt")
        assert title.inner_text().startswith("Messages from ")
        assert 6 * 60_000 < span_ms(page) < 10 * 60_000
        count, asked = page.locator("#device-raw tbody tr").count(), len(log.asked)
        assert (count, asked >= 1) == (25, True)
        page.get_by_role("link", name="Next page").click()
        shows(page, "First page")
        page.locator("#device-raw tbody a").first.click()
        shows(page, "Message at queue 16, offset ")
        link, words = page.url, title.inner_text()

        other = opened(page.context, kind)
        other.goto(link)
        shows(other, words, "Message at queue 16, offset ", "First page")
        other.locator(".js-plotly-plot .scatterlayer .trace").nth(2).wait_for(state="attached")
        assert abs(span_ms(other) - span_ms(page)) < 1_000
        other.close()

        page.locator("#device-message").get_by_role("link", name="Close").click()
        page.locator("#device-message h3").wait_for(state="detached")
        shows(page, words)
        page.locator("#device-raw").get_by_role("link", name="Close").click()
        title.wait_for(state="detached")
        page.wait_for_function(
            "() => { const [a, b] = document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range;"
            " return new Date(b) - new Date(a) > 3600000; }"
        )
        page.close()  # its refresh would ask a server that is gone
    assert {asked["queue"] for asked in log.asked} == {"16"}


@pytest.mark.parametrize("kind", ["light"], indirect=True)
def test_anomalies_are_chosen_by_device_and_kind_and_exported(dashboard, page):
    page.goto(f"{dashboard}/anomalies?kind=silent")
    shows(page, "nothing was heard for 90 s")
    assert page.get_by_text("31.4 sigmas").count() == 0
    export = page.locator("#anomalies-csv").get_attribute("href")
    text = httpx.get(f"{dashboard}{export}", trust_env=False).text
    assert "sensor-001" in text
    assert "spike" not in text
    page.goto(f"{dashboard}/anomalies?device=SENSOR-000")
    shows(page, "48.25 is 31.4 sigmas")
    page.get_by_role("link", name="sensor-000").click()
    page.wait_for_url("**/device/sensor-000?metric=temperature")
    shows(page, "Last values")


@pytest.mark.parametrize("kind", ["light"], indirect=True)
def test_the_camera_above_a_chart_saves_it_as_png(dashboard, page, tmp_path):
    page.goto(f"{dashboard}/device/sensor-003?metric=humidity&range=6h")
    shows(page, "Last values")
    chart = page.locator(".js-plotly-plot").first
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(2).wait_for(state="attached")
    chart.hover()
    with page.expect_download() as saved:
        chart.locator(".modebar-btn[data-title*='PNG' i]").click()
    assert saved.value.suggested_filename.endswith(".png")
    saved.value.save_as(tmp_path / "chart.png")
    picture = (tmp_path / "chart.png").read_bytes()
    assert picture.startswith(PNG)
    width, height = struct.unpack("!II", picture[16:24])  # of IHDR, the first chunk (PNG, 11.2.2)
    assert width > 300
    assert height > 100
    assert picture.endswith(b"IEND\xae\x42\x60\x82")
