"""Whoever can reach the port: they hold few places, little memory and for a short time, and lock nobody out."""

import asyncio
import gc
import ipaddress
import os
import random
import socket
import struct
import tracemalloc
from contextlib import AsyncExitStack, suppress
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest
from cryptography import x509

from store.base.listening import UNAUTHENTICATED, PeerBudget, admit, passing, server
from store.base.pipes import PipeServer, open_channel, pipe
from store.base.pipes import server as pipes_server
from store.base.pipes.pipe import OPENING, Pipe
from store.rpc.credentials import CredentialFiles
from tests.support.process.certificates import Authority
from tests.support.process.loops import AsyncioLoop, UvLoop

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
TLS = b"\x16"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
SETTINGS_ACK = b"\0\0\0\x04\x01\0\0\0\0"
OTHERS = ("127.0.0.2", 0)  # another address of this machine's


@pytest.fixture(params=[AsyncioLoop, UvLoop], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    """Chooses the loop: each of the two ends a connection in its own way."""
    return "asyncio", {"loop_factory": request.param}


class Echo(grpc.GenericRpcHandler):
    """One stream, and one call."""

    def service(self, details):
        """See `grpc.GenericRpcHandler`."""
        if details.method == "/test/Echo":
            return grpc.stream_stream_rpc_method_handler(self.echo)
        return grpc.unary_unary_rpc_method_handler(self.unary) if details.method == "/test/Unary" else None

    async def echo(self, _requests, context):
        """Yields what comes."""
        while (message := await context.read()) is not grpc.aio.EOF:
            admit(context)
            await context.write(message)

    async def unary(self, request, context):
        """Returns what came."""
        admit(context)
        return request


class Credentials:
    """Of a server and of its clients."""

    def __init__(self, directory):
        authority = Authority(directory)
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        self.server, self.client = (
            CredentialFiles(issued.cert_file, issued.key_file, authority.file)
            for issued in (authority.issue("server", here, server=True), authority.issue("client"))
        )


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    return Credentials(tmp_path_factory.mktemp("tls"))


class PipeServerRig:
    """A server, and whoever connects to it."""

    def __init__(self, stack, credentials):
        self._stack = stack
        self._credentials = credentials
        self.port = 0

    async def start(self, budget=UNAUTHENTICATED):
        made = PipeServer(unauthenticated=budget)
        made.add_generic_rpc_handlers((Echo(),))
        if self._credentials is None:
            self.port = made.add_insecure_port("127.0.0.1:0")
        else:
            self.port = made.add_secure_port("127.0.0.1:0", self._credentials.server.server())
        await made.start()
        self._stack.push_async_callback(made.stop, 0)
        return made

    async def stranger(self, said, origin=None):
        """Connects a stranger that sends these bytes and waits."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=origin)
        self._stack.callback(writer.close)
        writer.write(said)
        await writer.drain()
        return reader, writer

    def channel(self):
        """Returns the channel of a node."""
        made = open_channel(
            f"127.0.0.1:{self.port}", None if self._credentials is None else self._credentials.client.channel()
        )
        self._stack.push_async_callback(made.close)
        return made

    async def stream(self):
        """Opens a node's stream, and checks that it works."""
        call = self.channel().stream_stream("/test/Echo")()
        await works(call)
        return call

    async def grpc_works(self, *, keep=False):
        """Checks that a client of gRPC is served, and that it stays connected with `keep`."""
        target = f"127.0.0.1:{self.port}"
        made = (
            grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
            if self._credentials is None
            else grpc.aio.secure_channel(target, self._credentials.client.channel().for_grpc())
        )
        self._stack.push_async_callback(made.close)
        assert await made.unary_unary("/test/Unary")(b"x", timeout=PATIENCE_S) == b"x"
        if not keep:
            await made.close()


async def works(call):
    async with asyncio.timeout(PATIENCE_S):
        await call.write(b"one")
        assert await call.read() == b"one"


async def ended(reader):
    """Reads until the connection has ended, whatever comes before."""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


@pytest.fixture(params=["plain", "tls"])
async def rig(request, credentials):
    async with AsyncExitStack() as stack:
        yield PipeServerRig(stack, credentials if request.param == "tls" else None)


@pytest.fixture
async def plain():
    async with AsyncExitStack() as stack:
        yield PipeServerRig(stack, None)


@pytest.mark.parametrize("said", [b"", OPENING, TLS, OPENING + TLS, OPENING + b"\xff\xff"])
async def test_whoever_says_too_little_makes_way_for_those_who_come_later(rig, said, monkeypatch):
    monkeypatch.setattr(server, "UNOPENED_MAX", 8)
    made = await rig.start()
    before = await rig.stream()
    strangers = [await rig.stranger(said) for _ in range(30)]
    for reader, _ in strangers[:20]:
        await ended(reader)
    await works(before)
    await rig.stream()
    await rig.grpc_works()
    assert len(made.unopened) <= 8


async def test_an_address_takes_no_place_of_another_one(plain, monkeypatch):
    monkeypatch.setattr(server, "UNOPENED_MAX", 4)
    made = await plain.start()
    _, slow = await plain.stranger(OPENING)
    for reader, _ in [await plain.stranger(OPENING, OTHERS) for _ in range(20)][:10]:
        await ended(reader)
    slow.write(struct.pack("<I", 10) + b"/test/Echo")
    async with asyncio.timeout(PATIENCE_S):
        while len(made.pipes) != 1:
            await asyncio.sleep(0.01)


async def test_whoever_does_not_get_on_is_sent_away_soon(rig, monkeypatch):
    monkeypatch.setattr(server, "OPENING_S", 0.3)
    made = await rig.start()
    said = [b"", OPENING, TLS, OPENING + TLS, PREFACE[:5], TLS + b"\x03\x01\x02\x00"]
    for reader, _ in [await rig.stranger(one) for one in said]:
        await ended(reader)
    async with asyncio.timeout(PATIENCE_S):
        while made.serving:
            await asyncio.sleep(0.01)
    assert len(made.unopened) == len(made.passed_on) == 0


async def test_what_is_passed_on_takes_no_place_of_pipes(plain, monkeypatch):
    monkeypatch.setattr(server, "PASSED_ON_MAX", 3)
    monkeypatch.setattr(pipes_server, "CONNECTIONS_MAX", 2)
    made = await plain.start()
    before = await plain.stream()
    for n in range(10):
        await plain.grpc_works(keep=True)
        assert len(made.passed_on) == min(n + 1, 3)
    assert len(made.unopened) == 0
    await works(before)
    await plain.stream()
    await plain.grpc_works()


@pytest.mark.slow
async def test_whoever_speaks_http_2_and_asks_for_nothing_is_sent_away(plain, monkeypatch):
    monkeypatch.setattr(server, "OPENING_S", 0.5)
    made = await plain.start()
    reader, writer = await plain.stranger(PREFACE + SETTINGS)
    async with asyncio.timeout(PATIENCE_S):
        await reader.readexactly(9)
    writer.write(SETTINGS_ACK)
    await ended(reader)
    assert len(made.passed_on) == 0


@pytest.mark.slow
async def test_half_sent_messages_of_strangers_share_one_budget_and_give_it_back_at_once(plain):
    gc.collect()
    gc.disable()  # freeing must not depend on the search for cycles
    tracemalloc.start()
    try:
        made = await plain.start(PeerBudget(32 << 20))
        before = await plain.stream()
        for _ in range(2):
            strangers = []
            for _ in range(30):
                reader, writer = await plain.stranger(OPENING + struct.pack("<I", 10) + b"/test/Echo", OTHERS)
                writer.write(struct.pack("<I", 75 << 20) + bytes(3 << 20))
                strangers.append((reader, writer))
                await asyncio.sleep(0)
                assert made.unauthenticated.held_bytes <= 32 << 20
            async with asyncio.timeout(PATIENCE_S):
                while made.unauthenticated.held_bytes < 20 << 20 or len(made.pipes) > 20:
                    await asyncio.sleep(0.01)
                    assert made.unauthenticated.held_bytes <= 32 << 20
            assert tracemalloc.get_traced_memory()[0] < 120 << 20  # half of it is what the strangers themselves hold
            for _, writer in strangers:
                writer.transport.abort()
            del strangers, reader, writer
            async with asyncio.timeout(PATIENCE_S):
                while len(made.pipes) > 1 or made.unauthenticated.held_bytes:
                    await asyncio.sleep(0.01)
            assert made.unauthenticated.held_bytes == 0
            assert tracemalloc.get_traced_memory()[0] < 8 << 20
        await works(before)
    finally:
        tracemalloc.stop()
        gc.enable()


async def test_pipes_that_make_way_free_their_buffers_before_their_tasks_run(plain, monkeypatch):
    """A turn of the event loop reads from all of them, so that what is freed later is held many times over."""
    pipes, most_bytes = [], 0

    class Watched(PeerBudget):
        def hold(self, holder, origin, size_bytes):
            nonlocal most_bytes
            super().hold(holder, origin, size_bytes)
            most_bytes = max(most_bytes, sum(len(one.buffer) for one in pipes))

    def opened(*args, **options):
        pipes.append(Pipe(*args, **options))
        return pipes[-1]

    monkeypatch.setattr(pipes_server, "Pipe", opened)
    budget = Watched(8 << 20)
    made = await plain.start(budget)
    strangers = []
    for _ in range(30):
        _, writer = await plain.stranger(OPENING + struct.pack("<I", 10) + b"/test/Echo", OTHERS)
        strangers.append(writer.get_extra_info("socket"))
    async with asyncio.timeout(PATIENCE_S):
        while len(made.pipes) < len(strangers):
            await asyncio.sleep(0.01)
        half = struct.pack("<I", 75 << 20) + bytes(1 << 20)
        for one in strangers:
            with socket.socket(fileno=os.dup(one.fileno())) as raw, suppress(BlockingIOError):
                raw.send(half)
        while len(made.pipes) == len(strangers):
            await asyncio.sleep(0.01)
    assert budget.held_bytes <= most_bytes <= budget.bytes_max
    await plain.stream()


async def test_whoever_is_admitted_is_no_stranger(plain):
    made = await plain.start(PeerBudget(1 << 20))
    call = await plain.stream()
    async with asyncio.timeout(PATIENCE_S):
        await call.write(bytes(3 << 20))
        assert await call.read() == bytes(3 << 20)
    assert made.unauthenticated.held_bytes == 0


async def test_streams_by_which_nothing_sound_comes_make_way(plain, monkeypatch):
    """The oldest one of the address that has most, so none of a node's, nor one that was admitted."""
    monkeypatch.setattr(pipes_server, "UNADMITTED_MAX", 4)
    made = await plain.start()
    before, idle = await plain.stream(), plain.channel().stream_stream("/test/Echo")()
    method = OPENING + struct.pack("<I", 10) + b"/test/Echo"
    for reader, _ in [await plain.stranger(method, OTHERS) for _ in range(12)][:9]:
        await ended(reader)
    assert len(made.unadmitted) == 4
    assert len(made.pipes) == 5
    await works(before)
    await works(idle)
    await plain.stream()


async def test_a_pipe_too_many_is_told(plain, monkeypatch):
    monkeypatch.setattr(pipes_server, "CONNECTIONS_MAX", 1)
    await plain.start()
    await plain.stream()
    call = plain.channel().stream_stream("/test/Echo")()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "too many streams")


