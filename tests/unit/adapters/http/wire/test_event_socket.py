"""The WebSocket of events as a transport: in any chunks, whatever comes, and for a client that does not read."""

import json
import logging
import random

import pytest
from websockets.client import ClientProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from adapters.http.wire.abuse import CONTROL_FRAMES_MAX, SMALL_PERIOD_MS
from adapters.http.wire.event_socket import OUTPUT_BYTES_MAX, SUBPROTOCOL, EventSocket, text_frame
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response, problem
from adapters.http.wire.transport import Arrived, Exchange, Gone
from tests.support.http.http_driver import parse_responses

STREAM = Exchange(1)
OPTIONS = HttpOptions(max_body_bytes=100_000, max_pipelined=4)
HEADERS = [
    (b"host", b"h"),
    (b"upgrade", b"websocket"),
    (b"connection", b"Upgrade"),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-protocol", SUBPROTOCOL.encode()),
    (b"authorization", b"Basic eDp5"),
]


def opened() -> tuple[EventSocket, ClientProtocol]:
    socket = EventSocket(HttpRequest(method="GET", target=b"/subscribe?filter=a", headers=HEADERS), OPTIONS, now_ms=0)
    (arrived,) = socket.receive(b"", now_ms=0)
    assert isinstance(arrived, Arrived)
    socket.begin(STREAM, Response(status=200), now_ms=0)
    assert socket.take_output().startswith(b"HTTP/1.1 101 ")
    client = ClientProtocol(parse_uri("ws://h/subscribe"), subprotocols=[Subprotocol(SUBPROTOCOL)])
    client.state = client.state.OPEN
    return socket, client


def test_a_connection_that_opens_and_closes_is_not_worth_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        socket, client = opened()
        client.send_close()
        socket.receive(said(client), now_ms=0)
    assert caplog.records == []


def said(client: ClientProtocol) -> bytes:
    return b"".join(client.data_to_send())


@pytest.mark.parametrize("seed", range(20))
def test_events_come_whole_however_the_bytes_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    socket, client = opened()
    bodies = [json.dumps({"n": n, "x": "y" * chance.randrange(300)}).encode() for n in range(10)]
    for body in bodies:
        if chance.random() < 0.5:
            cut = chance.randrange(len(body))
            client.send_text(body[:cut], fin=False)
            client.send_ping(b"p")
            client.send_continuation(body[cut:], fin=True)
        else:
            client.send_text(body)
    data, found = said(client), []
    while data:
        cut = chance.randrange(1, 200)
        found += socket.receive(data[:cut], now_ms=0)
        data = data[cut:]
    assert [one.request.body for one in found] == bodies
    assert {one.request.method for one in found} == {"POST"}
    assert dict(found[0].request.headers)[b"authorization"] == b"Basic eDp5"
    assert socket.arriving_bytes == 0
    assert not socket.wants_data  # more than `max_pipelined` are not answered
    for one in found:
        socket.respond(one.exchange, Response(status=200), now_ms=0)
    assert socket.wants_data


@pytest.mark.parametrize("seed", range(200))
def test_whatever_comes_ends_in_a_close_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    socket, _ = opened()
    for _ in range(5):
        socket.receive(chance.randbytes(chance.randrange(1, 400)), now_ms=0)
        assert socket.arriving_bytes <= OPTIONS.max_body_bytes + 400
    if socket.finished:
        assert any(isinstance(one, Gone) for one in socket.tick(now_ms=10_000)) or socket.take_output()


def test_a_refused_event_ends_the_connection_and_a_silent_client_is_not_waited_for() -> None:
    socket, client = opened()
    client.send_text(b"{}")
    (arrived,) = socket.receive(said(client), now_ms=0)
    socket.respond(arrived.exchange, problem(403, "not allowed: to publish 'x'"), now_ms=5)
    out = socket.take_output()
    assert out == b"\x88%c\x03\xf0not allowed: to publish 'x'" % (len(out) - 2)
    assert not socket.finished
    assert socket.deadline_ms() == 2_005
    assert any(isinstance(one, Gone) for one in socket.tick(now_ms=2_005))
    assert socket.finished


