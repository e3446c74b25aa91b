"""The comparison of a process's metadata with what stores have seen of it."""

import asyncio
from contextlib import suppress

import pytest

from controller.api.client import ControllerUnreachable, KnownMetadata, MetadataForgotten
from store.base.errors import MetadataWentBack, StoreUnreachable
from store.cluster import agreement
from store.cluster.agreement import MetadataAgreement
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

MINE = KnownMetadata(7, b"d", 20)
OLDER, NEWER = KnownMetadata(6, b"c", 20), KnownMetadata(8, b"e", 20)
FORGOTTEN = MetadataForgotten("the controllers have forgotten committed metadata")
AWAY = ControllerUnreachable("no controller answers")


class Controller:
    """The leader, which answers as `answers` say, and then agrees, and the copy of its metadata, which is `MINE`."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        self.copy, self.listeners = MINE, []

    def known(self):
        return self.copy

    def watch(self, listener):
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def learn(self, known):
        self.copy = known
        for listener in self.listeners:
            listener()

    async def do(self, request):
        self.asked.append(request.known)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            await answer


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(agreement, "SOON_S", 0.01)
    monkeypatch.setattr(agreement, "AGAIN_S", 0.01)


async def checked(controller, *stores):
    found = MetadataAgreement(controller)
    for known in stores:
        await found.check(known)
    return found


@pytest.mark.parametrize("known", [OLDER, MINE, NEWER, KnownMetadata(0, b"", 21)])
async def test_the_first_store_is_compared_whatever_it_knows(known):
    controller = Controller()
    await checked(controller, known)
    assert controller.asked == [known]
    with pytest.raises(MetadataWentBack, match="have forgotten"):
        await checked(Controller(FORGOTTEN), known)


async def test_later_ones_are_compared_where_they_know_more():
    controller = Controller()
    await checked(controller, MINE, OLDER, MINE, NEWER, KnownMetadata(0, b"", 21))
    assert controller.asked == [MINE, NEWER, KnownMetadata(0, b"", 21)]
    await checked(Controller(None, AWAY), MINE, NEWER)  # the copy here is right, and lags
    found = MetadataAgreement(Controller(None, FORGOTTEN))
    await found.check(MINE)
    with pytest.raises(MetadataWentBack):
        await found.check(NEWER)
    assert found.went_back.done()
    with pytest.raises(MetadataWentBack):
        await found.check(OLDER)


async def test_a_store_that_knows_nothing_is_not_compared():
    controller = Controller(FORGOTTEN)
    await checked(controller, KnownMetadata())
    assert controller.asked == []


@pytest.mark.parametrize("away", [AWAY, None])
async def test_without_a_leader_a_store_that_knows_no_more_is_believed_until_there_is_one(away):
    async def given_up():
        await asyncio.sleep(2 * agreement.SOON_S)
        raise AWAY

    def silent():
        return away or given_up()

    found = await checked(Controller(silent(), AWAY), OLDER)
    await until(found._first.done)
    assert found._agreed
    await found.close()
    found = await checked(Controller(silent(), AWAY, FORGOTTEN), OLDER)
    await until(found.went_back.done)
    await found.close()
    found = await checked(Controller(asyncio.get_running_loop().create_future()), OLDER)
    await found.close()


async def test_connections_that_are_given_up_soon_do_not_keep_a_store_from_being_believed():
    """Those of a proxy with a `failover_s` below the time that the leader has to answer in."""
    controller = Controller(*[asyncio.Event().wait() for _ in range(99)])
    found, attempts, believed = MetadataAgreement(controller), 0, False
    while not believed and attempts < 99:
        attempts += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(agreement.SOON_S / 5):
                await found.check(OLDER)
                believed = True
    assert believed
    assert controller.asked == [OLDER]  # by all of them together
    await found.close()
    for answer in controller.answers:
        answer.close()


async def test_a_store_that_knows_more_is_believed_when_another_controller_shows_as_much(monkeypatch):
    """The one that was followed lags, as it was started again, and no leader answers."""
    monkeypatch.setattr(agreement, "NEWS_S", 0.05)
    controller = Controller(*[AWAY] * 99)
    found = MetadataAgreement(controller)
    with pytest.raises(StoreUnreachable, match="is not compared with the controllers' yet: no controller answers"):
        await found.check(NEWER)
    monkeypatch.setattr(agreement, "NEWS_S", 90)
    checking = asyncio.ensure_future(found.check(NEWER))
    await until(lambda: controller.listeners)
    controller.learn(NEWER)
    await checking
    assert not found._agreed
    assert not controller.listeners
    controller.answers[:] = [FORGOTTEN]  # the leader, when there is one
    await until(found.went_back.done)
    await found.close()


async def test_a_store_that_knows_more_is_asked_for_again_until_the_leader_has_answered(monkeypatch):
    monkeypatch.setattr(agreement, "NEWS_S", 90)
    controller = Controller(AWAY, AWAY)
    found = MetadataAgreement(controller)
    await found.check(NEWER)
    assert controller.asked == [NEWER] * 3
    await found.close()


async def test_a_comparison_that_a_bug_has_ended_is_begun_anew_by_the_next_store():
    controller = Controller(RuntimeError("a bug"))
    found = MetadataAgreement(controller)
    with pytest.raises(RuntimeError):
        await found.check(MINE)
    await found.check(MINE)
    assert controller.asked == [MINE, MINE]
    assert controller.listeners == []
    await found.close()
