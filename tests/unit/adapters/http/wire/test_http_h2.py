"""HTTP/2 on the wire, against the h2 library's client."""

import base64

import h2.errors
import h2.settings
import pytest
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from adapters.http import HttpOptions
from adapters.http.wire.abuse import CONTROL_FRAMES_MAX, RESETS_MAX
from adapters.http.wire.http2.guard import PREFACE
from gateway.port.adapter import Publish
from store.api.message import Message
from tests.support.http.http_driver import Gateway, Http2Client, parse_responses, request


def test_requests_of_one_read_are_one_publish() -> None:
    client = Http2Client(Gateway())
    streams = [client.send("POST", f"/topics/a/{n}", body=b"x") for n in range(50)]
    client.flush()
    assert {client.answer(stream).status for stream in streams} == {201}
    assert len(client.gateway.frames) == 1
    assert client.answer(streams[7]).json["position"] == "1.7"


def test_by_alpn_the_preface_may_come_in_pieces() -> None:
    gateway = Gateway(alpn="h2")
    out = b"".join(gateway.feed(PREFACE[n : n + 1]) for n in range(len(PREFACE)))
    assert out[3] == SettingsFrame.type
    gateway = Gateway()
    assert gateway.feed(PREFACE[:10]) == b""
    assert gateway.feed(PREFACE[10:])[3] == SettingsFrame.type


def test_by_alpn_http_1_1_never_is_http_2() -> None:
    gateway = Gateway(alpn="http/1.1")
    assert gateway.feed(PREFACE).startswith(b"HTTP/1.1 400 ")
    gateway = Gateway(alpn="h2")
    gateway.feed(request("GET", "/topics"))
    assert gateway.closed


def test_upgrade_from_http_1_1() -> None:
    gateway = Gateway()
    settings = base64.urlsafe_b64encode(SettingsFrame(0, settings={3: 100}).serialize_body()).decode().rstrip("=")
    headers = (("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", settings))
    upgrade, preface = request("GET", "/topics", *headers), PREFACE + SettingsFrame(0).serialize()
    switching, _, frames = gateway.feed(upgrade + preface).partition(b"\r\n\r\n")
    assert switching.startswith(b"HTTP/1.1 101 ")
    types = _frame_types(frames)
    assert types[0] == SettingsFrame.type
    assert HeadersFrame.type in types


def test_the_answer_to_an_upgraded_request_waits_for_the_preface() -> None:
    gateway = Gateway(HttpOptions(request_timeout_s=5))
    headers = (("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", ""))
    _, _, frames = gateway.feed(request("GET", "/topics", *headers)).partition(b"\r\n\r\n")
    assert HeadersFrame.type not in _frame_types(frames)
    assert HeadersFrame.type in _frame_types(gateway.feed(PREFACE + SettingsFrame(0).serialize()))
    silent = Gateway(HttpOptions(request_timeout_s=5))
    silent.feed(request("GET", "/topics", *headers))
    assert HeadersFrame.type in _frame_types(silent.tick(after_ms=5_000))  # 408
    silent.feed(PREFACE + SettingsFrame(0).serialize())
    assert not silent.adapter.busy


@pytest.mark.parametrize("settings", ["!!!", "AAMAAABkAA", "A"])
def test_a_malformed_upgrade_stays_http_1_1(settings: str) -> None:
    gateway = Gateway()
    headers = (("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", settings))
    (answer,) = parse_responses(gateway.feed(request("GET", "/topics", *headers)))
    assert answer.status == 200


def test_an_upgrade_with_a_body_stays_http_1_1() -> None:
    gateway = Gateway()
    headers = (("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", ""))
    (answer,) = parse_responses(gateway.feed(request("POST", "/topics/a", *headers, body=b"xy")))
    assert answer.status == 201
    assert gateway.messages[0].body == b"xy"


def test_a_large_body_comes_and_goes_through_small_windows() -> None:
    client = Http2Client(Gateway())
    body = bytes(range(256)) * 4096  # 1 MiB
    stream = client.send("POST", "/topics/a", body=b"", end=False)
    sent = 0
    while sent < len(body):
        size = min(len(body) - sent, client.h2.local_flow_control_window(stream), client.h2.max_outbound_frame_size)
        if size:
            client.h2.send_data(stream, body[sent : sent + size])
            sent += size
        client.flush()
    client.h2.end_stream(stream)
    client.flush()
    assert client.answer(stream).status == 201
    assert client.gateway.messages[0].body == body
    assert client.ask("GET", "/topics/a").body == body


def test_sends_stay_within_the_window_and_go_on_when_it_opens() -> None:
    client = Http2Client(Gateway())
    client.ask("POST", "/topics/a", body=b"x" * 16_000)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    client.flush()
    client.acknowledge = False
    answer = client.ask("GET", "/topics/a")
    assert (len(answer.body), answer.ended) == (1000, False)
    stream = max(client.received)
    client.h2.increment_flow_control_window(5000, stream)
    client.flush()
    assert len(client.answer(stream).body) == 6000
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
    client.flush()
    assert (len(client.answer(stream).body), client.answer(stream).ended) == (16_000, True)


