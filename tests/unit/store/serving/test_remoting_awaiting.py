"""Clients that wait for something to lease hear what other clients append and give back."""

import asyncio

import pytest

from store.format.frame import ROW, QueueNumber, UnplacedFrame
from store.local.local import LocalStore
from store.remoting import RemoteStore
from tests.support.store.remote_kit import Node

pytestmark = pytest.mark.anyio

QUEUE, OTHER = QueueNumber(20), QueueNumber(21)


class AwaitingClient:
    def __init__(self, node):
        self.store = RemoteStore(0, lambda: node.target, budget_s=0.5)
        self.told = []
        self.heard = asyncio.Event()
        self.store.queues.watch(self._told)

    def _told(self, queues):
        self.told += queues
        self.heard.set()

    async def hears(self):
        async with asyncio.timeout(60):
            await self.heard.wait()
        self.heard.clear()
        told, self.told = self.told, []
        return told

    async def append(self, queue, count=1):
        done = asyncio.get_running_loop().create_future()
        rows = b"".join(ROW.pack(queue, n, 1, 0, 0, 0, 0, 0) for n in range(count))
        self.store.log.append(UnplacedFrame.build(rows, b"x" * count), done.set_result)
        await done

    async def take(self, owner=1, count=10):
        return await self.store.leases.take(QUEUE, owner, max_count=count)


@pytest.fixture
async def two(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        node = await Node().start(store)
        clients = [AwaitingClient(node) for _ in range(2)]
        for client in clients:
            await client.store.connected()
        yield clients
        for client in clients:
            await client.store.close()
        await node.stop()


async def test_what_another_client_appends_is_told_to_who_found_nothing(two):
    one, other = two
    assert await one.take() == ()
    await other.append(OTHER)
    await other.append(QUEUE)
    assert await one.hears() == [QUEUE]
    assert len(await one.take()) == 1
    await other.append(QUEUE)
    assert await one.take(2)
    assert await one.take() == ()
    await other.append(QUEUE, 3)
    assert await one.hears() == [QUEUE]


@pytest.mark.parametrize("how", ["requeued", "released", "gone"])
async def test_what_another_client_gives_back_is_told_to_who_found_nothing(two, how):
    one, other = two
    await other.append(QUEUE)
    (lease,) = await other.take()
    assert await one.take() == ()
    if how == "requeued":
        other.store.leases.requeue(QUEUE, 1, [lease.offset])
    elif how == "released":
        other.store.leases.release(1)
    else:
        await other.store.close()
    assert await one.hears() == [QUEUE]
    assert len(await one.take()) == 1
