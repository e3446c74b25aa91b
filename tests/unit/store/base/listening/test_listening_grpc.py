"""gRPC's servers behind a listener: strangers cannot end their process, and each certificate has one of its own."""

import asyncio
import logging
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ed448

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


@pytest.fixture
def looked_at(monkeypatch):
    """Makes credentials look at their files for each connection."""
    monkeypatch.setattr(credentials_module, "LOOK_INTERVAL_MS", 0)


def listens(server):
    """Returns whether a server of gRPC's has its socket."""
    return f"@{server.name}\n" in Path("/proc/net/unix").read_text()


@asynccontextmanager
async def stream(port, files, trusted=None):
    """Opens a stream, with the certificate in the files or one that was loaded before."""
    credentials, options = trusted or files.channel().for_grpc(), [("grpc.use_local_subchannel_pool", 1)]
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
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    async with serving(files) as (_, port):
        for n in range(60):
            ends = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(30)]
            for place, one in enumerate(ends):
                one.write(TLS if place else b"GET / HTTP/1.1\r\n\r\n")  # of which gRPC writes a line
            if n % 10 == 9:
                async with stream(port, files) as call:
                    await works(call)
            for one in ends:
                one.transport.abort()


@pytest.mark.slow
def test_strangers_that_begin_tls_cannot_end_the_process_or_fill_its_log(tmp_path, capfd, monkeypatch):
    """Some hundred of them ended a node: gRPC made a handshake with credentials that it had freed."""
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    in_a_child(besieged, node_files(Authority(tmp_path), "localhost"))
    lines = capfd.readouterr().err.splitlines()
    said = "INFO a connection from 127.0.0.1 was not established: it asked gRPC for nothing sound"
    assert lines
    assert all(line.startswith(said) for line in lines)
    assert len(lines) < 10  # one a minute


@pytest.mark.parametrize("package", ["store", "controller"])
def test_grpc_writes_no_lines_of_its_own_unless_it_is_told_to(package):
    code = f"import {package}, os; print(os.environ['GRPC_VERBOSITY'])"
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    for told, level in (({}, "NONE"), ({"GRPC_VERBOSITY": "INFO"}, "INFO")):
        done = subprocess.run([sys.executable, "-c", code], env=environment | told, capture_output=True, check=True)
        assert done.stdout.decode().strip() == level


@pytest.mark.anyio
async def test_a_renewed_certificate_has_a_server_of_its_own_and_the_former_ends_with_its_last_connection(
    tmp_path, looked_at, caplog
):
    caplog.set_level(logging.INFO)
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
            assert listens(former)
        del before, beside, after  # gRPC keeps the connection of a call that is not forgotten
        await until(lambda: not listens(former))
        async with stream(port, files) as again:
            await works(again)
        (renewed,) = server.grpc.serving
        assert listens(renewed)
    assert not server.grpc.serving
    assert not listens(renewed)
    assert "a connection" not in caplog.text


@pytest.mark.anyio
async def test_the_former_certificate_stays_in_force_where_grpc_does_not_take_the_renewed_one(
    tmp_path, looked_at, caplog
):
    """OpenSSL and gRPC's library do not take the same keys."""
    authority = Authority(tmp_path)
    files = node_files(authority, "localhost")
    async with serving(files) as (server, port):
        async with stream(port, files) as call:
            await works(call)
        (former,) = server.grpc.serving
        trusted = files.channel().for_grpc()
        node_files(authority, "localhost", key=ed448.Ed448PrivateKey.generate())
        for _ in range(3):
            async with stream(port, files, trusted) as call:
                await works(call)
            assert server.grpc.serving == {former}
        assert caplog.text.count("the former certificate stays in force for clients of gRPC") == 1
        node_files(authority, "localhost")
        async with stream(port, files) as call:
            await works(call)
        assert former not in server.grpc.serving


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


@pytest.mark.anyio
async def test_strangers_of_a_server_without_tls_are_not_logged(caplog):
    caplog.set_level(logging.INFO)
    server = Server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"P")
    await until(lambda: server.grpc.serving)
    writer.close()
    await until(lambda: not server.serving)
    await server.stop(0)
    assert "a connection" not in caplog.text
