"""HTTP/2's errors by their codes (RFC 9113), frame by frame, as a peer that keeps to nothing sends them."""

import h2.errors
import pytest
from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from adapters.http import HttpOptions
from adapters.http.wire.abuse import CONTROL_FRAMES_MAX, RESETS_MAX
from adapters.http.wire.http2.guard import PREFACE
from adapters.http.wire.http2.strict import StrictConnection
from tests.support.http.http_driver import Gateway, Http2Client

NO_ERROR, PROTOCOL, FLOW, CLOSED, SIZE, REFUSED, COMPRESSION, CALM = 0, 1, 3, 5, 6, 7, 9, 11
OPENING = PREFACE + SettingsFrame(0).serialize()


def post(stream: int, *headers: tuple[str, str], flags: tuple[str, ...] = ("END_HEADERS",), path: str = "/topics/a"):
    """Returns the HEADERS frame of a POST."""
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "gateway"), (":path", path), *headers]
    return HeadersFrame(stream, data=Encoder().encode(fields, huffman=False), flags=list(flags))


def raw(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Returns a frame as it stands on the wire, right or wrong."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def wire(*frames: Frame | bytes) -> bytes:
    return b"".join(frame if isinstance(frame, bytes) else frame.serialize() for frame in frames)


def read(data: bytes) -> list[Frame]:
    """Returns the frames of an answer."""
    frames = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        frames.append(frame)
        data = data[9 + length :]
    return frames


def errors(data: bytes) -> list[tuple[str, int, int]]:
    """Returns the errors of an answer: kind, stream and code."""
    kinds = {RstStreamFrame: "stream", GoAwayFrame: "connection"}
    return [(kinds[type(f)], f.stream_id, f.error_code) for f in read(data) if type(f) in kinds]


def statuses(data: bytes, decoder: Decoder) -> list[str]:
    """Returns the statuses of an answer's heads."""
    return [dict(decoder.decode(frame.data))[":status"] for frame in read(data) if isinstance(frame, HeadersFrame)]


ENDED = ("END_HEADERS", "END_STREAM")
TRAILERS = HeadersFrame(1, data=Encoder().encode([("x-sum", "1")]), flags=list(ENDED))


@pytest.mark.parametrize(
    "frames",
    [
        (post(1, ("content-length", "5"), flags=ENDED),),
        (post(1, ("content-length", "5")), TRAILERS),
        (post(1, ("content-length", "5")), DataFrame(1, data=b"abc"), TRAILERS),
        (post(1, ("content-length", "5")), DataFrame(1, data=b"abc", flags=["END_STREAM"])),
        (post(1, ("content-length", "2")), DataFrame(1, data=b"abc")),
    ],
    ids=["no body", "trailers in its place", "trailers too soon", "too short", "too long"],
)
def test_a_body_that_is_not_of_its_content_length_is_a_stream_error(frames: tuple[Frame, ...]) -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(*frames))
    assert errors(out) == [("stream", 1, PROTOCOL)]
    assert gateway.messages == []
    assert not gateway.adapter.busy
    assert gateway.adapter.transport.arriving_bytes == 0
    assert errors(gateway.feed(wire(post(3, ("content-length", "0"), flags=ENDED)))) == []
    assert len(gateway.messages) == 1


def test_a_body_of_its_content_length_may_end_with_trailers() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1, ("content-length", "3")), DataFrame(1, data=b"abc"), TRAILERS))
    assert errors(out) == []
    assert [message.body for message in gateway.messages] == [b"abc"]


