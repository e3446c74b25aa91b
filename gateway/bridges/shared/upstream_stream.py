"""Connections to upstream brokers: TCP, TLS, and WebSocket over either."""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

import websockets.asyncio.client
import websockets.exceptions
import websockets.typing

from gateway.base.client_tls import client_tls
from gateway.bridges.shared.settings import BridgeConfig, BridgeTls
from gateway.port.bridge import Scheme

READ_BYTES = 64 << 10
CLOSE_S = 2.0  # that a polite end may take


class UpstreamError(Exception):
    """The upstream is not reached, or its connection has ended."""


class UpstreamStream(Protocol):
    """A stream of bytes, both ways."""

    async def read(self) -> bytes:
        """Returns the bytes that have arrived. Raises `UpstreamError` at the end."""

    async def write(self, data: bytes) -> None:
        """Sends; it waits while the other end does not read. Raises `UpstreamError`."""

    async def close(self) -> None:
        """Ends it."""


async def dial(config: BridgeConfig, schemes: Mapping[str, Scheme]) -> UpstreamStream:
    """Returns a connection to a bridge's upstream. Raises `UpstreamError`."""
    url = urlsplit(config.url)
    scheme = schemes[url.scheme]
    host, port = url.hostname or "", url.port or scheme.port
    try:
        async with asyncio.timeout(config.connect_timeout_s):
            tls = tls_context(config.tls) if scheme.secure else None
            if scheme.subprotocol:
                return await _WebSocket.open(config, scheme.subprotocol, tls)
            return _Stream(*await asyncio.open_connection(host, port, ssl=tls, limit=READ_BYTES))
    except (OSError, ValueError, ssl.SSLError) as error:
        raise UpstreamError(f"{host}:{port} is not reached: {text_of(error)}") from error


def tls_context(tls: BridgeTls) -> ssl.SSLContext:
    """Returns the context of connections to an upstream. Raises OSError, ValueError for files that are none."""
    context = client_tls(tls.ca_file)
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def text_of(error: BaseException) -> str:
    """Returns why a connection is not there, for people."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


class _Stream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError as error:
            raise UpstreamError(text_of(error)) from error
        if not data:
            raise UpstreamError("the upstream has closed the connection")
        return data

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise UpstreamError(text_of(error)) from error

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()


class _Connect(websockets.asyncio.client.connect):
    """A connection to the configured server and no other: the first thing we send is a password."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Refuses every redirect."""
        return exc


class _WebSocket:
    """MQTT over WebSocket (MQTT 5.0, 6): packets in binary messages, in any fragmentation."""

    def __init__(self, connection: websockets.asyncio.client.ClientConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, config: BridgeConfig, subprotocol: str, tls: ssl.SSLContext | None) -> "_WebSocket":
        """Raises OSError, `UpstreamError`."""
        try:
            connection = await _Connect(
                config.url,
                subprotocols=[websockets.typing.Subprotocol(subprotocol)],
                ssl=tls,
                proxy=None,
                compression=None,
                ping_interval=None,  # the protocol has its own
                max_size=config.pending_bytes_max,
                max_queue=1,
                close_timeout=CLOSE_S,
            )
        except websockets.exceptions.WebSocketException as error:
            raise UpstreamError(f"no WebSocket at {config.url}: {error}") from error
        if connection.subprotocol != subprotocol:
            await connection.close()
            raise UpstreamError(f"the WebSocket at {config.url} does not speak {subprotocol}")
        return cls(connection)

    async def read(self) -> bytes:
        try:
            data = await self._connection.recv(decode=False)
        except (websockets.exceptions.ConnectionClosed, OSError) as error:
            raise UpstreamError(text_of(error)) from error
        return bytes(data)

    async def write(self, data: bytes) -> None:
        try:
            await self._connection.send(data)
        except (websockets.exceptions.ConnectionClosed, OSError) as error:
            raise UpstreamError(text_of(error)) from error

    async def close(self) -> None:
        with contextlib.suppress(OSError, websockets.exceptions.WebSocketException):
            await self._connection.close()
