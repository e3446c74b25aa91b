"""Connections to upstreams: whom we talk to, and what is said when we do not."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
import websockets.asyncio.server
from cryptography.x509 import DNSName

from adapters.mqtt import FACTORY
from gateway.bridges.shared.settings import BridgeConfig, BridgeTls
from gateway.bridges.shared.upstream_stream import UpstreamError, dial
from tests.support.process.certificates import Authority

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def echo(tls=None):
    async def serve(reader, writer):
        while data := await reader.read(1_000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def config(url, **tls):
    return BridgeConfig(url=url, connect_timeout_s=10.0, tls=BridgeTls(**tls))


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def server_tls(authority, name="localhost"):
    issued = authority.issue(name, DNSName(name), server=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.cert_file, issued.key_file)
    return context


async def test_bytes_go_both_ways_and_the_end_is_said():
    async with echo() as port:
        link = await dial(config(f"mqtt://127.0.0.1:{port}"), FACTORY.schemes)
        await link.write(b"hello")
        assert await link.read() == b"hello"
        link._writer.write_eof()
        with pytest.raises(UpstreamError, match="closed"):
            await link.read()
        await link.close()


async def test_over_tls(authority):
    async with echo(server_tls(authority)) as port:
        link = await dial(config(f"mqtts://localhost:{port}", ca_file=authority.file), FACTORY.schemes)
        await link.write(b"hello")
        assert await link.read() == b"hello"
        await link.close()


async def test_a_certificate_that_nobody_vouches_for(authority):
    async with echo(server_tls(authority)) as port:
        with pytest.raises(UpstreamError, match="CERTIFICATE_VERIFY_FAILED"):
            await dial(config(f"mqtts://localhost:{port}"), FACTORY.schemes)


async def test_a_certificate_of_another_name(authority):
    async with echo(server_tls(authority, "elsewhere.example")) as port:
        with pytest.raises(UpstreamError, match="CERTIFICATE_VERIFY_FAILED"):
            await dial(config(f"mqtts://localhost:{port}", ca_file=authority.file), FACTORY.schemes)


async def test_nobody_is_there():
    async with echo() as port:
        pass
    with pytest.raises(UpstreamError, match=f"127.0.0.1:{port} is not reached"):
        await dial(config(f"mqtt://127.0.0.1:{port}"), FACTORY.schemes)


async def test_over_websocket():
    async def serve(connection):
        async for data in connection:
            await connection.send(data)

    async with websockets.asyncio.server.serve(serve, "127.0.0.1", 0, subprotocols=["mqtt"]) as server:
        port = server.sockets[0].getsockname()[1]
        link = await dial(config(f"ws://127.0.0.1:{port}/mqtt"), FACTORY.schemes)
        await link.write(b"hello")
        assert await link.read() == b"hello"
        server.close()
        with pytest.raises(UpstreamError):
            await link.read()
        await link.close()


async def test_a_websocket_that_speaks_something_else():
    async with websockets.asyncio.server.serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UpstreamError, match="does not speak mqtt"):
            await dial(config(f"ws://127.0.0.1:{port}/mqtt"), FACTORY.schemes)


async def test_a_port_that_speaks_no_websocket():
    async with echo() as port:
        with pytest.raises(UpstreamError, match="no WebSocket"):
            await dial(config(f"ws://127.0.0.1:{port}/mqtt"), FACTORY.schemes)


async def test_an_upstream_does_not_send_us_elsewhere():
    async def other(connection):
        led.append(connection.request.path)

    led = []
    async with websockets.asyncio.server.serve(other, "127.0.0.1", 0, subprotocols=["mqtt"]) as elsewhere:
        where = f"ws://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}/mqtt"

        def redirect(connection, _request):
            answer = connection.respond(302, "")
            answer.headers["location"] = where
            return answer

        async with websockets.asyncio.server.serve(other, "127.0.0.1", 0, process_request=redirect) as server:
            with pytest.raises(UpstreamError, match="302"):
                await dial(config(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/mqtt"), FACTORY.schemes)
    assert led == []
