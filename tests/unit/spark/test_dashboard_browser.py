"""Every page of the dashboard in a real Chromium: its texts, its width, and no error on the console."""

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("duckdb")
pytest.importorskip("dash_mantine_components")
pytest.importorskip("waitress")
playwright = pytest.importorskip("playwright.sync_api")
serving = pytest.importorskip("werkzeug.serving")

from spark.dashboard.admin import AdminApi  # noqa: E402
from spark.dashboard.pages.sources import Sources  # noqa: E402
from spark.dashboard.queries.reading import TelemetryTables  # noqa: E402
from spark.dashboard.server import application  # noqa: E402
from tests.support.spark.sample_tables import make_tables  # noqa: E402

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MS = 60_000
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
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: apt-get install chromium"),
]


def gateway(request):
    if request.url.path == "/metrics":
        return httpx.Response(200, text="headgate_subscribers 4.0\n")
    return httpx.Response(200, text=json.dumps(STATUS))


@contextmanager
def served(where, transport):
    admin = AdminApi("http://gateway:8088", transport=transport)
    app = application(Sources(TelemetryTables(where), admin))
    server = serving.make_server("127.0.0.1", 0, app.server, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    where = tmp_path_factory.mktemp("tables")
    make_tables(where, round(time.time() * 1000), devices=30, minutes=90)
    with served(where, httpx.MockTransport(gateway)) as url:
        yield url


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark", "phone"])
def page(chromium, request):
    size = {"width": 390, "height": 844} if request.param == "phone" else {"width": 1280, "height": 900}
    scheme = "dark" if request.param == "dark" else "light"
    context = chromium.new_context(viewport=size, color_scheme=scheme)
    context.set_default_timeout(WAIT_MS)
    opened, errors = context.new_page(), []
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert errors == []


def shows(page, *texts):
    for text in texts:
        page.locator("#page").get_by_text(text).first.wait_for()
    wide, there = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= there, "the page scrolls sideways"


def test_every_page_shows_what_is_in_the_tables(dashboard, page):
    page.goto(f"{dashboard}/")
    shows(page, "Devices alive", "29 of 30", "Records by protocol", "degraded", "replica 2, epoch 4", "is silent")
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(2).wait_for(state="attached")
    page.get_by_role("link", name="Fleet").click()
    shows(page, "30 devices", "sensor-000")
    page.goto(f"{dashboard}/device/sensor-003?metric=humidity&range=6h")
    shows(page, "humidity", "Last values", "telemetry/site1/sensor-003/battery")
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(2).wait_for(state="attached")
    assert page.locator("#range").input_value() == "6 hours"
    page.goto(f"{dashboard}/quality")
    shows(page, "97.80 %", "is no JSON", '{"temperature": 21,')
    page.goto(f"{dashboard}/topics")
    shows(page, "retention_ms=3600000", "8.0 MiB")
    page.goto(f"{dashboard}/explorer")
    page.get_by_role("button", name="Run").click()
    shows(page, "90 rows", "sensor-029")
    page.goto(f"{dashboard}/nowhere")
    shows(page, "There is no such page")


@pytest.mark.parametrize("page", ["light"], indirect=True)
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


@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_what_is_missing_is_said_in_words(tmp_path, page):
    def refused(request):
        raise httpx.ConnectError("Connection refused")

    with served(tmp_path / "none", httpx.MockTransport(refused)) as url:
        page.goto(f"{url}/")
        shows(page, "No tables yet", "headgate spark telemetry", "The gateway is not reached", "Connection refused")
        page.goto(f"{url}/device/x")
        shows(page, "No tables yet")
        page.goto(f"{url}/topics")
        shows(page, "The gateway is not reached")
        page.goto("about:blank")


@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_the_explorer_says_why_a_query_was_not_run(dashboard, page):
    page.goto(f"{dashboard}/explorer")
    page.get_by_label("SQL").fill("SELECT * FROM read_text('/etc/hostname')")
    page.get_by_role("button", name="Run").click()
    shows(page, "The query was not run", "file system operations are disabled")
