"""The file `metadata`: how much of the cluster's metadata a data directory has seen.

Where all controllers go back to an older copy, they give numbers of queues again. The records under such a number are
another topic's. A running node finds that out by its copy of the metadata, a node that starts by this file, and, where
it is damaged or of before the newest queues, by the queues that have records here.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from controller.api.client import ControllerClient, KnownMetadata
from store.base.errors import StoreError, StoreFailed
from store.disk.files import Files
from store.disk.small_file import read_small_file, write_small_file
from store.disk.space import NO_ROOM
from store.local.local import LocalStore

logger = logging.getLogger(__name__)

FILE = "metadata"


class MetadataMark:
    """Keeps how much is known. `load` reads it, `follow` writes each change of the controllers' metadata, soon."""

    def __init__(self, files: Files, data_dir: Path) -> None:
        self.known = KnownMetadata()
        self._files = files
        self._path = data_dir / FILE
        self._unwatch: Callable[[], None] = lambda: None
        self._kept = KnownMetadata()  # by the file
        self._saving: asyncio.Task[None] | None = None
        self._failed: Callable[[StoreFailed], None] = lambda _error: None

    async def load(self, store: LocalStore | None) -> None:
        """Reads the file, and looks at the queues with records here; `store` is None where it cannot be opened.

        Raises OSError.
        """
        kept = await asyncio.to_thread(read_small_file, self._files, self._path, KnownMetadata)
        self._kept = kept or KnownMetadata()
        newest = 0
        if store is not None:
            try:
                newest = await store.queues.newest()
            except StoreError as error:  # it is repaired or made anew later, and the file is enough
                logger.warning("the queues with records are not known yet: %s", error)
        self.known = self._kept.joined(KnownMetadata(next_queue=newest + 1))

    def follow(self, controller: ControllerClient, failed: Callable[[StoreFailed], None]) -> None:
        """Keeps what the controllers' metadata holds, now and after each change; reports a failing disk to `failed`."""
        self._failed = failed

        def learn() -> None:
            self.known = self.known.joined(controller.known())
            if self._saving is None or self._saving.done():
                self._saving = asyncio.create_task(self._save(), name="metadata that was seen")

        self._unwatch = controller.watch(learn)
        learn()

    async def close(self) -> None:
        """Ends the following, and waits until the file is written."""
        self._unwatch()
        if self._saving is not None:
            await asyncio.wait([self._saving])

    async def _save(self) -> None:
        while self._kept != self.known:
            known = self.known
            try:
                await asyncio.to_thread(write_small_file, self._files, self._path, known)
            except OSError as error:  # without room, the next change is written again
                logger.warning("the file `%s` is not up to date: %s", FILE, error)
                if error.errno not in NO_ROOM:
                    self._failed(StoreFailed(f"the file `{FILE}` cannot be written: {error}"))
                return
            self._kept = known