def test_small_answers_pass_a_stream_that_is_not_read() -> None:
    client = Http2Client(Gateway())
    client.ask("POST", "/topics/a", body=b"x" * 16_000)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    client.flush()
    client.acknowledge = False
    assert not client.ask("GET", "/topics/a").ended
    assert client.ask("POST", "/topics/b", body=b"").status == 201


def test_an_answer_that_is_not_read_is_given_up() -> None:
    client = Http2Client(Gateway(HttpOptions(request_timeout_s=5)))
    client.ask("POST", "/topics/a", body=b"x" * 16_000)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    client.flush()
    client.acknowledge = False
    client.ask("GET", "/topics/a")
    client.read(client.gateway.tick(after_ms=5_000))
    assert client.received[max(client.received)].reset == h2.errors.ErrorCodes.CANCEL
    assert not client.gateway.adapter.busy


def test_a_request_that_does_not_end_is_timed_out() -> None:
    client = Http2Client(Gateway(HttpOptions(request_timeout_s=5)))
    stream = client.send("POST", "/topics/a", body=b"x", end=False)
    other = client.send("GET", "/topics")
    client.flush()
    client.read(client.gateway.tick(after_ms=5_000))
    assert client.answer(stream).status == 408
    assert client.answer(other).status == 200
    assert client.ask("GET", "/topics").status == 200


def test_a_body_too_large_hurts_its_stream_alone() -> None:
    client = Http2Client(Gateway(HttpOptions(max_body_bytes=10)))
    declared = client.send("POST", "/topics/a", ("content-length", "11"), end=False)
    client.flush()
    assert client.answer(declared).status == 413
    client.h2.send_data(declared, b"12345678901", end_stream=True)  # read and dropped
    found_out = client.send("POST", "/topics/a", body=b"12345678901", end=False)
    client.flush()
    assert client.answer(found_out).status == 413
    assert client.ask("POST", "/topics/a", body=b"1").status == 201
    assert client.goaway is None
    client.h2.end_stream(found_out)
    client.flush()
    assert client.gateway.adapter.transport.arriving_bytes == 0
    assert not client.gateway.adapter.busy


def test_a_refused_body_that_goes_on_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.http.wire.http2.transport.DRAIN_BYTES_MAX", 20_000)
    client = Http2Client(Gateway(HttpOptions(max_body_bytes=10, request_timeout_s=5)))
    large = client.send("POST", "/topics/a", body=b"x" * 30_000, end=False)
    slow = client.send("POST", "/topics/a", body=b"x" * 11, end=False)
    client.flush()
    assert (client.answer(large).status, client.answer(slow).status) == (413, 413)
    assert client.received[large].reset == h2.errors.ErrorCodes.NO_ERROR
    client.read(client.gateway.tick(after_ms=5_000))
    assert client.received[slow].reset == h2.errors.ErrorCodes.NO_ERROR
    assert not client.gateway.adapter.busy


def test_bodies_held_together_are_limited() -> None:
    client = Http2Client(Gateway(HttpOptions(max_held_bytes=64 * 1024)))
    streams = [client.send("POST", "/topics/a", body=b"x" * 10_000, end=False) for _ in range(6)]
    client.flush()
    late = client.send("POST", "/topics/a", body=b"x" * 10_000, end=False)
    client.flush()
    assert client.answer(late).status == 503
    assert client.answer(late)["retry-after"] == "1"
    for stream in streams:
        client.h2.end_stream(stream)
    client.flush()
    assert {client.answer(stream).status for stream in streams} == {201}


def test_responses_held_together_are_limited() -> None:
    client = Http2Client(Gateway(HttpOptions(max_held_bytes=64 * 1024)))
    client.ask("POST", "/topics/a", body=b"x" * 40_000)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.flush()
    for _ in range(3):
        client.ask("GET", "/topics/a")
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
    stream = client.send("GET", "/topics/a")
    client.flush()
    assert client.answer(stream).status in {200, 503}
    held = Http2Client(Gateway(HttpOptions(max_held_bytes=64 * 1024)))
    held.ask("POST", "/topics/a", body=b"x" * 40_000)
    held.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    held.flush()
    assert [held.ask("GET", "/topics/a").status for _ in range(3)] == [200, 200, 503]


def test_expect_100_continue() -> None:
    client = Http2Client(Gateway())
    stream = client.send("POST", "/topics/a", ("expect", "100-continue"), end=False)
    client.flush()
    client.h2.send_data(stream, b"1", end_stream=True)
    client.flush()
    assert client.answer(stream).status == 201


def test_a_reset_request_is_stored_and_not_answered() -> None:
    gateway = Gateway()
    client = Http2Client(gateway)
    client.ask("GET", "/topics")
    gateway.hold = True
    stream = client.send("POST", "/topics/a", body=b"")
    client.flush()
    client.h2.reset_stream(stream)
    client.flush()
    assert [type(effect) for effect in gateway.held] == [Publish]
    assert gateway.release() == b""
    assert client.ask("POST", "/topics/a", body=b"").status == 201


