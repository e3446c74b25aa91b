"""Compares the controllers' metadata with what stores know of it, before a store is asked for anything.

A process that runs finds out by its copy that controllers have forgotten metadata. One that starts has no copy: it
would make topics, which get numbers of queues that were given before, and read the records of other topics there.
"""

import asyncio

from controller.api.client import ControllerClient, ControllerError, KnownMetadata, MetadataForgotten
from controller.api.requests import CompareMetadata
from store.base.errors import MetadataWentBack, StoreUnreachable

AGAIN_S = 2.0  # that the controllers have to answer in, once a store has agreed: the copy here is right


class MetadataAgreement:
    """The agreement of this process's controllers with its stores. `went_back` is set when they do not agree."""

    def __init__(self, controller: ControllerClient) -> None:
        self.went_back: asyncio.Future[MetadataWentBack] = asyncio.get_running_loop().create_future()
        self._controller = controller
        self._agreed = False  # with any store

    async def check(self, known: KnownMetadata) -> None:
        """Compares the metadata that a store has seen. Raises `MetadataWentBack`, `StoreUnreachable`: try again.

        A store that knows no more than this process is believed once one has agreed, and with no controller to ask,
        each is.
        """
        if self.went_back.done():
            raise self.went_back.result()
        mine = self._controller.known()
        news = known.index > mine.index or known.next_queue > mine.next_queue
        if known == KnownMetadata() or (self._agreed and not news):
            return
        try:
            async with asyncio.timeout(AGAIN_S if self._agreed else None):
                await self._controller.do(CompareMetadata(known=known))
        except MetadataForgotten as error:
            failed = MetadataWentBack(str(error))
            if not self.went_back.done():
                self.went_back.set_result(failed)
            raise failed from error
        except (ControllerError, TimeoutError) as error:
            if not self._agreed:
                raise StoreUnreachable(f"its metadata is not compared with the controllers' yet: {error}") from error
        else:
            self._agreed = True
