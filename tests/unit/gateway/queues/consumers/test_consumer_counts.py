"""The consumers that a proxy counts, as another one sees them, while the store refuses."""

import asyncio
import random

import pytest

from gateway.domain.errors import Refusal
from gateway.ownership.cluster_owners import ClusterOwners
from gateway.queues.consumers.consumer_counts import COUNTS, SharedConsumerCounts
from store.base.errors import AppendOutcomeUnknown
from store.local.local import LocalStore
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio


class CountsRig:
    """Two proxies with one store. `unfinished` are the calls for `finish` of each."""

    def __init__(self, store, clock):
        self.store = store
        self.owners = [
            ClusterOwners(store, ttl_s=10.0, random=random.Random(seed), clock=clock.now_s) for seed in (1, 2)
        ]
        self.unfinished = [0, 0]
        self.one, self.other = (
            SharedConsumerCounts(store, owners, lambda n=n: self.calls_for(n)) for n, owners in enumerate(self.owners)
        )

    def calls_for(self, proxy):
        self.unfinished[proxy] += 1

    async def records(self):
        return [entry.key for entry in await self.store.keys.prefix(COUNTS)]


@pytest.fixture
async def rig(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        rig = CountsRig(store, clock)
        for owners in rig.owners:
            await owners.presence.enter()
        yield rig


def refusing(rig, *, stored):
    """Lets transactions fail; with `stored` they are stored all the same."""
    transact, patch = rig.store.keys.transact, pytest.MonkeyPatch()

    async def fails(*arguments):
        if stored:
            await transact(*arguments)
        raise AppendOutcomeUnknown("the connection broke")

    patch.setattr(rig.store.keys, "transact", fails)
    return patch


@pytest.mark.parametrize("stored", [False, True])
async def test_a_consumer_that_could_not_be_removed_is_removed_later(rig, stored):
    await rig.one.join("q", exclusive=True)
    patch = refusing(rig, stored=stored)
    await rig.one.leave("q", exclusive=True)
    patch.undo()
    assert (rig.unfinished, rig.one.behind) == ([1, 0], True)
    await rig.one.finish()
    assert (rig.one.behind, await rig.records()) == (False, [])
    await rig.other.join("q", exclusive=True)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_consumer_begins_where_the_last_one_could_not_be_removed(rig, stored):
    await rig.one.join("q", exclusive=True)
    patch = refusing(rig, stored=stored)
    await rig.one.leave("q", exclusive=True)
    patch.undo()
    await rig.one.join("q", exclusive=False)
    await rig.other.join("q", exclusive=False)
    assert await rig.other.elsewhere("q") == 1
    await rig.one.finish()
    assert (rig.one.behind, await rig.other.elsewhere("q")) == (False, 1)


async def test_an_exclusive_consumer_stays_alone_when_another_one_beside_it_is_refused(rig):
    await asyncio.gather(rig.one.join("q", exclusive=True), rig.one.join("q", exclusive=False))
    await rig.one.leave("q", exclusive=False)  # refused, as its own proxy knows of the other one
    with pytest.raises(Refusal, match="exclusive use"):
        await rig.other.join("q", exclusive=False)
    await rig.one.join("q", exclusive=True)
    await rig.one.leave("q", exclusive=True)
    with pytest.raises(Refusal, match="exclusive use"):
        await rig.other.join("q", exclusive=False)
    await rig.one.leave("q", exclusive=True)
    await rig.other.join("q", exclusive=False)
    assert await rig.one.elsewhere("q") == 1
