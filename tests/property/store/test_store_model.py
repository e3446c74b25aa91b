"""A store against plain dictionaries, over crashes, restarts and rebuilds."""

import asyncio
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.base.errors import RevisionConflict
from store.format.frame import FRAME_ASYNC
from store.local.local import LocalStore
from store.views import Views
from tests.support.store.store_kit import append, begin, bodies, frame

QUEUES = (16, 17, 300)
KEYS = ("a", "a/1", "b")
GROUPS = ("g", "h")


class Model:
    """The acknowledged records."""

    def __init__(self):
        self.queues = {queue: [] for queue in QUEUES}
        self.last = {}
        self.kv = {}
        self.groups = {}
        self.settled = {queue: set() for queue in QUEUES}


class Machine:
    """One run: a store, a model, and chance."""

    def __init__(self, directory: Path, seed: int):
        self.directory = directory
        self.chance = random.Random(seed)
        self.model = Model()
        self.store: LocalStore | None = None
        self.lent = {}  # (queue, offset) -> owner
        self.bodies = 0
        self.generation = 0
        self.group = self.chance.choice([0, 5, (1 << 15) - 1])

    @property
    def path(self):
        return self.directory / str(self.generation)

    async def open(self):
        linger = self.chance.choice([0.0005, 3600])
        self.store = await LocalStore.open(
            self.path,
            group=self.group,
            linger_s=linger,
            segment_size_bytes=4000,
            cache_bytes_max=self.chance.choice([0, 1500, 1 << 20]),
        )
        self.lent = {}

    async def append(self):
        frames = []
        for _ in range(self.chance.randint(1, 4)):
            records = []
            for _ in range(self.chance.randint(1, 12)):
                queue, address = self.chance.choice(QUEUES), self.chance.randint(1, 4)
                self.bodies += 1
                records.append((queue, b"%d" % self.bodies, address))
            relaxed, packed = self.chance.choice([0, 0, FRAME_ASYNC]), self.chance.choice([0, 20])
            frames.append(frame(*records, flags=relaxed, compress_bytes_min=packed))
            for queue, body, address in records:
                self.model.queues[queue].append(body)
                self.model.last[address] = body
        stored = await asyncio.gather(*begin(self.store, *frames))
        while self.store.log.confirmed <= stored[-1].frame:  # answered when it was written, read when it is synced
            await asyncio.sleep(0.001)

    async def put(self):
        key, value = self.chance.choice(KEYS), b"%d" % self.chance.randrange(1000)
        actual = self.model.kv.get(key, (b"", 0))[1]
        expected = self.chance.choice([None, actual, actual + 1])
        if expected not in {None, actual}:
            with pytest.raises(RevisionConflict) as caught:
                await self.store.keys.put(key, value, expected_revision=expected)
            assert caught.value.actual == actual
            return
        revision = await self.store.keys.put(key, value, expected_revision=expected)
        assert revision > max((r for _, r in self.model.kv.values()), default=0)
        self.model.kv[key] = (value, revision)

    async def delete(self):
        key = self.chance.choice(KEYS)
        assert await self.store.keys.delete(key) == (self.model.kv.pop(key, None) is not None)

    async def commit(self):
        group, queue, at = self.chance.choice(GROUPS), self.chance.choice(QUEUES), self.chance.randrange(100)
        await self.store.groups.commit(group, {queue: at})
        self.model.groups.setdefault(group, {})[queue] = at

    async def forget_group(self):
        group = self.chance.choice(GROUPS)
        await self.store.groups.delete(group)
        self.model.groups.pop(group, None)

    async def take(self):
        queue, owner, count = self.chance.choice(QUEUES), self.chance.randint(1, 2), self.chance.randint(1, 20)
        found = await self.store.leases.take(queue, owner, max_count=count)
        gone = self.model.settled[queue] | {o for q, o in self.lent if q == queue}
        expected = [o for o in range(len(self.model.queues[queue])) if o not in gone][:count]
        assert [lease.offset for lease in found] == expected
        for lease in found:
            assert lease.frame.record(lease.row) == self.model.queues[queue][lease.offset]
            self.lent[queue, lease.offset] = owner

    async def settle(self):
        queue, owner = self.chance.choice(QUEUES), self.chance.randint(1, 2)
        mine = [o for (q, o), by in self.lent.items() if (q, by) == (queue, owner)]
        some = self.chance.sample(mine, self.chance.randint(0, len(mine)))
        await self.store.leases.settle(queue, owner, [*some, 10_000])
        self.model.settled[queue] |= set(some)
        for offset in some:
            del self.lent[queue, offset]

    async def requeue(self):
        queue, owner = self.chance.choice(QUEUES), self.chance.randint(1, 2)
        mine = [o for (q, o), by in self.lent.items() if (q, by) == (queue, owner)]
        some = self.chance.sample(mine, self.chance.randint(0, len(mine)))
        self.store.leases.requeue(queue, owner, some)
        for offset in some:
            del self.lent[queue, offset]

    async def release(self):
        owner = self.chance.randint(1, 2)
        held = {q for (q, _), by in self.lent.items() if by == owner}
        assert set(self.store.leases.release(owner)) == held
        self.lent = {at: by for at, by in self.lent.items() if by != owner}

    async def purge(self):
        queue = self.chance.choice(QUEUES)
        lent = {o for q, o in self.lent if q == queue}
        waiting = set(range(len(self.model.queues[queue]))) - self.model.settled[queue] - lent
        assert await self.store.leases.first_waiting(queue) == min(waiting, default=None)
        assert await self.store.leases.purge(queue) == len(waiting)
        assert await self.store.leases.first_waiting(queue) is None
        self.model.settled[queue] |= waiting

    async def forget_queue(self):
        queue = self.chance.choice(QUEUES)
        await self.store.queues.delete(queue)
        self.model.queues[queue], self.model.settled[queue] = [], set()
        self.lent = {at: by for at, by in self.lent.items() if at[0] != queue}
        # What an address had last is still in the log.

    async def restart(self):
        await self.store.close()
        await self.open()

    async def crash(self):
        """Go on from a copy of what is on disk, taken with the store running: the views may be far behind."""
        old, self.generation = self.path, self.generation + 1
        (self.path / "views").mkdir(parents=True)
        self.store.core.engine.views.copy(self.path / "views")
        shutil.copytree(old / "log", self.path / "log")
        with max((self.path / "log").iterdir()).open("ab") as file:
            file.write(self.chance.randbytes(self.chance.randrange(100)))  # the write that was under way
        await self.store.close()
        await self.open()

    async def check(self):
        store, model = self.store, self.model
        for queue in QUEUES:
            records = model.queues[queue]
            offset = self.chance.randint(0, len(records))
            assert await bodies(store, queue, offset) == records[offset:]
            assert await store.queues.bounds(queue) == (0, len(records))
            lent = len([o for q, o in self.lent if q == queue])
            assert await store.leases.waiting(queue) == len(records) - len(model.settled[queue]) - lent
        for address in range(1, 6):
            at = await store.log.last(address)
            assert (None if at is None else await store.log.read(at)) == model.last.get(address)
        for key in KEYS:
            entry = await store.keys.get(key)
            assert (None if entry is None else entry[1:3]) == model.kv.get(key)
        assert [entry.key for entry in await store.keys.prefix("a")] == sorted(k for k in model.kv if k.startswith("a"))
        for group in GROUPS:
            assert await store.groups.offsets(group) == model.groups.get(group, {})

    async def run(self, steps):
        await self.open()
        try:
            for step in steps:
                await getattr(self, step)()
                await self.check()
        finally:
            await self.store.close()

    def rebuilt(self):
        """The views after this run, and what a rebuild from the log makes of them."""
        found = []
        for _ in range(2):
            views = Views(self.path / "views")
            found.append(list(views.entries()))
            views.close()
            shutil.rmtree(self.path / "views")
            asyncio.run(self.reopen())
        return found

    async def reopen(self):
        await (await LocalStore.open(self.path, group=self.group, segment_size_bytes=4000)).close()


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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), min_size=5, max_size=25))
def test_a_store_is_its_model_over_crashes(seed, steps):
    with TemporaryDirectory() as name:
        machine = Machine(Path(name), seed)
        asyncio.run(machine.run(steps))
        followed, rebuilt = machine.rebuilt()
        assert followed == rebuilt


def test_rebuilt_views_of_a_larger_log(tmp_path):
    machine = Machine(tmp_path, 7)
    chance = random.Random(7)
    asyncio.run(machine.run([chance.choice(STEPS) for _ in range(120)]))
    followed, rebuilt = machine.rebuilt()
    assert len(followed) > 20
    assert followed == rebuilt


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
