"""Frames of HTTP/2 that change or ask for something of the connection (RFC 9113, 6), and the answers to them."""

import pytest
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from adapters.http.wire.http2.guard import PREFACE
from store.api.message import Message
from tests.support.http.http_driver import Gateway

PROTOCOL, FLOW, COMPRESSION = 1, 3, 9
TABLE, PUSH, STREAMS, WINDOW, FRAME, HEAD = 1, 2, 3, 4, 5, 6
SMALL_TABLE_BYTES = 64
CONNECTION_FIELDS = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}


class Client:
    """A client that sends frames as they are, behind its preface."""

    def __init__(self, settings: dict[int, int] | None = None) -> None:
        self.gateway = Gateway()
        self.gateway.frames.append([Message("a", b"x" * 1_000, 1, id="1")])
        self.decoder = Decoder()
        self.heads: list[dict[str, str]] = []
        self.opening = self.send(PREFACE, SettingsFrame(0, settings=settings or {}))

    def send(self, *frames: Frame | bytes) -> list[Frame]:
        """Returns the frames of the answer."""
        sent = b"".join(frame if isinstance(frame, bytes) else frame.serialize() for frame in frames)
        data, found = self.gateway.feed(sent), list[Frame]()
        while data:
            frame, length = Frame.parse_frame_header(memoryview(data[:9]))
            frame.parse_body(memoryview(data[9 : 9 + length]))
            found.append(frame)
            data = data[9 + length :]
        self.heads += [dict(self.decoder.decode(frame.data)) for frame in found if isinstance(frame, HeadersFrame)]
        return found

    def statuses(self, *frames: Frame | bytes) -> list[str]:
        """Returns the statuses of the answer to frames."""
        before = len(self.heads)
        self.send(*frames)
        return [head[":status"] for head in self.heads[before:]]


def get(stream: int = 1, path: str = "/topics/a", method: str = "GET", *fields: tuple[str, str]) -> HeadersFrame:
    head = [(":method", method), (":scheme", "http"), (":authority", "gateway"), (":path", path), *fields]
    return HeadersFrame(stream, data=Encoder().encode(head), flags=["END_HEADERS", "END_STREAM"])


def body_bytes(frames: list[Frame]) -> int:
    return sum(len(frame.data) for frame in frames if isinstance(frame, DataFrame))


def codes(frames: list[Frame], kind: type[Frame]) -> list[int]:
    return [frame.error_code for frame in frames if isinstance(frame, kind)]


def test_the_first_frame_is_settings_and_each_setting_and_ping_is_acknowledged() -> None:
    client = Client()
    first = client.opening[0]
    assert isinstance(first, SettingsFrame)
    assert (first.stream_id, first.flags & {"ACK"}) == (0, set())
    assert first.settings.get(STREAMS, 1) > 0
    assert 1 << 14 <= first.settings.get(FRAME, 1 << 14) < 1 << 24
    acknowledged = [frame for frame in client.opening if isinstance(frame, SettingsFrame) and "ACK" in frame.flags]
    assert [(frame.stream_id, frame.settings) for frame in acknowledged] == [(0, {})]
    answers = client.send(get(), PingFrame(0, opaque_data=b"12345678"))
    pings = [frame for frame in answers if isinstance(frame, PingFrame)]
    assert [(frame.opaque_data, "ACK" in frame.flags) for frame in pings] == [(b"12345678", True)]
    assert not [frame for frame in answers if isinstance(frame, SettingsFrame)], "windows are never made smaller"


def test_acknowledgements_are_not_answered() -> None:
    client = Client()
    assert client.send(PingFrame(0, flags=["ACK"]), SettingsFrame(0, flags=["ACK"])) == []


def test_the_reserved_bit_of_a_stream_is_ignored() -> None:
    client, frame = Client(), bytearray(get().serialize())
    frame[5] |= 0x80
    assert client.statuses(bytes(frame)) == ["200"]


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        (PUSH, 2, PROTOCOL),
        (WINDOW, 1 << 31, FLOW),
        (FRAME, (1 << 14) - 1, PROTOCOL),
        (FRAME, 1 << 24, PROTOCOL),
    ],
)
def test_a_setting_out_of_its_range_is_a_connection_error(setting: int, value: int, code: int) -> None:
    answers = Client().send(SettingsFrame(0, settings={setting: value}))
    assert codes(answers, GoAwayFrame) == [code]


