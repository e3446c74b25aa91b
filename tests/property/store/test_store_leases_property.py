"""Timers and leases against plain dictionaries, over clocks that jump, crashes and restarts."""

import asyncio
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.frame import ROW, UnplacedFrame
from store.format.policy import LeasePolicy
from store.format.records import TimerSet
from store.format.timer_key import TimerKey
from store.local.local import LocalStore
from store.views import Views
from tests.support.store.dead_letters import death_of
from tests.support.store.store_kit import append, bodies, records_frame

TIMED, PLAIN, ORDERED = 300, 16, 17
DEAD = {(PLAIN, ""): 40, (ORDERED, "g"): 41}
POLICIES = {
    (PLAIN, ""): LeasePolicy(max_deliveries=2, dead_letter_queue=40, backoff_ms=20, backoff_max_ms=50),
    (PLAIN, "g"): LeasePolicy(),
    (ORDERED, "g"): LeasePolicy(ordered=True, max_deliveries=2, dead_letter_queue=41),
}
NEVER = 1 << 62


class Group:
    """The messages of a queue that a group has been lent."""

    def __init__(self):
        self.settled = set()
        self.held = {}  # offset -> (owner, until)
        self.kept_back = {}  # offset -> until
        self.deliveries = {}
        self.dead = []  # given up, in some order

    def forget(self):
        """The master has gone: its leases too."""
        seen = max(self.settled, default=-1)
        self.held, self.kept_back = {}, {}
        self.deliveries = dict.fromkeys(range(seen), 1)


