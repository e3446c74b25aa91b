"""Both ends of the stream between a replica and its master."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from store.base.errors import StoreUnreachable
from store.base.streams import Silence, Stream, until_one_ends
from store.replication.errors import BadMessage
from store.replication.messages import Ack, Confirmed, FromMaster, FromReplica, Hello, Refused, decode, encode

logger = logging.getLogger(__name__)

_BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class ReplicaStream:
    """A replica's stream, at the master: messages in, as they come; messages and data out, in order.

    `hello` was its first message. `received` takes the replica's messages. `data` gives the next message with frames,
    None when there is none for now; it is asked whenever `news` is set. A replica that says nothing for `silence_s` is
    gone.
    """

    def __init__(
        self,
        hello: Hello,
        context: Any,
        *,
        received: Callable[[FromReplica], None],
        data: "Callable[[ReplicaStream], Awaitable[bytes | None]]",
        silence_s: float,
    ) -> None:
        self.replica = hello.replica
        self.session = hello.session
        self.news = asyncio.Event()
        self._context = context
        self._received = received
        self._data = data
        self._silence = Silence(silence_s)
        self._out: deque[FromMaster] = deque()
        self._ended = asyncio.Event()

    def put(self, message: FromMaster) -> None:
        """Sends a message, behind the data that were sent before; of heartbeats that wait only the newest is sent."""
        if self._out and isinstance(message, Confirmed) and isinstance(self._out[-1], Confirmed):
            self._out.pop()
        self._out.append(message)
        self.news.set()

    def end(self) -> None:
        """Ends the stream, when all messages put are sent."""
        self._ended.set()
        self.news.set()

    async def run(self) -> None:
        """Serves until either side ends it. Raises `StoreError`."""
        try:
            await until_one_ends(self._read(), self._write(), self._silence.lasts())
        except _BROKEN:  # the replica went away while something was sent to it
            logger.debug("a stream to replica %d has broken", self.replica, exc_info=True)

    async def _read(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            self._silence.received()
            parsed = decode(message)
            if not isinstance(parsed, Hello | Ack | Refused):
                raise BadMessage("a master speaks where a replica is expected")
            self._received(parsed)

    async def _write(self) -> None:
        while True:
            await self.news.wait()
            self.news.clear()
            while True:
                while self._out:
                    message = self._out.popleft()
                    await self._context.write(encode(message))
                    if isinstance(message, Refused):
                        return
                if self._ended.is_set():
                    return
                data = await self._data(self)
                if data is None:
                    break
                await self._context.write(data)


class MasterStream:
    """The stream to the master, at a replica. `received` takes the master's messages."""

    def __init__(self, stream: Stream, session: int, received: Callable[[FromMaster], None]) -> None:
        self.session = session
        self._stream = stream
        self._received = received
        self._out: deque[FromReplica] = deque()
        self._news = asyncio.Event()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, message: FromReplica) -> None:
        """Sends a message; of acknowledgements that wait only the newest is sent."""
        if self._out and isinstance(message, Ack) and isinstance(self._out[-1], Ack):
            self._out.pop()
        self._out.append(message)
        self._news.set()

    def end(self) -> None:
        """Closes the connection."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def run(self) -> None:
        """Speaks and listens until either side ends it; says in the log why."""
        try:
            await until_one_ends(self._read(), self._write(), until=self._ended)
        except (StoreUnreachable, BadMessage) as error:
            logger.info("the stream to the master has ended: %s", error)

    async def _read(self) -> None:
        while True:
            message = decode(await self._stream.read())
            if isinstance(message, Hello | Ack):
                raise BadMessage("a replica speaks where the master is expected")
            self._received(message)

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._out:
                await self._stream.write(encode(self._out.popleft()))