@pytest.mark.parametrize(
    "said", [struct.pack("<I", pipe.MESSAGE_BYTES_MAX), struct.pack("<I", 1 << 31 | 5) + b"\x93\xa2OK\xa0\x90"]
)
async def test_a_method_that_is_none_ends_it(plain, said, caplog):
    await plain.start()
    reader, _ = await plain.stranger(OPENING + said)
    await ended(reader)
    assert "has failed" not in caplog.text


async def test_no_more_is_held_for_a_message_than_has_come():
    made = Pipe()
    made.connection_made(Mock())
    assert len(made.buffer) == pipe.OPENING_BUFFER_BYTES
    message = random.Random(1).randbytes(3 << 20)
    for least in (pipe.OPENING_BUFFER_BYTES, pipe.BUFFER_BYTES):
        data, at = struct.pack("<I", len(message)) + message, 0
        while at < len(data):
            room = made.get_buffer(-1)
            count = min(len(room), 10_000, len(data) - at)
            room[:count] = data[at : at + count]
            at += count
            made.buffer_updated(count)
            if at < len(data):
                growth = pipe._GROWTH if at < pipe.BUFFER_KEPT_BYTES else pipe._GROWTH_LARGE
                assert len(made.buffer) <= max(growth * at, least)
        assert await made.read() == message
    assert len(made.buffer) == pipe.BUFFER_BYTES


async def test_whoever_does_not_read_is_left_when_the_other_side_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(passing, "LINGER_S", 0.05)

    async def flood(reader, writer):
        await reader.readexactly(1)
        writer.write(b"x" * (32 << 20))  # more than any buffer
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()

    inner = await asyncio.start_unix_server(flood, tmp_path / "s")
    theirs, accepted = socket.socketpair()
    theirs.setblocking(False)
    passed = asyncio.ensure_future(passing.pass_on(b"P", accepted, str(tmp_path / "s"), lambda _: None))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.get_running_loop().sock_recv(theirs, 1)
        theirs.shutdown(socket.SHUT_WR)
        await passed
    theirs.close()
    inner.close()
    await inner.wait_closed()


async def test_what_is_passed_on_is_looked_after(plain, monkeypatch):
    alive = asyncio.get_running_loop().create_future()

    async def look(_first, accepted, *_, name):
        alive.set_result(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    monkeypatch.setattr(server, "pass_on", look)
    await plain.start()
    await plain.stranger(b"P")
    async with asyncio.timeout(PATIENCE_S):
        assert await alive