def test_a_client_that_does_not_read_holds_a_share_and_no_more() -> None:
    socket, _ = opened()
    frame = text_frame(b"x" * 10_000)
    while socket.room(STREAM) > 0:
        socket.send(STREAM, frame, now_ms=0)
    assert not socket.wants_data
    assert socket.deadline_ms() is None
    assert len(socket.take_output()) <= OUTPUT_BYTES_MAX + len(frame)
    assert socket.deadline_ms() == 0
    assert [type(one).__name__ for one in socket.tick(now_ms=0)] == ["Drained"]


def test_a_refusal_is_said_in_http() -> None:
    socket = EventSocket(HttpRequest(method="GET", target=b"/subscribe", headers=HEADERS), OPTIONS, now_ms=0)
    socket.receive(b"early bytes", now_ms=0)
    socket.respond(STREAM, problem(400, "no filter"), now_ms=0)
    assert socket.take_output().startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert socket.finished
    without = [header for header in HEADERS if header[0] != b"sec-websocket-protocol"]
    other = EventSocket(HttpRequest(method="GET", target=b"/subscribe", headers=without), OPTIONS, now_ms=0)
    assert other.finished
    (answer,) = parse_responses(other.take_output())
    assert (answer.status, answer["content-type"]) == (400, "application/problem+json")
    assert answer["date"] == "Thu, 01 Jan 1970 00:00:00 GMT"


@pytest.mark.parametrize("version", [b"8", b"13, 8", b""])
def test_another_version_is_told_the_one_that_is_known(version: bytes) -> None:
    said = [(name, version if name == b"sec-websocket-version" else value) for name, value in HEADERS]
    socket = EventSocket(HttpRequest(method="GET", target=b"/subscribe", headers=said), OPTIONS, now_ms=0)
    (answer,) = parse_responses(socket.take_output())
    assert (answer.status, answer["sec-websocket-version"], answer["upgrade"]) == (426, "13", "websocket")
    assert answer["connection"] == "close, Upgrade"
    assert socket.finished


@pytest.mark.parametrize("kind", ["pings", "empty fragments"])
def test_frames_that_bring_hardly_anything_are_a_flood(kind: str) -> None:
    """Those of one read held up all clients for a second and more."""
    socket, client = opened()
    client.send_text(b"x", fin=False)
    for _ in range(10 * CONTROL_FRAMES_MAX):
        if kind == "pings":
            client.send_ping(b"")
        else:
            client.send_continuation(b"", fin=False)
    assert socket.receive(said(client), now_ms=0) == [Gone(STREAM)]
    assert socket.finished
    assert socket.take_output().endswith(b"too many frames that bring nothing")
    assert socket.receive(b"more", now_ms=0) == []


@pytest.mark.parametrize("early", [False, True], ids=["open", "before it is open"])
def test_an_event_in_small_fragments_is_taken_some_fragments_at_a_time(*, early: bool) -> None:
    """An encoder writes it token by token. Those of one read held up all clients for a second."""
    socket, client = opened()
    body = [b"%d," % number for number in range(3_000)]
    client.send_text(b"[", fin=False)
    for part in body:
        client.send_continuation(part, fin=False)
    client.send_continuation(b"0]", fin=True)
    socket._open = not early
    found, now_ms = list(socket.receive(said(client), now_ms=0)), 0
    socket._open = True
    found += socket.tick(now_ms=now_ms)
    while not found:
        assert not socket.wants_data
        assert socket.deadline_ms() == now_ms - now_ms % SMALL_PERIOD_MS + SMALL_PERIOD_MS
        now_ms += SMALL_PERIOD_MS // 2
        found += socket.tick(now_ms=now_ms)
    (arrived,) = found
    assert isinstance(arrived, Arrived)
    assert arrived.request.body == b"[" + b"".join(body) + b"0]"
    assert not socket.finished
    assert 300 <= now_ms <= 600
    assert socket.wants_data


def test_short_events_are_no_flood() -> None:
    socket, client = opened()
    for number in range(CONTROL_FRAMES_MAX + 1):
        client.send_text(b"{}")
        (arrived,) = socket.receive(said(client), now_ms=0)
        assert isinstance(arrived, Arrived)
        socket.respond(arrived.exchange, Response(status=200), now_ms=0)
        assert not socket.finished, number
