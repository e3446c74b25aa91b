"""Marks of sessions in the logs of two groups, and sessions that are told of them when they are opened."""

import asyncio
from itertools import permutations
from types import SimpleNamespace

import msgspec
import pytest

from gateway.delivery.fanout import Fanout
from gateway.domain.idempotency import digest
from gateway.ownership.owners import OwnershipLost
from gateway.port.marks import Fence, Mark, Marks
from gateway.port.sessions import OpenSession, SaveSession
from gateway.publishing.session_marks import forget_marks, marks_change, marks_key, open_marks
from gateway.sessions.sessions import Sessions
from gateway.sessions.wills import Wills
from store.base.errors import StoreUnreachable
from store.format.frame import FRAME_GUARDED, UnplacedFrame
from store.guards.rows import FENCES
from tests.support.gateway.fanout_rig import SessionHolder
from tests.support.store.two_logs import Machine

pytestmark = pytest.mark.anyio

SESSION = "sessions/mqtt/dev"
ALONE = SimpleNamespace(epoch=0)


class AnsweringHolder(SessionHolder):
    """A connection that takes no messages, and whose publishing is answered when a test says so."""

    def __init__(self):
        super().__init__(credit=0)
        self.under_way = asyncio.Event()
        self.under_way.set()

    async def answered(self):
        await self.under_way.wait()


class MarkedSessions:
    def __init__(self, store):
        self.store = store
        fanout = Fanout(store, queues_of=lambda _: None, group_of=lambda _: 0, spawn=asyncio.ensure_future)
        wills = Wills(store, lambda *_: None, now_ms=lambda: 0)
        self.sessions = Sessions(store, fanout, wills, now_ms=lambda: 0)

    async def open(self, *, clean=False, holder=None):
        holder = holder or AnsweringHolder()
        return holder, await self.sessions.open(holder, OpenSession(session_id="dev", clean=clean, expiry_s=None))


@pytest.fixture
async def machine(tmp_path):
    async with Machine(tmp_path) as machine:
        yield machine


def appended(store, group, slot, *said, session=SESSION):
    """Begins to append a frame with marks, and returns the future of its outcome."""
    row, record = marks_change(Marks(marks_key(session), slot, {}), said, 0)
    done = asyncio.get_running_loop().create_future()
    store.logs[group].log.append(UnplacedFrame.build(row, record), done.set_result)
    return done


def test_no_session_finds_the_marks_of_another():
    names = ["a", "a/0", "a/", "1:a", "a" * 400, "a" * 401, "ä" * 400, "a" * 400 + "/0", "\0", ""]
    found = [marks_key(name) for name in names]
    assert not [(one, other) for one, other in permutations(found, 2) if other.startswith(one)]
    assert max(len(f"{key}65535".encode()) for key in found) < 480


async def test_a_session_is_told_of_all_that_was_handed_to_a_log_before(machine):
    rig = MarkedSessions(machine.store)
    holder, opened = await rig.open()
    assert opened.marks.key == marks_key(SESSION)
    assert not opened.marks.used
    await rig.sessions.save(holder, SaveSession(state=b"s", expiry_s=None, marked=True))
    await appended(machine.store, 0, 0, (b"old", 1))
    results = [
        appended(machine.store, 0, 0, (b"one", 1), (b"both", 2)),
        appended(machine.store, 1, 7, (b"both", 2)),
        appended(machine.store, 1, 0, (b"no", 1), session=SESSION + "x"),
    ]
    _, opened = await rig.open()
    assert opened.present
    assert opened.marks.used
    assert sorted(opened.marks.found) == [Mark(0, 0, b"both", 2), Mark(0, 0, b"one", 1), Mark(7, 1, b"both", 2)]
    await asyncio.gather(*results)


async def test_marks_are_looked_for_only_where_the_session_says_so(machine):
    rig = MarkedSessions(machine.store)
    machine.reaches[1].down = True
    await rig.open()
    _, opened = await rig.open()
    assert opened.present
    assert await machine.store.logs[0].keys.prefix("session-marks/") == []


async def test_a_log_that_cannot_be_asked_keeps_the_session_closed(machine):
    rig = MarkedSessions(machine.store)
    holder, _ = await rig.open()
    await rig.sessions.save(holder, SaveSession(state=b"s", expiry_s=None, marked=True))
    machine.reaches[1].down = True
    with pytest.raises(StoreUnreachable):
        await rig.open()
    machine.reaches[1].down = False
    assert (await rig.open())[1].present


