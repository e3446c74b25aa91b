"""A store against plain dictionaries, over crashes, restarts and rebuilds."""

import asyncio
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from store.base.errors import RevisionConflict
from store.format.frame import FRAME_ASYNC, Position
from store.local.local import LocalStore
from tests.support.process.examples import examples
from tests.support.store.model.machine import StoreMachine
from tests.support.store.store_kit import append, begin, bodies, frame

QUEUES = (16, 17, 300)
KEYS = ("a", "a/1", "b")
GROUPS = ("g", "h")


class AllSubjects(StoreMachine):
    """A store of some group: its queues, keys, consumer groups and leases, without limits of time."""

    def __init__(self, directory: Path, seed: int):
        super().__init__(directory, seed)
        self.group = self.chance.choice([0, 5, (1 << 15) - 1])
        self.numbers = 0

    async def append(self):
        frames, sent = [], []
        for _ in range(self.chance.randint(1, 4)):
            records = []
            for _ in range(self.chance.randint(1, 12)):
                self.numbers += 1
                records.append((self.chance.choice(QUEUES), b"%d" % self.numbers, self.chance.randint(1, 4)))
            relaxed, packed = self.chance.choice([0, 0, FRAME_ASYNC]), self.chance.choice([0, 20])
            frames.append(frame(*records, flags=relaxed, compress_bytes_min=packed))
            sent.append(records)
        stored = await asyncio.gather(*begin(self.store, *frames))
        for at, records in zip(stored, sent, strict=True):
            for row, (queue, body, address) in enumerate(records):
                self.model.store(Position(at.frame, row), queue, body, address=address)
        while self.store.log.confirmed <= stored[-1].frame:  # answered when it was written, read when it is synced
            await asyncio.sleep(0.001)

    async def put(self):
        key, value = self.chance.choice(KEYS), b"%d" % self.chance.randrange(1000)
        actual = self.model.kv.revision("", key, 0)
        expected = self.chance.choice([None, actual, actual + 1])
        newest = max((change.revision or 0 for change in self.model.kv.changes), default=0)
        try:
            found = await self.store.keys.put(key, value, expected_revision=expected)
            assert found > newest
        except RevisionConflict as conflict:
            found = conflict
        revision = found if isinstance(found, int) else None
        done = self.model.kv.put("", key, value, expected=expected, expires_at_ms=0, revision=revision, now_ms=0)
        assert repr(found) == repr(done)

    async def delete(self):
        key = self.chance.choice(KEYS)
        done = self.model.kv.delete("", key, expected=None, revision=None, now_ms=0)
        assert await self.store.keys.delete(key) == done

    async def commit(self):
        group, queue, at = self.chance.choice(GROUPS), self.chance.choice(QUEUES), self.chance.randrange(100)
        await self.store.groups.commit(group, {queue: at})
        self.model.commit(group, {queue: at})

    async def forget_group(self):
        group = self.chance.choice(GROUPS)
        await self.store.groups.delete(group)
        self.model.delete_group(group)

    def some(self):
        """Returns a queue, an owner, and some of the messages that this one has been leased."""
        queue, owner = self.chance.choice(QUEUES), self.chance.randint(1, 2)
        mine = self.model.leases[queue, ""].of(owner)
        return queue, owner, self.chance.sample(mine, self.chance.randint(0, len(mine)))

    async def take(self):
        queue, owner, count = self.chance.choice(QUEUES), self.chance.randint(1, 2), self.chance.randint(1, 20)
        found = await self.store.leases.take(queue, owner, max_count=count)
        offsets = [lease.offset for lease in found]
        assert offsets == self.model.free(queue)[:count]
        for lease in found:
            assert lease.frame.record(lease.row) == self.model.queues[queue][lease.offset]
        self.model.leases[queue, ""].lease(offsets, owner)

    async def settle(self):
        queue, owner, some = self.some()
        await self.store.leases.settle(queue, owner, [*some, 10_000])
        self.model.leases[queue, ""].settle(some)

    async def requeue(self):
        queue, owner, some = self.some()
        self.store.leases.requeue(queue, owner, some)
        self.model.leases[queue, ""].come_back(some)

    async def release(self):
        owner, held = self.chance.randint(1, 2), set()
        for (queue, _), leased in self.model.leases.items():
            if leased.of(owner):
                held.add(queue)
            leased.come_back(leased.of(owner))
        assert set(self.store.leases.release(owner)) == held

    async def purge(self):
        queue = self.chance.choice(QUEUES)
        waiting = self.model.free(queue)
        assert await self.store.leases.first_waiting(queue) == min(waiting, default=None)
        assert await self.store.leases.purge(queue) == len(waiting)
        assert await self.store.leases.first_waiting(queue) is None
        self.model.leases[queue, ""].settle(waiting)

    async def forget_queue(self):
        queue = self.chance.choice(QUEUES)
        await self.store.queues.delete(queue)
        self.model.delete_queue(queue)
        self.model.end_leases(queue)

    async def check(self):
        store, model = self.store, self.model
        for queue in QUEUES:
            records = model.queues[queue]
            offset = self.chance.randint(0, len(records))
            assert await bodies(store, queue, offset) == records[offset:]
            assert await store.queues.bounds(queue) == (0, len(records))
            assert await store.leases.waiting(queue) == model.waiting(queue)
        for address in range(1, 6):
            at = await store.log.last(address)
            assert at == model.last.get(address)
            assert at is None or await store.log.read(at) == model.bodies[at]
        for key in KEYS:
            assert await store.keys.get(key) == model.kv.entry("", key, 0)
        assert await store.keys.prefix("a") == model.kv.entries("", 0, "a", "b")
        for group in GROUPS:
            assert await store.groups.offsets(group) == model.groups.get(group, {})


STEPS = ["append", "put", "take", "settle"] * 3 + [
    "delete",
    "commit",
    "forget_group",
    "requeue",
    "release",
    "purge",
    "forget_queue",
    "restart",
    "crash",
]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), min_size=5, max_size=25))
def test_a_store_is_its_model_over_crashes(seed, steps):
    with TemporaryDirectory() as name:
        machine = AllSubjects(Path(name), seed)
        asyncio.run(machine.run(steps))
        machine.check_rebuild()


def test_rebuilt_views_of_a_larger_log(tmp_path):
    machine = AllSubjects(tmp_path, 7)
    chance = random.Random(7)
    asyncio.run(machine.run([chance.choice(STEPS) for _ in range(120)]))
    assert len(machine.check_rebuild()) > 20


def test_acknowledged_is_never_lost_when_the_process_is_gone(tmp_path):
    """The log alone, without views, copied between two acknowledgements, holds everything acknowledged before."""

    async def main():
        async with await LocalStore.open(tmp_path / "one") as store:
            for n in range(20):
                await append(store, frame((16, b"%d" % n)))
                if n % 5 == 0:
                    copy = tmp_path / f"copy{n}"
                    shutil.copytree(tmp_path / "one" / "log", copy / "log")
                    async with await LocalStore.open(copy) as other:
                        assert await bodies(other, 16) == [b"%d" % i for i in range(n + 1)]

    asyncio.run(main())
