"""The messages that damage has taken from a store of this process, for `/readyz` and `/status`."""

import asyncio
import logging
from typing import Protocol

from store.api.lost import LostMessages
from store.api.lost_status import LostList
from store.api.lost_words import Topics, lost_list, lost_words

logger = logging.getLogger(__name__)


class DamagedStore(Protocol):
    """The lost messages of a store (`store.local.local`)."""

    async def lost(self) -> LostMessages:
        """Returns them. Raises `StoreError`."""

    def lost_known(self) -> LostMessages | None:
        """Returns them without reading, perhaps of longer ago; None where `lost` has to be asked first."""


class LostWords:
    """The lost messages of a store, which are looked up when they are asked for."""

    def __init__(self, store: DamagedStore, topics: Topics) -> None:
        self.store = store
        self._topics = topics
        self._asking: asyncio.Task[LostMessages] | None = None

    async def all(self) -> LostList:
        """Returns all of them. Raises `StoreError`."""
        return lost_list(await self.store.lost(), self._topics)

    def words(self) -> str:
        """Returns which these are; while they are looked up, where that will be said."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self.store.lost(), name="lost messages")
            self._asking.add_done_callback(_heard)
        known = self.store.lost_known()
        return "/status lists topics and offsets" if known is None else lost_words(known, self._topics)


def _heard(asking: asyncio.Task[LostMessages]) -> None:
    """Logs why lost messages could not be looked up. They are looked up again."""
    if not asking.cancelled() and (error := asking.exception()) is not None:
        logger.warning("lost messages cannot be looked up: %s", error)
