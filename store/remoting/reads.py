"""Reading a store group over the network: its log, its queues, what is found in them, and how they are kept."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from store.api.client import Bounds, Fetched, IndexKind
from store.base.errors import StoreError
from store.format.frame import Frame, LogOffset, Position, QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.remoting.caller import AGAIN, SESSION, nothing
from store.remoting.core import Remote, decoder
from store.rpc import arguments
from store.rpc.frames import FetchedAnswer, ScannedAnswer, fetched_of

__all__ = ["RemoteReads"]

CONFIGS_IN_CALL = 10_000

_a_fetched: Callable[[Any], FetchedAnswer] = decoder(FetchedAnswer)
_a_scanned: Callable[[Any], ScannedAnswer] = decoder(ScannedAnswer)
_a_record: Callable[[Any], bytes | None] = decoder(bytes | None)
_a_position: Callable[[Any], Position | None] = decoder(Position | None)
_an_int: Callable[[Any], int] = decoder(int)
_strings: Callable[[Any], list[str]] = decoder(list[str])
_positions: Callable[[Any], list[Position]] = decoder(list[Position])
_a_bounds: Callable[[Any], Bounds] = decoder(Bounds)
_configs: Callable[[Any], list[QueueConfig | None]] = decoder(list[QueueConfig | None])


class RemoteReads(Remote):
    """The reads of the log and its queues."""

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `StoreClient.scan`."""
        asked = arguments.Scan(start.frame, start.row, None if queues is None else tuple(queues), max_bytes)
        return await self._call("scan", asked, self._scanned, AGAIN)

    def _scanned(self, body: Any) -> tuple[Sequence[Frame], LogOffset]:
        answer: ScannedAnswer = _a_scanned(body)
        return self._connection.frames.frames(answer.frames), LogOffset(answer.following)

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `StoreClient.fetch`. What one call brings is limited to some MiB."""
        asked = arguments.Fetch(queue, offset, max_bytes, max_rows, max_wait_ms)
        return await self._call("fetch", asked, self._fetched, AGAIN)

    def _fetched(self, body: Any) -> Fetched:
        return fetched_of(_a_fetched(body), self._connection.frames)

    async def read(self, position: Position) -> bytes | None:
        """See `StoreClient.read`."""
        return await self._call("read", arguments.Read(*position), _a_record, AGAIN)

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """See `StoreClient.bounds`."""
        return await self._call("bounds", arguments.OfQueue(queue), _a_bounds, AGAIN)

    async def configure_queues(self, configs: Sequence[QueueConfig]) -> None:
        """See `StoreClient.configure_queues`. What the store knows already is not stored again."""
        for start in range(0, len(configs), CONFIGS_IN_CALL):
            some = tuple(configs[start : start + CONFIGS_IN_CALL])
            await self._call("configure_queues", arguments.ConfigureQueues(some), nothing, AGAIN)
            self._queue_configs.update({QueueNumber(config.queue): config for config in some})

    def queue_config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `StoreClient.queue_config`: what was set or asked for here. What is not known is asked for now."""
        found = self._queue_configs.get(queue)
        if found is None and queue not in self._unknown_configs and self.is_connected:
            if not self._unknown_configs:
                self._loop.call_soon(self._ask_configs)
            self._unknown_configs[queue] = None
        return found

    def _ask_configs(self) -> None:
        queues, self._unknown_configs = list(self._unknown_configs), {}
        for start in range(0, len(queues), CONFIGS_IN_CALL):
            some = tuple(queues[start : start + CONFIGS_IN_CALL])

            def learned(
                answer: "asyncio.Future[Sequence[QueueConfig | None]]", some: Iterable[QueueNumber] = some
            ) -> None:
                if answer.cancelled() or answer.exception() is not None:
                    return
                for queue, config in zip(some, answer.result(), strict=False):
                    if config is not None:
                        self._queue_configs.setdefault(queue, config)

            try:
                asked = self._connection.caller.begin("queue_configs", arguments.QueueConfigs(some), _configs, SESSION)
            except StoreError:
                return
            asked.future.add_done_callback(learned)

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """See `StoreClient.offset_at_time`."""
        asked = arguments.OffsetAtTime(queue, time_ms)
        return QueueOffset(await self._call("offset_at_time", asked, _an_int, AGAIN))

    async def last(self, address_hash: int) -> Position | None:
        """See `StoreClient.last`."""
        return await self._call("last", arguments.Last(address_hash), _a_position, AGAIN)

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
    ) -> Sequence[Position]:
        """See `StoreClient.find`."""
        asked = arguments.Find(int(kind), hash_, from_ms, until_ms, below, limit)
        return await self._call("find", asked, _positions, AGAIN)

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `StoreClient.addresses`."""
        asked = arguments.Addresses(prefix, after, limit)
        return await self._call("addresses", asked, _strings, AGAIN)

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """See `StoreClient.note_addresses`."""
        await self._call("note_addresses", arguments.NoteAddresses(tuple(addresses)), nothing, AGAIN)
