"""The comparison of a process's metadata with what stores have seen of it."""

import asyncio

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
    """The leader, which answers as `answers` say, and then agrees."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def known(self):
        return MINE

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
    def silent():
        return away or asyncio.get_running_loop().create_future()

    found = await checked(Controller(silent(), AWAY), OLDER)
    await until(found._later.done)
    assert found._agreed
    await found.close()
    found = await checked(Controller(silent(), AWAY, FORGOTTEN), OLDER)
    await until(found.went_back.done)
    await found.close()
    found = await checked(Controller(*[silent()] * 99), OLDER)
    await found.close()
    with pytest.raises(StoreUnreachable, match="not compared"):
        await checked(Controller(AWAY), NEWER)
