"""Requests of HTTP/2 that are all there and like one before them: h2 learns of them only where it has to."""

import base64
from collections.abc import Iterator

import h2.settings
import pytest
from h2.errors import ErrorCodes
from hpack import Decoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame

from adapters.http import HttpOptions
from adapters.http.wire.http2.guard import PREFACE
from adapters.http.wire.http2.head import HEADS_MAX, WHOLE_FRAMES_MAX
from adapters.http.wire.http2.strict import StrictConnection
from adapters.http.wire.http2.transport import Http2
from gateway.port.adapter import Publish
from tests.support.http.http_driver import PASSWORDS, Gateway, Http2Client

EVENT = (("ce-specversion", "1.0"), ("ce-source", "/s"), ("ce-type", "t"), ("content-type", "text/plain"))
WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns how many frames of HEADERS h2 has got, as streams."""
    streams: list[int] = []
    receive = StrictConnection._receive_headers_frame

    def count(self: StrictConnection, frame: HeadersFrame):
        streams.append(frame.stream_id)
        return receive(self, frame)

    monkeypatch.setattr(StrictConnection, "_receive_headers_frame", count)
    return streams


def post(client: Http2Client, number: int, body: bytes = b"x") -> int:
    return client.send("POST", "/events", *EVENT, ("ce-id", str(number)), body=body)


def test_h2_gets_the_first_alone(seen: list[int]) -> None:
    client = Http2Client(Gateway())
    for number in range(20):
        stream = post(client, number, b"x" * number)
        client.flush()
        assert client.answer(stream).json["id"] == str(number)
    assert [message.id for message in client.gateway.messages] == [str(number) for number in range(20)]
    assert [len(message.body) for message in client.gateway.messages] == list(range(20))
    assert seen == [1]


@pytest.mark.parametrize(("frames", "passes"), [(WHOLE_FRAMES_MAX, True), (WHOLE_FRAMES_MAX + 1, False)])
def test_a_body_in_many_frames_is_h2s(seen: list[int], frames: int, passes: bool) -> None:
    """They would be looked at again with each read, as long as the last one is not there."""
    client = Http2Client(Gateway())
    client.ask("POST", "/events", *EVENT, ("ce-id", "0"), body=b"x")
    stream = client.send("POST", "/events", *EVENT, ("ce-id", "1"), end=False)
    for number in range(frames):
        client.h2.send_data(stream, b"y" * 200, end_stream=number == frames - 1)
    client.flush()
    assert client.answer(stream).status == 200
    assert len(client.gateway.messages[-1].body) == 200 * frames
    assert seen == ([1] if passes else [1, stream])


def test_heads_of_some_kinds_are_known_at_a_time(seen: list[int]) -> None:
    client = Http2Client(Gateway())
    for _ in range(3):
        for kind in range(HEADS_MAX):
            client.ask("GET", "/topics", (f"x-{kind}", "1"))
    assert len(seen) == HEADS_MAX
    client.ask("GET", "/topics", ("x-other", "1"))
    client.ask("GET", "/topics", ("x-0", "1"))
    assert len(seen) == HEADS_MAX + 2


def test_an_answer_that_no_window_takes_is_h2s() -> None:
    client = Http2Client(Gateway())
    client.ask("GET", "/topics", ("x-a", "1"))
    client.h2.update_settings({WINDOW: 1})
    client.flush()
    client.acknowledge = False
    stream = client.send("GET", "/topics", ("x-a", "2"))
    client.flush()
    answer = client.answer(stream)
    assert (answer.status, len(answer.body), answer.ended) == (200, 1, False)
    client.h2.increment_flow_control_window(100, stream)
    client.flush()
    assert client.answer(stream).ended
    assert client.answer(stream).json == []


def test_one_that_its_client_resets_is_stored_and_not_answered() -> None:
    gateway = Gateway()
    client = Http2Client(gateway)
    client.ask("POST", "/topics/a", body=b"0")
    gateway.hold = True
    stream, other = (client.send("POST", "/topics/a", body=b"%d" % n) for n in (1, 2))
    client.flush()
    client.h2.reset_stream(stream)
    client.flush()
    client.read(gateway.release())
    assert client.answer(stream).status == 0
    assert client.answer(other).status == 201
    assert [message.body for message in gateway.messages] == [b"0", b"1", b"2"]
    assert client.goaway is None


def test_they_count_among_the_streams_that_may_be_open(seen: list[int]) -> None:
    gateway = Gateway(HttpOptions(max_concurrent_streams=5))
    client = Http2Client(gateway)
    client.ask("POST", "/topics/a", body=b"")
    client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 100
    client.h2.remote_settings.acknowledge()
    gateway.hold = True
    streams = [client.send("POST", "/topics/a", body=b"x") for _ in range(7)]
    client.flush()
    assert [client.received[stream].reset for stream in streams] == [None] * 5 + [ErrorCodes.REFUSED_STREAM] * 2
    client.read(gateway.release())
    assert [client.answer(stream).status for stream in streams] == [201] * 5 + [0] * 2
    assert client.ask("POST", "/topics/a", body=b"").status == 201


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\xff\xff\xff\xff\xff\xff", ErrorCodes.COMPRESSION_ERROR),
        (b"\x80", ErrorCodes.COMPRESSION_ERROR),
    ],
)
def test_a_block_that_cannot_be_decoded_ends_the_connection(block: bytes, code: int) -> None:
    client = Http2Client(Gateway())
    client.ask("GET", "/topics")
    client.read(client.gateway.feed(HeadersFrame(3, block, flags=["END_HEADERS", "END_STREAM"]).serialize()))
    assert client.goaway == ErrorCodes.COMPRESSION_ERROR
    assert client.gateway.closed


def test_one_whose_length_is_wrong_is_reset_alone() -> None:
    client = Http2Client(Gateway())
    client.ask("POST", "/topics/a", ("content-length", "1"), body=b"x")
    stream = client.send("POST", "/topics/a", ("content-length", "2"), body=b"xy")
    data = client.h2.data_to_send().replace(b"xy", b"zy")
    cut = data.replace(b"\x00\x00\x02\x00\x00", b"\x00\x00\x01\x00\x00").replace(b"zy", b"z")
    client.read(client.gateway.feed(cut))
    assert client.received[stream].reset == ErrorCodes.PROTOCOL_ERROR
    assert [message.body for message in client.gateway.messages] == [b"x"]
    assert client.goaway is None


def test_another_size_of_the_peers_table_is_said_before_a_remembered_block() -> None:
    """Between the two, h2 has said it in a block of its own."""
    client = Http2Client(Gateway())
    for size in (4_096, 100, 0, 4_096):
        client.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
        client.flush()
        assert client.ask("GET", "/nothing", (f"x-{size}", "1")).status == 404
        for _ in range(3):
            assert client.ask("POST", "/topics/a", body=b"").status == 201


def transport_of(client: Http2Client) -> Http2:
    transport = client.gateway.adapter.transport
    assert isinstance(transport, Http2)
    return transport


def test_a_closed_connection_keeps_no_heads() -> None:
    client = Http2Client(Gateway())
    client.ask("GET", "/topics")
    data = client.h2.encoder.encode(
        [(":method", "GET"), (":scheme", "http"), (":authority", "gateway.example"), (":path", "/topics")]
    )
    client.ask("GET", "/topics")
    heads, encoder = transport_of(client).heads, transport_of(client)._h2.encoder
    assert heads.find(data) is not None
    assert encoder._blocks
    client.gateway.adapter.lost(now_ms=client.gateway.now_ms)
    assert heads.find(data) is None
    assert not encoder._blocks


def raw(stream: int, block: bytes, body: bytes = b"x") -> bytes:
    """Returns the frames of a request."""
    head = HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize()
    return head + DataFrame(stream, body, flags=["END_STREAM"]).serialize()


def frames(data: bytes) -> Iterator[Frame]:
    """Returns the frames that a peer gets."""
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        data = data[9 + length :]
        yield frame


def literal(first: bytes, name: bytes, value: bytes) -> bytes:
    """Returns a field with a new name; `first` says whether it is indexed (RFC 7541, 6.2)."""
    return first + bytes([len(name)]) + name + bytes([len(value)]) + value


def test_a_block_stands_for_other_fields_when_its_table_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a proxy's connection for two users: the same bytes are alice's request, and then bob's."""
    monkeypatch.setitem(PASSWORDS, "alice", b"a")
    monkeypatch.setitem(PASSWORDS, "bob", b"b")
    gateway = Gateway()
    gateway.feed(PREFACE + SettingsFrame(0).serialize())
    begins = b"\x83\x86\x01\x01a\x04\x09/topics/x"  # POST, http, an authority, a path
    for stream, who in ((1, b"alice:a"), (3, b"bob:b")):
        block = begins + literal(b"\x40", b"authorization", b"Basic " + base64.b64encode(who))
        gateway.feed(raw(stream, block + literal(b"\0", b"x-n", b"1")))
    again = begins + b"\xbf" + literal(b"\x40", b"x-n", b"1")  # the second of the table, and one more in front of it
    for stream in (5, 7):
        gateway.feed(raw(stream, again))
    senders = [effect.who.name for effect in gateway.effects if isinstance(effect, Publish) and effect.who]
    assert senders == ["alice", "bob", "alice", "bob"]


