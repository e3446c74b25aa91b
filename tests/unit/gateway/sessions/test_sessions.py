import asyncio
import time

import pytest

from gateway.port.adapter import SubscriptionId
from gateway.port.sessions import OpenSession, SaveSession, Will
from gateway.sessions.sessions import IDLE_COMMIT_BYTES
from store.api.message import Message
from store.base.errors import StoreOverloaded
from store.format.frame import Position
from store.local.local import LocalStore
from tests.support.gateway.fanout_rig import SessionHolder
from tests.support.gateway.sessions_rig import SessionsRig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        yield SessionsRig(store, [1_000_000])


async def test_a_new_session_is_not_present_and_an_old_one_is(rig):
    holder, opened = await rig.open()
    assert not opened.present
    await rig.sessions.save(holder, SaveSession(state=b"subscriptions", expiry_s=None))
    await rig.sessions.close(holder)
    _, again = await rig.open()
    assert again.present
    assert again.state == b"subscriptions"


async def test_the_parts_of_a_session_are_stored_apart(rig):
    holder, _ = await rig.open()
    await rig.sessions.save(holder, SaveSession(state=b"s" * 10_000, exchanges=b"1", expiry_s=None))
    before = rig.store.log.confirmed
    await rig.sessions.save(holder, SaveSession(exchanges=b"2", expiry_s=None))
    assert rig.store.log.confirmed - before < 1_000
    _, opened = await SessionsRig(rig.store, rig.clock).open()  # as after a crash
    assert (opened.state, opened.exchanges) == (b"s" * 10_000, b"2")
    await rig.sessions.save(holder, SaveSession(state=b"t", expiry_s=None))
    await rig.sessions.close(holder)
    holder, opened = await rig.open()
    assert (opened.state, opened.exchanges) == (b"t", b"2")
    await rig.sessions.close(holder)
    _, opened = await rig.open(clean=True)
    assert opened.exchanges == b""
    assert await rig.store.keys.prefix("session-exchanges/") == []


async def test_exchanges_saved_on_the_way_out_are_stored_by_the_close(rig):
    holder, _ = await rig.open()
    await rig.sessions.save(holder, SaveSession(state=b"s", exchanges=b"1", expiry_s=None))
    saving = rig.sessions.save(holder, SaveSession(exchanges=b"2", expiry_s=None))
    await asyncio.gather(saving, rig.sessions.close(holder), rig.open())
    _, opened = await rig.open()
    assert opened.exchanges == b"2"


async def test_a_new_expiry_is_stored_with_exchanges_too(rig):
    holder, _ = await rig.open(expiry_s=100)
    await rig.sessions.save(holder, SaveSession(exchanges=b"1", expiry_s=1))
    survivor = SessionsRig(rig.store, rig.clock)  # of a crash
    rig.clock[0] += 2_000
    assert await survivor.sessions.sweep() == 1


async def test_a_clean_start_forgets(rig):
    holder, _ = await rig.open()
    await rig.sessions.save(holder, SaveSession(state=b"old", expiry_s=None))
    await rig.sessions.close(holder)
    holder, opened = await rig.open(clean=True)
    assert not opened.present
    await rig.sessions.close(holder)
    _, opened = await rig.open()
    assert opened.present
    assert opened.state == b""


async def test_a_session_without_expiry_leaves_nothing(rig):
    holder, _ = await rig.open(expiry_s=0)
    await rig.sessions.save(holder, SaveSession(state=b"x", expiry_s=0))
    await rig.sessions.close(holder)
    assert await rig.store.keys.prefix("sessions/") == []


async def test_deliveries_go_on_where_the_oldest_unacknowledged_one_is(rig):
    holder, _ = await rig.open()
    rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    await rig.write(b"1", b"2")
    frame = await rig.write(b"3", b"4")
    assert holder.bodies == [b"1", b"2", b"3", b"4"]
    rig.sessions.settled(holder, (Position(frame, 1),))
    await rig.sessions.close(holder)
    rig.fanout.leave(holder.subscriber)
    await rig.write(b"5")
    holder, opened = await rig.open()
    assert opened.cursor == (Position(frame, 1),)
    rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", opened.cursor)
    await rig.write(b"6")
    while len(holder.bodies) < 3:
        await asyncio.sleep(0)
    assert holder.bodies == [b"4", b"5", b"6"]


async def test_a_crash_repeats_only_what_was_acknowledged_since_the_last_commit(rig):
    holder, _ = await rig.open()
    rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    await rig.write(b"1")
    rig.sessions.settled(holder, ())
    await rig.sessions.commit()
    second = await rig.write(b"2")
    survivor = SessionsRig(rig.store, rig.clock)
    _, opened = await survivor.open()
    assert opened.present
    assert opened.cursor[0].frame <= second
    assert opened.cursor[0] > Position(0, 0)


