"""gRPC's servers behind a listener: strangers cannot end their process, and each certificate has one of its own."""

import asyncio
import logging
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from store.base.listening import Server, admit
from store.rpc import credentials as credentials_module
from tests.support.process.certificates import Authority, node_files
from tests.support.process.child import in_a_child

PATIENCE_S = 60.0
TLS = b"\x16"


class Echo(grpc.GenericRpcHandler):
    """One stream."""

    def service(self, _details):
        """See `grpc.GenericRpcHandler`."""
        return grpc.stream_stream_rpc_method_handler(self.echo)

    async def echo(self, _requests, context):
        """Yields what comes."""
        while (message := await context.read()) is not grpc.aio.EOF:
            admit(context)
            await context.write(message)


@asynccontextmanager
async def serving(files):
    server = Server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_secure_port("127.0.0.1:0", files.server())
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(0)


@asynccontextmanager
async def stream(port, files):
    credentials, options = files.channel().for_grpc(), [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        yield channel.stream_stream("/test/Echo")()


async def works(call):
    async with asyncio.timeout(PATIENCE_S):
        await call.write(b"one")
        assert await call.read() == b"one"


async def until(met):
    async with asyncio.timeout(PATIENCE_S):
        while not met():
            await asyncio.sleep(0.01)


async def besieged(files):
    logging.basicConfig(level=logging.WARNING)
    async with serving(files) as (_, port):
        for n in range(60):
            ends = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(30)]
            for one in ends:
                one.write(TLS)
            if n % 10 == 9:
                async with stream(port, files) as call:
                    await works(call)
            for one in ends:
                one.transport.abort()


@pytest.mark.slow
def test_strangers_that_begin_tls_cannot_end_the_process_or_fill_its_log(tmp_path, capfd):
    """Some hundred of them ended a node: gRPC made a handshake with credentials that it had freed."""
    in_a_child(besieged, node_files(Authority(tmp_path), "localhost"))
    (line,) = capfd.readouterr().err.splitlines()
    assert "a connection from 127.0.0.1 is refused: it ended in the TLS handshake" in line


@pytest.mark.anyio
async def test_a_renewed_certificate_has_a_server_of_its_own_and_the_former_ends_with_its_last_connection(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(credentials_module, "LOOK_INTERVAL_MS", 0)
    authority = Authority(tmp_path)
    files = node_files(authority, "localhost")
    async with serving(files) as (server, port):
        async with stream(port, files) as before, stream(port, files) as beside:
            await works(before)
            await works(beside)
            (former,) = server.grpc.serving
            assert former.connections_count == 2
            node_files(authority, "localhost", days=(-1, 2))
            async with stream(port, files) as after:
                await works(after)
                await works(before)
            assert len(server.grpc.serving) == 2
        del before, beside, after  # gRPC keeps the connection of a call that is not forgotten
        await until(lambda: former not in server.grpc.serving)
        async with stream(port, files) as again:
            await works(again)
        assert len(server.grpc.serving) == 1
    assert not server.grpc.serving


@pytest.mark.anyio
async def test_connections_that_come_while_a_server_stops_start_none():
    server = Server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: len(server.unopened) == 1)
    stopping = asyncio.ensure_future(server.stop(PATIENCE_S))
    await asyncio.sleep(0)
    writer.write(b"P")
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
        await stopping
    assert not server.grpc.serving
    writer.close()
