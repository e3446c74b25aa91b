"""A proxy asks a master which messages are lost, also a master of the version before, which does not know the call."""

import asyncio

import pytest

from store.api.lost import LOST_RANGES_COUNT_MAX, LostMessages, LostOffsets
from store.base.errors import NotMaster
from store.integrity.ledger import Damage
from store.local import queues
from store.local.local import LocalStore
from store.remoting import RemoteStore
from store.rpc.wire import BadRequest
from store.serving import service
from tests.support.process.waiting import until
from tests.support.store.remote_kit import Node
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def local(tmp_path):
    """Yields a store of ten records of queue 16, three of which are called lost."""
    async with await LocalStore.open(tmp_path / "data", scrub_bytes_per_s=0) as store:
        for n in range(10):
            await append(store, frame((16, b"%d" % n)))
        await store.core.until_dispatched(store.log.confirmed)
        frames = list(store.core.engine.log.scan(0, store.replication.end))
        for first, end in ((2, 4), (7, 8)):
            damage = Damage("0.log", frames[first].start, frames[end].start, "flipped", "scrub")
            store.core.engine.log.damages.report(damage)
        yield store


@pytest.fixture
async def node(local):
    node = await Node().start(local)
    yield node
    await node.stop()


@pytest.fixture
async def store(node):
    async with await RemoteStore.open(0, lambda: node.target, budget_s=5) as store:
        yield store


async def test_the_answer_has_as_many_ranges_as_were_asked_for_and_counts_the_rest(store, local):
    damages = local.damages
    size = sum(one.end - one.start for one in damages)
    two, three = LostOffsets(16, 2, 4), LostOffsets(16, 7, 8)
    assert await store.queues.lost() == LostMessages(2, size, 3, (two, three), 0)
    assert await store.queues.lost(1) == LostMessages(2, size, 3, (two,), 1)
    assert await store.queues.lost(0) == LostMessages(2, size, 3, (), 2)
    assert (await store.queues.lost(LOST_RANGES_COUNT_MAX + 9)).ranges == (two, three)


async def test_proxies_that_give_up_leave_one_look_behind(store, node, monkeypatch):
    looks, going = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(_views, damages, check, _kept):
        looks.append(len(damages))
        asyncio.run_coroutine_threadsafe(going.wait(), loop).result()
        return LostMessages(damages=len(damages))

    monkeypatch.setattr(queues, "lost_messages", look)
    async with await RemoteStore.open(0, lambda: node.target, budget_s=5) as other:
        for _ in range(10):
            asking = [asyncio.create_task(one.queues.lost()) for one in (store, other)]
            await until(lambda: looks)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert (await other.queues.fetch(16, 0, max_bytes=1)).next == 1
        going.set()
        assert (await other.queues.lost()).damages == (await store.queues.lost()).damages == 2
    assert looks == [2]


async def test_a_master_of_the_version_before_refuses_the_call_and_serves_all_others(store, monkeypatch):
    older = {name: method for name, method in service.METHODS.items() if name != "lost"}
    monkeypatch.setattr(service, "METHODS", older)
    async with await RemoteStore.open(0, lambda: store.target, budget_s=5) as proxy:
        sessions = proxy.connection.sessions
        for _ in range(3):
            with pytest.raises(BadRequest, match="there is no method 'lost'"):
                await proxy.queues.lost()
            assert (await proxy.queues.bounds(16)).next == 10
        assert proxy.connection.sessions == sessions


async def test_a_replica_does_not_answer(local):
    """The master alone knows what it repairs from the others."""
    node = await Node().start(local, master=False, hint="elsewhere:1")
    async with await RemoteStore.open(0, lambda: node.target, budget_s=5, reading=True) as store:
        with pytest.raises(NotMaster):
            await store.queues.lost()
    await node.stop()
