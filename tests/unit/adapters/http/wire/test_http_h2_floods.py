"""Peers that hardly open their windows, or send their bodies byte by byte: they are given up, and hold little."""

import h2.errors
import h2.settings
import pytest
from hyperframe.frame import AltSvcFrame, DataFrame, GoAwayFrame, SettingsFrame, WindowUpdateFrame

from adapters.http import HttpOptions
from adapters.http.wire.abuse import CONTROL_FRAMES_MAX
from adapters.http.wire.http2.stream import PROGRESS_BYTES_MIN
from adapters.http.wire.http2.strict import StrictConnection
from store.api.message import Message
from tests.support.http.http_driver import Gateway, Http2Client

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


@pytest.mark.parametrize("kind", ["DATA", "DATA behind our reset", "SETTINGS ACK", "GOAWAY", "ALTSVC", "padded DATA"])
def test_frames_that_bring_hardly_anything_are_a_flood(kind: str) -> None:
    """Each takes as much work as a large one: those of one read held up all clients for seconds."""
    client = Http2Client(Gateway(HttpOptions(request_timeout_s=5)))
    stream = client.send("POST", "/topics/a", body=b"x", end=False)
    client.flush()
    if kind == "DATA behind our reset":
        client.read(client.gateway.tick(after_ms=5_000))
        assert client.received[stream].reset is not None
    frame = {
        "DATA": DataFrame(stream, data=b"x"),
        "DATA behind our reset": DataFrame(stream, data=b"x"),
        "SETTINGS ACK": SettingsFrame(0, flags=["ACK"]),
        "GOAWAY": GoAwayFrame(0, last_stream_id=0),
        "ALTSVC": AltSvcFrame(0, origin=b"https://a.example", field=b'h3=":443"'),
        "padded DATA": DataFrame(stream, data=b"x", pad_length=100, flags=["PADDED"]),
    }[kind].serialize()
    out = b"".join([client.gateway.feed(frame) for _ in range(CONTROL_FRAMES_MAX + 20)])
    assert out.endswith(GoAwayFrame(0, last_stream_id=stream, error_code=CALM).serialize())
    assert client.gateway.closed


def test_of_the_small_frames_of_a_large_read_not_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[DataFrame] = []
    take = StrictConnection._receive_data_frame
    monkeypatch.setattr(
        StrictConnection, "_receive_data_frame", lambda h2, frame: (taken.append(frame), take(h2, frame))[1]
    )
    client = Http2Client(Gateway())
    stream = client.send("POST", "/topics/a", body=b"x", end=False)
    client.flush()
    client.gateway.feed(DataFrame(stream, data=b"x").serialize() * 26_000)
    assert client.gateway.closed
    assert CONTROL_FRAMES_MAX < len(taken) < 3 * CONTROL_FRAMES_MAX


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