async def test_an_idle_session_is_moved_along_now_and_then(rig, monkeypatch):
    monkeypatch.setattr("gateway.sessions.sessions.IDLE_COMMIT_BYTES", 1000)
    assert IDLE_COMMIT_BYTES > 1000
    holder, opened = await rig.open()
    start = rig.store.log.confirmed
    rig.sessions.settled(holder, ())
    for _ in range(10):
        await rig.write(b"x" * 200)
    await rig.sessions.commit()
    await rig.sessions.commit()
    _, opened = await SessionsRig(rig.store, rig.clock).open()
    assert opened.cursor[0].frame > start + 1000
    assert holder.superseded == 0


async def test_a_commit_between_a_delivery_and_its_report_does_not_pass_it(rig, monkeypatch):
    monkeypatch.setattr("gateway.sessions.sessions.IDLE_COMMIT_BYTES", 0)
    holder, _ = await rig.open()
    rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    await rig.write(b"1")
    rig.sessions.settled(holder, ())
    handed_out = await rig.write(b"2")
    await rig.sessions.commit()
    rig.sessions.settled(holder, (Position(handed_out, 0),))
    await rig.sessions.commit()
    await rig.sessions.commit()
    _, opened = await SessionsRig(rig.store, rig.clock).open()
    assert opened.cursor == (Position(handed_out, 0),)


async def test_the_older_connection_is_told_and_the_newer_one_goes_on(rig):
    first, _ = await rig.open()
    await rig.sessions.save(first, SaveSession(state=b"1", expiry_s=None))
    second, opened = await rig.open()
    assert first.superseded == 1
    assert opened.state == b"1"
    await rig.sessions.save(first, SaveSession(state=b"too late", expiry_s=None))
    await rig.sessions.close(first)
    await rig.sessions.close(second)
    _, opened = await rig.open()
    assert opened.state == b"1"


async def test_many_connections_for_one_session_leave_one_holder(rig):
    opened = await asyncio.gather(*[rig.open() for _ in range(10)])
    told = [holder.superseded for holder, _ in opened]
    assert sum(told) == 9
    assert max(told) == 1


async def test_sessions_end_when_their_time_is_over(rig):
    holder, _ = await rig.open("short", expiry_s=10)
    await rig.sessions.close(holder)
    holder, _ = await rig.open("long", expiry_s=100)
    await rig.sessions.close(holder)
    await rig.open("here", expiry_s=10)
    rig.clock[0] += 10_000
    assert await rig.sessions.sweep() == 1
    _, opened = await rig.open("long", expiry_s=100)
    assert opened.present
    rig.clock[0] += 1_000_000
    _, opened = await SessionsRig(rig.store, rig.clock).open("here")
    assert opened.present


async def test_an_ended_session_is_gone(rig):
    holder, _ = await rig.open()
    await rig.sessions.end(holder)
    await rig.sessions.close(holder)
    assert await rig.store.keys.prefix("sessions/") == []
    assert await rig.store.groups.offsets("sessions/mqtt/dev") == {}


async def test_a_very_long_name_is_a_session_too(rig):
    name = "é" * 30_000
    holder, _ = await rig.open(name)
    await rig.sessions.close(holder)
    _, opened = await rig.open(name)
    assert opened.present
    _, other = await rig.open(name + "x")
    assert not other.present


async def waiting(rig, **options):
    """Makes a session that is away, with a message waiting for it; returns where the message is."""
    holder, _ = await rig.open(**options)
    rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    await rig.write(b"1")
    rig.sessions.settled(holder, ())
    await rig.sessions.close(holder)
    rig.fanout.leave(holder.subscriber)
    return await rig.write(b"2")


async def test_who_leaves_before_going_on_has_skipped_nothing(rig):
    at = await waiting(rig)
    holder, _ = await rig.open()
    await rig.sessions.commit()
    await rig.sessions.close(holder)
    _, opened = await rig.open()
    assert opened.cursor[0].frame <= at


async def refuse(*_args, **_options):
    raise StoreOverloaded("full")


async def test_a_session_that_could_not_be_opened_has_skipped_nothing(rig, monkeypatch):
    at = await waiting(rig)
    holder = SessionHolder()
    with monkeypatch.context() as patch:
        patch.setattr(rig.store.keys, "put", refuse)
        with pytest.raises(StoreOverloaded):
            await rig.sessions.open(holder, OpenSession(session_id="dev", clean=False, expiry_s=None))
    await rig.sessions.close(holder)
    _, opened = await rig.open()
    assert opened.cursor[0].frame <= at


