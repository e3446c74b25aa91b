"""The times at which the roles of a replica look at the time: seldom while all is well."""

import asyncio

import pytest

from store.node import looks
from store.node.looks import MasterLooks, ReplicaLooks
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class Core:
    """The part of a master that its looks depend on."""

    def __init__(self):
        self.end = self.confirmed = 100
        self.calm = True


@pytest.fixture
def periods(monkeypatch):
    """Returns the periods for which looks were put off."""
    found = []

    async def pause(period_s):
        found.append(period_s)

    monkeypatch.setattr(looks, "pause", pause)
    return found


async def test_a_master_that_is_not_calm_looks_often_and_more_so_while_frames_come(periods):
    core = Core()
    core.calm = False
    master = MasterLooks(core, heartbeat_ms=60_000)
    await master.next()
    core.end = 200
    await master.next()
    core.confirmed = 200
    await master.next()
    assert periods == [looks.IDLE_TICK_S, looks.TICK_S, looks.IDLE_TICK_S]


async def test_a_calm_master_rests_until_something_happens(periods):
    master = MasterLooks(Core(), heartbeat_ms=60_000)
    resting = asyncio.ensure_future(master.next())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not resting.done()
    master.stir()
    await resting
    assert periods == [looks.TICK_S]


async def test_a_calm_master_looks_with_its_next_heartbeat(periods):
    await MasterLooks(Core(), heartbeat_ms=20).next()
    assert periods == []


async def test_a_replica_looks_with_the_messages_of_its_master_and_by_itself_only_when_they_stop(monkeypatch):
    monkeypatch.setattr(looks, "LATE_S", 60.0)
    monkeypatch.setattr(looks, "SILENT_LOOK_S", 0.001)
    seen = []
    replica = ReplicaLooks(lambda: seen.append("look"), seen.append)
    assert replica.received()
    assert not replica.received()  # it was a moment ago
    monkeypatch.setattr(looks, "WITH_MESSAGE_S", 0.0)
    assert replica.received()
    assert seen == ["look"] * 2
    monkeypatch.setattr(looks, "LATE_S", 0.001)
    replica.received()
    await until(lambda: len(seen) >= 6)
    replica.end()


async def test_a_look_of_a_replica_that_fails_is_reported_and_is_the_last(monkeypatch):
    monkeypatch.setattr(looks, "TICK_S", 0.001)
    monkeypatch.setattr(looks, "SILENT_LOOK_S", 0.001)
    failed = []

    def look():
        raise OSError("the disk")

    replica = ReplicaLooks(look, failed.append)
    replica.begin()
    await until(lambda: failed)
    assert [str(error) for error in failed] == ["the disk"]
    replica.end()
