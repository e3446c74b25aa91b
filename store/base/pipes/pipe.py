"""A pipe: messages both ways over one connection, each as its size and its bytes, and at the end how it has ended.

    opening   one byte, 0x01, from the client: it tells a pipe from gRPC on the same port, and comes before TLS
    message   size u32 | bytes                            little-endian; the client's first is the method's name
    end       0x8000_0000 + size u32 | MessagePack of `End`               from the server; nothing follows

A connection that ends without `End` has broken.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec

OPENING = b"\x01"  # TLS begins with 0x16, HTTP/2 with "P"
MESSAGE_BYTES_MAX = 80 << 20  # of frames: the largest one and 16 MiB of others
BUFFER_BYTES = 256 << 10  # of frames, read at once; more while a larger message comes, as fast as it does
OPENING_BUFFER_BYTES = 4 << 10  # until the first message is here
BUFFER_KEPT_BYTES = 2 << 20
ARRIVED_BYTES_MAX = 1 << 20  # arrived and not read: beyond, the other side has to wait, a message in flight excepted
UNSENT_BYTES_MAX = 1 << 20  # written and not sent: beyond, `write` waits
LINGER_S = 5.0  # for messages still to be sent, when a pipe is closed
END_BYTES_MAX = 1 << 20
TEXT_MAX = 4096

_GROWTH = 8  # each growth copies the buffer, so a small one grows by much
_GROWTH_LARGE = 2  # and one beyond `BUFFER_KEPT_BYTES` by little: its unused part is wasted
_SIZE = Struct("<I")
_END = 1 << 31
_CODES = {code.name: code for code in grpc.StatusCode}

Metadata = Sequence[tuple[str, bytes]]


class PipeSizes(NamedTuple):
    """The sizes of one end of a pipe: of a message that arrives, at most, and of the buffer that it is read into."""

    message_bytes_max: int
    buffer_bytes: int


FRAMES = PipeSizes(MESSAGE_BYTES_MAX, BUFFER_BYTES)


class End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a stream: a status of gRPC with its details and metadata."""

    code: str
    details: str = ""
    trailing: list[tuple[str, bytes]] = []

    def error(self) -> grpc.aio.AioRpcError | None:
        """Returns the error that gRPC raises for it; None where all is well."""
        if self.code == grpc.StatusCode.OK.name:
            return None
        code = _CODES.get(self.code, grpc.StatusCode.UNKNOWN)
        metadata = grpc.aio.Metadata(*self.trailing)
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=self.details)


def broken(why: str) -> grpc.aio.AioRpcError:
    """Returns the error to raise where a connection has broken, or cannot be made."""
    error = End(grpc.StatusCode.UNAVAILABLE.name, why).error()
    assert error is not None
    return error