async def test_who_is_gone_while_taking_over_holds_nothing(rig):
    await rig.open()
    holder = SessionHolder()
    opening = asyncio.ensure_future(
        rig.sessions.open(holder, OpenSession(session_id="dev", clean=False, expiry_s=None))
    )
    await asyncio.sleep(0)
    assert not opening.done()
    holder.gone = True
    await rig.sessions.close(holder)
    await opening
    assert not rig.sessions.held


async def test_who_is_gone_before_its_turn_takes_nothing_over(rig):
    holder, _ = await rig.open()
    gone = SessionHolder()
    gone.gone = True
    opened = await rig.sessions.open(gone, OpenSession(session_id="dev", clean=True, expiry_s=None))
    assert not opened.present
    assert [held.holder for held in rig.sessions.held.values()] == [holder]
    assert holder.superseded == 0


async def test_a_sweep_beside_a_close_forgets_nothing(rig):
    await rig.write(b"old")
    holder, _ = await rig.open(expiry_s=3600)
    rig.clock[0] += 7_200_000
    await asyncio.gather(rig.sessions.close(holder), rig.sessions.sweep())
    _, opened = await rig.open(expiry_s=3600)
    assert opened.present
    assert opened.cursor[0] > Position(0, 0)


async def test_a_sweep_looks_again_before_it_forgets(rig, monkeypatch):
    holder, _ = await rig.open(expiry_s=3600)
    rig.clock[0] += 7_200_000
    read = rig.store.keys.prefix

    async def read_and_leave(*args, **options):
        page = await read(*args, **options)
        await rig.sessions.close(holder)
        return page

    monkeypatch.setattr(rig.store.keys, "prefix", read_and_leave)
    assert await rig.sessions.sweep() == 0
    _, opened = await rig.open(expiry_s=3600)
    assert opened.present


async def test_a_last_word_the_store_refused_is_said_again(rig, monkeypatch):
    holder, _ = await rig.open(expiry_s=3600)
    rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    await rig.write(b"1")
    rig.sessions.settled(holder, ())
    rig.clock[0] += 7_200_000
    with monkeypatch.context() as patch:
        patch.setattr(rig.store.groups, "commit", refuse)
        with pytest.raises(StoreOverloaded):
            await rig.sessions.close(holder)
        await rig.sessions.commit()
        assert await rig.sessions.sweep() == 0
    await rig.sessions.commit()
    assert not rig.sessions.unclosed
    _, opened = await SessionsRig(rig.store, rig.clock).open(expiry_s=3600)
    assert opened.present
    assert opened.cursor[0] > Position(0, 0)


async def test_a_session_of_a_crash_counts_from_the_start_when_the_clock_was_wrong_then(rig):
    week_s, month_ms = 7 * 24 * 3600, 30 * 24 * 3600 * 1000
    rig.clock[0] += 2 * month_ms
    holder, _ = await rig.open(expiry_s=week_s)
    await rig.sessions.save(holder, SaveSession(state=b"s", expiry_s=week_s))
    steady, right_ms = [5], rig.clock[0]
    rig.clock[0] -= month_ms
    again = SessionsRig(rig.store, rig.clock, lambda: steady[0])
    rig.clock[0], steady[0] = right_ms + 10_000, steady[0] + 10_000
    assert await again.sessions.sweep() == 0
    rig.clock[0], steady[0] = rig.clock[0] + week_s * 1_000 - 10_001, steady[0] + week_s * 1_000 - 10_001
    assert await again.sessions.sweep() == 0
    rig.clock[0], steady[0] = rig.clock[0] + 1, steady[0] + 1
    assert await again.sessions.sweep() == 1


async def test_a_session_that_ends_during_a_commit_stays_ended(rig, monkeypatch):
    holders = [(await rig.open(name))[0] for name in ("a", "b")]
    for holder in holders:
        rig.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    await rig.write(b"1")
    for holder in holders:
        rig.sessions.settled(holder, ())
    await asyncio.gather(rig.sessions.commit(), rig.sessions.end(holders[1]))
    assert await rig.store.groups.offsets("sessions/mqtt/b") == {}


def will(delay_ms=30_000):
    return Will(message=Message("w", b"gone"), delay_ms=delay_ms, lives_ms=5_000)


