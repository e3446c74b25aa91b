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
from store.base.streams.event_wait import wait_at_most

SOON_S = 2.0  # that the controllers have to answer in, where the copy here is at least as new as a store's
NEWS_S = 10.0  # that an attempt to connect waits, where the store knows more
AGAIN_S = 0.5  # between two attempts to compare, while no leader answers


class MetadataAgreement:
    """The agreement of this process's controllers with its stores. `went_back` is set when they do not agree."""

    def __init__(self, controller: ControllerClient) -> None:
        self._loop = asyncio.get_running_loop()
        self.went_back: asyncio.Future[MetadataWentBack] = self._loop.create_future()
        self._controller = controller
        self._agreed = False  # with any store
        self._compared = KnownMetadata()  # that the controllers were found to have
        self._waiting = KnownMetadata()  # that is to be compared first
        self._first: asyncio.Task[None] | None = None  # the first comparison, whichever connection lasts
        self._first_s = 0.0  # when that was begun
        self._why = "no leader has answered"  # as yet

    async def close(self) -> None:
        """Gives up comparing."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.wait([self._first])

    async def check(self, known: KnownMetadata) -> None:
        """Compares the metadata that a store has seen. Raises `MetadataWentBack`, `StoreUnreachable`: try again.

        A store that knows no more than this process is believed once one has agreed. While no leader answers, it is
        believed until one does: nothing is made meanwhile. The controller that is followed may lag then: a store that
        knows more waits until another one, or a leader, has as much.
        """
        if not (self._agreed or self.went_back.done() or known == KnownMetadata()):
            await self._compare_first(known)
        if self.went_back.done():
            raise self.went_back.result()
        if self._agreed and self._is_news(known):
            with suppress(ControllerError, TimeoutError):  # the copy here is right, and lags
                async with asyncio.timeout(SOON_S):
                    await self._compare(known)

    def _is_news(self, known: KnownMetadata) -> bool:
        """Returns whether a store knows of metadata that neither the copy here nor a comparison has shown."""
        shown = self._controller.known().joined(self._compared)
        return known.index > shown.index or known.next_queue > shown.next_queue

    async def _compare(self, known: KnownMetadata) -> None:
        try:
            await self._controller.do(CompareMetadata(known=known))
        except MetadataForgotten as error:
            failed = MetadataWentBack(str(error))
            if not self.went_back.done():
                self.went_back.set_result(failed)
            raise failed from error
        self._agreed, self._compared = True, self._compared.joined(known)

    async def _compare_first(self, known: KnownMetadata) -> None:
        """Waits for the first comparison as long as is worth it. Raises `StoreUnreachable`."""
        self._waiting = self._waiting.joined(known)
        if self._first is None or (self._first.done() and not self.went_back.done()):  # the last one failed by a bug
            self._first = asyncio.create_task(self._compare_until_one_agrees(), name="metadata of stores")
            self._first_s = self._loop.time()
        first, changed = self._first, asyncio.Event()

        def ended(_: asyncio.Task[None]) -> None:
            changed.set()

        first.add_done_callback(ended)
        unwatch = self._controller.watch(changed.set)
        began_s = self._loop.time()
        try:
            while not first.done():
                changed.clear()
                news = self._is_news(known)
                left_s = (began_s + NEWS_S if news else self._first_s + SOON_S) - self._loop.time()
                if left_s > 0:
                    await wait_at_most(changed, left_s)
                elif news:
                    raise StoreUnreachable(f"its metadata is not compared with the controllers' yet: {self._why}")
                else:
                    return
            first.result()
        finally:
            first.remove_done_callback(ended)
            unwatch()

    async def _compare_until_one_agrees(self) -> None:
        with suppress(MetadataWentBack):  # `went_back` has it
            while not self._agreed:
                try:
                    await self._compare(self._waiting)
                except ControllerError as error:
                    self._why = str(error)
                    await pause(AGAIN_S)
