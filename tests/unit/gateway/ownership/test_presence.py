"""A proxy that enters again: the others know it by the id that it goes by."""

import asyncio
import random

import pytest

from gateway.ownership.cluster_owners import ClusterOwners
from gateway.ownership.presence import ALIVE
from store.base.errors import StoreUnreachable
from store.local.local import LocalStore
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio

TTL_S = 3.0


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        yield store


@pytest.mark.parametrize("lost", [(), (1,), (2,)], ids=["none", "first", "second"])
async def test_two_renewals_behind_a_pause_enter_by_one_id(store, monkeypatch, lost):
    """The second one replaced the id that the first one was storing: the proxy was there by an id without a key."""
    clock = Clock()
    owners = ClusterOwners(store, ttl_s=TTL_S, random=random.Random(1), clock=clock.now_s)
    await owners.presence.enter()
    before, put, asked = owners.id, store.keys.put, []

    async def slowly(key, value, **options):
        asked.append(key)
        number = len(asked)
        await asyncio.sleep(0)
        if number in lost:
            raise StoreUnreachable("no master within reach")
        return await put(key, value, **options)

    monkeypatch.setattr(store.keys, "put", slowly)
    clock.ms += 100_000  # the process was stopped
    await asyncio.gather(owners.renew(), owners.renew())
    assert owners.presence.present
    there = {entry.key.rpartition("/")[2] for entry in await store.keys.prefix(f"{ALIVE}/")}
    assert there - {before} == {owners.id}
    assert before != owners.id
