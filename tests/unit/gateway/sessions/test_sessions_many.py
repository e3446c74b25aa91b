"""Many sessions with connections that have nothing to say."""

import pytest

from gateway.port.adapter import SubscriptionId
from store.local.local import LocalStore
from tests.support.gateway.sessions_rig import SessionsRig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        yield SessionsRig(store, [1_000_000])


async def test_the_cursor_of_an_idle_session_is_not_committed_while_it_is_near(rig):
    holder, _ = await rig.open()
    rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "other", None)
    rig.sessions.settled(holder, ())
    await rig.sessions.commit()
    for _ in range(5):
        await rig.write(b"x")
        at = rig.store.log.confirmed
        await rig.sessions.commit()
        assert rig.store.log.confirmed == at


async def test_few_idle_sessions_are_looked_at_each_time_and_all_in_time(rig, monkeypatch):
    monkeypatch.setattr("gateway.sessions.sessions.IDLE_COMMIT_BYTES", 1000)
    monkeypatch.setattr("gateway.sessions.sessions.IDLE_COUNT_MAX", 5)
    for number in range(40):
        holder, _ = await rig.open(f"s{number}")
        rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
        rig.sessions.settled(holder, ())
    await rig.sessions.commit()
    behind = await rig.write(b"x" * 2000)
    looks = []
    reached = rig.fanout.reached
    monkeypatch.setattr(rig.fanout, "reached", lambda who: (looks.append(who), reached(who))[1])
    for _ in range(9):
        before = len(looks)
        await rig.sessions.commit()
        assert len(looks) - before <= 5
    assert len(set(looks)) == 40
    for _ in range(9):
        await rig.sessions.commit()
    held = rig.sessions.held.values()
    assert [one for one in held if one.committed[0].frame <= behind] == []


async def test_a_session_that_gets_on_is_committed_at_once_among_many_that_do_not(rig, monkeypatch):
    monkeypatch.setattr("gateway.sessions.sessions.IDLE_COUNT_MAX", 1)
    holders = [(await rig.open(f"s{number}"))[0] for number in range(20)]
    for holder in holders:
        rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    held = rig.sessions.held
    before = {key: one.committed for key, one in held.items()}
    await rig.write(b"x")
    rig.sessions.settled(holders[7], ())
    await rig.sessions.commit()
    assert [key for key, one in held.items() if one.committed != before[key]] == ["sessions/mqtt/s7"]