FIELDS = [(":method", "POST"), (":scheme", "http"), (":authority", "gateway"), (":path", "/topics/a")]


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS[1:],
        FIELDS[:3],
        [*FIELDS, FIELDS[0]],
        [*FIELDS[:3], ("a", "b"), FIELDS[3]],
        [*FIELDS, (":status", "200")],
        [*FIELDS, ("X-Upper", "1")],
        [*FIELDS, ("connection", "close")],
        [*FIELDS, ("te", "gzip")],
        [*FIELDS, ("content-length", "five")],
        [*FIELDS, ("content-length", "0"), ("content-length", "1")],
        [*FIELDS, ("host", "another")],
        [(":protocol", "websocket"), *FIELDS],
        [(":protocol", "websocket"), (":method", "CONNECT"), *FIELDS[1:]],
    ],
    ids=lambda fields: f"{len(fields)} fields, {fields[0][0]} first, {fields[1][1]} second, {fields[-1][0]} last",
)
def test_a_malformed_request_resets_its_stream_alone(fields: list[tuple[str, str]]) -> None:
    gateway = Gateway()
    gateway.feed(OPENING + wire(post(1)))
    malformed = HeadersFrame(3, data=Encoder().encode(fields), flags=list(ENDED))
    assert errors(gateway.feed(wire(malformed))) == [("stream", 3, PROTOCOL)]
    assert errors(gateway.feed(wire(DataFrame(1, data=b"x", flags=["END_STREAM"])))) == []
    assert [message.body for message in gateway.messages] == [b"x"]
    assert not gateway.closed


@pytest.mark.parametrize("late", [DataFrame(1, data=b"x" * 1000), TRAILERS], ids=["data", "trailers"])
def test_frames_behind_our_reset_are_ignored(late: Frame) -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1, ("content-length", "five")), late, late))
    assert errors(out) == [("stream", 1, PROTOCOL)]
    assert errors(gateway.feed(wire(post(3, ("content-length", "0"), flags=ENDED)))) == []
    assert len(gateway.messages) == 1


@pytest.mark.parametrize(
    "late", [HeadersFrame(1, data=TRAILERS.data, flags=["END_HEADERS"]), DataFrame(1)], ids=["headers", "empty data"]
)
def test_a_flood_of_frames_behind_our_reset_ends_the_connection(late: Frame) -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1, ("content-length", "five")), *[late] * (CONTROL_FRAMES_MAX + 1)))
    assert errors(out) == [("stream", 1, PROTOCOL), ("connection", 0, CALM)]


def test_frames_behind_a_refused_stream_are_ignored() -> None:
    gateway = Gateway(HttpOptions(max_concurrent_streams=1))
    assert errors(gateway.feed(OPENING + wire(post(1), post(3), DataFrame(3, data=b"x")))) == [("stream", 3, REFUSED)]
    assert errors(gateway.feed(wire(HeadersFrame(3, data=TRAILERS.data, flags=list(ENDED))))) == []
    assert not gateway.closed


def test_bytes_behind_our_reset_leave_the_window() -> None:
    gateway = Gateway()
    late = DataFrame(1, data=b"x" * 16_000)
    out = gateway.feed(OPENING + wire(post(1, ("content-length", "five")), *[late] * 60))
    opened = [frame.window_increment for frame in read(out) if isinstance(frame, WindowUpdateFrame)]
    assert sum(opened) > 60 * 16_000 // 2


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([*FIELDS[:3], (":path", "http://another/topics/a")], "400"),
        ([*FIELDS[:3], (":path", "topics/a")], "400"),
        ([FIELDS[0], (":scheme", "ftp"), *FIELDS[2:]], "400"),
        ([(":method", "PO ST"), *FIELDS[1:]], "400"),
        ([(":method", "BREW"), *FIELDS[1:]], "501"),
        ([*FIELDS, ("expect", "100-continue, more")], "417"),
        ([*FIELDS, ("expect", "more"), ("expect", "100-continue")], "417"),
    ],
    ids=["an absolute path", "no path", "another scheme", "no method", "an unknown method", "an expectation", "two"],
)
def test_heads_that_http_1_1_refuses_are_refused(fields: list[tuple[str, str]], status: str) -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(HeadersFrame(1, data=Encoder().encode(fields), flags=list(ENDED))))
    assert statuses(out, Decoder()) == [status]
    assert gateway.messages == []


def test_a_status_that_the_head_decides_comes_in_the_place_of_100() -> None:
    gateway, decoder = Gateway(), Decoder()
    expecting = ("expect", "100-continue")
    out = gateway.feed(OPENING + wire(post(1, expecting, path="/nothing"), post(3, expecting)))
    assert statuses(out, decoder) == ["404", "100"]
    assert statuses(gateway.feed(wire(DataFrame(3, data=b"x", flags=["END_STREAM"]))), decoder) == ["201"]


