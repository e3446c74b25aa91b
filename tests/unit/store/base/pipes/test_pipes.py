"""Pipes: messages arrive whole and in order however bytes do, streams end as over gRPC, and gRPC is served beside."""

import asyncio
import contextlib
import random
import socket
import struct

import grpc
import grpc.aio
import pytest

from store.base.listening import grpc_servers
from store.base.listening import server as listening_server
from store.base.pipes import PipeServer, open_channel, pipe, server
from store.base.pipes.pipe import OPENING, End, Pipe
from tests.support.process.loops import AsyncioLoop, UvLoop

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
EOF = grpc.aio.EOF


@pytest.fixture(params=[AsyncioLoop, UvLoop], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    """Chooses the loop, because nodes run on uvloop and other tests on asyncio, and their order of events differs."""
    return "asyncio", {"loop_factory": request.param}


class PipeTransport:
    """The part of a transport that a pipe needs."""

    def __init__(self):
        self.sent = []
        self.closed = self.aborted = self.paused = False

    def set_write_buffer_limits(self, high):
        self.high = high

    def writelines(self, parts):
        self.sent += parts

    def is_closing(self):
        return self.closed or self.aborted

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False


def a_pipe():
    made, transport = Pipe(), PipeTransport()
    made.connection_made(transport)
    return made, transport


def feed(made, data, sizes):
    """Feeds bytes as they arrive, in pieces of these sizes, and never more than there is room for."""
    at = 0
    while at < len(data):
        room = made.get_buffer(-1)
        assert len(room) > 0
        count = min(len(room), next(sizes), len(data) - at)
        room[:count] = data[at : at + count]
        at += count
        made.buffer_updated(count)


def packed(*messages):
    return b"".join(struct.pack("<I", len(one)) + one for one in messages)


@pytest.mark.parametrize("seed", range(20))
async def test_messages_are_the_same_however_bytes_come(seed):
    chance = random.Random(seed)
    sizes = [0, 1, 3, 100, 20_000, pipe.BUFFER_BYTES - 4, pipe.BUFFER_BYTES, 3 << 20]
    messages = [chance.randbytes(chance.choice(sizes)) for _ in range(12)]
    made, _ = a_pipe()
    step = chance.choice([1, 7, 4096, 1 << 30])
    small = step < 100 and sum(map(len, messages)) > 200_000
    if small:  # byte by byte takes long
        messages = [one[:50] for one in messages]
    feed(made, packed(*messages), iter(lambda: chance.randint(1, step), 0))
    assert [await made.read() for _ in messages] == messages
    assert len(made.buffer) <= pipe.BUFFER_KEPT_BYTES


async def test_who_does_not_read_is_not_sent_more(monkeypatch):
    monkeypatch.setattr(pipe, "ARRIVED_BYTES_MAX", 1000)
    made, transport = a_pipe()
    feed(made, packed(*[b"x" * 400] * 3), iter(lambda: 1 << 20, 0))
    assert transport.paused
    await made.read()
    assert not transport.paused


async def test_an_end_is_behind_what_came_before_it():
    made, transport = a_pipe()
    said = b"\x93\xa2OK\xa0\x90"
    feed(made, packed(b"last") + struct.pack("<I", 1 << 31 | len(said)) + said, iter(lambda: 5, 0))
    assert await made.read() == b"last"
    assert await made.read() is EOF
    assert transport.closed
    with pytest.raises(grpc.aio.AioRpcError):
        await made.write(b"more")


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", pipe.MESSAGE_BYTES_MAX + 1),
        struct.pack("<I", 1 << 31 | pipe.END_BYTES_MAX + 1),
        struct.pack("<I", 1 << 31 | 3) + b"abc",
        struct.pack("<I", 1 << 31 | 0),
    ],
)
async def test_bytes_that_are_no_messages_end_it(data):
    made, transport = a_pipe()
    feed(made, packed(b"one") + data, iter(lambda: 1 << 20, 0))
    assert await made.read() == b"one"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await made.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert transport.aborted


@pytest.mark.parametrize("seed", range(50))
async def test_any_bytes_are_messages_or_an_error(seed):
    chance = random.Random(seed)
    made, _ = a_pipe()
    data = b"".join(
        struct.pack(
            "<I", chance.choice([chance.randint(0, 60), 1 << 31 | chance.randint(0, 40), chance.getrandbits(32)])
        )
        + chance.randbytes(chance.randint(0, 60))
        for _ in range(20)
    )
    feed(made, data, iter(lambda: chance.randint(1, 100), 0))
    made.connection_lost(None)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await read_on(made)


