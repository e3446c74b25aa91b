"""Handing over, again and again, while clients write: nothing fails, and no outcome is unknown."""

import asyncio

import pytest

from store.api.keys import Put
from store.node import master_role
from store.remoting import connection
from store.serving import service
from tests.support.controller.controllers import Controllers
from tests.support.store.node_kit import StoreGroup

pytestmark = pytest.mark.anyio

WRITERS, TIMES = 20, 6


class Writer:
    """Writes one key after the other, as often as it is answered."""

    def __init__(self, store, number):
        self.store, self.key = store, f"k{number}"
        self.written = 0
        self.stopping = False
        self.task = asyncio.ensure_future(self._run())

    async def _run(self):
        revision = 0
        while not self.stopping:
            revision = await self.store.keys.put(self.key, b"%d" % self.written, expected_revision=revision)
            done = await self.store.keys.transact({self.key: revision}, [Put(self.key, b"%d" % (self.written + 1))])
            revision = done.revision
            self.written += 2


@pytest.mark.slow
async def test_nobody_is_told_that_an_outcome_is_not_known(tmp_path, monkeypatch):
    # On a busy machine answers may take longer than a master and a client wait for them.
    for module, limit in ((master_role, "GRACE_S"), (service, "LEAVE_S"), (connection, "LEAVE_S")):
        monkeypatch.setattr(module, limit, 60.0)
    async with (
        Controllers(tmp_path / "controllers", count=1) as controllers,
        StoreGroup(tmp_path, controllers) as group,
    ):
        await group.in_sync()
        stores = [group.store() for _ in range(2)]
        writers = [Writer(stores[n % 2], n) for n in range(WRITERS)]
        for _ in range(TIMES):
            before = [one.written for one in writers]
            epoch = group.group.master_epoch
            await group.nodes[await group.master()].switch_over()
            await group.master(after=epoch)
            await group.in_sync()
            while not all(one.written > count for one, count in zip(writers, before, strict=True)):
                assert not [one.task.exception() for one in writers if one.task.done()]
                await asyncio.sleep(0.01)
        for one in writers:
            one.stopping = True
        await asyncio.gather(*(one.task for one in writers))
        for one in writers:
            entry = await stores[0].keys.get(one.key)
            assert entry.value == b"%d" % (one.written - 1)