@pytest.mark.parametrize(
    "trailers",
    [
        HeadersFrame(1, data=TRAILERS.data, flags=["END_HEADERS"]),
        HeadersFrame(1, data=Encoder().encode([(":path", "/")]), flags=list(ENDED)),
    ],
    ids=["not the end", "a pseudo-header"],
)
def test_malformed_trailers_reset_their_stream(trailers: HeadersFrame) -> None:
    gateway = Gateway()
    assert errors(gateway.feed(OPENING + wire(post(1), trailers))) == [("stream", 1, PROTOCOL)]
    assert gateway.messages == []
    assert not gateway.adapter.busy


def test_bodies_of_malformed_requests_leave_the_window() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING)
    increments = 0
    for stream in range(1, 300, 2):
        out = gateway.feed(wire(post(stream, ("content-length", "1")), DataFrame(stream, data=b"x" * 16_384)))
        assert errors(out) == [("stream", stream, PROTOCOL)]
        increments += sum(f.window_increment for f in read(out) if isinstance(f, WindowUpdateFrame) and not f.stream_id)
    assert increments > 150 * 16_384 - 1024 * 1024


@pytest.mark.parametrize("late", [DataFrame, WindowUpdateFrame], ids=["DATA", "WINDOW_UPDATE"])
def test_resets_that_a_client_brings_about_are_bounded(late: type[Frame]) -> None:
    """Streams whose work goes on while the client has them reset by an error of its own (CVE-2025-8671)."""
    gateway = Gateway(hold=True)
    out = gateway.feed(OPENING)
    wrong = {"data": b"x"} if late is DataFrame else {"window_increment": 2**31 - 1}
    for stream in range(1, 4 * RESETS_MAX, 2):
        out = gateway.feed(wire(post(stream, flags=ENDED), late(stream, **wrong)))
        if gateway.closed:
            break
    assert errors(out)[-1] == ("connection", 0, CALM)


@pytest.mark.parametrize(
    "first",
    [
        PingFrame(0),
        SettingsFrame(0, flags=["ACK"]),
        post(1, flags=ENDED),
        raw(0xBB, b"?"),
        WindowUpdateFrame(0, window_increment=1),
    ],
    ids=["PING", "SETTINGS ACK", "HEADERS", "unknown", "WINDOW_UPDATE"],
)
def test_the_first_frame_has_to_be_settings(first: Frame | bytes) -> None:
    gateway = Gateway()
    assert errors(gateway.feed(PREFACE + wire(first, SettingsFrame(0)))) == [("connection", 0, PROTOCOL)]
    assert gateway.closed
    assert gateway.messages == []


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff",
        b"\x80",
        b"\xc6",
        b"\x3f\xe2\x1f",
        b"\x82\x20",
        b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff",
    ],
    ids=["cut short", "index 0", "index unknown", "table too large", "size update at the end", "Huffman"],
)
def test_a_header_block_that_cannot_be_decoded_is_a_compression_error(block: bytes) -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(HeadersFrame(1, data=block, flags=list(ENDED))))
    assert errors(out) == [("connection", 0, COMPRESSION)]
    assert gateway.closed


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (raw(4, b"\0\3\0\0\0\1", flags=1), SIZE),
        (raw(4, b"\0\3\0"), SIZE),
        (raw(4, b"", stream=1), PROTOCOL),
        (raw(4, b"\0\2\0\0\0\2"), PROTOCOL),  # ENABLE_PUSH 2
        (raw(4, b"\0\4\x80\0\0\0"), FLOW),  # INITIAL_WINDOW_SIZE 2**31
        (raw(4, b"\0\5\0\0\x3f\xff"), PROTOCOL),  # MAX_FRAME_SIZE 16,383
        (raw(6, b"1234567"), SIZE),
        (raw(6, b"12345678", stream=1), PROTOCOL),
        (raw(7, b"\0\0\0\0"), SIZE),
        (raw(7, b"\0" * 8, stream=1), PROTOCOL),
        (raw(8, b"\0\0\1"), SIZE),
        (raw(8, b"\0\0\0\0"), PROTOCOL),
        (raw(8, b"\x7f\xff\xff\xff"), FLOW),
        (raw(8, b"\0\0\0\1", stream=1), PROTOCOL),  # idle
        (raw(3, b"\0\0\0", stream=1), SIZE),
        (raw(3, b"\0\0\0\0"), PROTOCOL),
        (raw(3, b"\0\0\0\0", stream=1), PROTOCOL),  # idle
        (raw(2, b"\0\0\0\0\1"), PROTOCOL),
        (raw(2, b"\0\0\0\1", stream=1), SIZE),
        (raw(0, b"x"), PROTOCOL),
        (raw(0, b"x", stream=1), PROTOCOL),  # idle
        (raw(1, b"\x82", flags=4), PROTOCOL),
        (raw(5, b"\0\0\0\2\x82", flags=4, stream=1), PROTOCOL),
        (raw(9, b"\x82", flags=4, stream=1), PROTOCOL),
        (raw(1, b"\x82", flags=4, stream=2), PROTOCOL),
    ],
)
def test_a_wrong_frame_is_the_connection_error_that_is_told(frame: bytes, code: int) -> None:
    gateway = Gateway()
    assert errors(gateway.feed(OPENING + frame)) == [("connection", 0, code)]
    assert gateway.closed


