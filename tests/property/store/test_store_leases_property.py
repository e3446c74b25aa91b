"""Timers and leases against plain dictionaries, over clocks that jump, crashes and restarts."""

import asyncio
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.frame import ROW, Position, UnplacedFrame
from store.format.policy import LeasePolicy
from store.format.records import TimerSet
from store.format.timer_key import TimerKey
from tests.support.process.examples import examples
from tests.support.store.dead_letters import death_of
from tests.support.store.model.leases import NEVER_MS, LeaseModel
from tests.support.store.model.machine import StoreMachine
from tests.support.store.store_kit import append, bodies, records_frame

TIMED, PLAIN, ORDERED = 300, 16, 17
POLICIES = {
    (PLAIN, ""): LeasePolicy(max_deliveries=2, dead_letter_queue=40, backoff_ms=20, backoff_max_ms=50),
    (PLAIN, "g"): LeasePolicy(),
    (ORDERED, "g"): LeasePolicy(ordered=True, max_deliveries=2, dead_letter_queue=41),
}


class LeasesAndTimers(StoreMachine):
    """A store of two queues for three groups, and a clock that jumps."""

    SEGMENT_SIZE_BYTES = 6000

    def __init__(self, directory, seed):
        super().__init__(directory, seed)
        self.now_ms = self.seen_ms = 1_000_000_000_000
        self.steady_ms = 0
        for at, policy in POLICIES.items():
            self.model.leases[at] = LeaseModel(policy)

    def options(self):
        return {"now_ms": lambda: self.now_ms}

    async def open(self):
        await super().open()
        await self.tick()

    async def tick(self):
        """Looks at the clock, and does in the model what is due."""
        self.steady_ms += max(self.now_ms - self.seen_ms, 0)
        self.seen_ms = self.now_ms
        await self.store.tick()
        for key in sorted(key for key in self.model.timers if key.due_ms <= self.now_ms):
            self.model.queues[TIMED].append(self.model.timers[key].payload)
            self.model.end_timer(key, "fired")
        for leased in self.model.leases.values():
            leased.pass_time(self.steady_ms)
        await self.store.leases.close()

    # ---- timers

    async def set_timers(self):
        records = []
        for _ in range(self.chance.randint(1, 6)):
            body = b"%d" % self.chance.getrandbits(40)
            due_ms = self.now_ms + self.chance.choice([-5, 0, 1, 10, 200, 100_000_000])
            records.append(TimerSet(due_ms, ROW.pack(TIMED, 0, len(body), 0, 0, 0, 0, 0), body))
        at = await append(self.store, records_frame(*records))
        for row, record in enumerate(records):
            self.model.set_timer(TimerKey(record.due_ms, at.frame, row), record)
        await self.tick()

    async def cancel(self):
        known = [*self.model.timers, *self.model.ended_timers]
        if known:
            key = self.chance.choice(known)
            assert await self.store.timers.cancel(str(key)) == self.model.end_timer(key, "cancelled")

    async def time(self):
        self.now_ms += self.chance.choice([1, 10, 10, 60, 60, 300, -50, -1_000_000])
        await self.tick()

    async def long_time(self):
        self.now_ms += 100_000_000
        await self.tick()

    # ---- leases

    async def publish(self):
        queue = self.chance.choice([PLAIN, ORDERED])
        rows, payload, sent = b"", b"", []
        first = len(self.model.queues[queue])
        for offset in range(first, first + self.chance.randint(1, 8)):
            key, body = self.chance.choice([0, 1, 2, 3]), b"%d/%d" % (queue, offset)
            rows += ROW.pack(queue, len(payload), len(body), 0, key, 0, 0, 0)
            payload += body
            sent.append((key, body))
        at = await append(self.store, UnplacedFrame.build(rows, payload))
        for row, (key, body) in enumerate(sent):
            self.model.store(Position(at.frame, row), queue, body, key=key)

    def pick(self):
        """Returns a queue, a group's name, its leases in the model, and an owner."""
        queue, group = self.chance.choice(list(POLICIES))
        return queue, group, self.model.leases[queue, group], self.chance.randint(1, 2)

    def some(self, leased, owner):
        mine = sorted(leased.of(owner))
        return self.chance.sample(mine, self.chance.randint(0, len(mine)))

    async def take(self):
        queue, group, leased, owner = self.pick()
        invisible_ms = self.chance.choice([None, 30, 100])
        count = self.chance.choice([1, 3, 100])
        found = await self.store.leases.take(queue, owner, max_count=count, group=group, invisible_ms=invisible_ms)
        free, offsets = self.model.free(queue, group), [lease.offset for lease in found]
        if leased.policy.ordered:
            assert set(offsets) <= set(free)
            assert len(offsets) == min(count, len(free))
        else:
            assert offsets == free[:count]
        leased.lease(offsets, owner, self.steady_ms + invisible_ms if invisible_ms else NEVER_MS)
        for lease in found:
            assert lease.frame.record(lease.row) == self.model.queues[queue][lease.offset]
            assert lease.deliveries == leased.deliveries.get(lease.offset, 0)
            if invisible_ms and self.chance.random() < 0.2:
                assert await self.store.leases.settle_handles([lease.handle()]) == [None]
                leased.settle([lease.offset])

    async def settle(self):
        queue, group, leased, owner = self.pick()
        some = self.some(leased, owner)
        await self.store.leases.settle(queue, owner, [*some, 10_000], group=group)
        leased.settle(some)

    async def extend(self):
        queue, group, leased, owner = self.pick()
        some = sorted(self.some(leased, owner))
        assert list(await self.store.leases.extend(queue, owner, some, invisible_ms=70, group=group)) == some
        leased.lease(some, owner, self.steady_ms + 70)

    async def requeue(self):
        queue, group, leased, owner = self.pick()
        some, delay_ms = self.some(leased, owner), self.chance.choice([None, 0, 40])
        delivered = self.chance.random() < 0.8
        self.store.leases.requeue(queue, owner, some, delivered=delivered, delay_ms=delay_ms, group=group)
        leased.come_back(some, now_ms=self.steady_ms, delay_ms=delay_ms, delivered=delivered)
        await self.store.leases.close()

    async def reject(self):
        queue, group, leased, owner = self.pick()
        some = self.some(leased, owner)
        await self.store.leases.reject(queue, owner, some, group=group)
        leased.reject(some)

    async def release(self):
        owner = self.chance.randint(1, 2)
        self.store.leases.release(owner)
        for leased in self.model.leases.values():
            untimed = [offset for offset in leased.of(owner) if leased.held[offset][1] == NEVER_MS]
            leased.come_back(untimed, now_ms=self.steady_ms)
        await self.store.leases.close()

    async def check(self):
        store, timers = self.store, self.model.timers
        assert await bodies(store, TIMED) == self.model.queues[TIMED]
        assert store.timers.held == (len(timers), sum(ROW.size + len(timer.payload) for timer in timers.values()))
        assert [entry.id for entry in await store.timers.entries()] == [str(key) for key in sorted(timers)]
        for (queue, group), leased in self.model.leases.items():
            assert await store.leases.waiting(queue, group=group) == self.model.waiting(queue, group)
            if not leased.policy.dead_letter_queue:
                continue
            fetched = await store.queues.fetch(leased.policy.dead_letter_queue, 0, max_bytes=1 << 20)
            deaths = [(f, row) for f, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]
            found = [death_of(frame, row) for frame, row in deaths]
            assert sorted((d.offset, d.reason, d.deliveries) for d in found) == sorted(leased.dead)
            for death, (frame, row) in zip(found, deaths, strict=True):
                assert frame.record(row) == self.model.queues[queue][death.offset]
                assert await store.log.read(death.origin) == frame.record(row)

    async def run(self, steps):
        """Sets the policies in the first life, then goes the steps."""
        await super().run(["set_policies", *steps])

    async def set_policies(self):
        for (queue, group), policy in POLICIES.items():
            await self.store.leases.set_policy(queue, policy, group=group)


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


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), min_size=5, max_size=30))
def test_timers_and_leases_are_their_model_over_crashes(seed, steps):
    with TemporaryDirectory() as name:
        machine = LeasesAndTimers(Path(name), seed)
        asyncio.run(machine.run(steps))
        machine.check_rebuild()


def test_a_long_history(tmp_path):
    machine = LeasesAndTimers(tmp_path, 11)
    chance = random.Random(11)
    asyncio.run(machine.run([chance.choice(STEPS) for _ in range(400)]))
    machine.check_rebuild()
    assert machine.model.queues[TIMED]
    assert machine.model.leases[PLAIN, ""].dead
    assert machine.model.leases[ORDERED, "g"].dead