async def test_a_connection_that_ends_without_an_end_has_broken():
    lost = []
    made = Pipe(lambda: lost.append(True))
    made.connection_made(PipeTransport())
    reading = asyncio.ensure_future(made.read())
    await asyncio.sleep(0)
    made.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "reset" in caught.value.details()
    assert lost == [True]


# ---- over sockets


class Service:
    """Streams of every kind."""

    def __init__(self):
        self.cancelled = asyncio.Event()
        self.written = 0

    async def echo(self, _requests, context):
        while (message := await context.read()) is not EOF:
            if message == b"end":
                return
            if message == b"fail":
                raise ValueError("on purpose")
            if message == b"abort":
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing", (("key-bin", b"\x00\xff"),))
            await context.write(message)

    async def count(self, request, context):
        for n in range(int(request)):
            await context.write(b"%d" % n)

    async def generate(self, request, context):
        for n in range(int(request)):
            yield b"%d" % n

    async def flood(self, request, context):
        try:
            while True:
                await context.write(b"x" * (1 << 16))
                self.written += 1
        finally:
            self.cancelled.set()

    async def unary(self, request, context):
        return request

    def handlers(self):
        streams = {"Count": self.count, "Generate": self.generate, "Flood": self.flood}
        return grpc.method_handlers_generic_handler(
            "test",
            {
                "Echo": grpc.stream_stream_rpc_method_handler(self.echo),
                "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
                **{name: grpc.unary_stream_rpc_method_handler(one) for name, one in streams.items()},
            },
        )


@pytest.fixture
async def service():
    return Service()


@pytest.fixture
async def served(service):
    made = PipeServer(options=())
    made.add_generic_rpc_handlers((service.handlers(),))
    made.port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    yield made
    await made.stop(0)


@pytest.fixture
def target(served):
    return f"127.0.0.1:{served.port}"


@pytest.fixture
async def channel(target):
    made = open_channel(target)
    yield made
    await made.close()


async def read_on(call):
    async with asyncio.timeout(PATIENCE_S):
        while await call.read() is not EOF:
            pass