@pytest.mark.parametrize("piece", [1, 5, 9, 4096])
def test_headers_of_frames_are_read_across_reads(piece: int) -> None:
    gateway = Gateway()
    data = OPENING + wire(post(1, ("content-length", "5"), flags=ENDED), raw(4, b"\0\3\0\0\0\1", flags=1))
    out = b"".join(gateway.feed(data[at : at + piece]) for at in range(0, len(data), piece))
    assert errors(out) == [("stream", 1, PROTOCOL), ("connection", 0, SIZE)]


@pytest.mark.parametrize(
    "between",
    [
        PingFrame(0),
        DataFrame(1, data=b"x"),
        HeadersFrame(3, flags=list(ENDED)),
        ContinuationFrame(3),
        raw(0xBB),
        GoAwayFrame(0),
    ],
    ids=["PING", "DATA", "HEADERS", "another stream's", "unknown", "GOAWAY"],
)
def test_nothing_comes_between_the_frames_of_a_header_block(between: Frame | bytes) -> None:
    gateway = Gateway()
    begun = post(1, flags=("END_STREAM",))
    out = gateway.feed(OPENING + wire(begun, between, ContinuationFrame(1, flags=["END_HEADERS"])))
    assert errors(out) == [("connection", 0, PROTOCOL)]
    assert gateway.messages == []


def test_a_header_block_may_go_on() -> None:
    gateway = Gateway()
    whole = post(1, flags=ENDED)
    begun = HeadersFrame(1, data=whole.data[:7], flags=["END_STREAM"])
    rest = [
        ContinuationFrame(1, data=whole.data[7:9]),
        ContinuationFrame(1, data=whole.data[9:], flags=["END_HEADERS"]),
    ]
    assert errors(gateway.feed(OPENING + wire(begun, *rest))) == []
    assert len(gateway.messages) == 1


def test_a_header_block_without_end_is_refused() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1, flags=("END_STREAM",)), *[ContinuationFrame(1)] * 100))
    (error,) = errors(out)
    assert error[0] == "connection"
    assert gateway.closed


def test_streams_begin_in_ascending_order() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(5, flags=ENDED), post(3, flags=ENDED)))
    assert [error for error in errors(out) if error[0] == "connection"] == [("connection", 0, PROTOCOL)]


def test_streams_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    gateway = Gateway(HttpOptions(max_concurrent_streams=2))
    gateway.feed(OPENING + SettingsFrame(0, flags=["ACK"]).serialize() + wire(post(1), post(3)))
    encoder = Encoder()
    said = [(":method", "GET"), (":scheme", "http"), (":path", "/topics/a"), (":authority", "gateway"), ("x-new", "1")]
    beyond = HeadersFrame(5, data=encoder.encode(said), flags=["END_HEADERS"])
    trailers = HeadersFrame(5, data=encoder.encode([("x-sum", "1")]), flags=list(ENDED))
    out = gateway.feed(wire(beyond, DataFrame(5, data=b"x"), trailers))
    assert errors(out)[0] == ("stream", 5, REFUSED)
    assert {error[:2] for error in errors(out)} == {("stream", 5)}
    gateway.feed(wire(*[DataFrame(stream, data=b"x", flags=["END_STREAM"]) for stream in (1, 3)]))
    assert len(gateway.messages) == 2
    after = HeadersFrame(7, data=encoder.encode(said), flags=list(ENDED))  # by a table that the refused ones filled
    answered = [frame for frame in read(gateway.feed(wire(after))) if isinstance(frame, HeadersFrame)]
    assert [frame.stream_id for frame in answered] == [7]


