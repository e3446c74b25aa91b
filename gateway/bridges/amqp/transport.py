"""The bytes that aio-pika reads from an upstream: bounded, and with the properties of messages as the bytes they are.

aio-pika's reader has no bound in bytes, and its decoder changes types of headers, and ends the connection where a
timestamp is beyond the year 9999: such a message would come again forever. So frames are looked at before it reads
them. In the content header of a message that is delivered, the properties are replaced by a number in `app_id`, by
which `take` gives them back. A body that is larger than the limit is skipped as it comes.

    frame           type u8 | channel u16 | size u32 | payload | 0xCE        (AMQP 0-9-1, 2.3.5)
    content header  class u16 | weight u16 | body size u64 | property flags u16 | properties
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.upstream_stream import tls_context

FRAME_BYTES_MAX: Final = 16 << 20  # of one frame; upstreams propose 128 KiB
READ_BYTES: Final = 64 << 10
CONTENT_COST_BYTES: Final = 512  # of a message besides its body

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_HEADER, _BODY, _END = 2, 3, b"\xce"
_APP_ID: Final = 1 << 3  # a property flag (AMQP 0-9-1, 1.8.3.13)
assert (_FRAME.size, _CONTENT.size) == (7, 12)


class DeliveredContent(NamedTuple):
    """The properties of a delivered message. `passed_over`: its body was too large, and is not there."""

    properties: bytes
    size_bytes: int
    passed_over: bool


class ContentReader:
    """Reads frames for aio-pika (`asyncio.StreamReader`, as far as it uses one)."""

    def __init__(self, reader: asyncio.StreamReader, *, held_bytes_max: int, message_bytes_max: int) -> None:
        self._reader = reader
        self._held_bytes_max = held_bytes_max
        self._message_bytes_max = message_bytes_max
        self._frame = b""
        self._at = 0
        self._contents: dict[int, DeliveredContent] = {}
        self._count = 0
        self._skipped: dict[int, int] = {}  # bytes of a body to be skipped, by channel
        self._body_left = 0  # bytes to come of the message announced last
        self._room = asyncio.Event()
        self.held_bytes = 0  # of messages that were announced and not released

    def take(self, number: str | None) -> DeliveredContent:
        """Returns the content that a delivered message's `app_id` stands for."""
        return self._contents.pop(int(number or 0))

    def release(self, size_bytes: int) -> None:
        """Makes room for others, as messages are stored, or refused for good."""
        self.held_bytes -= size_bytes
        self._room.set()

    # ---- as a stream reader

    def at_eof(self) -> bool:
        """Returns whether all has been read."""
        return self._at >= len(self._frame) and self._reader.at_eof()

    async def readexactly(self, size: int) -> bytes:
        """Returns so many bytes of a frame. Raises `asyncio.IncompleteReadError`, `AMQPConnectionError`."""
        if self._at >= len(self._frame):
            self._frame, self._at = await self._next(), 0
        data = self._frame[self._at : self._at + size]
        self._at += size
        if len(data) < size:
            raise AMQPConnectionError("the upstream does not speak AMQP 0-9-1")
        return data

    async def read(self) -> bytes:
        """Returns the rest of the frame; further bytes of an upstream of another protocol are of no use."""
        rest, self._frame, self._at = self._frame[self._at :], b"", 0
        return rest

    async def _next(self) -> bytes:
        """Returns the next frame that is not skipped."""
        while True:
            if not self._body_left:  # a message that is announced is read to its end
                await self._wait_for_room()
            head = await self._reader.readexactly(_FRAME.size)
            if head.startswith(b"AMQP"):  # the versions that it speaks
                return head
            kind, channel, size = _FRAME.unpack(head)
            if size > FRAME_BYTES_MAX:
                raise AMQPConnectionError(f"a frame of {size} bytes; {FRAME_BYTES_MAX} are taken")
            payload = await self._reader.readexactly(size + 1)
            if kind == _HEADER:
                return self._announced(channel, payload)
            if kind == _BODY and (left := self._skipped.get(channel, 0)):
                self._skipped[channel] = max(left - size, 0)
                continue
            if kind == _BODY:
                self._body_left = max(self._body_left - size, 0)
            return head + payload

    async def _wait_for_room(self) -> None:
        while self.held_bytes >= self._held_bytes_max:
            self._room.clear()
            await self._room.wait()

    def _announced(self, channel: int, payload: bytes) -> bytes:
        """Returns a content header with a number in place of the properties."""
        if len(payload) < _CONTENT.size + 3:
            raise AMQPConnectionError("a content header that is cut short")
        class_id, weight, body_size = _CONTENT.unpack_from(payload)
        self._count += 1
        properties = payload[_CONTENT.size : -1]
        passed_over = body_size > self._message_bytes_max
        if passed_over:
            self._skipped[channel], body_size = body_size, 0
        size = CONTENT_COST_BYTES + len(properties) + body_size
        self._contents[self._count] = DeliveredContent(properties, size, passed_over)
        self.held_bytes += size
        self._body_left = body_size
        number = b"%d" % self._count
        made = _CONTENT.pack(class_id, weight, body_size) + _APP_ID.to_bytes(2, "big") + bytes((len(number),))
        made += number
        return _FRAME.pack(_HEADER, channel, len(made)) + made + _END


_Opened: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect: TypeAlias = Callable[[str, int, bool], Awaitable[_Opened]]  # host, port, over TLS; raises OSError


class BridgeTransport(TransportFactory):
    """Opens the connection to an upstream (`aiormq.connection.TransportFactory`).

    Without `held_bytes_max` frames are not looked at, as for a connection that nothing is read from.
    """

    def __init__(
        self,
        config: BridgeConfig,
        *,
        secure: bool,
        held_bytes_max: int,
        message_bytes_max: int,
        connect: Connect | None = None,
    ) -> None:
        self._connect = connect or self._anywhere
        self._config = config
        self._secure = secure
        self._held_bytes_max = held_bytes_max
        self._message_bytes_max = message_bytes_max
        self.content: ContentReader | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[Any, asyncio.StreamWriter]:
        """Opens a connection. Raises OSError."""
        reader, writer = await self._connect(url.host or "", url.port or 0, self._secure)
        if not self._held_bytes_max:
            return reader, writer
        self.content = ContentReader(
            reader, held_bytes_max=self._held_bytes_max, message_bytes_max=self._message_bytes_max
        )
        return self.content, writer

    async def _anywhere(self, host: str, port: int, secure: bool) -> _Opened:
        """Connects to the host that an operator has configured. Raises OSError."""
        tls = tls_context(self._config.tls) if secure else None
        return await asyncio.open_connection(host, port, ssl=tls, limit=READ_BYTES)
