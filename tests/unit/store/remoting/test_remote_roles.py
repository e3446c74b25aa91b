"""Clients of a master and of its replica, and what they see when the replica becomes master."""

import asyncio

import pytest

from store.base.errors import NotMaster, OffsetOutOfRange
from store.format.frame import Position
from store.local.local import LocalStore
from store.remoting import RemoteStore
from tests.support.process.waiting import until
from tests.support.store.remote_kit import Node
from tests.support.store.replica_kit import feed, open_master, open_replica
from tests.support.store.store_kit import append, begin, bodies, frame

pytestmark = pytest.mark.anyio


async def test_a_replicas_clients_see_what_is_confirmed(tmp_path):
    master, replica = await open_master(tmp_path / "m", alone=True), await open_replica(tmp_path / "s")
    node = await Node().start(replica, master=False, hint="host:1")
    async with await RemoteStore.open(0, lambda: node.target, reading=True, budget_s=2) as store:
        seen = []
        store.log.tail(seen.extend)
        for n in range(3):
            await append(master, frame((16, b"%d" % n)))
        await feed(master, replica)
        assert await store.queues.bounds(16) == (0, 0)
        with pytest.raises(OffsetOutOfRange):
            await store.queues.fetch(16, 1, max_bytes=1)
        replica.replication.confirm(master.log.confirmed)
        await until(lambda: len(seen) == 3)
        assert store.log.confirmed == master.log.confirmed
        assert await bodies(store, 16) == [b"0", b"1", b"2"]
        frames, _ = await store.log.scan(Position(0, 0), [16], max_bytes=1 << 20)
        assert [one.start for one in frames] == [one.start for one in seen]
        with pytest.raises(NotMaster):
            await store.leases.waiting(16)
    await node.stop()
    await replica.close()
    await master.close()


@pytest.mark.slow
async def test_a_replica_becomes_master_under_its_clients(tmp_path):
    """An answered record is there once and in order: also one that only the old master had when it stood down."""
    master, replica = await open_master(tmp_path / "m"), await open_replica(tmp_path / "s")
    one, two = await Node().start(master), await Node().start(replica, master=False)
    targets = [one.target]
    store = await RemoteStore.open(0, lambda: targets[-1], budget_s=5)
    tailed = []
    store.log.tail(tailed.extend)
    futures = []

    async def appending():
        for n in range(1, 301):
            futures.extend(begin(store, frame((16, b"%d" % n), producer_id=5, sequence=n)))
            if n % 10 == 0:
                await asyncio.sleep(0.001)

    task = asyncio.ensure_future(appending())
    await until(lambda: master.hooks.last("flushed") > 2_000)
    await feed(master, replica)
    master.replication.confirm(replica.replication.flushed)  # the frames that both have
    replica.replication.confirm(replica.replication.flushed)
    await until(lambda: any(future.done() for future in futures))
    await one.service.node.stand_down()
    await two.service.node.stand_down()
    await asyncio.gather(master.close(), replica.close())
    async with await LocalStore.open(tmp_path / "s", epoch=2) as new:
        two.service.node.serve(new)
        targets.append(two.target)
        store.moved()
        await task
        outcomes = await asyncio.gather(*futures)
        assert await bodies(store, 16) == [b"%d" % n for n in range(1, 301)]
        frames, _ = await new.log.scan(Position(0, 0), [16], max_bytes=1 << 20)
        assert [outcome.frame for outcome in outcomes] == [found.start for found in frames]
        await until(lambda: tailed and tailed[-1].end == new.log.confirmed)
        assert [found.data for found in tailed] == [found.data for found in frames]
        await store.close()
    await one.stop()
    await two.stop()