def test_rapid_resets_end_the_connection() -> None:
    client = Http2Client(Gateway())
    for _ in range(RESETS_MAX + 1):
        client.h2.reset_stream(client.send("GET", "/topics"))
        client.flush()
        if client.goaway is not None:
            break
    assert client.goaway == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert client.gateway.closed


def test_slow_resets_do_not() -> None:
    client = Http2Client(Gateway())
    for _ in range(RESETS_MAX + 100):
        client.h2.reset_stream(client.send("GET", "/topics"))
        client.flush()
        client.gateway.now_ms += 100
    assert client.goaway is None


@pytest.mark.parametrize(
    "frame",
    [
        PingFrame(0, opaque_data=b"12345678"),
        SettingsFrame(0),
        WindowUpdateFrame(0, window_increment=1),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_a_flood_of_frames_that_bring_nothing_ends_the_connection(frame: PingFrame) -> None:
    client = Http2Client(Gateway())
    out = client.gateway.feed(frame.serialize() * (CONTROL_FRAMES_MAX + 10))
    assert GoAwayFrame.type in _frame_types(out)
    assert client.gateway.closed


def test_a_flood_of_empty_data_ends_the_connection() -> None:
    client = Http2Client(Gateway())
    stream = client.send("POST", "/topics/a", end=False)
    client.flush()
    client.gateway.feed(DataFrame(stream).serialize() * (CONTROL_FRAMES_MAX + 1))
    assert client.gateway.closed


def test_too_many_streams_and_headers_too_large() -> None:
    client = Http2Client(Gateway(HttpOptions(max_concurrent_streams=2)))
    assert client.h2.remote_settings.max_concurrent_streams == 2
    client = Http2Client(Gateway(HttpOptions(max_header_bytes=1024)))
    client.send("GET", "/topics", ("x", "y" * 2000))
    client.flush()
    assert client.goaway == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert client.gateway.closed


@pytest.mark.parametrize(
    "frame",
    [
        DataFrame(1, data=b"x"),
        HeadersFrame(2, data=b"\x82", flags=["END_HEADERS"]),
        HeadersFrame(1, data=b"\xff\xff\xff", flags=["END_HEADERS"]),
        WindowUpdateFrame(0, window_increment=0),
        RstStreamFrame(7, error_code=0),  # of a stream that never was
    ],
    ids=str,
)
def test_a_connection_error_is_said_by_goaway(frame: DataFrame) -> None:
    gateway = Gateway()
    out = gateway.feed(PREFACE + SettingsFrame(0).serialize() + frame.serialize())
    assert GoAwayFrame.type in _frame_types(out)
    assert gateway.closed
    assert gateway.feed(frame.serialize()) == b""


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_frame_too_long_is_refused_by_its_header(piece: int) -> None:
    client = Http2Client(Gateway(), eager=False)
    client.send("POST", "/topics/a", body=b"1")
    data = client.h2.data_to_send() + (16_385).to_bytes(3, "big") + b"\0\0" + (3).to_bytes(4, "big")
    out = b"".join(client.gateway.feed(data[at : at + piece]) for at in range(0, len(data), piece))
    assert [len(frame) for frame in client.gateway.frames] == [1]
    client.read(out)
    assert client.goaway == h2.errors.ErrorCodes.FRAME_SIZE_ERROR
    assert client.gateway.closed


def test_shutdown_lets_streams_end_and_refuses_new_ones() -> None:
    gateway = Gateway()
    client = Http2Client(gateway)
    client.ask("GET", "/topics")
    gateway.hold = True
    stream = client.send("POST", "/topics/a", body=b"")
    client.flush()
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    assert not gateway.closed
    late = client.send("POST", "/topics/a", body=b"")
    data = client.h2.data_to_send()
    client.read(gateway.adapter.take_output())
    assert client.goaway == 0
    types = _frame_types(gateway.feed(data))
    assert types == [RstStreamFrame.type]
    assert HeadersFrame.type in _frame_types(gateway.release())
    assert gateway.closed
    assert late > stream
    assert len(gateway.messages) == 1


def test_the_peer_may_say_goodbye() -> None:
    client = Http2Client(Gateway())
    client.h2.close_connection()
    client.flush()
    assert client.gateway.closed


def test_an_idle_connection_is_closed_with_goaway() -> None:
    client = Http2Client(Gateway(HttpOptions(idle_timeout_s=5)))
    client.ask("GET", "/topics")
    client.read(client.gateway.tick(after_ms=5_000))
    assert client.goaway == 0
    assert client.gateway.closed


def test_interleaved_bodies() -> None:
    client = Http2Client(Gateway())
    first = client.send("POST", "/topics/a", body=b"1", end=False)
    second = client.send("POST", "/topics/b", body=b"2", end=False)
    client.h2.send_data(first, b"1", end_stream=True)
    client.h2.send_data(second, b"2", end_stream=True)
    client.flush()
    assert [(m.address, m.body) for m in client.gateway.messages] == [("a", b"11"), ("b", b"22")]
    assert isinstance(client.gateway.messages[0], Message)


def _frame_types(data: bytes) -> list[int]:
    types = []
    while data:
        types.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return types
