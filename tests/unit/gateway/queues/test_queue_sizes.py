"""The bytes that wait in a queue, against what was published, taken and given back."""

import pytest

from gateway.queues.leaving.sizes import QueueSizes
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path) as rig:
        yield rig


async def test_the_bytes_that_wait_are_counted_and_so_is_what_is_too_much(rig):
    await rig.declare(rig.conn(), "q")
    number = rig.queues.registry.queues["q"].number
    sizes = QueueSizes(rig.store, number)
    assert await sizes.waiting_bytes() == 0
    await rig.publish("", "q", *(b"x" * size for size in (5, 1, 0, 9)))
    assert await sizes.waiting_bytes() == 15
    assert [await sizes.excess(most) for most in (15, 14, 10, 9, 8, 0)] == [0, 1, 1, 2, 4, 4]
    (lease,) = await rig.store.leases.take(number, 7, max_count=1)
    assert await sizes.waiting_bytes() == 10
    rig.store.leases.requeue(number, 7, [lease.offset])
    assert await sizes.waiting_bytes() == 15
    await rig.store.leases.take(number, 7, max_count=2)
    await rig.store.leases.settle(number, 7, [0, 1])
    await rig.publish("", "q", b"xx")
    assert await sizes.waiting_bytes() == 11
    await rig.store.leases.purge(number)
    assert await sizes.waiting_bytes() == 0