def test_lengths_that_differ_are_refused_behind_such_as_agree() -> None:
    client = Http2Client(Gateway())
    codes = []
    for first, second in (("2", "2"), ("3", "2"), ("2", "3"), ("2", "2")):
        stream = client.send("POST", "/topics/a", ("content-length", first), ("content-length", second), body=b"xy")
        client.flush()
        codes.append(client.received[stream].reset)
    assert codes[1:3] == [ErrorCodes.PROTOCOL_ERROR] * 2
    assert codes[0] == codes[3]
    assert {message.body for message in client.gateway.messages} <= {b"xy"}


def test_a_head_that_may_be_longer_than_a_frame_is_sent_as_h2_does() -> None:
    """A backslash takes 19 bits."""
    client = Http2Client(Gateway())
    assert client.ask("POST", "/topics/x", ("content-type", "text/" + "\\" * 7_000), body=b"x").status == 201
    for _ in range(3):
        assert client.ask("GET", "/topics/x").body == b"x"


def test_the_same_size_of_a_table_twice_forgets_its_blocks() -> None:
    client = Http2Client(Gateway())
    decoder = Decoder()
    for sizes in ((), (0, 0), (4_096, 4_096)):
        for size in sizes:
            client.gateway.feed(SettingsFrame(0, settings={SettingsFrame.HEADER_TABLE_SIZE: size}).serialize())
            decoder.header_table_size = decoder.max_allowed_table_size = size  # it shrinks at once
        for _ in range(2):
            stream = client.send("POST", "/topics/a", body=b"")
            out = client.gateway.feed(client.h2.data_to_send())
            heads = [
                frame.data for frame in frames(out) if isinstance(frame, HeadersFrame) and frame.stream_id == stream
            ]
            assert dict(decoder.decode(heads[0]))[":status"] == "201"


