"""A real store beside its model, through restarts, crashes and rebuilds of its views."""

import asyncio
import random
import shutil
from pathlib import Path

from store.local.local import LocalStore
from store.views import Views
from tests.support.store.model.store import StoreModel


class StoreMachine:
    """One run: a store, a model, and chance. Each step of `run` is a method of a subclass, followed by `check`."""

    SEGMENT_SIZE_BYTES = 4000

    def __init__(self, directory: Path, seed: int):
        self.directory = directory
        self.chance = random.Random(seed)
        self.model = StoreModel()
        self.store: LocalStore | None = None
        self.generation = 0
        self.group = 0  # of the store

    @property
    def path(self):
        return self.directory / str(self.generation)

    def options(self):
        """Returns options of the store's next life."""
        return {}

    async def open(self):
        self.store = await self._opened(
            linger_s=self.chance.choice([0.0005, 3600]),
            cache_bytes_max=self.chance.choice([0, 1500, 1 << 20]),
            **self.options(),
        )
        self.model.restart()

    async def _opened(self, **options):
        return await LocalStore.open(self.path, group=self.group, segment_size_bytes=self.SEGMENT_SIZE_BYTES, **options)

    async def restart(self):
        await self.store.close()
        await self.open()

    async def crash(self):
        """Goes on from a copy of what is on disk, taken with the store running: the views may be far behind."""
        old, self.generation = self.path, self.generation + 1
        (self.path / "views").mkdir(parents=True)
        self.store.core.engine.views.copy(self.path / "views")
        shutil.copytree(old / "log", self.path / "log")
        with max((self.path / "log").iterdir()).open("ab") as file:
            file.write(self.chance.randbytes(self.chance.randrange(100)))  # the write that was under way
        await self.store.close()
        await self.open()

    async def check(self):
        """Compares every read with the model."""
        raise NotImplementedError

    async def run(self, steps):
        await self.open()
        try:
            for step in steps:
                await getattr(self, step)()
                await self.check()
        finally:
            await self.store.close()

    def check_rebuild(self):
        """Compares the views after this run, entry by entry, with those that the log alone makes; returns them."""
        followed = self._entries()
        asyncio.run(self._reopen())
        rebuilt = self._entries()
        assert followed == rebuilt
        return followed

    def _entries(self):
        """Returns the entries of the views, which are deleted."""
        views = Views(self.path / "views")
        found = list(views.entries())
        views.close()
        shutil.rmtree(self.path / "views")
        return found

    async def _reopen(self):
        await (await self._opened(now_ms=lambda: 0)).close()
