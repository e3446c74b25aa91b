"""Pages in a real Chromium: fetch, EventSource and WebSocket, from an origin that is allowed and from another one."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.process.gateways import GatewayProcess

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MS = 60_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: apt-get install chromium"),
]

# Publishes with headers that the browser asks for first, reads, and looks at a header that pages see when told so.
FETCH = """async (url) => {
  const headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/page", "ce-type": "t", "ce-subject": "page/a"};
  headers["content-type"] = "application/json";
  const posted = await fetch(`${url}/events`, {method: "POST", headers, body: JSON.stringify({n: 1})});
  const last = await fetch(`${url}/topics/page/a`);
  return {posted: posted.status, read: await last.json(), tag: last.headers.get("etag") !== null};
}"""
# Two events by one stream; the second comes when the first is there.
EVENTS = """(url) => new Promise((done, failed) => {
  const headers = {"content-type": "application/json"};
  const found = [], source = new EventSource(`${url}/subscribe?filter=page/events`);
  const publish = (n) => fetch(`${url}/topics/page/events`, {method: "POST", headers, body: JSON.stringify({n})});
  source.onopen = () => publish(1);
  source.onerror = () => failed("the stream has ended");
  source.onmessage = (event) => {
    found.push([JSON.parse(event.data).data.n, event.lastEventId !== ""]);
    if (found.length === 2) { source.close(); done(found); } else publish(2);
  };
})"""
SOCKET = """(url) => new Promise((done, failed) => {
  const socket = new WebSocket(`${url.replace("http", "ws")}/subscribe?filter=page/socket`, "cloudevents.json");
  const event = {specversion: "1.0", id: "7", source: "/page", type: "t", subject: "page/socket", data: {n: 7}};
  socket.onopen = () => socket.send(JSON.stringify(event));
  socket.onerror = () => failed("refused");
  socket.onmessage = (message) => { socket.close(); done([socket.protocol, JSON.parse(message.data).data.n]); };
})"""
REFUSED = """async (url) => {
  const said = {};
  said.posted = await fetch(`${url}/topics/page/evil`, {method: "POST", body: "x"}).then((a) => a.type, (e) => e.name);
  said.read = await fetch(`${url}/topics/page/a`).then((a) => a.type, (e) => e.name);
  said.socket = await new Promise((done) => {
    const socket = new WebSocket(`${url.replace("http", "ws")}/subscribe?filter=%23`, "cloudevents.json");
    socket.onopen = () => done("open");
    socket.onerror = () => done("refused");
  });
  return said;
}"""


# Refusals before there is a handler: a page reads the problem documents of those as of others.
EARLY = """async (url) => {
  const told = async (made) => { const answer = await made; return [answer.status, (await answer.json()).status]; };
  const large = {"x-large": "y".repeat(70000)};
  return [
    await told(fetch(`${url}/topics/page/large`, {method: "POST", body: "x".repeat(2000000)})),
    await told(fetch(`${url}/topics?prefix=${"a".repeat(70000)}`)),
    await told(fetch(`${url}/topics`, {headers: large})),
  ];
}"""


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def origins() -> Iterator[list[str]]:
    """Yields two origins; the gateway allows the first."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Page) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, origins: list[str]) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("browser")
    file = directory / "headgate.toml"
    file.write_text(f'[adapters.http]\ncors_origins = ["{origins[0]}"]\nmax_body_bytes = 1_000_000\n')
    made = GatewayProcess(directory / "data", "--config", str(file)).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield launched
        launched.close()


def at(browser: Any, origin: str) -> Any:
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(origin)
    return page


def test_a_page_of_an_allowed_origin_publishes_reads_and_subscribes(
    browser: Any, origins: list[str], gateway: GatewayProcess
) -> None:
    page = at(browser, origins[0])
    assert page.evaluate(FETCH, gateway.url) == {"posted": 200, "read": {"n": 1}, "tag": True}
    assert page.evaluate(EVENTS, gateway.url) == [[1, True], [2, True]]
    assert page.evaluate(SOCKET, gateway.url) == ["cloudevents.json", 7]


def test_a_page_of_an_allowed_origin_reads_early_refusals(
    browser: Any, origins: list[str], gateway: GatewayProcess
) -> None:
    page = at(browser, origins[0])
    assert page.evaluate(EARLY, gateway.url) == [[413, 413], [414, 414], [431, 431]]


def test_a_page_of_another_origin_does_nothing(browser: Any, origins: list[str], gateway: GatewayProcess) -> None:
    page = at(browser, origins[1])
    assert page.evaluate(REFUSED, gateway.url) == {"posted": "TypeError", "read": "TypeError", "socket": "refused"}
    allowed = at(browser, origins[0])
    status = allowed.evaluate("(url) => fetch(`${url}/topics/page/evil`).then((a) => a.status)", gateway.url)
    assert status == 404, "nothing was stored"