class Pipe(asyncio.BufferedProtocol):
    """One end of a pipe. Belongs to the thread of the event loop; one task reads at a time."""

    def __init__(
        self,
        lost: Callable[[], object] = lambda: None,
        *,
        sizes: PipeSizes = FRAMES,
        first_bytes_max: int | None = None,
    ) -> None:
        """Begins a pipe; no first message is above `first_bytes_max`.

        `lost` is called when the connection has ended, and when the pipe has made way.
        """
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._transport: Any = None
        self._least_bytes = OPENING_BUFFER_BYTES  # of the buffer
        self.buffer = bytearray(OPENING_BUFFER_BYTES)
        self._view = memoryview(self.buffer)
        self._sizes = sizes
        self._size_max = sizes.message_bytes_max if first_bytes_max is None else first_bytes_max  # of the next message
        self._start = self._filled = 0  # the bounds of unfinished messages in the buffer; _start <= _filled
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = 0
        self._paused = False  # reading, as too much has arrived
        self._over = False  # the connection has ended for its owner
        self.lost = False  # the other side, or the network, has ended it without a word
        self._error: grpc.aio.AioRpcError | None = None  # why, if it should
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lingering: asyncio.TimerHandle | None = None
        self._hold: Callable[[int], object] | None = None  # told the bytes held, until the pipe is admitted
        self._held_bytes = 0

    @property
    def over(self) -> bool:
        """Returns whether it has ended."""
        return self._over

    # ---- whose it is

    def hold_in(self, hold: Callable[[int], object]) -> None:
        """Sets the callback for the number of held bytes, called at every change until the other side is admitted."""
        self._hold = hold

    def admit(self) -> None:
        """Notes that the other side is authenticated. Again does nothing."""
        if self._hold is not None:
            hold, self._hold = self._hold, None
            hold(0)

    def cancel(self) -> None:
        """Makes way, see `Holder`: its buffers are freed at once, not when its task runs.

        A turn of the event loop reads from hundreds of pipes before any task runs.
        """
        self._hold = None  # the budget has struck it off already
        self.abort()
        self.release()
        self._lost()

    def release(self) -> None:
        """Holds nothing more; for a pipe that has ended."""
        self._arrived.clear()
        self._arrived_bytes = self._held_bytes = 0
        self._give_back_buffer()
        self.admit()

    def _give_back_buffer(self) -> None:
        """Frees an incomplete message at once: the pipe itself may be in a cycle of references."""
        self._start = self._filled = 0
        self._renew(0)

    def _count_held(self) -> None:
        if self._hold is not None:
            held = len(self.buffer) + self._arrived_bytes
            if held != self._held_bytes:
                self._held_bytes = held
                self._hold(held)

    # ---- messages

    async def read(self) -> Any:
        """Returns the next message, as bytes; `grpc.aio.EOF` behind the last. Raises `AioRpcError` before the end."""
        while not self._arrived:
            if self._over:
                if self._error is not None:
                    raise self._error
                return grpc.aio.EOF
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._arrived.popleft()
        self._arrived_bytes -= len(message)
        self._count_held()
        if self._paused and self._arrived_bytes <= ARRIVED_BYTES_MAX and not self._over:
            self._paused = False
            self._transport.resume_reading()
        return message

    async def write(self, message: bytes) -> None:
        """Sends a message; returns when not too much waits to be sent. Raises `AioRpcError`: the pipe has ended."""
        if self._over:
            raise self._error or broken("the stream has ended")
        self._transport.writelines((_SIZE.pack(len(message)), message))
        if not self._writable.is_set():
            await self._writable.wait()

    def end(self, end: End) -> None:
        """Says how it ends, and closes."""
        if not self._over:
            said = msgspec.msgpack.encode(end)
            self._transport.writelines((_SIZE.pack(_END | len(said)), said))
            self.close()

    def close(self) -> None:
        """Ends it when all written messages are sent; at once when that takes too long."""
        self._end(broken("the stream was closed"))
        if not self._transport.is_closing():
            self._transport.close()
            self._lingering = self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Ends it at once."""
        self._end(broken("the stream was given up"))
        if self._transport is not None:  # else TLS has not begun
            self._transport.abort()

    def _end(self, error: grpc.aio.AioRpcError | None) -> None:
        """Ends the stream: nothing more comes or goes."""
        if not self._over:
            self._over, self._error = True, error
            self._writable.set()
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`; again when TLS has begun."""
        self._transport = transport
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.lost = not self._over
        self._end(broken(f"the connection broke: {error or 'closed by the other side'}"))
        if self._lingering is not None:
            self._lingering.cancel()
        self._give_back_buffer()
        self._lost()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if not self._over:
            self._writable.clear()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._writable.set()

    def get_buffer(self, _size: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        if self._filled == len(self.buffer):  # it was given back, and the connection is about to end
            self._renew(OPENING_BUFFER_BYTES)
            self._filled = 0
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._filled += count
        view, at, filled, needed = self._view, self._start, self._filled, _SIZE.size
        while not self._over and filled - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, at)
            body, behind = at + _SIZE.size, at + _SIZE.size + (size & ~_END)
            if behind - body > (min(END_BYTES_MAX, self._size_max) if size & _END else self._size_max):
                self._malformed(f"a message of {behind - body} bytes")
                break
            if behind > filled:
                needed = behind - at
                break
            if size & _END:
                self._ended(bytes(view[body:behind]))
            else:
                self._arrived.append(bytes(view[body:behind]))
                self._arrived_bytes += behind - body
                self._size_max, self._least_bytes = self._sizes
            at = behind
        self._start = at
        if self._over:
            self._give_back_buffer()  # later bytes are thrown away
        else:
            self._make_room(needed)
        self._count_held()
        if self._arrived:
            self._wake()
            if self._arrived_bytes > ARRIVED_BYTES_MAX and not self._paused and not self._over:
                self._paused = True
                self._transport.pause_reading()

    def _make_room(self, needed: int) -> None:
        """Makes room for more of a message, of which a part may be here.

        It is given as bytes come, not as the message's size says: at most `_GROWTH` times the received bytes,
        `_GROWTH_LARGE` times where they are many, or the least.
        """
        rest, size = self._filled - self._start, len(self.buffer)
        if not rest:
            self._start = self._filled = 0
            if size > BUFFER_KEPT_BYTES or size < self._least_bytes:
                self._renew(self._least_bytes)
        elif self._start + needed > size and (self._start or rest == size):
            growth = _GROWTH if size < BUFFER_KEPT_BYTES else _GROWTH_LARGE
            wanted = max(min(needed, growth * size) if rest == size else size, self._least_bytes)
            came = self._view[self._start : self._filled]
            if wanted > size:
                self._renew(wanted)
            else:
                came = memoryview(bytes(came))  # the two may overlap
            self._view[:rest] = came
            self._start, self._filled = 0, rest

    def _renew(self, size: int) -> None:
        self.buffer = bytearray(size)
        self._view = memoryview(self.buffer)

    def _ended(self, said: bytes) -> None:
        try:
            end = msgspec.msgpack.decode(said, type=End)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._malformed(f"an end that is none: {error}")
            return
        self._end(end.error())
        self._transport.close()

    def _malformed(self, why: str) -> None:
        self._end(End(grpc.StatusCode.INTERNAL.name, why[:TEXT_MAX]).error())
        self._transport.abort()