class Machine:
    def __init__(self, directory, seed):
        self.directory = directory
        self.chance = random.Random(seed)
        self.now_ms = self.seen_ms = 1_000_000_000_000
        self.steady_ms = 0
        self.generation = 0
        self.timers = {}  # key -> body
        self.past = []  # keys that have fired or were cancelled
        self.fired = []
        self.keys = {PLAIN: [], ORDERED: []}  # of the messages of each queue
        self.groups = {at: Group() for at in POLICIES}
        self.store = None

    @property
    def path(self):
        return self.directory / str(self.generation)

    async def open(self):
        self.store = await LocalStore.open(
            self.path, now_ms=lambda: self.now_ms, linger_s=self.chance.choice([0.0005, 3600]), segment_size_bytes=6000
        )
        for group in self.groups.values():
            group.forget()
        await self.tick()

    async def tick(self):
        """Look at the clock, and do in the model what is due."""
        self.steady_ms += max(self.now_ms - self.seen_ms, 0)
        self.seen_ms = self.now_ms
        await self.store.tick()
        for key in sorted(key for key in self.timers if key.due_ms <= self.now_ms):
            self.fired.append(self.timers.pop(key))
            self.past.append(key)
        for at, group in self.groups.items():
            over = [offset for offset, (_, until) in group.held.items() if until <= self.steady_ms]
            for offset in [offset for offset, until in group.kept_back.items() if until <= self.steady_ms]:
                del group.kept_back[offset]
            self.come_back(at, over)
        await self.store.leases.close()

    def come_back(self, at, offsets, delay_ms=None, *, delivered=True):
        group, policy = self.groups[at], POLICIES[at]
        for offset in sorted(offsets):
            del group.held[offset]
            if delivered:
                group.deliveries[offset] = group.deliveries.get(offset, 0) + 1
                if policy.exhausted(group.deliveries[offset]):
                    self.give_up(at, offset, "delivery_limit")
                    continue
            wait = delay_ms if delay_ms is not None else policy.delay_ms(group.deliveries[offset]) if delivered else 0
            if wait:
                group.kept_back[offset] = self.steady_ms + wait

    def give_up(self, at, offset, reason):
        group = self.groups[at]
        group.settled.add(offset)
        if at in DEAD:
            group.dead.append((offset, reason, group.deliveries.get(offset, 0)))

    # ---- timers

    async def set_timers(self):
        records = []
        for _ in range(self.chance.randint(1, 6)):
            body = b"%d" % self.chance.getrandbits(40)
            due_ms = self.now_ms + self.chance.choice([-5, 0, 1, 10, 200, 100_000_000])
            records.append(TimerSet(due_ms, ROW.pack(TIMED, 0, len(body), 0, 0, 0, 0, 0), body))
        at = await append(self.store, records_frame(*records))
        for row, record in enumerate(records):
            self.timers[TimerKey(record.due_ms, at.frame, row)] = record.payload
        await self.tick()

    async def cancel(self):
        known = [*self.timers, *self.past]
        if known:
            key = self.chance.choice(known)
            assert await self.store.timers.cancel(str(key)) == (key in self.timers)
            if self.timers.pop(key, None) is not None:
                self.past.append(key)

    async def time(self):
        self.now_ms += self.chance.choice([1, 10, 10, 60, 60, 300, -50, -1_000_000])
        await self.tick()

    async def long_time(self):
        self.now_ms += 100_000_000
        await self.tick()

    # ---- leases

    async def publish(self):
        queue = self.chance.choice([PLAIN, ORDERED])
        rows, payload = b"", b""
        for _ in range(self.chance.randint(1, 8)):
            key = self.chance.choice([0, 1, 2, 3])
            body = b"%d/%d" % (queue, len(self.keys[queue]))
            rows += ROW.pack(queue, len(payload), len(body), 0, key, 0, 0, 0)
            payload += body
            self.keys[queue].append(key)
        await append(self.store, UnplacedFrame.build(rows, payload))

    def pick(self):
        at = self.chance.choice(list(POLICIES))
        return at, self.groups[at], self.chance.randint(1, 2)

    def some(self, group, owner):
        mine = sorted(offset for offset, (by, _) in group.held.items() if by == owner)
        return self.chance.sample(mine, self.chance.randint(0, len(mine)))

    async def take(self):
        at, group, owner = self.pick()
        (queue, name), keys = at, self.keys[at[0]]
        invisible_ms = self.chance.choice([None, 30, 100])
        count = self.chance.choice([1, 3, 100])
        found = await self.store.leases.take(queue, owner, max_count=count, group=name, invisible_ms=invisible_ms)
        out = group.settled | set(group.held) | set(group.kept_back)
        free = [offset for offset in range(len(keys)) if offset not in out]
        if POLICIES[at].ordered:
            busy = {keys[offset] for offset in (*group.held, *group.kept_back)} - {0}
            firsts = {}
            for offset in free:
                firsts.setdefault(keys[offset] or ("none", offset), offset)
            free = sorted(offset for key, offset in firsts.items() if key not in busy)
        offsets = [lease.offset for lease in found]
        if POLICIES[at].ordered:
            assert set(offsets) <= set(free)
            assert len(offsets) == min(count, len(free))
        else:
            assert offsets == free[:count]
        for lease in found:
            assert lease.frame.record(lease.row) == b"%d/%d" % (queue, lease.offset)
            assert lease.deliveries == group.deliveries.get(lease.offset, 0)
            until = self.steady_ms + invisible_ms if invisible_ms else NEVER
            group.held[lease.offset] = (owner, until)
            if invisible_ms and self.chance.random() < 0.2:
                assert await self.store.leases.settle_handles([lease.handle()]) == [None]
                del group.held[lease.offset]
                group.settled.add(lease.offset)

    async def settle(self):
        (queue, name), group, owner = self.pick()
        some = self.some(group, owner)
        await self.store.leases.settle(queue, owner, [*some, 10_000], group=name)
        group.settled |= set(some)
        for offset in some:
            del group.held[offset]

    async def extend(self):
        (queue, name), group, owner = self.pick()
        some = sorted(self.some(group, owner))
        assert list(await self.store.leases.extend(queue, owner, some, invisible_ms=70, group=name)) == some
        for offset in some:
            group.held[offset] = (owner, self.steady_ms + 70)

    async def requeue(self):
        at, group, owner = self.pick()
        some, delay_ms, delivered = (
            self.some(group, owner),
            self.chance.choice([None, 0, 40]),
            self.chance.random() < 0.8,
        )
        self.store.leases.requeue(at[0], owner, some, delivered=delivered, delay_ms=delay_ms, group=at[1])
        self.come_back(at, some, delay_ms, delivered=delivered)
        await self.store.leases.close()

    async def reject(self):
        at, group, owner = self.pick()
        some = self.some(group, owner)
        await self.store.leases.reject(at[0], owner, some, group=at[1])
        for offset in some:
            del group.held[offset]
            self.give_up(at, offset, "rejected")

    async def release(self):
        owner = self.chance.randint(1, 2)
        self.store.leases.release(owner)
        for at, group in self.groups.items():
            self.come_back(at, [offset for offset, (by, _) in group.held.items() if by == owner])
        await self.store.leases.close()

    # ---- ends and beginnings

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
            file.write(self.chance.randbytes(self.chance.randrange(100)))
        await self.store.close()
        await self.open()

    async def check(self):
        store = self.store
        assert await bodies(store, TIMED) == self.fired
        assert store.timers.held == (len(self.timers), sum(ROW.size + len(body) for body in self.timers.values()))
        assert [entry.id for entry in await store.timers.entries()] == [str(key) for key in sorted(self.timers)]
        for (queue, name), group in self.groups.items():
            total = len(self.keys[queue])
            assert await store.leases.waiting(queue, group=name) == total - len(group.settled) - len(group.held)
            if (queue, name) not in DEAD:
                continue
            fetched = await store.queues.fetch(DEAD[queue, name], 0, max_bytes=1 << 20)
            deaths = [(f, row) for f, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]
            found = [death_of(frame, row) for frame, row in deaths]
            assert sorted((d.offset, d.reason, d.deliveries) for d in found) == sorted(group.dead)
            for death, (frame, row) in zip(found, deaths, strict=True):
                assert frame.record(row) == b"%d/%d" % (queue, death.offset)
                assert await store.log.read(death.origin) == frame.record(row)

    async def run(self, steps):
        await self.open()
        try:
            for (queue, name), policy in POLICIES.items():
                await self.store.leases.set_policy(queue, policy, group=name)
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
        await (await LocalStore.open(self.path, now_ms=lambda: 0, segment_size_bytes=6000)).close()


STEPS = ["publish", "take", "take", "settle", "requeue", "time", "set_timers"] * 3 + [
    "cancel",
    "cancel",
    "extend",
    "reject",
    "release",
    "long_time",
    "restart",
    "crash",
]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), min_size=5, max_size=30))
def test_timers_and_leases_are_their_model_over_crashes(seed, steps):
    with TemporaryDirectory() as name:
        machine = Machine(Path(name), seed)
        asyncio.run(machine.run(steps))
        followed, rebuilt = machine.rebuilt()
        assert followed == rebuilt


def test_a_long_history(tmp_path):
    machine = Machine(tmp_path, 11)
    chance = random.Random(11)
    asyncio.run(machine.run([chance.choice(STEPS) for _ in range(400)]))
    followed, rebuilt = machine.rebuilt()
    assert followed == rebuilt
    assert machine.fired
    assert machine.groups[PLAIN, ""].dead
    assert machine.groups[ORDERED, "g"].dead
