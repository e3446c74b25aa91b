"""The words for messages that damage has taken, for `/readyz` and `/status`: their topics, queues and offsets."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from store.api.lost import LostStatus
from store.engine.lost import LostOffsets

LOST_SHOWN = 20  # ranges of lost messages in a warning; /status has all

logger = logging.getLogger(__name__)


class DamagedStore(Protocol):
    """The lost messages of a store (`store.local.local`)."""

    async def lost(self) -> Sequence[LostOffsets]:
        """Returns them. Raises `StoreError`."""

    def lost_known(self) -> Sequence[LostOffsets] | None:
        """Returns them without reading; None where `lost` has to be asked first."""


class LostWords:
    """The lost messages of a store, which are looked up when they are asked for. `topics` names topics by queue."""

    def __init__(self, store: DamagedStore, topics: Callable[[], Mapping[int, str]]) -> None:
        self.store = store
        self._topics = topics
        self._asking: asyncio.Task[Sequence[LostOffsets]] | None = None

    async def all(self) -> Sequence[LostStatus]:
        """Returns all of them. Raises `StoreError`."""
        return self._named(await self.store.lost())

    def words(self) -> str:
        """Returns which these are; while they are looked up, where that will be said."""
        known = self.store.lost_known()
        if known is None:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self.store.lost(), name="lost messages")
                self._asking.add_done_callback(_heard)
            return "/status lists topics and offsets"
        ranges = [
            f"{one.topic or 'no topic'}, queue {one.queue}, offsets {one.first} to {one.next - 1}"
            for one in self._named(known[:LOST_SHOWN])
        ]
        more = f"; {len(known) - LOST_SHOWN} more in /status" if len(known) > LOST_SHOWN else ""
        return "; ".join(ranges) + more if ranges else "no message of a queue is in them"

    def _named(self, found: Sequence[LostOffsets]) -> Sequence[LostStatus]:
        names = self._topics() if found else {}
        return [
            LostStatus(topic=names.get(queue, ""), queue=queue, first=first, next=end) for queue, first, end in found
        ]


def _heard(asking: asyncio.Task[Sequence[LostOffsets]]) -> None:
    """Logs why lost messages could not be looked up. They are looked up again."""
    if not asking.cancelled() and (error := asking.exception()) is not None:
        logger.warning("lost messages cannot be looked up: %s", error)
