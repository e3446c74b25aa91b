"""One look for lost messages at a time, shared by all who ask, and finished whoever gives up."""

import asyncio
from threading import Event

import pytest

from store.api.lost import NOTHING_LOST, LostMessages, LostOffsets
from store.base.errors import StoreClosed, ViewsDamaged
from store.format.queue_config import QueueConfig
from store.integrity.ledger import Damage
from store.local import queues
from store.local.local import LocalStore
from tests.support.process.waiting import until
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio


class Looks:
    """Looks that last until `end` is called, and find how many damages there are; `fails` is raised once."""

    def __init__(self):
        self.begun = 0
        self.fails = None
        self.meanwhile = lambda: None
        self._ended = Event()

    def end(self):
        self._ended.set()

    def begin(self):
        self._ended.clear()

    def __call__(self, _views, damages, check, _kept):
        self.begun += 1
        self.meanwhile()
        while not self._ended.wait(0.002):
            check()
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        return LostMessages(damages=len(damages))


@pytest.fixture
def looks(monkeypatch):
    looks = Looks()
    monkeypatch.setattr(queues, "lost_messages", looks)
    yield looks
    looks.end()


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        for _ in range(5):
            await append(store, frame((16, b"x")))
        hurt(store, 0)
        yield store


@pytest.fixture
def ages(store):
    """Returns a function that lets a look be so long ago that another one is due."""

    def ages():
        store.queues._lost._found_s -= queues.AGAIN_S

    return ages


def hurt(store, start, size=10):
    store.core.engine.log.damages.report(Damage("0.log", start, start + size, "flipped", "scrub"))


async def test_all_who_ask_share_a_look_and_none_of_them_ends_it(store, looks):
    """Each of those who gave up left a thread behind, until all threads that read were busy."""
    for _ in range(20):
        asking = asyncio.create_task(store.lost())
        await until(lambda: looks.begun)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    waiting = [asyncio.create_task(store.lost()) for _ in range(20)]
    assert (await store.queues.fetch(16, 0, max_bytes=1 << 20)).next == 5  # readers have threads still
    assert store.lost_known() is None
    looks.end()
    assert {(await one).damages for one in waiting} == {1}
    assert (looks.begun, (await store.lost()).damages, looks.begun) == (1, 1, 1)
    assert store.lost_known().damages == 1


async def test_what_all_have_given_up_is_known_to_the_next_who_asks(store, looks):
    asking = asyncio.create_task(store.lost())
    await until(lambda: looks.begun)
    asking.cancel()
    looks.end()
    await until(lambda: store.lost_known() is not None)
    assert (await store.lost()).damages == 1
    assert looks.begun == 1


async def test_damage_that_is_found_meanwhile_is_in_the_answer(store, looks):
    before = asyncio.create_task(store.lost())
    await until(lambda: looks.begun)
    hurt(store, 20)
    after = asyncio.create_task(store.lost())
    looks.end()
    assert (await after).damages == (await before).damages == 2
    assert looks.begun == 2


async def test_nothing_is_looked_for_without_damage(store, looks):
    store.core.engine.log.damages.repaired(0, 1 << 20)
    assert await store.lost() == store.lost_known() == NOTHING_LOST
    assert not looks.begun


async def test_a_look_that_fails_is_an_error_for_all_and_is_tried_again(store, looks):
    looks.fails = ViewsDamaged("a view is damaged")
    waiting = [asyncio.create_task(store.lost()) for _ in range(3)]
    await until(lambda: looks.begun)
    looks.end()
    for one in waiting:
        with pytest.raises(ViewsDamaged):
            await one
    assert store.lost_known() is None
    assert (await store.lost()).damages == 1


async def test_damage_that_is_found_during_each_look_keeps_nobody_waiting(store, looks):
    """Nobody had an answer as long as the scrub found more."""
    looks.end()
    looks.meanwhile = lambda: hurt(store, looks.begun * 20)
    assert (await store.lost()).damages == 2  # of the second look: the first had begun when more was found
    looks.meanwhile = lambda: None
    assert (await store.lost()).damages == 3
    assert looks.begun == 3