def test_connect_is_answered_before_its_stream_ends() -> None:
    gateway = Gateway()
    fields = [(":method", "CONNECT"), (":authority", "a.example:443")]
    out = gateway.feed(OPENING + wire(HeadersFrame(1, data=Encoder().encode(fields), flags=["END_HEADERS"])))
    assert HeadersFrame in [type(frame) for frame in read(out)]
    assert b"this server is not a proxy" in out


@pytest.mark.parametrize(
    ("late", "found"),
    [
        (DataFrame(1, data=b"x"), [("stream", 1, CLOSED)]),
        (post(1), [("connection", 0, PROTOCOL)]),
        (RstStreamFrame(1, error_code=0), []),
        (WindowUpdateFrame(1, window_increment=1), []),
        (PriorityFrame(1), []),
    ],
    ids=str,
)
def test_streams_that_ended_long_ago_are_told_by_their_numbers_alone(late: Frame, found: list[object]) -> None:
    """A connection that lives long would keep 8 MB of their ends."""
    gateway = Gateway()
    gateway.feed(OPENING + wire(post(1, ("content-length", "0"), flags=ENDED)))
    last = 1 + 2 * StrictConnection.MAX_CLOSED_STREAMS
    for stream in range(3, last + 4, 2):
        gateway.feed(wire(post(stream, ("content-length", "0"), flags=ENDED)))
    assert len(gateway.adapter.transport._h2._closed_streams) == StrictConnection.MAX_CLOSED_STREAMS
    assert errors(gateway.feed(wire(late))) == found
    if not gateway.closed:
        assert errors(gateway.feed(wire(post(last, flags=ENDED)))) == [("connection", 0, CLOSED)]


@pytest.mark.parametrize("expected", [["100-continue"], ["100-Continue"], ["100-continue", ""], [", 100-continue"]])
def test_a_client_that_waits_to_be_told_is_told_at_once(expected: list[str]) -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1, *[("expect", value) for value in expected])))
    (head,) = [frame for frame in read(out) if isinstance(frame, HeadersFrame)]
    assert dict(Decoder().decode(head.data)) == {":status": "100"}


def test_a_stream_that_has_ended_takes_nothing_more() -> None:
    gateway = Gateway()
    gateway.feed(OPENING + wire(post(1, flags=ENDED)))
    (error,) = errors(gateway.feed(wire(DataFrame(1, data=b"x"))))
    assert error[2] == CLOSED
    assert len(gateway.messages) == 1


@pytest.mark.parametrize("late", [DataFrame(1, data=b"x"), TRAILERS], ids=["data", "headers"])
def test_a_request_that_is_whole_takes_nothing_more(late: Frame) -> None:
    gateway = Gateway(hold=True)
    gateway.feed(OPENING + wire(post(1, flags=ENDED)))
    assert errors(gateway.feed(wire(late))) == [("stream", 1, CLOSED)]
    assert errors(gateway.feed(wire(late))) == []


@pytest.mark.parametrize("kind", [0, 1])
def test_padding_longer_than_the_frame_is_a_connection_error(kind: int) -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1), raw(kind, b"\5abc", flags=8 | 4, stream=1)))
    assert errors(out) == [("connection", 0, PROTOCOL)]
    assert gateway.messages == []


def test_padding_is_no_part_of_a_body() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1, ("content-length", "2")), raw(0, b"\3ab\0\0\0", flags=9, stream=1)))
    assert errors(out) == []
    assert [message.body for message in gateway.messages] == [b"ab"]


def test_a_window_of_a_stream_that_overflows_is_a_stream_error() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1), WindowUpdateFrame(1, window_increment=2**31 - 1)))
    assert errors(out) == [("stream", 1, FLOW)]
    assert errors(gateway.feed(wire(post(3, flags=ENDED)))) == []
    assert len(gateway.messages) == 1


