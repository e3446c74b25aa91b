"""Real HTTP clients against a whole gateway: httpx, curl where it is installed, and the CloudEvents SDK."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_binary_event,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
CURL = shutil.which("curl")
OPENSSL = shutil.which("openssl")
NODE = shutil.which("node")
LARGE = bytes(range(256)) * 3000  # 768 kB: more than any window that a client begins with
numbers = count(1)
needs_curl = pytest.mark.skipif(CURL is None, reason="curl is not installed")


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def client(request: pytest.FixtureRequest, shared_gateway: Any) -> Iterator[httpx.Client]:
    http2 = request.param == "HTTP/2"
    with httpx.Client(
        base_url=shared_gateway.url, http1=not http2, http2=http2, timeout=TIMEOUT_S, trust_env=False
    ) as opened:
        assert opened.get("/topics").http_version == request.param
        yield opened


@pytest.fixture
def address() -> str:
    return f"interop-http/{next(numbers)}"


def test_a_message_and_its_last_value(client: httpx.Client, address: str) -> None:
    answer = client.post(f"/topics/{address}?qos=1", content=b'{"v":1}', headers={"content-type": "application/json"})
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/topics/{address}"
    last = client.get(answer.headers["location"])
    assert (last.content, last.headers["ce-id"]) == (b'{"v":1}', answer.json()["id"])
    tag = {"if-none-match": last.headers["etag"]}
    assert client.get(f"/topics/{address}", headers=tag).status_code == 304
    assert client.head(f"/topics/{address}").headers["content-length"] == "7"


def test_a_large_body(client: httpx.Client, address: str) -> None:
    assert client.post(f"/topics/{address}", content=LARGE).status_code == 201
    assert client.get(f"/topics/{address}").content == LARGE
    chunks = (LARGE[at : at + 10_000] for at in range(0, len(LARGE), 10_000))
    assert client.post(f"/topics/{address}", content=chunks).status_code == 201
    assert client.get(f"/topics/{address}").content == LARGE


def test_a_body_too_large_is_refused(client: httpx.Client, address: str) -> None:
    answer = client.post(f"/topics/{address}", content=b"x" * (5 << 20))
    assert answer.status_code == 413
    assert answer.json()["title"] == "Content Too Large"


def test_the_sdk_writes_and_reads_events(client: httpx.Client, address: str) -> None:
    attributes = {"source": "/sdk", "type": "com.example.reading", "subject": address, "colour": "rote Grütze %"}
    for write in (to_binary_event, to_structured_event):
        sent = CloudEvent(dict(attributes), {"celsius": 21.5})
        message = write(sent)
        assert client.post("/events", content=message.body, headers=message.headers).status_code == 200
        binary = client.get(f"/topics/{address}")
        structured = client.get(f"/topics/{address}", headers={"accept": "application/cloudevents+json"})
        # The JSON format implies the type of data that says none; binary mode says it (CloudEvents 1.0.2, 3.1.1).
        implied = {"datacontenttype": "application/json"} if write is to_structured_event else {}
        for received, more in (
            (from_binary_event(HTTPMessage(dict(binary.headers), binary.content)), implied),
            (from_structured_event(HTTPMessage(dict(structured.headers), structured.content)), {}),
        ):
            assert received.get_attributes() == sent.get_attributes() | more
            assert received.get_data() == sent.get_data()


def test_a_batch(client: httpx.Client, address: str) -> None:
    events = [
        {"specversion": "1.0", "id": f"b{n}", "source": "/batch", "type": "t", "subject": address, "data": n}
        for n in range(10)
    ]
    kind = {"content-type": "application/cloudevents-batch+json"}
    answer = client.post("/events", content=json.dumps(events), headers=kind)
    assert [receipt["id"] for receipt in answer.json()] == [f"b{n}" for n in range(10)]
    assert client.get(f"/topics/{address}").headers["ce-id"] == "b9"
    del events[3]["source"]
    refused = client.post("/events", content=json.dumps(events), headers=kind)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["errors"][0]["attribute"] == "source"


def read_events(stream: httpx.Response, size: int, publish: Callable[[], None] = lambda: None) -> list[tuple[str, Any]]:
    """Returns the ids and data of this many events of a stream; `publish` is called once the stream is open."""
    events: list[tuple[str, Any]] = []
    id_ = ""
    for line in stream.iter_lines():
        name, _, value = line.partition(": ")
        if name == "retry":
            publish()
        elif name == "id":
            id_ = value
        elif name == "data":
            events.append((id_, json.loads(value)["data"]))
            if len(events) == size:
                break
    return events


def test_events_are_streamed_and_resumed(client: httpx.Client, address: str) -> None:
    def publish(*values: object) -> None:
        for value in values:
            client.post(f"/topics/{address}/{value}", json=value)

    filters = {"filter": f"{address}/+"}
    with client.stream("GET", "/subscribe", params=filters) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        first = read_events(stream, 3, lambda: publish(0, 1, 2))
    assert [data for _, data in first] == [0, 1, 2]
    publish("between")
    seen = {"last-event-id": first[1][0]}
    with client.stream("GET", "/subscribe", params=filters, headers=seen) as stream:
        second = read_events(stream, 4, lambda: publish(3, 4))
    assert [data for _, data in second] == [2, "between", 3, 4]
    assert second[0] == first[2]


@pytest.mark.anyio
@pytest.mark.parametrize("http2", [False, True])
async def test_many_requests_at_once(shared_gateway: Any, address: str, http2: bool) -> None:
    # The asynchronous client: httpx's other one is not safe for several threads over HTTP/2.
    async with httpx.AsyncClient(
        base_url=shared_gateway.url, http1=not http2, http2=http2, timeout=TIMEOUT_S, trust_env=False
    ) as client:

        async def post(worker: int) -> list[int]:
            return [(await client.post(f"/topics/{address}/{worker}", content=str(n))).status_code for n in range(20)]

        assert await asyncio.gather(*map(post, range(8))) == [[201] * 20] * 8
        last = [(await client.get(f"/topics/{address}/{worker}")).content for worker in range(8)]
    assert set(last) == {b"19"}


def test_rubbish_disturbs_nobody(shared_gateway: Any, client: httpx.Client, address: str) -> None:
    for rubbish in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"GET\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", shared_gateway.port("http")), TIMEOUT_S) as raw:
            raw.sendall(rubbish)
            while raw.recv(65_536):
                pass  # until the gateway closes
        assert client.post(f"/topics/{address}", content=b"1").status_code == 201


# ---- curl


def curl(*arguments: str, body: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    assert CURL is not None
    given = ("--data-binary", "@-") if body is not None else ()
    return subprocess.run(
        [CURL, "-sS", "-q", "--noproxy", "*", "--max-time", "20", *given, *arguments],
        input=body,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S * 2,
    )


@needs_curl
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2", "--http2-prior-knowledge"])
def test_curl(shared_gateway: Any, address: str, version: str) -> None:
    url = f"{shared_gateway.url}/topics/{address}"
    for body in (b"small", LARGE):
        posted = curl(version, "-w", "%{http_code}", url, body=body)
        assert posted.stdout.endswith(b"201"), posted.stderr
        assert curl(version, url).stdout == body
    too_large = curl(version, "-w", "%{http_code}", url, body=b"x" * (5 << 20))
    assert too_large.stdout.endswith(b"413"), too_large.stderr


@needs_curl
def test_curl_posts_an_event(shared_gateway: Any, address: str) -> None:
    event = ("ce-specversion: 1.0", "ce-id: 1", "ce-source: /curl", "ce-type: t", f"ce-subject: {address}")
    headers = [part for header in event for part in ("-H", header)]
    answer = curl(*headers, f"{shared_gateway.url}/events", body=b"1")
    assert json.loads(answer.stdout)["id"] == "1"


@needs_curl
def test_curl_is_told_that_a_body_is_missing(shared_gateway: Any, address: str) -> None:
    url = f"{shared_gateway.url}/topics/{address}"
    posted = curl("--http2-prior-knowledge", "-X", "POST", "-H", "content-length: 5", "-w", "%{http_code}", url)
    assert posted.returncode == 92, posted.stderr  # CURLE_HTTP2_STREAM
    assert b"PROTOCOL_ERROR" in posted.stderr
    assert curl("-w", "%{http_code}", url).stdout.endswith(b"404")


# ---- Node


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_has_its_answers_after_its_goaway(shared_gateway: Any, address: str) -> None:
    assert NODE is not None
    script = Path(__file__).with_name("http2_goaway.mjs")
    said = subprocess.run(
        [NODE, str(script), shared_gateway.url, f"/topics/{address}", "20"],
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S * 2,
    )
    assert said.stdout.split() == [b"201"] * 20, said.stderr


# ---- TLS


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def test_tls_with_alpn(new_gateway: Callable[..., Any], tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    assert OPENSSL is not None
    subprocess.run(
        [
            *(OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    environ = {"HEADGATE__TLS__CERT_FILE": str(cert), "HEADGATE__TLS__KEY_FILE": str(key)}
    gateway = new_gateway(environ=environ).start()
    context = ssl.create_default_context(cafile=str(cert))
    url = f"https://127.0.0.1:{gateway.port('https')}"
    for http2, version in ((True, "HTTP/2"), (False, "HTTP/1.1")):
        with httpx.Client(base_url=url, verify=context, http2=http2, timeout=TIMEOUT_S, trust_env=False) as client:
            answer = client.post("/topics/tls/a", content=LARGE)
            assert (answer.status_code, answer.http_version) == (201, version)
            assert client.get("/topics/tls/a").content == LARGE
