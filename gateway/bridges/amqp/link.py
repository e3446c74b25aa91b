"""One connection to an upstream, with one channel: opened, and closed, by us.

aio-pika's own reconnection (`connect_robust`) is not used. It opens channels and consumers again silently, while
unconfirmed and unacknowledged messages belong to the connection before: a bridge has to know of each end, to send
unconfirmed messages again, and to forget deliveries that come again. It has to stop, too, when another process runs it.
"""

import asyncio
import contextlib
from typing import Any, Final, Self
from urllib.parse import quote, unquote, urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel
from aiormq.abc import AbstractChannel as UnderlayChannel
from aiormq.exceptions import AMQPError, ChannelPreconditionFailed, ConnectionFrameError, ConnectionSyntaxError
from pamqp.commands import Basic
from yarl import URL

from gateway.bridges.amqp.transport import BridgeTransport, Connect, ContentReader
from gateway.bridges.shared.amqp_settings import AmqpTopology
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.upstream_stream import UpstreamError, text_of
from gateway.domain.bridge_path import GATEWAY, is_gateway_id
from gateway.port.bridge import Forwarded, Scheme

CLOSE_S: Final = 2.0  # that a polite end may take
FRAME_BYTES_DEFAULT: Final = 131_072  # where the upstream proposes no limit
FRAME_OVERHEAD: Final = 8 + 12  # bytes of a content header that are not properties
PRECONDITION_FAILED, FRAME_ERROR, SYNTAX_ERROR = 406, 501, 502  # reply codes (AMQP 0-9-1, 1.2)
OF_A_MESSAGE: Final = frozenset({PRECONDITION_FAILED, FRAME_ERROR, SYNTAX_ERROR})  # ends that a message may have caused
GUEST: Final = "guest"  # the user of brokers that ask for none


class LinkLost(UpstreamError):
    """The connection or its channel has ended; `code` is the upstream's reply code, 0 where it has not said one."""

    def __init__(self, detail: str, code: int = 0) -> None:
        super().__init__(detail)
        self.code = code


class _Connection(aio_pika.Connection):
    """A connection over a transport of ours."""

    def __init__(self, url: URL, *args: Any, transport_factory: BridgeTransport, **kwargs: Any) -> None:
        super().__init__(url, *args, **kwargs)
        self.kwargs["transport_factory"] = transport_factory


class RawProperties(Basic.Properties):
    """Properties that are bytes already; aio-pika finds returned messages by their `message_id`."""

    def __init__(self, content: Forwarded) -> None:
        super().__init__(message_id=content.id)
        self._raw = content.properties

    def marshal(self) -> bytes:
        """Returns the bytes."""
        return self._raw