@pytest.fixture
def later(rig):
    """Sets the rig's clock an hour ahead, so that no timer fires by itself."""
    rig.clock[0] = (time.time_ns() // 1_000_000) + 3_600_000
    return rig


async def no_records(rig):
    return await rig.store.keys.prefix("session-wills/") == []


async def test_a_will_is_called_off_when_its_session_is_taken_up_again(later):
    rig = later
    holder, _ = await rig.open(will=will())
    await rig.sessions.close(holder)
    assert len(await rig.store.timers.entries()) == 1
    await rig.open()
    assert await rig.store.timers.entries() == []
    assert await no_records(rig)
    assert len(rig.published) == 1


@pytest.mark.parametrize("by", ["clean start", "expiry"])
async def test_a_will_waits_no_longer_than_its_session(later, by):
    rig = later
    holder, _ = await rig.open(expiry_s=40, will=will())
    await rig.sessions.close(holder)
    if by == "expiry":
        rig.clock[0] += 40_000
        assert await rig.sessions.sweep() == 1
    else:
        await rig.open(clean=True)
    assert await rig.store.timers.entries() == []
    _, published = rig.published
    assert (published.deliver_at_ms, published.expires_at_ms) == (None, rig.clock[0] + 5_000)
    assert await no_records(rig)


@pytest.mark.parametrize(("expiry_s", "delay_s"), [(100, 30), (7, 7), (None, 30)])
async def test_a_will_with_a_delay_says_when(later, expiry_s, delay_s):
    rig = later
    holder, _ = await rig.open(expiry_s=expiry_s, will=will())
    await rig.sessions.close(holder)
    (published,) = rig.published
    now = rig.clock[0]
    assert (published.address, published.body, published.time_ms) == ("w", b"gone", now)
    assert published.deliver_at_ms == now + delay_s * 1_000
    assert published.expires_at_ms == now + delay_s * 1_000 + 5_000


async def test_a_will_is_published_when_a_session_ends_with_its_connection(rig):
    holder, _ = await rig.open(expiry_s=0, will=will())
    assert not await no_records(rig)
    await rig.sessions.close(holder)
    (published,) = rig.published
    assert published.deliver_at_ms is None
    assert published.id
    assert await no_records(rig)


async def test_a_will_that_was_dropped_is_not_published(rig):
    for expiry_s in (0, 100):
        holder, _ = await rig.open(expiry_s=expiry_s, will=will(0))
        rig.sessions.drop_will(holder)
        await rig.sessions.close(holder)
    assert rig.published == []
    assert await no_records(rig)


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("before", [False, True])
async def test_a_will_that_is_dropped_while_its_session_is_opened_is_not_published(rig, before, turns):
    if before:
        await rig.sessions.close((await rig.open(will=will(0)))[0])
        rig.published.clear()
    holder = SessionHolder()
    request = OpenSession(session_id="dev", clean=False, expiry_s=None, will=will(0))
    opening = asyncio.ensure_future(rig.sessions.open(holder, request))
    for _ in range(turns):
        await asyncio.sleep(0)
    while not rig.sessions.held:
        await asyncio.sleep(0)
    rig.sessions.drop_will(holder)
    await opening
    await rig.sessions.close(holder)
    assert rig.published == []
    assert await no_records(rig)


async def test_wills_of_one_client_are_different_messages(rig):
    for _ in range(2):
        holder, _ = await rig.open(will=will(0))
        await rig.sessions.close(holder)
    first, second = rig.published
    assert first.id != second.id


@pytest.mark.parametrize(
    ("clean", "delay_ms", "wills"), [(False, 0, 1), (True, 0, 1), (False, 30_000, 0), (True, 30_000, 1)]
)
async def test_whether_a_takeover_publishes_the_will(later, clean, delay_ms, wills):
    rig = later
    await rig.open(will=will(delay_ms))
    await rig.open(clean=clean)
    assert len([one for one in rig.published if one.deliver_at_ms is None]) == wills
    assert await rig.store.timers.entries() == []
    assert await no_records(rig)


@pytest.mark.parametrize(
    ("clean", "delay_ms", "wills"), [(False, 0, 1), (True, 0, 1), (False, 30_000, 0), (True, 30_000, 1)]
)
async def test_whether_the_first_connection_after_a_crash_publishes_the_will(later, clean, delay_ms, wills):
    await later.open(will=will(delay_ms))
    rig = SessionsRig(later.store, later.clock)
    await rig.open(clean=clean)
    assert len(rig.published) == wills
    assert await rig.store.timers.entries() == []
    assert await no_records(rig)


@pytest.mark.parametrize("expiry_s", [0, 100])
async def test_wills_of_a_former_run_are_published(later, expiry_s):
    await later.open("one", expiry_s=expiry_s, will=will(0))
    await later.open("two", expiry_s=expiry_s, will=will())
    await later.open("none", expiry_s=expiry_s)
    rig = SessionsRig(later.store, later.clock)
    orphans = await rig.sessions.load()
    await rig.sessions.end_orphans(orphans)
    assert len(rig.published) == 2
    assert len(await rig.store.timers.entries()) == (1 if expiry_s else 0)
    again = SessionsRig(later.store, later.clock)
    assert await again.sessions.load() == []
    await again.open("two")
    assert await no_records(rig)
    assert await rig.store.timers.entries() == []
