"""Peers that hardly open their windows, or send their bodies byte by byte: they are given up, and hold little."""

import h2.errors
import h2.settings
import pytest
from hyperframe.frame import AltSvcFrame, DataFrame, GoAwayFrame, SettingsFrame, WindowUpdateFrame

from adapters.http import HttpFactory, HttpOptions
from adapters.http.wire.abuse import CONTROL_FRAMES_MAX, LARGE_HEAD_COUNT, SMALL_FRAMES_MAX, SMALL_PERIOD_MS
from adapters.http.wire.http2.guard import TAKEN_COUNT
from adapters.http.wire.http2.hpack_blocks import FIELDS_DECODED_MAX
from adapters.http.wire.http2.stream import PROGRESS_BYTES_MIN
from adapters.http.wire.http2.strict import StrictConnection
from store.api.message import Message
from tests.support.http.http_driver import NOW_MS, Gateway, Http2Client

WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
CALM, CANCEL = h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, h2.errors.ErrorCodes.CANCEL


def shut(gateway: Gateway, window_bytes: int = 0) -> Http2Client:
    """Returns a client whose window lets this many bytes of each stream through, with a message to read at `a`."""
    client = Http2Client(gateway)
    client.ask("POST", "/topics/a", body=b"x" * 60_000)
    client.h2.update_settings({WINDOW: window_bytes})
    client.flush()
    client.acknowledge = False
    return client


def widen(client: Http2Client, stream: int, size_bytes: int) -> None:
    client.h2.increment_flow_control_window(size_bytes, stream)
    client.flush()


def test_an_answer_that_is_read_byte_by_byte_is_given_up() -> None:
    client = shut(Gateway(HttpOptions(request_timeout_s=5)))
    client.ask("GET", "/topics/a")
    stream = max(client.received)
    assert client.gateway.adapter.unread_bytes == 60_000
    for _ in range(5):
        client.read(client.gateway.tick(after_ms=1_000))
        if client.received[stream].reset is None:
            widen(client, stream, 1)
    assert client.received[stream].reset == CANCEL
    assert client.gateway.adapter.unread_bytes == 0
    assert client.ask("POST", "/topics/b", body=b"").status == 201


def test_an_answer_that_is_read_slowly_is_read_to_its_end() -> None:
    client = shut(Gateway(HttpOptions(request_timeout_s=5)))
    client.ask("GET", "/topics/a")
    stream = max(client.received)
    while not client.received[stream].ended:
        client.read(client.gateway.tick(after_ms=4_000))
        widen(client, stream, PROGRESS_BYTES_MIN)
    assert len(client.received[stream].body) == 60_000


def test_windows_that_are_opened_byte_by_byte_are_a_flood() -> None:
    client = shut(Gateway())
    client.ask("GET", "/topics/a")
    stream = max(client.received)
    one = WindowUpdateFrame(stream, window_increment=1).serialize()
    out = b"".join([client.gateway.feed(one) for _ in range(CONTROL_FRAMES_MAX)])
    assert out.endswith(GoAwayFrame(last_stream_id=stream, error_code=CALM).serialize())
    assert client.gateway.closed


def test_windows_that_let_frames_through_are_none() -> None:
    client = shut(Gateway(HttpOptions(max_body_bytes=8 << 20)))
    client.ask("POST", "/topics/a", body=b"x" * (1 << 20))
    client.h2.update_settings({WINDOW: 0})
    client.flush()
    client.acknowledge = False
    client.ask("GET", "/topics/a")
    stream = max(client.received)
    for _ in range(1_024):
        client.h2.increment_flow_control_window(1_024)
        client.h2.increment_flow_control_window(1_024, stream)
        client.flush()
    assert client.goaway is None
    assert client.received[stream].ended


