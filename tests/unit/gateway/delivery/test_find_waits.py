"""Searches that wait for what they look for."""

import asyncio

import pytest

from gateway.delivery import find_waits
from gateway.delivery.find import find_messages
from gateway.delivery.find_waits import FindWaits
from gateway.port.reads import FindMessages
from store.api.message import Message
from store.local.local import LocalStore
from tests.support.gateway.find_frames import frame
from tests.support.gateway.groups_rig import Connection
from tests.support.store.store_kit import append

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        yield store


def searching(store, waits, connection=None, number=None, user="user x", **asked):
    request = FindMessages(key="d", **asked)

    async def find():
        return await find_messages(store, request, now_ms=0, indexed=lambda _kind, _text: True)

    connection = connection or Connection()
    return asyncio.ensure_future(waits.find(request, find, connection=connection, number=number, user=user))


async def test_what_comes_is_found(store):
    waits = FindWaits(store)
    assert (await searching(store, waits)).messages == []
    waiting = searching(store, waits, wait_ms=60_000)
    await append(store, frame(Message("a/1", b"other", device="e")))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await append(store, frame(Message("a/1", b"1", device="d")))
    async with asyncio.timeout(60):
        assert [message.body for message in (await waiting).messages] == [b"1"]
        assert len((await searching(store, waits, wait_ms=60_000)).messages) == 1, "what is there is not waited for"


async def test_the_end_of_a_wait(store, monkeypatch):
    waits = FindWaits(store)
    async with asyncio.timeout(60):
        assert (await searching(store, waits, wait_ms=10)).messages == []
        waiting = searching(store, waits, wait_ms=60_000)
        await asyncio.sleep(0.01)
        monkeypatch.setattr(find_waits, "WAITS_COUNT_MAX", 1)
        assert (await searching(store, waits, wait_ms=60_000)).messages == [], "one too many"
        waits.stop()
        assert (await waiting).messages == []
        assert (await searching(store, waits, wait_ms=60_000)).messages == []


async def test_one_user_leaves_others_a_share_of_the_waits(store, monkeypatch):
    monkeypatch.setattr(find_waits, "USER_WAITS_COUNT_MAX", 2)
    waits = FindWaits(store)
    async with asyncio.timeout(60):
        waiting = [searching(store, waits, wait_ms=60_000) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert (await searching(store, waits, wait_ms=60_000)).messages == [], "one too many"
        other = searching(store, waits, user="user y", wait_ms=60_000)
        await append(store, frame(Message("a/1", b"1", device="d")))
        assert [len((await one).messages) for one in (other, *waiting)] == [1, 1, 1]


async def test_nobody_waits_for_who_has_left(store, monkeypatch):
    monkeypatch.setattr(find_waits, "WAITS_COUNT_MAX", 3)
    waits = FindWaits(store)
    ended, gone, other = Connection(), Connection(), Connection()
    async with asyncio.timeout(60):
        waiting = [searching(store, waits, one, 7, wait_ms=60_000) for one in (ended, gone, other)]
        await asyncio.sleep(0.01)
        ended.ended = gone.gone = True
        waits.waits.give_up(other, 7)
        assert [(await one).messages for one in waiting] == [[], [], []]
        found = searching(store, waits, wait_ms=60_000)
        await append(store, frame(Message("a/1", b"1", device="d")))
        assert [message.body for message in (await found).messages] == [b"1"], "their places are free"
