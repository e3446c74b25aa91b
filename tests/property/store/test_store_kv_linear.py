"""Compare-and-set, get, put and delete of many tasks at once over one store: what they were told is linearizable."""

import asyncio
import random

import pytest

from store.base.errors import RevisionConflict
from store.local.local import LocalStore
from tests.support.histories.kv_workload import Conflict, KvClient
from tests.support.histories.linearizability import UNKNOWN, Recording, check_history

pytestmark = pytest.mark.anyio


class StoreKv:
    """A store, as clients see it."""

    def __init__(self, store):
        self.store = store

    async def get(self, key):
        entry = await self.store.keys.get(key)
        return None if entry is None else (entry.value, entry.revision)

    async def put(self, key, value, expected):
        try:
            return await self.store.keys.put(key, value, expected_revision=expected)
        except RevisionConflict as conflict:
            raise Conflict(conflict.actual) from None

    async def delete(self, key, expected):
        try:
            return await self.store.keys.delete(key, expected_revision=expected)
        except RevisionConflict as conflict:
            raise Conflict(conflict.actual) from None


@pytest.mark.parametrize("seed", range(8))
async def test_what_tasks_are_told_is_linearizable(tmp_path, seed):
    """Over a restart, and with callers that go away while their change is under way."""
    chance, recording = random.Random(seed), Recording()
    for life in range(2):
        linger_s = chance.choice([0.0005, 3600])
        async with await LocalStore.open(tmp_path, linger_s=linger_s) as store:
            clients = [KvClient(100 * life + n, StoreKv(store), recording, chance) for n in range(12)]
            running = [asyncio.ensure_future(client.run(60)) for client in clients]
            while len(recording.history) < 300 * (life + 1):
                await asyncio.sleep(0)
            for task in running[:4]:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    assert any(isinstance(one.result, tuple) and one.result[0] == "conflict" for one in recording.history)
    assert any(one.returned == UNKNOWN for one in recording.history)
    assert check_history(recording.history) == []


async def test_a_store_that_forgets_compares_is_found_out(tmp_path):
    """The same clients and the same check, and a store that is not right."""
    recording = Recording()
    async with await LocalStore.open(tmp_path) as store:

        class Careless(StoreKv):
            async def put(self, key, value, expected):
                entry = await self.store.keys.get(key)  # compares first, and stores what may have changed since
                if expected is not None and expected != (entry.revision if entry else 0):
                    raise Conflict(entry.revision if entry else 0)
                return await self.store.keys.put(key, value)

        chance = random.Random(1)
        await asyncio.gather(*(KvClient(n, Careless(store), recording, chance).run(30) for n in range(12)))
    assert check_history(recording.history)
