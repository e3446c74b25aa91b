"""The timers that retired queues wait for are looked at once for many queues, and not at every attempt."""

import asyncio

import pytest

from store.api.timers import TimersHeld
from store.base.clock import now_ms
from store.format.frame import ROW, LogOffset
from store.format.records import TimerSet
from store.format.timer_key import TimerKey
from store.local import leases
from store.local.local import LocalStore
from store.timers.awaiting import FEW_TIMERS, REST, Awaited, AwaitedTimers
from store.timers.timers import DAY_MS
from tests.support.store.store_kit import append, records_frame

pytestmark = pytest.mark.anyio

PASS_S = 2.0


def key(due_ms):
    return TimerKey(due_ms, LogOffset(0), 0)


class Rig:
    """Timers by key, each for one queue, of which a look reads one."""

    def __init__(self, timers, *, weight=1):
        self.timers = {key(due_ms): queue for due_ms, queue in timers.items()}
        self.weight = weight  # how many timers each stands for
        self.looks = 0
        self.now_s = 0.0
        self.awaited = AwaitedTimers(
            held=lambda: TimersHeld(len(self.timers), 0),
            is_pending=self.timers.__contains__,
            look=self._look,
            now_s=lambda: self.now_s,
        )

    async def _look(self, start, queues):
        await asyncio.sleep(0)
        self.looks += 1
        self.now_s += PASS_S / len(self.timers)
        left = sorted(one for one in self.timers if start is None or one >= start)
        queue = self.timers[left[0]]
        return Awaited({queue: left[0]} if queue in queues else {}, self.weight, left[1] if left[1:] else None)

    async def ask(self, *queues):
        return await asyncio.gather(*map(self.awaited.is_awaited, queues))


async def test_one_pass_answers_for_a_queue_as_long_as_its_last_timer_is_pending():
    rig = Rig({1: 16, 2: 17, 3: 16})
    for _ in range(5):
        assert await rig.ask(16) == [True]
    del rig.timers[key(1)]
    assert await rig.ask(16) == [True]
    assert rig.looks == 3
    del rig.timers[key(3)]
    assert await rig.ask(16) == [False]
    assert rig.looks == 4
    assert await rig.ask(16) == [False]
    assert rig.looks == 4, "a retired queue gets no new ones"


async def test_a_timer_that_was_cancelled_leaves_those_before_it():
    rig = Rig({1: 16, 2: 17, 3: 16})
    assert await rig.ask(16) == [True]
    del rig.timers[key(3)]
    assert await rig.ask(16) == [True]


async def test_one_pass_answers_for_all_who_ask():
    rig = Rig({1: 16, 2: 17})
    assert await rig.ask(*range(16, 40)) == [True, True, *[False] * 22]
    assert rig.looks == 2 * len(rig.timers), "one for the first, and one for all that have come meanwhile"


async def test_without_timers_nothing_is_looked_at():
    rig = Rig({})
    assert await rig.ask(16) == [False]
    assert rig.looks == 0


async def test_passes_over_many_timers_take_a_tenth_of_the_time():
    rig = Rig({1: 16, 2: 17}, weight=FEW_TIMERS)
    assert await rig.ask(16) == [True]
    assert await rig.ask(18) == [True], "unknown for now"
    rig.now_s += REST * PASS_S
    assert await rig.ask(18) == [False]
    assert rig.looks == 4


async def test_timers_are_looked_at_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "TIMERS_COUNT", 2)
    async with await LocalStore.open(tmp_path) as store:
        far_ms = now_ms() + DAY_MS
        rows = {queue: ROW.pack(queue, 0, 1, 0, 0, 0, 0, 0) for queue in (16, 17)}
        timers = [TimerSet(far_ms + n, rows[17 if n == 4 else 16], b"x") for n in range(7)]
        await append(store, records_frame(*timers))
        assert [await store.leases.retire(queue) for queue in (16, 17, 18)] == [False, False, True]
        *entries, last = await store.timers.entries()
        for entry in [last, *entries]:
            assert not await store.leases.retire(16)
            await store.timers.cancel(entry.id)
        assert [await store.leases.retire(queue) for queue in (16, 17)] == [True, True]
