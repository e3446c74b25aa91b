"""The way of Raft messages to the other controllers: one stream for each, snapshots on one of their own."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from controller.api.client import ControllerError, ControllerUnreachable
from controller.raft import Message, encode
from controller.wire.wire import (
    ERRORS,
    INSTALL,
    MESSAGE_BYTES,
    PART_BYTES,
    PEER,
    Hello,
    open_channel,
    open_streams,
    path,
)
from controller.wire.wire import encode as pack
from store.base.streams import Backoff, Stream, keep_connected, opened, until_one_ends

logger = logging.getLogger(__name__)

QUEUE_BYTES_MAX = 32 << 20  # for one peer; more is dropped, and Raft sends it again
MESSAGE_BYTES_LARGE = 4 << 20  # a larger message is sent by itself, in parts
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 0.5  # between attempts to connect
CONNECT_S = 2.0  # for one attempt
INSTALL_S = 60.0  # for a snapshot to arrive
_LOST = (grpc.aio.BaseError, grpc.RpcError, asyncio.InvalidStateError, OSError, TimeoutError)


class Peers:
    """Sends messages, and loses them when they cannot be sent. Belongs to the event loop.

    `hello` says who speaks, now. `address_of` says where a node serves, or None. `unreachable` is called with the node
    whose messages were lost.
    """

    def __init__(
        self,
        hello: Callable[[], Hello],
        address_of: Callable[[int], str | None],
        unreachable: Callable[[int], None],
        *,
        credentials: Any,
    ) -> None:
        self._hello = hello
        self._address_of = address_of
        self._unreachable = unreachable
        self._credentials = credentials
        self._peers: dict[int, _Peer] = {}

    def send(self, messages: Sequence[Message]) -> None:
        """Sends these messages to their receivers."""
        for message in messages:
            peer = self._peers.get(message.to)
            if peer is None:
                peer = self._peers[message.to] = _Peer(
                    message.to, self._hello, self._address_of, self._unreachable, self._credentials
                )
            peer.put(encode(message))

    async def keep(self, ids: Sequence[int]) -> None:
        """Gives up the connections to all others."""
        await self._close([self._peers.pop(id_) for id_ in list(self._peers) if id_ not in ids])

    async def close(self) -> None:
        """Ends all connections."""
        gone, self._peers = list(self._peers.values()), {}
        await self._close(gone)

    async def _close(self, gone: "Sequence[_Peer]") -> None:
        for peer in gone:
            await peer.close()


class _Refused(Exception):
    """The peer takes nothing from this controller."""


class _Peer:
    """One other controller."""

    def __init__(
        self,
        id_: int,
        hello: Callable[[], Hello],
        address_of: Callable[[int], str | None],
        unreachable: Callable[[int], None],
        credentials: Any,
    ) -> None:
        self._id = id_
        self._hello = hello
        self._address_of = address_of
        self._unreachable = unreachable
        self._credentials = credentials
        self._queue: deque[bytes] = deque()
        self._bytes = 0  # <= QUEUE_BYTES_MAX
        self._large: bytes | None = None  # one at a time: a second one is the same snapshot again
        self._wake = asyncio.Event()
        self._address: str | None = None  # of the newest attempt
        self._backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        kept = keep_connected(
            self._attempt,
            self._backoff,
            name=lambda: f"no messages to controller {id_} at {self._address}",
            logger=logger,
            lost=(ControllerError, _Refused),
            refusals=_Refused,
        )
        self._task = asyncio.get_running_loop().create_task(kept, name=f"messages to controller {id_}")

    def put(self, message: bytes) -> None:
        if len(message) > MESSAGE_BYTES_LARGE:
            self._large = message
        elif self._bytes + len(message) > QUEUE_BYTES_MAX:
            self._drop()
        else:
            self._queue.append(message)
            self._bytes += len(message)
        self._wake.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _drop(self) -> None:
        self._queue.clear()
        self._bytes = 0
        self._unreachable(self._id)

    async def _attempt(self) -> None:
        """Connects when there is something to send, and drops the queued messages when the connection breaks."""
        await self._wake.wait()
        try:
            self._address = self._address_of(self._id)
            if self._address is None:
                logger.warning("no address is known for controller %d", self._id)
            else:
                await self._connected(self._address)
        finally:
            self._large = None
            self._drop()
            self._wake.clear()

    async def _connected(self, address: str) -> None:
        """Sends until the connection breaks. Raises `_Refused` or `ControllerError`."""
        async with opened(open_streams(address, self._credentials)) as channel:
            stream = Stream(channel.stream_stream(path(PEER))(), ERRORS, address)
            try:
                async with stream.within(CONNECT_S):
                    await stream.write(pack(self._hello()))
                await until_one_ends(self._send(stream, address), _until_broken(stream))
            except ControllerError as error:
                refusal = ERRORS.status_of(error) is grpc.StatusCode.FAILED_PRECONDITION
                if refusal and not isinstance(error, ControllerUnreachable):
                    raise _Refused(f"it refuses messages of this controller: {error}") from error
                raise

    async def _send(self, stream: Stream, address: str) -> None:
        install: asyncio.Task[None] | None = None
        try:
            while True:
                if install is not None and install.done():
                    install.result()
                    install = None
                if self._large is not None and install is None:
                    large, self._large = self._large, None
                    install = asyncio.get_running_loop().create_task(self._install(address, large))
                for batch in self._batches():
                    await stream.write(batch)
                    self._backoff.reset()
                self._wake.clear()
                if not self._queue:
                    await self._wake.wait()
        finally:
            if install is not None:
                install.cancel()
                await asyncio.wait([install])

    def _batches(self) -> Iterator[bytes]:
        """Yields the queue's content, in messages of a good size."""
        while self._queue:
            batch: list[bytes] = []
            size = 0
            while self._queue and (not batch or size + len(self._queue[0]) <= MESSAGE_BYTES):
                batch.append(self._queue.popleft())
                size += len(batch[-1])
            self._bytes -= size
            yield pack(batch)

    async def _install(self, address: str, message: bytes) -> None:
        """Sends one large message in parts, on a connection of its own."""
        async with opened(open_channel(address, self._credentials)) as channel:
            call = channel.stream_unary(path(INSTALL))(timeout=INSTALL_S)
            try:
                await call.write(pack(self._hello()))
                for at in range(0, len(message), PART_BYTES):
                    await call.write(message[at : at + PART_BYTES])
                await call.done_writing()
                await call
            except _LOST as error:
                logger.info("a snapshot has not reached controller %d: %s", self._id, error)
                self._unreachable(self._id)
            finally:
                call.cancel()


async def _until_broken(stream: Stream) -> None:
    """Waits until the connection breaks, or the peer refuses it. Raises `ControllerError`."""
    while True:
        await stream.read()