class Link:
    """A connection and its channel, as long as both last."""

    def __init__(self, connection: aio_pika.Connection, transport: BridgeTransport) -> None:
        self._connection = connection
        self._transport = transport
        self._ended: asyncio.Future[LinkLost] = asyncio.get_running_loop().create_future()
        self.channel: AbstractChannel
        self.underlay: UnderlayChannel  # for contents as bytes, which aio-pika's own messages are not
        self.upstream = ""  # the id of the upstream, where that is a gateway like this one
        self.header_bytes_max = FRAME_BYTES_DEFAULT - FRAME_OVERHEAD

    @classmethod
    async def open(
        cls,
        name: str,
        config: BridgeConfig,
        scheme: Scheme,
        *,
        held_bytes_max: int = 0,
        message_bytes_max: int = 0,
        connect: Connect | None = None,
    ) -> Self:
        """Connects, and opens a channel with confirms. Raises `UpstreamError`, and the errors of `connect`."""
        transport = BridgeTransport(
            config,
            secure=scheme.secure,
            held_bytes_max=held_bytes_max,
            message_bytes_max=message_bytes_max,
            connect=connect,
        )
        url = _url(name, config, scheme)
        connection = _Connection(url, transport_factory=transport)
        link = cls(connection, transport)
        try:
            async with asyncio.timeout(config.connect_timeout_s):
                await link._open()
        except BaseException as error:
            await link.close()
            if isinstance(error, AMQPError | OSError | RuntimeError | ValueError):
                detail = f"{url.host}:{url.port} is not reached: {text_of(error)}"
                raise LinkLost(detail, code_of(error)) from error
            raise
        return link

    async def _open(self) -> None:
        connection = self._connection
        await connection.connect()
        assert connection.transport is not None
        connection.close_callbacks.add(self._on_closed)
        underlay = connection.transport.connection
        said = underlay.server_properties.get(GATEWAY)
        if isinstance(said, str) and is_gateway_id(said):
            self.upstream = said
        frame_max = underlay.connection_tune.frame_max or FRAME_BYTES_DEFAULT
        self.header_bytes_max = frame_max - FRAME_OVERHEAD
        self.channel = connection.channel(publisher_confirms=True, on_return_raises=True)
        await self.channel.initialize()
        self.channel.close_callbacks.add(self._on_closed)
        self.underlay = await self.channel.get_underlay_channel()

    @property
    def content(self) -> ContentReader:
        """Returns the reader that has the properties of delivered messages."""
        assert self._transport.content is not None
        return self._transport.content

    async def declare(self, topology: AmqpTopology) -> None:
        """Declares the exchanges, queues and bindings of the configuration. Raises AMQPError."""
        for exchange in topology.exchanges:
            await self.channel.declare_exchange(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=dict(exchange.arguments) or None,
            )
        for one in topology.consume:
            if one.declare:
                queue = await self.channel.declare_queue(
                    one.queue, durable=one.durable, arguments=dict(one.arguments) or None
                )
                for binding in one.bindings:
                    await queue.bind(binding.exchange, binding.routing_key, arguments=dict(binding.arguments) or None)

    def _on_closed(self, _sender: Any, error: BaseException | None) -> None:
        self.lose(error)

    def lose(self, error: BaseException | None) -> None:
        """Notes that the connection cannot be used any more."""
        if not self._ended.done():
            detail = "the upstream has closed the connection" if error is None else text_of(error)
            self._ended.set_result(LinkLost(detail, code_of(error)))

    @property
    def is_ended(self) -> bool:
        """Returns whether the connection is of no use any more."""
        return self._ended.done()

    @property
    def lost(self) -> LinkLost:
        """Returns why it has ended."""
        return self._ended.result()

    async def ended(self) -> None:
        """Waits for the end, which it raises: `LinkLost`."""
        raise await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(AMQPError, OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._connection.close()


def code_of(error: BaseException | None) -> int:
    """Returns the reply code of an error that the upstream has answered; 0 for any other error."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return 0


_CODES: Final[dict[type[BaseException], int]] = {
    ChannelPreconditionFailed: PRECONDITION_FAILED,
    ConnectionFrameError: FRAME_ERROR,
    ConnectionSyntaxError: SYNTAX_ERROR,
}


def _url(name: str, config: BridgeConfig, scheme: Scheme) -> URL:
    """Returns the URL that aio-pika connects to, with credentials, and the settings that it reads from there."""
    url = urlsplit(config.url)
    query = {"name": config.client_id or f"headgate-{name}", "heartbeat": str(config.keep_alive_s)}
    if config.username is None and config.tls.cert_file is not None:
        query["auth"] = "external"
    vhost = unquote(url.path.removeprefix("/")) or "/"
    password = None if config.password is None else config.password.reveal()
    return URL.build(
        scheme=url.scheme,
        host=url.hostname or "",
        port=url.port or scheme.port,
        user=quote(config.username or GUEST, safe=""),
        password=quote(password if password is not None else GUEST, safe=""),
        path="/" + quote(vhost, safe=""),
        query_string="&".join(f"{key}={quote(value, safe='')}" for key, value in query.items()),
        encoded=True,
    )
