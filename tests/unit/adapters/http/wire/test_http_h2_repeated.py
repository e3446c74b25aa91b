"""Requests of HTTP/2 that are all there and like one before them: h2 learns of them only where it has to."""

import h2.settings
import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import HeadersFrame

from adapters.http import HttpOptions
from adapters.http.wire.http2.head import HEADS_MAX
from adapters.http.wire.http2.strict import StrictConnection
from adapters.http.wire.http2.transport import Http2
from tests.support.http.http_driver import Gateway, Http2Client

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


def test_a_closed_connection_keeps_no_heads() -> None:
    client = Http2Client(Gateway())
    client.ask("GET", "/topics", ("authorization", "Bearer secret"))
    transport = client.gateway.adapter.transport
    assert isinstance(transport, Http2)
    client.gateway.adapter.lost(now_ms=client.gateway.now_ms)
    assert transport.heads.find(Encoder().encode([])) is None


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
