"""Compares the controllers' metadata with what stores know of it, before a store is asked for anything.

A process that runs finds out by its copy that controllers have forgotten metadata. One that starts has no copy: it
would make topics, which get numbers of queues that were given before, and read the records of other topics there.
"""

import asyncio
from contextlib import suppress

from controller.api.client import ControllerClient, ControllerError, KnownMetadata, MetadataForgotten
from controller.api.requests import CompareMetadata
from store.base.errors import MetadataWentBack, StoreUnreachable
from store.base.rhythm import pause

SOON_S = 2.0  # that the controllers have to answer in, where the copy here is at least as new as a store's
AGAIN_S = 0.5  # between two attempts to compare, while no leader answers


class MetadataAgreement:
    """The agreement of this process's controllers with its stores. `went_back` is set when they do not agree."""

    def __init__(self, controller: ControllerClient) -> None:
        self.went_back: asyncio.Future[MetadataWentBack] = asyncio.get_running_loop().create_future()
        self._controller = controller
        self._agreed = False  # with any store
        self._later: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Gives up comparing."""
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])

    async def check(self, known: KnownMetadata) -> None:
        """Compares the metadata that a store has seen. Raises `MetadataWentBack`, `StoreUnreachable`: try again.

        A store that knows no more than this process is believed once one has agreed. While no leader answers, it is
        believed until one does: nothing is made meanwhile.
        """
        if self.went_back.done():
            raise self.went_back.result()
        mine = self._controller.known()
        news = known.index > mine.index or known.next_queue > mine.next_queue
        if known == KnownMetadata() or (self._agreed and not news):
            return
        try:
            async with asyncio.timeout(SOON_S if self._agreed or not news else None):
                await self._compare(known)
        except (ControllerError, TimeoutError) as error:
            if self._agreed:
                return
            if news:
                raise StoreUnreachable(f"its metadata is not compared with the controllers' yet: {error}") from error
            if self._later is None or self._later.done():
                self._later = asyncio.create_task(self._compare_later(known), name="metadata of stores")

    async def _compare(self, known: KnownMetadata) -> None:
        try:
            await self._controller.do(CompareMetadata(known=known))
        except MetadataForgotten as error:
            failed = MetadataWentBack(str(error))
            if not self.went_back.done():
                self.went_back.set_result(failed)
            raise failed from error
        self._agreed = True

    async def _compare_later(self, known: KnownMetadata) -> None:
        with suppress(MetadataWentBack):  # `went_back` has it
            while not self._agreed:
                with suppress(ControllerError):
                    await self._compare(known)
                    return
                await pause(AGAIN_S)
