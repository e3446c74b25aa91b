"""The last use of queues that expire, while clocks are set."""

from types import SimpleNamespace

import pytest

from gateway.queues.consumers.uses import QueueUses
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio

EXPIRES_MS = 1_800_000
HOUR_MS = 3_600_000
QUEUE = SimpleNamespace(number=7, definition=SimpleNamespace(name="q"), pump=SimpleNamespace(consumers=()))


class Keys:
    """The keys of a store."""

    def __init__(self):
        self.values = {}

    async def get(self, key):
        value = self.values.get(key)
        return None if value is None else SimpleNamespace(value=value)

    async def put(self, key, value, *, ttl_ms):
        self.values[key] = value


class Proxy:
    """The uses that one process knows, and its clocks."""

    def __init__(self, keys, *, alone=False):
        self.wall, self.steady = Clock(), Clock(5)
        self.uses = QueueUses(
            SimpleNamespace(keys=keys),
            SimpleNamespace(alone=alone),
            SimpleNamespace(elsewhere=self.counted_elsewhere),
            now_ms=self.wall,
            steady_ms=self.steady,
        )
        self.uses.used(QUEUE.number)

    async def counted_elsewhere(self, name):
        return 0

    def passes(self, ms, set_ms=0):
        """Lets time pass, in which the clock is set, too."""
        self.steady.ms += ms
        self.wall.ms += ms + set_ms

    async def expired(self):
        return await self.uses.expired(QUEUE, EXPIRES_MS)


async def test_a_process_that_was_started_again_writes_down_its_uses_at_once():
    """Another proxy would delete the queue by what the former process had written."""
    keys = Keys()
    await Proxy(keys).expired()
    (before,) = keys.values.values()
    again = Proxy(keys)
    again.passes(EXPIRES_MS // 100)
    again.uses.used(QUEUE.number)
    await again.expired()
    assert list(keys.values.values()) != [before]


@pytest.mark.parametrize("set_ms", [-HOUR_MS, HOUR_MS])
async def test_a_queue_lives_its_time_whatever_the_clock_is_set_to(set_ms):
    proxy = Proxy(Keys(), alone=True)
    proxy.passes(EXPIRES_MS - 1, set_ms)
    assert not await proxy.expired()
    assert proxy.uses.due_ms(QUEUE.number, EXPIRES_MS) == proxy.wall.ms + 1
    proxy.passes(1)
    assert await proxy.expired()


@pytest.mark.parametrize("set_ms", [-HOUR_MS, HOUR_MS])
async def test_a_use_at_another_proxy_counts_when_the_clocks_are_set(set_ms):
    keys = Keys()
    one, other = Proxy(keys), Proxy(keys)
    step_ms, user = EXPIRES_MS // 8, [True]

    async def look():
        for proxy in (one, other):
            proxy.passes(step_ms)
        if user[0]:
            other.uses.used(QUEUE.number)
        return [await proxy.expired() for proxy in (other, one)]

    for _ in range(10):
        assert await look() == [False, False]
    one.passes(0, set_ms)
    assert await look() == [False, False]
    other.passes(0, set_ms)
    for _ in range(20):
        assert await look() == [False, False]
    user[0] = False
    looks = 0
    while await look() != [True, True]:
        looks += 1
    assert 8 <= looks <= 8 + 3
