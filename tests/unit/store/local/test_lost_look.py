"""One look for lost messages at a time, shared by all who ask, and finished whoever gives up."""

import asyncio
from threading import Event

import pytest

from store.api.lost import NOTHING_LOST, LostMessages
from store.base.errors import StoreClosed, ViewsDamaged
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
        self._ended = Event()

    def end(self):
        self._ended.set()

    def __call__(self, _views, damages, check):
        self.begun += 1
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


def hurt(store, start):
    store.core.engine.log.damages.report(Damage("0.log", start, start + 10, "flipped", "scrub"))


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


async def test_a_store_that_closes_ends_a_look(store, looks):
    asking = asyncio.create_task(store.lost())
    await until(lambda: looks.begun)
    await store.close()
    with pytest.raises(StoreClosed):
        await asking
    with pytest.raises(StoreClosed):
        await store.lost()
