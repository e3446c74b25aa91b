"""The bytes that wait in a queue, against what was published, taken and given back."""

import pytest

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.queues.leaving.sizes import QueueSizes
from store.local.local import LocalStore
from tests.support.gateway.queues_rig import QueuesRig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    store = await LocalStore.open(tmp_path / "store")
    controller = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    await controller.do(CreateTopic(name="$amqp", queues=1))
    rig = QueuesRig(store, controller)
    await rig.queues.load()
    yield rig
    await rig.queues.close()
    await controller.close()
    await store.close()


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