def test_an_initial_window_that_overflows_a_window_is_a_flow_control_error() -> None:
    client = Client({WINDOW: 0})
    client.send(get(), WindowUpdateFrame(1, window_increment=100))
    answers = client.send(WindowUpdateFrame(1, window_increment=1), SettingsFrame(0, settings={WINDOW: (1 << 31) - 1}))
    assert codes(answers, GoAwayFrame) in ([FLOW], [])  # no error where the stream has used what it was given
    client = Client({WINDOW: 0, FRAME: 1 << 14})
    large = HeadersFrame(1, data=get().data, flags=["END_HEADERS"])  # stays open: nothing is sent on it
    client.send(large, WindowUpdateFrame(1, window_increment=1))
    assert codes(client.send(SettingsFrame(0, settings={WINDOW: (1 << 31) - 1})), GoAwayFrame) == [FLOW]


def test_the_last_of_a_setting_counts() -> None:
    client = Client()
    twice = b"".join(WINDOW.to_bytes(2, "big") + size.to_bytes(4, "big") for size in (0, 10))
    frame = len(twice).to_bytes(3, "big") + b"\4\0\0\0\0\0" + twice
    assert body_bytes(client.send(frame, get())) == 10


def test_another_initial_window_counts_for_streams_that_are_open() -> None:
    client = Client({WINDOW: 100})
    assert body_bytes(client.send(get())) == 100
    assert body_bytes(client.send(SettingsFrame(0, settings={WINDOW: 50}))) == 0  # the window is -50
    assert body_bytes(client.send(WindowUpdateFrame(1, window_increment=50))) == 0
    assert body_bytes(client.send(WindowUpdateFrame(1, window_increment=7))) == 7
    assert body_bytes(client.send(SettingsFrame(0, settings={WINDOW: 60}))) == 10


@pytest.mark.parametrize("stream", [0, 1])
def test_a_window_that_opens_by_nothing_is_an_error(stream: int) -> None:
    client = Client({WINDOW: 10})
    client.send(get())
    nothing = b"\0\0\4\x08\0" + stream.to_bytes(4, "big") + bytes(4)
    assert codes(client.send(nothing), GoAwayFrame) == [PROTOCOL]  # of a stream it may be one of the connection (5.4.1)


def test_a_window_of_a_closed_stream_is_no_error() -> None:
    client = Client()
    assert body_bytes(client.send(get())) == 1_000
    assert client.send(WindowUpdateFrame(1, window_increment=5)) == []
    assert client.statuses(get(3)) == ["200"]


def test_a_limit_of_no_streams_is_nothing_special() -> None:
    client = Client({STREAMS: 0})
    assert client.statuses(get()) == ["200"]


def test_an_unknown_error_code_resets_a_stream_like_another() -> None:
    client = Client({WINDOW: 10})
    client.send(get())
    assert client.send(RstStreamFrame(1, error_code=0xABCD)) == []
    assert body_bytes(client.send(WindowUpdateFrame(1, window_increment=50))) == 0
    assert client.statuses(get(3)) == ["200"]


def test_a_smaller_header_table_of_the_peer_is_announced() -> None:
    client = Client({TABLE: SMALL_TABLE_BYTES})
    (head,) = [frame for frame in client.send(get()) if isinstance(frame, HeadersFrame)]
    assert head.data[0] & 0xE0 == 0x20, "a block begins with an update of the table's size (RFC 7541, 6.3)"
    assert client.heads[0][":status"] == "200"


def test_a_header_table_larger_than_ours_is_a_compression_error() -> None:
    frame = get()
    frame.data = b"\x3f\xe1\xff\x7f" + frame.data  # an update to 2^21
    assert codes(Client().send(frame), GoAwayFrame) == [COMPRESSION]


def test_no_response_has_fields_of_the_connection() -> None:
    client = Client()
    for stream, (method, path) in enumerate([("GET", "/topics/a"), ("GET", "/none"), ("OPTIONS", "*"), ("PUT", "/")]):
        client.send(get(2 * stream + 1, path, method))
        head = client.heads[stream]
        assert not CONNECTION_FIELDS & head.keys()
        assert [name for name in head if name.startswith(":")] == [":status"]


def test_the_authority_goes_before_the_host() -> None:
    client = Client()
    assert client.statuses(get(1, "/topics/a", "GET", ("host", "gateway"))) == ["200"]
    answers = client.send(get(3, "/topics/a", "GET", ("host", "another")))
    assert codes(answers, RstStreamFrame) == [PROTOCOL]


def test_options_of_the_whole_server() -> None:
    assert Client().statuses(get(1, "*", "OPTIONS"))[0] in {"200", "204"}
