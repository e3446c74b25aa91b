"""The log of a store group over the network."""

from collections.abc import Callable, Sequence
from typing import Any

from store.api.log import IndexKind, LogCalls, OnAppended, TailListener
from store.format.frame import Frame, LogOffset, Position, QueueNumber, UnplacedFrame
from store.remoting.core import Remote, decoder
from store.remoting.stubs import stubs
from store.rpc import arguments
from store.rpc.frames import ScannedAnswer

_a_scanned: Callable[[Any], ScannedAnswer] = decoder(ScannedAnswer)
_a_position: Callable[[Any], Position | None] = decoder(Position | None)
_positions: Callable[[Any], list[Position]] = decoder(list[Position])
_a_record: Callable[[Any], bytes | None] = decoder(bytes | None)


@stubs
class RemoteLog(LogCalls):
    """`LogCalls` of one group over the network."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """See `LogCalls.append`. Raises nothing; the outcome is `AppendOutcomeUnknown` where retrying was not safe."""
        self._remote.connection.appender.append(frame, done)

    @property
    def pending_bytes(self) -> int:
        """See `LogCalls.pending_bytes`."""
        return self._remote.connection.appender.pending_bytes

    @property
    def confirmed(self) -> LogOffset:
        """See `LogCalls.confirmed`: as it was heard last. Raises `StoreUnreachable` before the first connection."""
        return self._remote.confirmed

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `LogCalls.tail`: every frame from `confirmed` on, also over broken connections."""
        return self._remote.connection.tail(listener)

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `LogCalls.scan`."""
        asked = arguments.Scan(start.frame, start.row, None if queues is None else tuple(queues), max_bytes)
        return await self._remote.call("scan", asked, self._scanned)

    def _scanned(self, body: Any) -> tuple[Sequence[Frame], LogOffset]:
        answer: ScannedAnswer = _a_scanned(body)
        return self._remote.connection.frames.frames(answer.frames), LogOffset(answer.following)

    async def last(self, address_hash: int, queues: Sequence[QueueNumber] | None = None) -> Position | None:
        """See `LogCalls.last`."""
        return await self._remote.call("last", arguments.Last(address_hash), _a_position)

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
        queues: Sequence[QueueNumber] | None = None,
    ) -> Sequence[Position]:
        """See `LogCalls.find`."""
        asked = arguments.Find(int(kind), hash_, from_ms, until_ms, below, limit)
        return await self._remote.call("find", asked, _positions)

    async def read(self, position: Position) -> bytes | None:
        """See `LogCalls.read`."""
        return await self._remote.call("read", arguments.Read(*position), _a_record)
