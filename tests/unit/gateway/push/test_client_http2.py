"""Requests to a sink over HTTP/2 whose connections do not last."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography.x509 import IPAddress
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.exceptions import ProtocolError

from gateway.push.client import ANSWER_BYTES_MAX, SinkClient
from gateway.push.guard import SinkGuard, SinkUnreachable
from gateway.push.settings import SubscriptionsConfig
from tests.support.process.certificates import Authority, Issued

pytestmark = pytest.mark.anyio

GUARD = SinkGuard(SubscriptionsConfig(private_sinks=("127.0.0.1",)))
TIMEOUT_S = 60.0
SHORT_S = 1.0


class Connection:
    """One connection of a sink: `answer` is called with it and the stream of each request."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.streams: list[int] = []
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self._writer = writer

    def respond(self, stream: int, body: bytes = b"") -> None:
        self.h2.send_headers(stream, [(":status", "200")], end_stream=not body)
        while body:
            size = min(len(body), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if not size:
                return
            self.h2.send_data(stream, body[:size], end_stream=size == len(body))
            body = body[size:]

    def end(self) -> None:
        """Closes the connection without a word."""
        self._writer.write(self.h2.data_to_send())
        self._writer.close()


class Sink:
    """A server of HTTP/2 over TLS."""

    def __init__(self, answer: Callable[[Connection, int], None]) -> None:
        self.connections: list[Connection] = []
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(len(self.connections) + 1, writer)
        self.connections.append(connection)
        connection.h2.initiate_connection()
        with contextlib.suppress(OSError, ProtocolError):  # for what comes behind its own end of TLS, or its GOAWAY
            while True:
                writer.write(connection.h2.data_to_send())
                await writer.drain()
                if not (data := await reader.read(65_536)):
                    break
                for event in connection.h2.receive_data(data):
                    if isinstance(event, RequestReceived):
                        connection.streams.append(event.stream_id)
                    elif isinstance(event, DataReceived):
                        connection.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    elif isinstance(event, StreamEnded):
                        self._answer(connection, event.stream_id)
        writer.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Issued:
    return authority.issue("sink", IPAddress(ip_address("127.0.0.1")), server=True)


class Client:
    """Sends events to a sink."""

    def __init__(self, port: int, authority_file: Path) -> None:
        tls = ssl.create_default_context(cafile=authority_file)
        self._client = SinkClient(GUARD, connections_max=8, tls=tls)
        self._url = f"https://127.0.0.1:{port}/"

    async def send(self, *, timeout_s: float = TIMEOUT_S) -> int:
        return (await self._client.request("POST", self._url, [], b"event", timeout_s=timeout_s)).status

    async def close(self) -> None:
        await self._client.close()


@asynccontextmanager
async def opened(sink: Sink, authority: Authority, certificate: Issued) -> AsyncIterator[Client]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.cert_file, certificate.key_file)
    tls.set_alpn_protocols(["h2"])
    async with await asyncio.start_server(sink.serve, "127.0.0.1", 0, ssl=tls) as server:
        client = Client(server.sockets[0].getsockname()[1], authority.file)
        yield client
        await client.close()


async def test_a_connection_that_has_gone_silent_is_asked_once(authority: Authority, certificate: Issued) -> None:
    def first_only(connection: Connection, stream: int) -> None:
        if connection.number > 1 or stream == 1:
            connection.respond(stream)

    sink = Sink(first_only)
    async with opened(sink, authority, certificate) as client:
        assert await client.send() == 200
        with pytest.raises(SinkUnreachable, match="no answer within"):
            await client.send(timeout_s=SHORT_S)
        assert await client.send() == 200
    assert [one.streams for one in sink.connections] == [[1, 3], [1]]


async def test_a_long_answer_costs_its_connection_and_no_other(authority: Authority, certificate: Issued) -> None:
    sink = Sink(lambda connection, stream: connection.respond(stream, b"x" * (2 * ANSWER_BYTES_MAX)))
    async with opened(sink, authority, certificate) as client:
        assert [await client.send(), await client.send()] == [200, 200]
    assert [one.streams for one in sink.connections] == [[1], [1]]


async def test_short_answers_share_a_connection(authority: Authority, certificate: Issued) -> None:
    sink = Sink(lambda connection, stream: connection.respond(stream, b"thanks"))
    async with opened(sink, authority, certificate) as client:
        assert [await client.send() for _ in range(3)] == [200] * 3
        assert await asyncio.gather(*(client.send() for _ in range(5))) == [200] * 5
    assert [len(one.streams) for one in sink.connections] == [8]


@pytest.mark.parametrize("goes_away", [True, False], ids=["GOAWAY", "without a word"])
async def test_a_connection_that_the_sink_ends_fails_no_request(
    authority: Authority, certificate: Issued, *, goes_away: bool
) -> None:
    """Servers end a connection after so many requests, or when it has been idle."""
    waiting: list[int] = []

    def after_some(connection: Connection, stream: int) -> None:
        if connection.number > 1 or stream == 1:
            connection.respond(stream)
            return
        waiting.append(stream)
        if len(waiting) == 6:
            if goes_away:
                connection.h2.close_connection(last_stream_id=stream)
            else:
                connection.end()

    sink = Sink(after_some)
    async with opened(sink, authority, certificate) as client:
        assert await client.send() == 200
        assert await asyncio.gather(*(client.send() for _ in range(6))) == [200] * 6
    assert [len(one.streams) for one in sink.connections] == [7, 6]


async def test_a_sink_that_always_goes_away_fails(authority: Authority, certificate: Issued) -> None:
    sink = Sink(lambda connection, stream: connection.h2.close_connection(last_stream_id=stream))
    async with opened(sink, authority, certificate) as client:
        with pytest.raises(SinkUnreachable):
            await client.send()
    assert len(sink.connections) == 2


@pytest.mark.parametrize("goes_away", [True, False], ids=["GOAWAY", "without a word"])
async def test_a_connection_that_the_sink_has_ended_while_it_was_idle_fails_no_request(
    authority: Authority, certificate: Issued, *, goes_away: bool
) -> None:
    sink = Sink(lambda connection, stream: connection.respond(stream))
    async with opened(sink, authority, certificate) as client:
        assert await client.send() == 200
        if goes_away:
            sink.connections[0].h2.close_connection(last_stream_id=1)
        sink.connections[0].end()
        assert await asyncio.gather(*(client.send() for _ in range(3))) == [200] * 3
    assert [len(one.streams) for one in sink.connections] == [1, 3]