@pytest.mark.parametrize(
    "kind",
    ["empty DATA", "DATA behind our reset", "DATA behind the end", "SETTINGS ACK", "GOAWAY", "ALTSVC", "padded DATA"],
)
def test_frames_that_bring_hardly_anything_are_a_flood(kind: str) -> None:
    """Each takes as much work as a large one: those of one read held up all clients for seconds."""
    client = Http2Client(Gateway(HttpOptions(request_timeout_s=5)))
    stream = client.send("POST", "/topics/a", body=b"x", end=False)
    client.flush()
    if kind == "DATA behind our reset":
        client.read(client.gateway.tick(after_ms=5_000))
        assert client.received[stream].reset is not None
    if kind == "DATA behind the end":
        client.h2.end_stream(stream)
        client.flush()
    frame = {
        "empty DATA": DataFrame(stream, data=b""),
        "DATA behind our reset": DataFrame(stream, data=b"x"),
        "DATA behind the end": DataFrame(stream, data=b"x"),
        "SETTINGS ACK": SettingsFrame(0, flags=["ACK"]),
        "GOAWAY": GoAwayFrame(0, last_stream_id=0),
        "ALTSVC": AltSvcFrame(0, origin=b"https://a.example", field=b'h3=":443"'),
        "padded DATA": DataFrame(stream, data=b"", pad_length=100, flags=["PADDED"]),
    }[kind].serialize()
    out = b"".join([client.gateway.feed(frame) for _ in range(CONTROL_FRAMES_MAX + 20)])
    assert out.endswith(GoAwayFrame(0, last_stream_id=stream, error_code=CALM).serialize())
    assert client.gateway.closed


