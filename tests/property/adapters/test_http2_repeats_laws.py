"""Requests of HTTP/2 that are like one before them pass h2 by, and are stored and answered as if they had not."""

from collections import Counter, defaultdict
from typing import Any

from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError
from hpack.hpack import INDEX_INCREMENTAL, INDEX_NEVER, INDEX_NONE
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.http import HttpOptions
from adapters.http.wire.http2.guard import PREFACE
from adapters.http.wire.http2.head import H2Head, RepeatedHeads
from adapters.http.wire.http2.transport import Http2
from gateway.domain.errors import Cause, Refusal
from tests.support.http.http_driver import Gateway
from tests.support.process.examples import examples

TARGETS = ("/events", "/topics/a/b", "/topics/a%20c?qos=1", "/nothing", "no-path", "")
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "//a/b", "ce-type": "t"}
VALUES = ("1", "a-b", "", "two words", " led", "trailed ", "a\x00b", "caf\xe9", "x" * 300, "100-continue", "trailers")
NAMES = (
    "ce-id",
    "ce-time",
    "ce-ext",
    "content-type",
    "te",
    "expect",
    "cookie",
    "host",
    "accept",
    "x-Upper",
    "connection",
)
SETTINGS = (
    {SettingsFrame.HEADER_TABLE_SIZE: 0},
    {SettingsFrame.HEADER_TABLE_SIZE: 100},
    {SettingsFrame.INITIAL_WINDOW_SIZE: 0},
    {SettingsFrame.INITIAL_WINDOW_SIZE: 20},
    {SettingsFrame.INITIAL_WINDOW_SIZE: 100_000},
)


class Forgetting(RepeatedHeads):
    """Finds no head, so that h2 gets every frame."""

    def find(self, block: bytes) -> H2Head | None:
        """Returns None."""
        return None


def forget(gateway: Gateway) -> None:
    """Lets a connection take every request the long way."""
    transport = gateway.adapter.transport
    assert isinstance(transport, Http2)
    transport.heads = Forgetting(transport._h2.decoder, HttpOptions())


class AnyEncoder(Encoder):
    """Chooses the representation of each field by chance, and sends blocks again whatever they stand for by then."""

    def __init__(self, draw: st.DrawFn) -> None:
        super().__init__()
        self._draw = draw
        self._mirror = Decoder()  # of the same table: the peer's decoder
        self._mirror.header_table = self.header_table
        self.sent: list[bytes] = []

    def again(self) -> bytes | None:
        """Returns a block that was sent once more, where it can be decoded: its fields may be others now."""
        block = self._draw(st.sampled_from(self.sent or [b""]))
        try:
            list(self._mirror.decode(block, raw=True))
        except HPACKError:
            return None
        return block

    def encode(self, headers: Any, huffman: bool = True) -> bytes:
        """Encodes fields."""
        block: bytes = super().encode(headers, huffman)
        self.sent = [*self.sent[-4:], block]
        return block

    def add(self, to_add: tuple[bytes, bytes], sensitive: bool, huffman: bool = False) -> bytes:
        """Encodes one field."""
        name, value = to_add
        match = self.header_table.search(name, value)
        if match is not None and match[2] is not None and self._draw(st.integers(0, 3)):
            return self._encode_indexed(match[0])
        kind = self._draw(st.sampled_from((INDEX_INCREMENTAL, INDEX_NONE, INDEX_NEVER)))
        if match is not None and self._draw(st.booleans()):
            encoded = self._encode_indexed_literal(match[0], value, kind, huffman)
        else:
            encoded = self._encode_literal(name, value, kind, huffman)
        if kind == INDEX_INCREMENTAL:
            self.header_table.add(name, value)
        return encoded


