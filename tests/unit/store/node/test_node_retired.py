"""A queue that its group has retired takes nothing more, whoever writes, and whichever replica is the master."""

import pytest
from msgspec.structs import replace

from controller.api.commands import NameQueue
from store.api.log import Appended
from store.api.message import Message, encode
from store.base.clock import now_ms
from store.base.errors import QueueDropped, SequenceOutOfOrder
from store.format.frame import ROW, UnplacedFrame
from store.format.queue_config import QueueConfig
from store.format.records import TIMERS_QUEUE, TimerSet
from store.format.records import encode as encode_record
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until
from tests.support.store.node_kit import StoreGroup
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000
OWNER = 1


def timer_for(queue):
    """Returns a frame with a timer that puts a message into a queue."""
    record = encode(Message("a", b"later"))
    timer = encode_record(TimerSet(now_ms() + DAY_MS, ROW.pack(queue, 0, len(record), 0, 0, 0, 0, 0), record))
    return UnplacedFrame.build(ROW.pack(TIMERS_QUEUE, 0, len(timer), 0, 0, 0, 0, 0), timer)


async def check_refused(store, retired, other):
    late = ROW.pack(retired, 0, 4, 0, 0, 0, 0, 0)
    with pytest.raises(QueueDropped):
        await append(store, frame((other, b"x"), (retired, b"late")))
    with pytest.raises(QueueDropped):
        await append(store, timer_for(retired))
    (lease,) = await store.leases.take(other, OWNER, max_count=1)
    with pytest.raises(QueueDropped):
        await store.leases.forward(other, OWNER, [lease.offset], late, b"late")
    with pytest.raises(QueueDropped):
        await store.leases.commit(OWNER, [(other, [lease.offset])], late, b"late")
    timer = timer_for(retired)
    with pytest.raises(QueueDropped):
        await store.leases.commit(OWNER, [(other, [lease.offset])], timer.rows, timer.plain_payload)
    store.leases.requeue(other, OWNER, [lease.offset], delivered=False)


async def test_a_retired_queue_takes_nothing_more_and_is_over_once_all_of_it_is_settled(tmp_path):
    async with (
        Controllers(tmp_path / "controllers", count=1) as controllers,
        StoreGroup(tmp_path, controllers, count=2) as group,
    ):
        await group.in_sync()
        retired, other = [(await group.client.do(NameQueue(name=name))).number for name in ("retired", "other")]
        store = group.store()
        await append(store, timer_for(retired))
        await append(store, frame((retired, b"1"), (retired, b"2"), (other, b"3")))
        (lease,) = await store.leases.take(retired, OWNER, max_count=1)
        assert not await store.leases.retire(retired), "one message waits, and one is held"
        await check_refused(store, retired, other)
        await store.queues.configure([QueueConfig(retired, until_settled=True)])  # as of who has not heard of it
        await check_refused(store, retired, other)

        epoch = group.group.master_epoch
        await group.nodes[await group.master()].switch_over()
        await group.master(after=epoch)
        await group.in_sync()
        await check_refused(store, retired, other)
        leases = await store.leases.take(retired, OWNER, max_count=10)
        assert [one.offset for one in leases] == [lease.offset, lease.offset + 1]
        await store.leases.settle(retired, OWNER, [one.offset for one in leases])
        assert not await store.leases.retire(retired), "a timer will put a message there"
        (entry,) = await store.timers.entries()
        assert await store.timers.cancel(entry.id)
        assert await store.leases.retire(retired)

        assert await store.leases.is_retired(retired)
        assert not await store.leases.is_retired(other)

        await store.queues.delete(retired)
        await check_refused(store, retired, other)
        name = await group.master()
        await group.kill(name)
        await group.start(name)
        await group.in_sync()
        await check_refused(store, retired, other)
        assert await bodies(store, other) == [b"3"]


async def test_what_follows_a_refused_frame_does_not_overtake_it(tmp_path):
    async with (
        Controllers(tmp_path / "controllers", count=1) as controllers,
        StoreGroup(tmp_path, controllers, count=1) as group,
    ):
        retired, other = [(await group.client.do(NameQueue(name=name))).number for name in ("retired", "other")]
        store = group.store()
        assert await store.leases.retire(retired)
        frames = [frame((other, b"1"), (retired, b"1")), frame((other, b"2")), frame((other, b"3"))]
        outcomes = []
        for sequence, one in enumerate(frames, 1):
            store.log.append(replace(one, producer_id=7 if sequence < 3 else 9, sequence=sequence), outcomes.append)
        await until(lambda: len(outcomes) == 3)
        assert [type(one) for one in outcomes] == [QueueDropped, SequenceOutOfOrder, Appended]
        assert await bodies(store, other) == [b"3"]