def test_more_data_than_the_window_is_a_flow_control_error() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1), *[DataFrame(1, data=b"x" * 16_384)] * 128))
    assert [(kind, code) for kind, _, code in errors(out)] == [("connection", FLOW)]
    assert gateway.messages == []


def test_requests_that_are_whole_are_answered_after_the_peers_goaway() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(post(1), DataFrame(1, data=b"x", flags=["END_STREAM"]), GoAwayFrame(0)))
    kinds = [type(frame) for frame in read(out)]
    assert HeadersFrame in kinds
    assert errors(out) == [("connection", 0, NO_ERROR)]
    assert gateway.closed
    assert len(gateway.messages) == 1


def test_after_the_peers_goaway_open_streams_go_on_and_others_may_begin_until_none_is_left() -> None:
    gateway = Gateway()
    gateway.feed(OPENING)
    gateway.feed(wire(post(1), post(3, flags=ENDED)))
    gateway.hold = True
    out = gateway.feed(wire(GoAwayFrame(0)))
    assert errors(out) == [("connection", 0, NO_ERROR)]
    assert not gateway.closed
    assert gateway.feed(wire(post(5, flags=ENDED), GoAwayFrame(0))) == b""
    assert gateway.feed(wire(DataFrame(1, data=b"late", flags=["END_STREAM"]))) == b""
    assert not gateway.closed
    assert [frame.stream_id for frame in read(gateway.release()) if isinstance(frame, HeadersFrame)] == [5, 1]
    assert gateway.closed
    assert [message.body for message in gateway.messages] == [b"", b"", b"late"]


def test_after_both_goaways_no_stream_begins() -> None:
    gateway = Gateway()
    gateway.feed(OPENING + wire(post(1), GoAwayFrame(0)))
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    (goaway,) = read(gateway.adapter.take_output())
    assert goaway.last_stream_id == 1
    assert errors(gateway.feed(wire(post(3, flags=ENDED)))) == [("stream", 3, h2.errors.ErrorCodes.REFUSED_STREAM)]
    gateway.feed(wire(DataFrame(1, flags=["END_STREAM"])))
    assert gateway.closed
    assert len(gateway.messages) == 1


def test_a_goaway_that_tells_an_error_ends_the_connection_at_once() -> None:
    gateway = Gateway(hold=True)
    gateway.feed(OPENING + wire(post(1)))
    assert gateway.feed(wire(GoAwayFrame(0, error_code=PROTOCOL))) == b""
    assert gateway.closed


def test_an_event_stream_goes_on_after_the_peers_goaway_until_it_is_given_up() -> None:
    client = Http2Client(Gateway())
    client.ask("GET", "/topics")
    stream = client.send("GET", "/subscribe?filter=a")
    client.flush()
    gateway = client.gateway
    gateway.feed(wire(GoAwayFrame(0)))
    assert not gateway.closed
    gateway.feed(wire(RstStreamFrame(stream, error_code=8)))
    assert gateway.closed
    assert gateway.subscriptions == {}


def test_resets_that_our_own_stream_errors_answer_are_bounded() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING)
    for stream in range(1, 4 * RESETS_MAX, 2):
        out += gateway.feed(wire(post(stream, ("content-length", "5"), flags=ENDED)))
        if gateway.closed:
            break
    assert errors(out)[-1] == ("connection", 0, CALM)
    assert sum(kind == "stream" for kind, *_ in errors(out)) <= RESETS_MAX + 1
    assert gateway.messages == []


def test_a_flood_of_priority_frames_is_bounded() -> None:
    gateway = Gateway()
    out = gateway.feed(OPENING + wire(*[PriorityFrame(1, depends_on=0)] * (CONTROL_FRAMES_MAX + 1)))
    assert errors(out) == [("connection", 0, CALM)]


def test_a_promise_of_a_client_is_a_connection_error() -> None:
    gateway = Gateway()
    promise = PushPromiseFrame(1, promised_stream_id=2, data=post(1).data, flags=["END_HEADERS"])
    assert errors(gateway.feed(OPENING + wire(post(1), promise))) == [("connection", 0, PROTOCOL)]