async def failed(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_on(call)
    return caught.value


async def test_messages_go_both_ways(channel):
    call = channel.stream_stream("/test/Echo")()
    sent = [random.Random(n).randbytes(n * n * 1_000) for n in range(30)]

    async def send():
        for one in sent:
            await call.write(one)
        await call.write(b"end")

    sending = asyncio.ensure_future(send())
    async with asyncio.timeout(PATIENCE_S):
        assert [await call.read() for _ in sent] == sent
        assert await call.read() is EOF
    await sending


@pytest.mark.parametrize("method", ["Count", "Generate"])
async def test_one_message_and_many_back(channel, method):
    call = channel.unary_stream(f"/test/{method}")(b"3")
    assert [await call.read() for _ in range(3)] == [b"0", b"1", b"2"]
    assert await call.read() is EOF


async def test_a_stream_ends_with_a_status_and_what_belongs_to_it(channel):
    call = channel.stream_stream("/test/Echo")()
    await call.write(b"abort")
    error = await failed(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
    assert list(error.trailing_metadata()) == [("key-bin", b"\x00\xff")]
    assert call.done()


async def test_a_handler_that_fails_is_told_and_logged(channel, caplog):
    call = channel.stream_stream("/test/Echo")()
    await call.write(b"fail")
    assert (await failed(call)).details() == "ValueError: on purpose"
    assert "a stream has failed" in caplog.text


@pytest.mark.parametrize("path", ["/test/None", "", "/no/Echo"])
async def test_what_is_no_stream_is_said_to_be_none(channel, path):
    assert (await failed(channel.stream_stream(path)())).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_one_message_and_one_back(channel):
    assert await channel.unary_unary("/test/Unary")(b"x" * 1_000_000) == b"x" * 1_000_000
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/test/None")(b"x")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_question_without_its_request_is_given_up(target, monkeypatch):
    monkeypatch.setattr(listening_server, "OPENING_S", 0.05)
    host, port = target.split(":")
    for method in (b"/test/Unary", b"/test/Count"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(OPENING + struct.pack("<I", len(method)) + method)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_an_address_that_is_none_is_an_error_of_the_first_read():
    """It was a ValueError that nobody expected, which ended the tasks of controllers and replicas."""
    channel = open_channel("store..example:1")
    assert "UnicodeError" in (await failed(channel.stream_stream("/test/Echo")())).details()
    await channel.close()


async def test_nobody_listening_is_an_error_of_the_first_read():
    channel = open_channel("127.0.0.1:1")
    call = channel.stream_stream("/test/Echo")()
    assert (await failed(call)).code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError):
        await call.write(b"x")
    channel.stream_stream("/test/Echo")()  # and nobody asks why
    await channel.close()


async def test_who_hangs_up_ends_the_handler_and_who_reads_slowly_holds_it_up(channel, service):
    call = channel.unary_stream("/test/Flood")(b"")
    await call.read()
    before = -1
    while service.written > before:  # until it has to wait
        before = service.written
        await asyncio.sleep(0.1)
    assert service.written << 16 < 64 << 20
    call.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await service.cancelled.wait()
    assert (await failed(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_grpc_is_served_on_the_same_port(target):
    async with grpc.aio.insecure_channel(target) as channel:
        assert await channel.unary_unary("/test/Unary")(b"x" * 1_000_000) == b"x" * 1_000_000
        call = channel.stream_stream("/test/Echo")()
        await call.write(b"one")
        assert await call.read() == b"one"


async def test_grpc_is_started_for_its_first_client_and_again_after_a_failure(served, target, channel, monkeypatch):
    assert await channel.unary_unary("/test/Unary")(b"x") == b"x"
    assert not served.grpc.serving
    start, failures = grpc.aio.server, [OSError("no file descriptor is left")]

    def fails_once(**options):
        if failures:
            raise failures.pop()
        return start(**options)

    monkeypatch.setattr(grpc.aio, "server", fails_once)
    monkeypatch.setattr(grpc_servers, "FIRST_AGAIN_S", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"P")
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    async with grpc.aio.insecure_channel(target) as over_grpc:
        assert await over_grpc.unary_unary("/test/Unary")(b"x") == b"x"
    assert len(served.grpc.serving) == 1


HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"  # its preface, and settings


async def test_grpc_is_served_in_whatever_order_its_server_and_its_client_speak(target, caplog):
    host, port = target.split(":")
    for _ in range(50):  # gRPC's server speaks at once, often before the connection to it is looked at
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(HTTP_2)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(9)
        writer.close()
        await writer.wait_closed()
    assert not caplog.records


async def test_who_says_nothing_is_sent_away(target, monkeypatch):
    monkeypatch.setattr(listening_server, "OPENING_S", 0.05)
    host, port = target.split(":")
    for said in (b"", OPENING):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_there_is_a_limit_to_connections(target, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    channel = open_channel(target)
    call = channel.stream_stream("/test/Echo")()
    await call.write(b"one")
    assert await call.read() == b"one"
    assert (await failed(channel.stream_stream("/test/Echo")())).code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def test_at_a_unix_socket_there_are_pipes_alone(service, tmp_path):
    made = PipeServer(options=())
    made.add_generic_rpc_handlers((service.handlers(),))
    made.add_insecure_port(f"unix:{tmp_path / 's'}")
    await made.start()
    channel = open_channel(f"unix:{tmp_path / 's'}")
    call = channel.stream_stream("/test/Echo")()
    await call.write(b"one")
    assert await call.read() == b"one"
    await channel.close()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(b"P")  # as HTTP/2 begins
    assert await reader.read() == b""
    writer.close()
    await made.stop(0)


async def test_a_server_that_stops_ends_what_is_under_way(target, service):
    made = PipeServer(options=())
    made.add_generic_rpc_handlers((service.handlers(),))
    channel = open_channel(f"127.0.0.1:{made.add_insecure_port('127.0.0.1:0')}")
    await made.start()
    call = channel.stream_stream("/test/Echo")()
    await call.write(b"one")
    await call.read()
    await made.stop(0.01)
    assert (await failed(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken_is_said_so(service):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = PipeServer(options=())
        with pytest.raises(RuntimeError, match="Address already in use"):
            made.add_insecure_port(f"127.0.0.1:{taken.getsockname()[1]}")


async def test_a_status_nobody_knows_is_unknown():
    assert End("SOMETHING").error().code() is grpc.StatusCode.UNKNOWN
    assert End("OK").error() is None