async def test_who_comes_during_a_look_hears_of_one_that_began_later(store, looks):
    before = asyncio.create_task(store.lost())
    await until(lambda: looks.begun)
    hurt(store, 20)
    looks.meanwhile = lambda: hurt(store, looks.begun * 20)
    after = asyncio.create_task(store.lost())
    looks.end()
    assert (await after).damages == (await before).damages == 2
    assert looks.begun == 2


async def test_a_store_that_closes_ends_a_look(store, looks):
    asking = asyncio.create_task(store.lost())
    await until(lambda: looks.begun)
    await store.close()
    assert store.queues._lost._looking.done()
    with pytest.raises(StoreClosed):
        await asking
    with pytest.raises(StoreClosed):
        await store.lost()


# ---- as views and limits change


async def test_frames_that_the_views_follow_later_are_looked_for_again(tmp_path, monkeypatch):
    """The first answer stayed: that no message was in them."""
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        views, frozen = store.core.engine.views, Event()
        apply = views.apply

        def applying(runs):
            assert frozen.wait(60)
            apply(runs)

        monkeypatch.setattr(views, "apply", applying)
        for _ in range(5):
            await append(store, frame((16, b"x")))
        size = store.replication.end
        store.core.engine.log.damages.report(Damage("0.log", 0, size, "flipped", "scrub"))
        assert await store.lost() == LostMessages(damages=1, size_bytes=size, unfollowed_bytes=size)
        frozen.set()
        await store.core.until_dispatched(size)
        assert store.lost_known() is None
        assert await store.lost() == LostMessages(1, size, 5, (LostOffsets(16, 0, 5),))
        await append(store, frame((16, b"x")))
        await store.core.until_dispatched(store.log.confirmed)
        assert store.lost_known() is not None  # the views follow what is behind the damage


async def test_a_look_is_repeated_after_a_time_as_queues_are_deleted(store, ages):
    """The messages of a deleted queue were lost ones until the damage changed."""
    size = store.replication.end
    hurt(store, 0)
    await store.core.until_dispatched(size)
    assert (await store.lost()).ranges == (LostOffsets(16, 0, 1),)
    await store.queues.delete(16)
    assert (await store.lost()).messages == 1
    ages()
    assert (await store.lost()).messages == store.lost_known().messages == 1  # until it is known better
    await until(lambda: store.lost_known().messages == 0)
    assert (await store.lost()).messages == 0


async def test_nobody_waits_for_a_look_again_where_only_time_has_passed(store, looks, ages):
    """A page that takes less time than a look was late each time."""
    looks.end()
    before = await store.lost()
    looks.begin()
    ages()
    for _ in range(3):
        assert await store.lost() is before
    await until(lambda: looks.begun == 2)
    hurt(store, 20)
    asking = asyncio.create_task(store.lost())
    looks.end()
    assert (await asking).damages == 2


async def test_an_answer_is_not_given_once_more_when_the_look_behind_it_has_failed(store, looks, ages):
    looks.end()
    before = await store.lost()
    ages()
    looks.fails = ViewsDamaged("a view is damaged")
    assert await store.lost() is before
    await until(lambda: store.queues._lost._failed)
    looks.fails = ViewsDamaged("a view is damaged")
    with pytest.raises(ViewsDamaged):
        await store.lost()
    again = await store.lost()
    assert again is not before
    assert again.damages == 1


async def test_what_the_limits_of_a_queue_have_dropped_is_not_lost(tmp_path):
    """Readers are not given it either."""
    now_ms = 1_000_000
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0, now_ms=lambda: now_ms) as store:
        for queue in (16, 17):
            for _ in range(5):
                await append(store, frame((queue, b"x")))
        await store.queues.configure([QueueConfig(16, 1_000)])
        now_ms += 2_000
        await append(store, frame((16, b"x")))
        size = store.replication.end
        await store.core.until_dispatched(size)
        hurt(store, 0, size)
        assert (await store.queues.bounds(16)).first == 5
        found = await store.lost()
        assert (found.messages, found.ranges) == (6, (LostOffsets(16, 5, 6), LostOffsets(17, 0, 5)))
