"""Durable sessions over several logs: one position in each, and what joins later is owed from its beginning."""

import pytest

from gateway.domain.cursor import beginning_of, by_log, end_of
from gateway.port.adapter import SubscriptionId
from gateway.port.sessions import OpenSession
from gateway.sessions.sessions import IDLE_COMMIT_BYTES, Sessions
from gateway.sessions.wills import Wills
from store.format.frame import FIRST_QUEUE, Position, group_of
from tests.support.gateway.fanout_rig import FanoutTasks, SessionHolder, write_to
from tests.support.store.two_logs import Machine

pytestmark = pytest.mark.anyio

SESSION = "sessions/mqtt/dev"


class MachineSessions(FanoutTasks):
    """One process: what outlives it is the machine's."""

    def __init__(self, machine):
        super().__init__(machine.store)
        self.machine = machine
        wills = Wills(self.store, lambda *_: None, now_ms=lambda: 0)
        self.sessions = Sessions(self.store, self.fanout, wills, now_ms=lambda: 0)

    async def write(self, group, *bodies):
        return await write_to(self.store.logs[group].log, *bodies, queue=FIRST_QUEUE + group)

    async def open(self, **options):
        holder = SessionHolder(**options)
        opened = await self.sessions.open(holder, OpenSession(session_id="dev", clean=False, expiry_s=None))
        return holder, opened

    def subscribe(self, holder, start=None):
        self.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", start)

    async def leave(self, holder):
        await self.sessions.close(holder)
        self.fanout.leave(holder.subscriber)


@pytest.fixture
async def machine(tmp_path):
    async with Machine(tmp_path) as machine:
        yield machine


@pytest.fixture
async def alone(tmp_path):
    async with Machine(tmp_path, groups=1) as machine:
        yield machine


async def test_a_cursor_has_a_position_in_each_log_under_keys_of_its_own(machine):
    rig = MachineSessions(machine)
    await rig.write(1, b"past")
    holder, opened = await rig.open()
    assert not opened.present
    ends = [one.log.confirmed for one in rig.store.logs.values()]
    stored = await rig.store.groups.offsets(SESSION)
    assert set(stored) == {0, 1, 2, 3}
    assert (stored[0] <= ends[0], stored[2]) == (True, ends[1])
    rig.subscribe(holder)
    frames = [await rig.write(0, b"a", b"b"), await rig.write(1, b"c", b"d")]
    rig.sessions.settled(holder, (Position(frames[0], 1), Position(frames[1], 1)))
    calls = []
    commit = rig.store.groups.commit

    async def counted(group, offsets):
        calls.append(offsets)
        await commit(group, offsets)

    rig.store.groups.commit = counted
    await rig.sessions.commit()
    assert calls == [{0: frames[0], 1: 1, 2: frames[1], 3: 1}]
    other = MachineSessions(machine)
    holder, opened = await other.open()
    assert opened.cursor == (Position(frames[0], 1), Position(frames[1], 1))
    other.subscribe(holder, opened.cursor)
    await other.settle()
    assert sorted(holder.bodies) == [b"b", b"d"]


async def test_a_log_that_joins_while_a_session_is_away_is_owed_to_it_whole(alone):
    rig = MachineSessions(alone)
    holder, _ = await rig.open()
    rig.subscribe(holder)
    await rig.write(0, b"had")
    rig.sessions.settled(holder, ())
    await rig.leave(holder)
    assert set(await rig.store.groups.offsets(SESSION)) == {0, 1}  # as a node of one group has it
    await alone.open_group(1)
    await rig.write(1, b"first of its log")
    await rig.write(0, b"more")
    other = MachineSessions(alone)
    holder, opened = await other.open()
    assert [group_of(position.frame) for position in opened.cursor] == [0]
    other.subscribe(holder, opened.cursor)
    await other.settle()
    assert sorted(holder.bodies) == [b"first of its log", b"more"]
    other.sessions.settled(holder, ())
    await other.leave(holder)
    _, opened = await MachineSessions(alone).open()
    assert by_log(opened.cursor)[1] == Position(rig.store.logs[1].log.confirmed, 0)


async def test_a_log_that_joins_while_a_session_is_there_is_read_and_remembered(alone):
    rig = MachineSessions(alone)
    holder, _ = await rig.open()
    rig.subscribe(holder)
    await alone.open_group(1)
    at = await rig.write(1, b"x", b"y")
    rig.fanout.changed()
    await rig.settle()
    assert holder.bodies == [b"x", b"y"]
    rig.sessions.settled(holder, (Position(at, 1),))
    await rig.sessions.commit()
    _, opened = await MachineSessions(alone).open()
    assert by_log(opened.cursor)[1] == Position(at, 1)


async def test_what_is_not_acknowledged_in_one_log_holds_back_that_log_alone(machine):
    rig = MachineSessions(machine)
    holder, _ = await rig.open()
    rig.subscribe(holder)
    first = await rig.write(1, b"open")
    second = await rig.write(0, b"done")
    rig.sessions.settled(holder, (Position(first, 0),))
    await rig.leave(holder)
    _, opened = await MachineSessions(machine).open()
    found = by_log(opened.cursor)
    assert found[1] == Position(first, 0)
    assert found[0] > Position(second, 0)


async def test_a_session_begun_while_a_log_was_never_reached_begins_there_when_it_is(machine):
    rig = MachineSessions(machine)
    await rig.write(1, b"long before")
    reach = machine.reaches[1]
    reach.down = reach.never_reached = True
    holder, _ = await rig.open()
    rig.subscribe(holder)
    await rig.sessions.commit()
    assert (await rig.store.groups.offsets(SESSION))[2] == end_of(1).frame
    reach.back()
    at = await rig.write(1, b"now")
    await rig.settle()
    assert holder.bodies == [b"now"]
    rig.sessions.settled(holder, (Position(at, 0),))
    await rig.leave(holder)
    holder, opened = await MachineSessions(machine).open()
    assert by_log(opened.cursor)[1] == Position(at, 0)


async def test_a_session_whose_log_is_out_of_reach_keeps_its_place_there(machine):
    rig = MachineSessions(machine)
    holder, _ = await rig.open()
    rig.subscribe(holder)
    rig.sessions.settled(holder, ())
    await rig.leave(holder)
    at = await rig.write(1, b"owed")
    reach = machine.reaches[1]
    reach.down = reach.never_reached = True
    other = MachineSessions(machine)
    holder, opened = await other.open()
    other.subscribe(holder, opened.cursor)
    other.sessions.settled(holder, ())
    await other.sessions.commit()
    await other.leave(holder)
    reach.back()
    await other.settle()
    third = MachineSessions(machine)
    holder, opened = await third.open()
    assert by_log(opened.cursor)[1] <= Position(at, 0)
    third.subscribe(holder, opened.cursor)
    await third.settle()
    assert holder.bodies == [b"owed"]


async def test_an_idle_session_is_moved_along_in_a_log_that_it_had_not_met(alone, monkeypatch):
    monkeypatch.setattr("gateway.sessions.sessions.IDLE_COMMIT_BYTES", 1000)
    assert IDLE_COMMIT_BYTES > 1000
    rig = MachineSessions(alone)
    holder, _ = await rig.open()
    rig.subscribe(holder)
    await alone.open_group(1)
    rig.fanout.changed()
    await rig.write(1, b"x" * 2000)
    for _ in range(2):
        await rig.sessions.commit()
    _, opened = await MachineSessions(alone).open()
    assert by_log(opened.cursor)[1] > beginning_of(1)
