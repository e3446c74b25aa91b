"""Bodies that arrive on all connections together are bounded, before anybody knows who sends them."""

import gc
import weakref

import pytest
from hyperframe.frame import DataFrame

from adapters.http import HttpFactory, HttpOptions
from adapters.http.wire.http2.head import FIELD_OVERHEAD_BYTES
from adapters.http.wire.receive_budget import FREE_BYTES
from tests.support.http.http_driver import Gateway, Http2Client, parse_responses, request

pytestmark = pytest.mark.slow

KiB = 1024
OPTIONS = HttpOptions(arriving_bytes_max=1024 * KiB)
HEAD = b"POST /topics/a HTTP/1.1\r\nhost: gateway.example\r\ncontent-length: %d\r\n\r\n"


class SharedRoom:
    """Connections that share what they may hold."""

    def __init__(self):
        self.factory = HttpFactory()

    def connect(self, *, hold=False):
        return Gateway(OPTIONS, factory=self.factory, hold=hold)

    @property
    def held_bytes(self):
        return self.factory.arriving.held_bytes


@pytest.fixture
def process():
    return SharedRoom()


def begin(connection, size):
    """Sends this many bytes of a body that is longer by one, and returns what is answered already."""
    out = connection.feed(HEAD % (size + 1) + b"x" * size)
    return [answer.status for answer in parse_responses(out)]


def test_strangers_may_hold_half_of_it_together(process):
    first, second, small, other = (process.connect() for _ in range(4))
    assert begin(first, 400 * KiB) == []
    out = second.feed(HEAD % (200 * KiB) + b"x" * (150 * KiB))
    (refused,) = parse_responses(out)
    assert (refused.status, refused["retry-after"], refused["connection"]) == (503, "1", "close")
    assert begin(small, FREE_BYTES) == []  # as much as a read brings goes anyhow
    (stored,) = parse_responses(small.feed(b"x"))
    assert stored.status == 201
    (stored,) = parse_responses(first.feed(b"x"))
    assert stored.status == 201
    assert process.held_bytes == 0
    assert begin(other, 500 * KiB) == []


def test_who_has_been_let_in_has_room_when_strangers_have_none(process):
    known, stranger = process.connect(), process.connect()
    known.feed(request("POST", "/topics/a", body=b"x"))
    assert begin(stranger, 500 * KiB) == []
    assert begin(known, 400 * KiB) == []
    assert begin(process.connect(), 100 * KiB) == [503]
    second = process.connect()
    second.feed(request("POST", "/topics/a", body=b"x"))
    assert begin(second, 200 * KiB) == [503]  # it is full for all


def test_a_connection_that_is_lost_holds_nothing(process):
    gone = process.connect()
    begin(gone, 500 * KiB)
    gone.adapter.lost(now_ms=gone.now_ms)
    assert process.held_bytes == 0


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_lost_connection_held_is_freed_without_a_look_for_cycles(process, version):
    gone = process.connect()
    if version == 1:
        begin(gone, 500 * KiB)
    else:
        client = Http2Client(gone)
        client.send("POST", "/topics/a", body=b"x" * 30_000, end=False)
        client.flush()
    held = weakref.ref(gone.adapter.transport)
    assert held().arriving_bytes
    gc.collect()
    gc.disable()  # a process looks seldom, and what strangers have sent would stay until then
    try:
        gone.adapter.lost(now_ms=gone.now_ms)
        assert held() is None
    finally:
        gc.enable()


def test_the_streams_of_a_connection_are_refused_together_and_it_stays(process):
    begin(process.connect(), 450 * KiB)
    client = Http2Client(process.connect())
    streams = [client.send("POST", "/topics/a", body=b"x" * 30_000, end=False) for _ in range(2)]
    client.flush()
    assert [client.answer(stream).status for stream in streams] == [0, 0]
    late = client.send("POST", "/topics/a", body=b"x" * 30_000, end=False)
    client.flush()
    assert [client.answer(stream).status for stream in (*streams, late)] == [503] * 3
    assert client.ask("POST", "/topics/a", body=b"x").status == 201