def test_trailers_that_come_late_at_the_limit_of_streams_reset_their_stream() -> None:
    gateway = Gateway(HttpOptions(max_concurrent_streams=2))
    client = Http2Client(gateway)
    client.ask("POST", "/topics/a", body=b"")
    gateway.hold = True
    streams = [client.send("POST", "/topics/a", body=b"x") for _ in range(2)]
    client.flush()
    block = client.h2.encoder.encode([("x", "1")])
    client.read(gateway.feed(HeadersFrame(streams[1], block, flags=["END_HEADERS", "END_STREAM"]).serialize()))
    client.read(gateway.release())
    assert client.received[streams[1]].reset == ErrorCodes.STREAM_CLOSED
    assert client.answer(streams[0]).status == 201
    assert client.goaway is None


def test_methods_in_turn_are_known_both(seen: list[int]) -> None:
    client = Http2Client(Gateway())
    for number in range(10):
        client.ask("POST", f"/topics/a/{number}", body=b"x")
        client.ask("PUT", f"/topics/a/{number}", body=b"x")
    assert len(seen) == 2


def test_a_request_that_is_reset_before_it_is_told_to_go_on_hurts_nobody_else() -> None:
    client = Http2Client(Gateway())
    stream = client.send("POST", "/topics/a", ("expect", "100-continue"), body=b"x", end=False)
    client.h2.reset_stream(stream)
    client.flush()
    assert not client.gateway.closed
    assert client.ask("POST", "/topics/a", body=b"").status == 201


@pytest.mark.parametrize("value", [b"a\0b", b" a", b"a ", b"a\nb"])
def test_values_that_are_none_are_refused_behind_such_as_are(value: bytes) -> None:
    gateway = Gateway()
    client = Http2Client(gateway)
    client.ask("POST", "/topics/a", ("x-a", "1"), body=b"")
    block = b"\x83\x86\x01\x0fgateway.example\x04\x09/topics/a" + literal(b"\0", b"x-a", value)
    client.read(gateway.feed(raw(3, block)))
    assert [message.body for message in gateway.messages] == [b""]


def test_a_window_that_is_used_up_is_an_error() -> None:
    """The connection lets 1 MiB and 64 KiB come that is not taken."""
    gateway = Gateway()
    client = Http2Client(gateway)
    client.ask("POST", "/topics/a", body=b"x")
    transport_of(client)._h2._inbound_flow_control_window_manager.current_window_size = 10
    block = client.h2.encoder.encode(
        [(":method", "POST"), (":scheme", "http"), (":authority", "gateway.example"), (":path", "/topics/a")]
    )
    client.read(gateway.feed(raw(3, block, b"x" * 11)))
    assert client.goaway == ErrorCodes.FLOW_CONTROL_ERROR


def test_a_body_too_large_is_refused() -> None:
    client = Http2Client(Gateway(HttpOptions(max_body_bytes=10)))
    assert client.ask("POST", "/topics/a", body=b"x" * 10).status == 201
    assert client.ask("POST", "/topics/a", body=b"x" * 11).status == 413
    assert client.ask("POST", "/topics/a", body=b"x" * 10).status == 201


def test_a_stream_number_is_used_once() -> None:
    client = Http2Client(Gateway())
    for number in range(3):
        post(client, number)
        client.flush()
    block = client.h2.encoder.encode(
        [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/topics")]
    )
    client.read(client.gateway.feed(HeadersFrame(3, block, flags=["END_HEADERS", "END_STREAM"]).serialize()))
    assert client.goaway == ErrorCodes.STREAM_CLOSED