async def test_the_next_connection_waits_for_what_the_last_one_has_under_way(machine):
    rig = MarkedSessions(machine.store)
    holder, _ = await rig.open()
    await rig.sessions.save(holder, SaveSession(state=b"s", expiry_s=None, marked=True))
    holder.under_way.clear()
    opening = asyncio.ensure_future(rig.open())
    await machine.store.keys.put("a", b"")  # time enough
    assert not opening.done()
    await appended(machine.store, 1, 0, (b"late", 1))
    holder.under_way.set()
    assert (await opening)[1].marks.found == [Mark(0, 1, b"late", 1)]


async def test_marks_end_with_their_session(machine):
    rig = MarkedSessions(machine.store)
    holder, _ = await rig.open()
    await rig.sessions.save(holder, SaveSession(state=b"s", expiry_s=None, marked=True))
    for group in (0, 1):
        await appended(machine.store, group, group, (b"m", 1))
    assert len((await open_marks(machine.store, SESSION, ALONE, used=True)).found) == 2
    _, opened = await rig.open(clean=True)
    assert (opened.present, opened.marks.used) == (False, False)
    assert [await log.keys.prefix("session-marks/") for log in machine.store.logs.values()] == [[], []]
    _, opened = await rig.open()
    assert not opened.marks.used


@pytest.mark.slow
async def test_many_slots_are_read_and_forgotten(machine):
    await asyncio.gather(*(appended(machine.store, 0, slot, (b"%d" % slot, 1)) for slot in range(600)))
    found = (await open_marks(machine.store, SESSION, ALONE, used=True)).found
    assert sorted(mark.slot for mark in found) == list(range(600))
    await forget_marks(machine.store, SESSION, ALONE, now_ms=0)
    assert not (await open_marks(machine.store, SESSION, ALONE, used=True)).found


async def test_records_of_before_have_no_marks(machine):
    rig = MarkedSessions(machine.store)
    old = {"protocol": "mqtt", "session_id": "dev", "state": b"s", "expiry_s": None, "left_ms": 5}
    await machine.store.keys.put(SESSION, msgspec.msgpack.encode(old))
    _, opened = await rig.open()
    assert (opened.present, opened.state, opened.marks.used) == (True, b"s", False)


class Owned:
    """A session's ownership, by a number that the test says."""

    def __init__(self, epoch, *, lost=False):
        self.epoch = epoch
        self.lost = lost

    async def confirm(self):
        if self.lost:
            raise OwnershipLost(SESSION)


def late(store, group, slot, epoch):
    """Appends a frame with a mark, as the owner of an epoch."""
    fence = Fence(digest(SESSION), epoch)
    row, record = marks_change(Marks(marks_key(SESSION), slot, {}, fence=fence), ((b"late", 1),), 0)
    done = asyncio.get_running_loop().create_future()
    store.logs[group].log.append(UnplacedFrame.build(row, record, flags=FRAME_GUARDED), done.set_result)
    return done


async def test_what_a_former_owner_hands_over_after_a_takeover_is_not_stored(machine):
    store = machine.store
    assert not (await late(store, 0, 0, 5)).failed
    opened = await open_marks(store, SESSION, Owned(9), used=True)
    assert [mark.slot for mark in opened.found] == [0]
    assert opened.fence == Fence(digest(SESSION), 9)
    for group in (0, 1):
        assert (await late(store, group, 1, 5)).failed == (0,)
        assert not (await late(store, group, 2, 9)).failed
    assert sorted(mark.slot for mark in (await open_marks(store, SESSION, Owned(9), used=True)).found) == [0, 2, 2]


async def test_an_owner_that_is_late_itself_cannot_shut_the_logs_to_the_next_one(machine):
    store = machine.store
    await open_marks(store, SESSION, Owned(9), used=True)
    with pytest.raises(OwnershipLost):
        await open_marks(store, SESSION, Owned(5, lost=True), used=True)
    assert not (await late(store, 1, 1, 9)).failed


async def test_an_owner_whose_revision_is_below_an_older_one_opens_the_session_when_it_is_its_own(machine):
    """As after an unclean election of the home group, whose revisions begin again further back."""
    store = machine.store
    await open_marks(store, SESSION, Owned(9), used=True)
    opened = await open_marks(store, SESSION, Owned(5), used=True)
    assert opened.fence == Fence(digest(SESSION), 10)
    assert (await late(store, 0, 1, 9)).failed == (0,)
    assert not (await late(store, 0, 1, 10)).failed


async def test_marks_of_a_former_owner_do_not_come_back_when_the_session_has_ended(machine):
    store = machine.store
    await late(store, 0, 0, 5)
    await forget_marks(store, SESSION, Owned(9), now_ms=4_000_000_000_000)
    assert (await late(store, 0, 1, 5)).failed == (0,)
    assert await store.logs[0].keys.prefix(marks_key(SESSION)) == []
    (entry,) = await store.logs[0].keys.prefix("", namespace=FENCES)
    assert entry.expires_at_ms == 4_000_000_000_000 + 24 * 3_600_000