def test_heads_of_streams_whose_body_does_not_come_are_held_too(process):
    """HPACK names a field that was sent before in one byte: 233 KB of heads were 19 MB, for 30 s."""
    client = Http2Client(process.connect())
    many = [("a", "b")] * 900
    streams = [client.send("POST", "/topics/a", *many, end=False) for _ in range(16)]
    client.flush()
    assert process.held_bytes > len(streams) * len(many) * FIELD_OVERHEAD_BYTES
    assert [client.answer(stream).status for stream in streams] == [0] * 16
    streams += [client.send("POST", "/topics/a", *many, end=False) for _ in range(2)]
    client.flush()
    assert [client.answer(stream).status for stream in streams] == [503] * 18
    assert process.held_bytes == 0
    arriving = [stream.head for _, stream in client.gateway.adapter.transport._streams]
    assert [head.fields for head in arriving] == [()] * 18
    client.h2.end_stream(streams[0])
    client.h2.reset_stream(streams[1])
    client.flush()
    assert client.ask("POST", "/topics/a", body=b"x").status == 201


@pytest.mark.parametrize("end", ["arrives", "reset", "late", "wrong length"])
def test_a_stream_that_ends_holds_nothing(process, end):
    client = Http2Client(process.connect())
    stream = client.send("POST", "/topics/a", ("content-length", "2"), body=b"x", end=False)
    client.flush()
    assert process.held_bytes > 100
    if end == "late":
        client.read(client.gateway.tick(after_ms=OPTIONS.request_timeout_s * 1_000))
    elif end == "reset":
        client.h2.reset_stream(stream)
    elif end == "arrives":
        client.h2.send_data(stream, b"y", end_stream=True)
    else:
        client.gateway.feed(DataFrame(stream, data=b"", flags=["END_STREAM"]).serialize())
    client.flush()
    assert process.held_bytes == client.gateway.adapter.transport.arriving_bytes == 0


def test_heads_of_one_connection_hold_no_more_than_it_may():
    client = Http2Client(Gateway(HttpOptions(max_held_bytes=64 * KiB)))
    many = [("a", "b")] * 900
    streams = [client.send("POST", "/topics/a", *many, end=False) for _ in range(3)]
    client.flush()
    assert [client.answer(stream).status for stream in streams] == [0, 0, 503]
    assert client.ask("GET", "/topics").status == 200


# ---- requests that are all there, and wait until it is known who sends them


def post(size):
    return request("POST", "/topics/a", body=b"x" * size)


def test_bodies_that_wait_for_a_login_are_held_too_and_refused_beyond(process):
    first, second = process.connect(hold=True), process.connect(hold=True)
    first.feed(post(400 * KiB))
    assert process.held_bytes == 400 * KiB
    refused = parse_responses(second.feed(post(100 * KiB) + post(100 * KiB)))
    assert [(one.status, one["retry-after"]) for one in refused] == [(503, "1")] * 2
    assert process.held_bytes == 400 * KiB
    assert [one.status for one in parse_responses(first.release())] == [201]
    assert process.held_bytes == 0
    second.release()
    assert second.messages == []
    assert [one.status for one in parse_responses(second.feed(post(100 * KiB)))] == [201]  # it stays open


def test_bodies_that_arrive_behind_one_that_waits_are_refused_with_it(process):
    connection = process.connect(hold=True)
    connection.feed(post(400 * KiB) + request("GET", "/topics"))
    assert begin(connection, 200 * KiB) == [503]  # the one in the middle is not answered before it is known who asks
    out = connection.release()
    assert [one.status for one in parse_responses(out)] == [200, 503]
    assert connection.messages == []


def test_streams_that_wait_for_a_login_are_refused_together(process):
    client = Http2Client(process.connect(hold=True))
    streams = [client.send("POST", "/topics/a", body=b"x" * 50_000) for _ in range(11)]
    client.flush()
    assert [client.answer(stream).status for stream in streams] == [503] * 11
    assert process.held_bytes == 0


@pytest.mark.parametrize("answered", [True, False])
def test_who_is_not_let_in_or_does_not_wait_for_it_holds_nothing(process, answered):
    connection = process.connect(hold=True)
    connection.anonymous = False
    connection.feed(post(400 * KiB))
    if answered:
        assert [one.status for one in parse_responses(connection.release())] == [401]
    else:
        connection.adapter.lost(now_ms=connection.now_ms)
        assert connection.adapter._requests.body_bytes == 0
    assert process.held_bytes == 0
