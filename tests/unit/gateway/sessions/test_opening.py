"""Sessions of clients that have to wait, as their connections end again and again for the same."""

from types import SimpleNamespace

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.port.sessions import OpenSession
from gateway.sessions import opening
from gateway.sessions.opening import open_after
from store.local.local import LocalStore
from tests.support.gateway.fanout_rig import SessionHolder
from tests.support.gateway.sessions_rig import SessionsRig

pytestmark = pytest.mark.anyio

REQUEST = OpenSession(session_id="dev", clean=False, expiry_s=None)


class OpeningRig(SessionsRig):
    """Sessions, and a client that connects again while it waits."""

    def __init__(self, store):
        super().__init__(store, [1_000_000])
        self.slept = []
        self.other = 0  # the number of that connection

    async def sleep(self, seconds):
        self.slept.append(seconds)
        await self.sessions.open(holder(self.other), REQUEST)

    def held(self):
        """Returns the number of the connection that holds the session."""
        [held] = self.sessions.held.values()
        return held.holder.id


def holder(number):
    holder = SessionHolder()
    holder.id = number
    return holder


@pytest.fixture
async def rig(tmp_path, monkeypatch):
    async with await LocalStore.open(tmp_path) as store:
        rig = OpeningRig(store)
        monkeypatch.setattr(opening, "asyncio", SimpleNamespace(sleep=rig.sleep))
        yield rig


async def test_a_client_that_need_not_wait_takes_over_from_any_connection(rig):
    await rig.sessions.open(holder(9), REQUEST)  # which was accepted later, and has sent its CONNECT before
    assert (await open_after(0, rig.sessions, holder(5), REQUEST, None)).present
    assert rig.held() == 5
    assert rig.slept == []


async def test_a_client_that_waits_takes_over_from_an_earlier_connection(rig):
    rig.other = 4
    assert (await open_after(250, rig.sessions, holder(5), REQUEST, None)).present
    assert rig.held() == 5
    assert rig.slept == [0.25]


async def test_a_client_that_waits_leaves_the_session_to_its_later_connection(rig):
    rig.other = 6
    with pytest.raises(Refusal) as refused:
        await open_after(250, rig.sessions, holder(5), REQUEST, None)
    assert refused.value.cause is Cause.CONFLICT
    assert rig.held() == 6