class Answers:
    """The frames that a peer gets, by their streams; windows of ours are left out."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._rest = b""
        self.streams: dict[int, list[object]] = defaultdict(list)

    def read(self, data: bytes) -> None:
        """Reads frames."""
        data = self._rest + data
        while len(data) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(data[:9]))
            if len(data) < 9 + length:
                break
            frame.parse_body(memoryview(data[9 : 9 + length]))
            data = data[9 + length :]
            self._add(frame, self.streams[frame.stream_id])
        self._rest = data

    def _add(self, frame: Frame, stream: list[object]) -> None:
        if isinstance(frame, HeadersFrame):
            stream.append(list(self._decoder.decode(frame.data, raw=True)))
        elif isinstance(frame, DataFrame):
            if stream and isinstance(stream[-1], bytes):
                stream[-1] += frame.data
            else:
                stream.append(bytes(frame.data))
        elif isinstance(frame, RstStreamFrame | GoAwayFrame):
            stream.append((type(frame).__name__, frame.error_code, getattr(frame, "last_stream_id", None)))
        elif not isinstance(frame, WindowUpdateFrame):
            stream.append((type(frame).__name__, sorted(frame.flags)))
        if "END_STREAM" in frame.flags:
            stream.append("end")


class Peer:
    """A client that draws what it sends."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._encoder = AnyEncoder(draw) if draw(st.booleans()) else Encoder()
        self._next = 1
        self._huffman = draw(st.booleans())
        self._tuples = draw(st.sampled_from([HeaderTuple, NeverIndexedHeaderTuple]))
        target = draw(st.sampled_from(TARGETS[:3]))
        self._fields = {":method": "POST", ":scheme": "http", ":authority": "a", ":path": target, **EVENT}

    def rarely(self) -> bool:
        """Returns True once in twenty times."""
        return self._draw(st.integers(0, 19)) == 0

    def request(self) -> list[Frame]:
        """Draws the frames of one request, mostly like the others."""
        draw, fields = self._draw, dict(self._fields)
        fields["ce-id"] = draw(st.sampled_from(("1", "2", "3")))
        if self.rarely():
            fields[":method"] = draw(st.sampled_from(("GET", "HEAD", "OPTIONS", "CONNECT")))
        if self.rarely():
            fields[":path"] = draw(st.sampled_from(TARGETS))
        if self.rarely():
            fields[draw(st.sampled_from(NAMES))] = draw(st.sampled_from(VALUES))
        body = draw(st.binary(max_size=30))
        if draw(st.booleans()):
            fields["content-length"] = str(len(body) + self.rarely())
        stream = self._next
        self._next += 2 if not self.rarely() else draw(st.sampled_from((0, 1, 4)))
        encode = [self._tuples(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        block = None
        if isinstance(self._encoder, AnyEncoder) and draw(st.integers(0, 4)) == 0:
            block = self._encoder.again()
        if block is None:
            block = self._encoder.encode(encode, huffman=self._huffman)
        head = HeadersFrame(stream, block, flags=["END_HEADERS"])
        frames: list[Frame] = [head]
        cut = draw(st.integers(0, len(body))) if self.rarely() else 0
        parts = (body[:cut], body[cut:]) if cut else (body,) if body or draw(st.booleans()) else ()
        frames += [DataFrame(stream, part) for part in parts]
        if self.rarely() and len(frames) > 1:
            frames[-1].flags.add("PADDED")
            frames[-1].pad_length = 3
        if not self.rarely():
            frames[-1].flags.add("END_STREAM")
        return frames

    def other(self) -> Frame:
        """Draws a frame that is no request, often about one that was sent."""
        draw = self._draw
        stream = draw(st.integers(0, max(self._next // 2, 1))) * 2 + 1
        return draw(
            st.sampled_from(
                [
                    WindowUpdateFrame(stream, window_increment=draw(st.sampled_from((1, 15, 1_000)))),
                    WindowUpdateFrame(0, window_increment=7),
                    RstStreamFrame(stream, error_code=8),
                    PriorityFrame(stream, depends_on=draw(st.sampled_from((0, stream))), stream_weight=3),
                    PingFrame(0, opaque_data=b"12345678"),
                    SettingsFrame(0, settings=draw(st.sampled_from(SETTINGS))),
                    DataFrame(stream, b"late", flags=["END_STREAM"]),
                    HeadersFrame(stream, self._encoder.encode([("x", "1")]), flags=["END_HEADERS", "END_STREAM"]),
                    GoAwayFrame(0, last_stream_id=0),
                ]
            )
        )


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Draws the reads of a connection."""
    peer = Peer(draw)
    data = SettingsFrame(0, settings=draw(st.sampled_from([{}, *SETTINGS]))).serialize()
    for _ in range(draw(st.integers(2, 10))):
        frames = [peer.request() for _ in range(draw(st.integers(1, 3)))]
        if peer.rarely():  # one behind the other's head
            frames = [[one for pair in zip(*frames, strict=False) for one in pair]]
        data += b"".join([frame.serialize() for request in frames for frame in request])
        if draw(st.integers(0, 4)) == 0:
            data += peer.other().serialize()
    reads = []
    while data:
        size = draw(st.sampled_from((len(data), len(data), 1, 9, 40, 200, 400)))
        reads.append(data[:size])
        data = data[size:]
    return reads


@settings(deadline=None, max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow])
@given(conversations(), st.data())
def test_the_short_way_says_and_stores_what_h2_does(reads: list[bytes], data: st.DataObject) -> None:
    short, long = Gateway(), Gateway()
    answers = Answers(), Answers()
    for gateway, found in zip((short, long), answers, strict=True):
        found.read(gateway.feed(PREFACE))
    forget(long)
    if data.draw(st.booleans(), label="refused"):
        for gateway in (short, long):
            gateway.refusals["a/b"] = Refusal(Cause.OVERLOAD, "full")
    for read in reads:
        held = data.draw(st.integers(0, 3), label="held") == 0
        answered = data.draw(st.booleans(), label="answered")
        for gateway, found in zip((short, long), answers, strict=True):
            gateway.hold = gateway.hold or held
            gateway.act(gateway.adapter.receive(read, now_ms=gateway.now_ms))
            if answered:
                gateway.release_all()
            found.read(gateway.adapter.take_output())
    for gateway, found in zip((short, long), answers, strict=True):
        gateway.release_all()
        found.read(gateway.adapter.take_output())
    assert answers[0].streams == answers[1].streams
    stored = [Counter(map(str, gateway.messages)) for gateway in (short, long)]
    if any(isinstance(one, tuple) and one[:1] == ("GoAwayFrame",) and one[1] for one in answers[1].streams[0]):
        assert stored[0] >= stored[1]  # of a read with a fault, h2 tells nothing of what lies before that
    else:
        assert stored[0] == stored[1]
    assert short.closed == long.closed
    if not short.closed:
        assert books(short) == books(long)


def books(gateway: Gateway) -> tuple[object, ...]:
    """Returns what is kept of a connection for later: its windows, and what counts against its peer."""
    transport = gateway.adapter.transport
    assert isinstance(transport, Http2)
    h2, streams, abuse = transport._h2, transport._streams, transport._abuse
    window = h2._inbound_flow_control_window_manager
    return (
        h2.outbound_flow_control_window,
        window.current_window_size + window._bytes_processed,
        h2.open_inbound_streams,
        (streams.held_in_bytes, streams.held_out_bytes, streams.unwritten_bytes),
        (abuse._resets, abuse._control_frames),
    )