def test_heads_with_too_many_fields_are_a_flood() -> None:
    """HPACK names a field that was sent before in one byte, and each is as much work as one that was written out."""
    client = Http2Client(Gateway())
    many = [("a", "b")] * (FIELDS_DECODED_MAX - 10)
    refused = CONTROL_FRAMES_MAX // LARGE_HEAD_COUNT
    for _ in range(refused - 1):  # the client's SETTINGS count, too
        assert client.ask("GET", "/topics", *many).status == 431
    assert client.ask("GET", "/topics").status == 200
    for _ in range(refused // 5):  # frames that are sent give some back
        if client.goaway is None:
            client.ask("GET", "/topics", *many)
    assert client.goaway == CALM
    assert client.gateway.closed


def test_a_head_with_many_more_fields_than_are_allowed_is_not_looked_at() -> None:
    client = Http2Client(Gateway())
    stream = client.send("GET", "/topics", *[("a", "b")] * FIELDS_DECODED_MAX)
    client.flush()
    assert client.goaway == CALM
    assert client.answer(stream).status == 0


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """Returns the frames of DATA that h2 was given."""
    taken: list[DataFrame] = []
    take = StrictConnection._receive_data_frame
    monkeypatch.setattr(
        StrictConnection, "_receive_data_frame", lambda h2, frame: (taken.append(frame), take(h2, frame))[1]
    )
    return taken


def test_of_the_empty_frames_of_a_large_read_not_all_are_taken(taken: list[DataFrame]) -> None:
    client = Http2Client(Gateway())
    stream = client.send("POST", "/topics/a", body=b"x", end=False)
    client.flush()
    client.gateway.feed(DataFrame(stream, data=b"").serialize() * 26_000)
    assert client.gateway.closed
    assert CONTROL_FRAMES_MAX < len(taken) < CONTROL_FRAMES_MAX + 2 * TAKEN_COUNT


@pytest.mark.parametrize("reads", [1, 700])
def test_a_body_in_small_frames_is_taken_whole_some_frames_a_second(taken: list[DataFrame], reads: int) -> None:
    """An encoder writes it token by token. Those of one read held up all clients for seconds."""
    client = Http2Client(Gateway())
    gateway = client.gateway
    stream = client.send("POST", "/topics/a", body=b"a", end=False)
    other = client.send("GET", "/topics/b", end=False)
    client.flush()
    body = b"".join([b"%d," % number for number in range(3_500)])
    sent = b"".join([DataFrame(stream, data=part + b",").serialize() for part in body.split(b",")])
    sent += DataFrame(other, data=b"", flags=["END_STREAM"]).serialize()
    sent += DataFrame(stream, data=b"", flags=["END_STREAM"]).serialize()
    size = -(-len(sent) // reads)
    most = 0
    for at in range(0, len(sent), size):
        before = len(taken)
        client.read(gateway.feed(sent[at : at + size]))
        while not gateway.adapter.wants_data:
            most, before = max(most, len(taken) - before), len(taken)
            client.read(gateway.tick(after_ms=SMALL_PERIOD_MS // 2))
    assert most <= SMALL_FRAMES_MAX + TAKEN_COUNT
    assert not gateway.closed
    assert client.answer(stream).status == 201
    assert client.answer(other).status == 404
    assert [one.body for one in gateway.messages] == [b"a" + body + b","]
    assert gateway.now_ms - NOW_MS >= 4 * SMALL_PERIOD_MS


def test_of_the_small_frames_of_many_connections_some_are_taken_a_second(taken: list[DataFrame]) -> None:
    """Other frames do not wait, even of a connection that brings both."""
    factory = HttpFactory()
    clients = [Http2Client(Gateway(factory=factory)) for _ in range(20)]
    for client in clients:
        stream = client.send("POST", "/topics/a", body=b"x", end=False)
        client.flush()
        client.gateway.feed(DataFrame(stream, data=b"x").serialize() * 5_000)
    assert len(taken) <= SMALL_FRAMES_MAX + (len(clients) + 1) * TAKEN_COUNT
    before = len(taken)
    for client in clients:
        client.gateway.tick(after_ms=SMALL_PERIOD_MS)
    assert SMALL_FRAMES_MAX <= len(taken) - before <= SMALL_FRAMES_MAX + TAKEN_COUNT
    other = Http2Client(Gateway(factory=factory))
    assert other.ask("POST", "/topics/b", body=b"1").status == 201
    assert [one.gateway.closed for one in clients] == [False] * 20


def test_small_bodies_are_no_flood() -> None:
    """Many clients send the end of a request in a frame of its own."""
    client = Http2Client(Gateway())
    for number in range(CONTROL_FRAMES_MAX // 2 + 20):
        stream = client.send("POST", "/topics/a", body=b"x", end=False)
        client.flush()
        client.h2.send_data(stream, b"y")
        client.flush()
        client.h2.send_data(stream, b"z", end_stream=True)
        client.flush()
        assert client.answer(stream).status == 201, number


def test_a_body_that_comes_byte_by_byte_is_timed_out() -> None:
    client = Http2Client(Gateway(HttpOptions(request_timeout_s=5)))
    stream = client.send("POST", "/topics/a", body=b"x" * 2_000, end=False)
    client.flush()
    for _ in range(5):
        client.read(client.gateway.tick(after_ms=1_000))
        client.read(client.gateway.feed(DataFrame(stream, data=b"x").serialize()))
    assert client.answer(stream).status == 408
    assert client.gateway.messages == []


@pytest.mark.parametrize("streams", [4, 64])
def test_event_streams_of_a_connection_together_hold_what_it_may(streams: int) -> None:
    """Behind windows that are shut; once one opens, all go on."""
    limit = 1 << 20
    gateway = Gateway(HttpOptions(max_held_bytes=limit, sse_stall_s=30))
    client = Http2Client(gateway)
    client.h2.update_settings({WINDOW: 0})
    client.flush()
    client.acknowledge = False
    numbers = [client.send("GET", f"/subscribe?filter=s{index}") for index in range(streams)]
    client.flush()
    for index in range(streams):
        for frame in range(8):
            gateway.deliver([Message(address=f"s{index}", body=b"x" * 60_000, time_ms=0)], frame=100 + frame)
    assert gateway.adapter.transport._streams.held_out_bytes <= limit + 200_000
    assert gateway.adapter.unread_bytes == 0  # which whole responses alone are
    client.h2.increment_flow_control_window(1 << 24)
    for number in numbers:
        client.h2.increment_flow_control_window(1 << 24, number)
    client.flush()
    client.read(gateway.tick())
    assert gateway.adapter.transport._streams.held_out_bytes == 0
    gateway.deliver([Message(address="s0", body=b"last", time_ms=0)], frame=200)
    client.read(gateway.adapter.take_output())
    assert b'"bGFzdA=="' in client.received[numbers[0]].body
