"""Timers: what is set fires once, in order, at its time, whatever happens in between."""

import asyncio
import errno
import logging
import shutil

import pytest

from store.base.errors import FrameTooLarge, NoSuchTimer, StoreOverloaded, TimersFull, TimerTooFar
from store.format.frame import FIRST_QUEUE, ROW, ROW_EXTRA, Position
from store.format.queue_config import FOREVER
from store.format.records import KV_QUEUE, TIMERS_QUEUE, KvPut, QueueDeleted, TimerSet, TimersFired, encode
from store.format.timer_key import TimerKey, pack_keys, unpack_keys
from store.local.local import LocalStore
from store.log.retention import RetentionLimits
from store.timers import timers as timers_module
from store.timers.timers import DAY_MS, TimerLimits, firing_frame
from store.views.timers import is_sound
from tests.support.process.clock import Clock
from tests.support.store.store_kit import FaultyFiles, append, behind, bodies, frame, records_frame

pytestmark = pytest.mark.anyio
HOUR_S = 3600


def row(queue, size, pos=0, flags=0, time_ms=7):
    return ROW.pack(queue, pos, size, flags, 0, 0, 0, time_ms)


def timer(due_ms, body, queue=16):
    return TimerSet(due_ms, row(queue, len(body)), body)


async def set_timers(store, *timers):
    """Sets timers in one frame, and returns their ids."""
    appended = await append(store, records_frame(*timers))
    return [str(TimerKey(record.due_ms, appended.frame, n)) for n, record in enumerate(timers)]


@pytest.fixture
async def clock():
    return Clock(1_000_000)


@pytest.fixture(params=["recent", "dispatched"])
async def opened(request, tmp_path, clock):
    """Yields a store whose views never follow, and one whose views follow at once."""
    linger_s = HOUR_S if request.param == "recent" else 0.001
    store = await LocalStore.open(tmp_path / "data", now_ms=clock, linger_s=linger_s)
    store.catch_up = lambda: None
    if request.param == "dispatched":

        async def catch_up():
            await store.core.until_dispatched(store.log.confirmed)

        store.catch_up = catch_up
    else:

        async def stay():
            pass

        store.catch_up = stay
    yield store
    await store.close()


async def test_a_timer_fires_at_its_time_and_not_before(opened, clock):
    await set_timers(opened, timer(clock() + 5, b"later"))
    await opened.catch_up()
    clock.ms += 4
    await opened.tick()
    assert await bodies(opened, 16) == []
    assert opened.timers.held == (1, ROW.size + 5)
    clock.ms += 1
    await opened.tick()
    assert await bodies(opened, 16) == [b"later"]
    assert opened.timers.held == (0, 0)
    await opened.catch_up()
    clock.ms += 100_000
    await opened.tick()
    assert await bodies(opened, 16) == [b"later"]


async def test_they_fire_in_the_order_in_which_they_are_due(opened, clock, monkeypatch):
    monkeypatch.setattr(timers_module, "FIRED_COUNT_MAX", 3)
    due = [5, 3, 9, 3, 1, 8, 2, 2, 7, 0]
    await set_timers(opened, *(timer(clock() + ms, b"%d.%d" % (ms, n)) for n, ms in enumerate(due[:6])))
    await opened.catch_up()
    await set_timers(opened, *(timer(clock() + ms, b"%d.%d" % (ms, n)) for n, ms in enumerate(due[6:], 6)))
    clock.ms += 8
    await opened.tick()
    expected = [b"%d.%d" % at for at in sorted((ms, n) for n, ms in enumerate(due)) if at[0] <= 8]
    assert await bodies(opened, 16) == expected
    assert opened.timers.held.timers == 1


async def test_the_loops_own_timer_fires_them(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        fired = asyncio.get_running_loop().create_future()
        store.queues.watch(fired.set_result)
        now_ms = store.core.now_ms()
        await set_timers(store, timer(now_ms + 30, b"x"))
        assert await asyncio.wait_for(fired, 10) == [16]
        (frame,) = (await store.queues.fetch(16, 0, max_bytes=1)).frames
        assert frame.header.stored_at_ms >= now_ms + 30


async def test_what_was_due_while_the_store_was_closed_fires_when_it_opens(tmp_path, clock):
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await set_timers(store, timer(clock() + 9, b"2"), timer(clock() + 5, b"1"), timer(clock() + 10_000_000, b"3"))
    clock.ms += 1_000_000
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await store.tick()
        assert await bodies(store, 16) == [b"1", b"2"]
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await store.tick()
        assert await bodies(store, 16) == [b"1", b"2"]
        assert store.timers.held.timers == 1


async def test_a_clock_that_goes_back_lets_a_timer_wait_again_and_never_fires_it_twice(opened, clock):
    await set_timers(opened, timer(clock() + 10, b"a"), timer(clock() + 20, b"b"))
    clock.ms += 15
    await opened.tick()
    clock.ms -= 1_000
    await opened.tick()
    assert await bodies(opened, 16) == [b"a"]
    clock.ms += 1_005
    await opened.tick()
    assert await bodies(opened, 16) == [b"a", b"b"]


async def test_a_fired_frame_is_what_was_set(opened, clock):
    """One record in two queues, and a change of the KV, with everything in their rows kept."""
    message, change = b"message", encode(KvPut("retained/a", b"v"))
    rows = row(16, 7, time_ms=123) + row(20, 7, flags=ROW_EXTRA, time_ms=123) + row(KV_QUEUE, len(change), 7)
    await set_timers(opened, timer(clock() + 1, b"before"), TimerSet(clock() + 1, rows, message + change))
    assert await opened.keys.get("retained/a") is None
    seen = []
    opened.log.tail(seen.extend)
    woken = []
    opened.queues.watch(woken.extend)
    clock.ms += 1
    await opened.tick()
    (frame,) = seen
    assert frame.rows["queue"].tolist() == [16, 16, 20, KV_QUEUE, TIMERS_QUEUE]
    assert frame.rows["time_ms"].tolist()[:3] == [7, 123, 123]
    assert frame.rows["flags"].tolist() == [0, 0, ROW_EXTRA, 0, 0]
    assert [frame.record(n) for n in range(3)] == [b"before", message, message]
    assert woken == [16, 20]
    assert (await opened.keys.get("retained/a")).value == b"v"


async def test_a_cancelled_timer_never_fires(opened, clock):
    ids = await set_timers(opened, timer(clock() + 5, b"a"), timer(clock() + 5, b"b"), timer(clock() + 5, b"c"))
    await opened.catch_up()
    assert await opened.timers.cancel(ids[1]) is True
    assert await opened.timers.cancel(ids[1]) is False
    await opened.catch_up()
    assert opened.timers.held.timers == 2
    clock.ms += 5
    cancelling = asyncio.ensure_future(opened.timers.cancel(ids[0]))
    await asyncio.sleep(0)
    await opened.tick()
    assert await cancelling is True
    assert await bodies(opened, 16) == [b"c"]
    assert [await opened.timers.cancel(id_) for id_ in ids] == [False] * 3
    assert opened.timers.held == (0, 0)


async def test_cancelling_what_is_being_fired_comes_too_late(opened, clock):
    (id_,) = await set_timers(opened, timer(clock() + 5, b"a"))
    clock.ms += 5
    ticking = asyncio.ensure_future(opened.tick())
    while not opened.core.recent.timers.firing:
        await asyncio.sleep(0)
    assert await opened.timers.cancel(id_) is False
    await ticking
    assert await bodies(opened, 16) == [b"a"]


@pytest.mark.parametrize("text", ["", "x", "5-0", "5-0.0 ", "05-0.0", "-1-0.0", "f" * 17 + "-0.0", "5-0.0-0.0"])
async def test_what_is_no_id_is_refused(opened, text):
    with pytest.raises(NoSuchTimer):
        await opened.timers.cancel(text)
    assert await opened.timers.cancel("5-0.0") is False


async def test_they_can_be_listed(opened, clock):
    ids = await set_timers(opened, *(timer(clock() + 10 + n % 3, b"x" * n) for n in range(7)))
    await opened.catch_up()
    ids += await set_timers(opened, timer(clock() + 11, b"new"))
    await opened.timers.cancel(ids[2])
    expected = sorted((TimerKey.parse(i) for n, i in enumerate(ids) if n != 2))
    entries = await opened.timers.entries()
    assert [entry.id for entry in entries] == [str(key) for key in expected]
    assert [entry.due_ms for entry in entries] == [key.due_ms for key in expected]
    assert sum(entry.size_bytes for entry in entries) == opened.timers.held.size_bytes
    paged, after = [], ""
    while page := await opened.timers.entries(after=after, limit=3):
        paged += page
        after = page[-1].id
    assert paged == entries


async def test_limits(tmp_path, clock):
    limits = TimerLimits(timers=3, size_bytes=1000, horizon_ms=10 * DAY_MS)
    async with await LocalStore.open(tmp_path, now_ms=clock, timer_limits=limits) as store:
        store.timers.admit(clock() + 10 * DAY_MS, 1000)
        with pytest.raises(TimerTooFar):
            store.timers.admit(clock() + 10 * DAY_MS + 1, 1)
        with pytest.raises(TimersFull):
            store.timers.admit(clock(), 1001)
        await set_timers(store, *(timer(clock() + DAY_MS, b"x") for _ in range(3)))
        with pytest.raises(TimersFull) as full:
            store.timers.admit(clock() + 1, 1)
        assert full.value.retriable
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        assert store.timers.held == (3, 3 * (ROW.size + 1))
        with pytest.raises(FrameTooLarge):
            store.timers.admit(clock(), timers_module.TIMER_BYTES_MAX + 1)


@pytest.mark.slow
async def test_thousands_due_at_once(opened, clock):
    count = 5_000
    for _ in range(5):
        await set_timers(opened, *(timer(clock() + 1, b"%d" % n) for n in range(count // 5)))
    await opened.catch_up()
    clock.ms += 1
    await opened.tick()
    assert await bodies(opened, 16) == [b"%d" % n for _ in range(5) for n in range(count // 5)]
    assert opened.timers.held == (0, 0)


async def test_a_large_timer_has_a_frame_of_its_own(opened, clock):
    large = bytes(timers_module.FIRED_BYTES_MAX + 1)
    await set_timers(opened, timer(clock() + 1, b"a"), timer(clock() + 1, large), timer(clock() + 1, b"b"))
    await opened.catch_up()
    seen = []
    opened.log.tail(seen.extend)
    clock.ms += 1
    await opened.tick()
    assert [frame.header.row_count for frame in seen] == [2, 2, 2]
    assert await bodies(opened, 16) == [b"a", large, b"b"]


async def test_a_store_that_refuses_fires_later(opened, clock, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "store.timers.timers")
    await set_timers(opened, timer(clock() + 1, b"a"))
    clock.ms += 1
    refusals = [StoreOverloaded("full")] * 2
    monkeypatch.setattr(behind(opened).log, "_refusal", lambda size: refusals.pop() if refusals else None)
    for _ in range(3):
        await opened.tick()
    assert await bodies(opened, 16) == [b"a"]
    said = [one.levelname for one in caplog.records if "could not be fired" in one.getMessage()]
    assert said == ["WARNING", "DEBUG"], "a full disk must not fill the log"


@pytest.mark.slow
async def test_after_a_crash_while_firing_it_has_fired_once(tmp_path, clock):
    """The disk holds any prefix of the frame that fires: all of it counts, or nothing."""
    async with await LocalStore.open(tmp_path / "a", now_ms=clock) as store:
        await set_timers(store, timer(clock() + 1, b"one"), timer(clock() + 1, b"two"))
        before = store.log.confirmed
        clock.ms += 1
        await store.tick()
        end = store.log.confirmed
    (segment,) = (tmp_path / "a" / "log").iterdir()
    for cut in range(before, end + 1, 7):
        copy = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "a" / "log", copy / "log")
        with (copy / "log" / segment.name).open("r+b") as file:
            file.truncate(cut)
        async with await LocalStore.open(copy, now_ms=clock) as store:
            await store.tick()
            assert await bodies(store, 16) == [b"one", b"two"]
            assert store.timers.held == (0, 0)


async def test_a_disk_that_fails_while_firing_leaves_it_to_the_next_start(tmp_path, clock):
    files = FaultyFiles()
    store = await LocalStore.open(tmp_path, now_ms=clock, files=files)
    await set_timers(store, timer(clock() + 1, b"one"))
    files.sync_error = errno.EIO
    clock.ms += 1
    await store.tick()
    assert store.error is not None
    await store.close()
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await store.tick()
        assert await bodies(store, 16) == [b"one"]


def test_what_cannot_be_appended_is_no_timer():
    assert is_sound(timer(1, b"x"))
    assert is_sound(TimerSet(1, row(KV_QUEUE, 1), b"x"))
    assert not is_sound(TimerSet(1, b"", b"x"))
    assert not is_sound(TimerSet(1, row(16, 1)[:-1], b"x"))
    assert not is_sound(TimerSet(1, row(16, 2), b"x"))
    assert not is_sound(TimerSet(1, row(16, 1, pos=1), b"x"))
    assert not is_sound(TimerSet(1, row(TIMERS_QUEUE, 1), b"x"))
    assert not is_sound(TimerSet(1, row(FIRST_QUEUE - 1, 1), b"x"))


async def test_a_timer_that_is_not_sound_has_no_effect(opened, clock):
    await set_timers(opened, TimerSet(clock(), row(16, 9), b"x"), timer(clock(), b"good"))
    await append(opened, records_frame(TimersFired(b"odd")))
    await opened.tick()
    assert await bodies(opened, 16) == [b"good"]
    assert opened.timers.held == (0, 0)


def test_keys():
    keys = [TimerKey(5, 64, 1), TimerKey(1 << 62, 1 << 62, 7)]
    assert unpack_keys(pack_keys(keys)) == keys
    assert unpack_keys(pack_keys(keys)[:-1]) == keys[:1]
    assert [TimerKey.parse(str(key)) for key in keys] == keys
    assert str(TimerKey(255, *Position(16, 2))) == "ff-10.2"


def test_the_frame_of_some_timers():
    batch = [(TimerKey(1, 0, n), timer(1, b"%d" % n * (n + 1))) for n in range(5)]
    frame = firing_frame(batch, 9)
    assert frame.row_count == 6
    assert frame.payload.startswith(b"011222")


async def test_what_the_views_hold_is_remembered_by_nobody_else(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(timers_module, "DUE_SLACK", 10)
    async with await LocalStore.open(tmp_path / "data", now_ms=clock, linger_s=0.001) as store:
        for _ in range(5):
            await set_timers(store, *(timer(clock() + 100, b"x") for _ in range(20)))
        await store.core.until_dispatched(store.log.confirmed)
        await asyncio.sleep(0)
        assert len(store.core.recent.timers._due) <= 10
        assert store.timers.held.timers == 100
        clock.ms += 100
        await store.tick()
        assert len(await bodies(store, 16)) == 100


async def test_leases_end_before_many_timers_have_fired(opened, clock, monkeypatch):
    monkeypatch.setattr(timers_module, "FIRED_COUNT_MAX", 1)
    await append(opened, records_frame(timer(clock() + 9, b"x", queue=17)))
    await set_timers(opened, *(timer(clock() + 10, b"%d" % n) for n in range(2 * timers_module.FRAMES_PER_TICK)))
    await opened.tick()
    clock.ms += 9
    await opened.tick()
    assert len(await opened.leases.take(17, 1, max_count=1, invisible_ms=1)) == 1
    clock.ms += 1
    fired = []

    async def fire(now_ms):
        fired.append(await opened.leases.waiting(17))
        return await whole(now_ms)

    whole = behind(opened).timers.tick
    monkeypatch.setattr(behind(opened).timers, "tick", fire)
    await opened.tick()
    assert len(fired) >= 3  # in turns
    assert set(fired) == {1}  # the lease had ended before the first
    assert len(await bodies(opened, 16)) == 2 * timers_module.FRAMES_PER_TICK


async def test_a_tick_does_all_that_is_due_though_the_loop_begins_another(opened, clock, monkeypatch):
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def at_once(delay, call, *args):  # as uvloop has it
        return later(delay, call, *args) if delay else loop.call_soon(call, *args)

    monkeypatch.setattr(loop, "call_later", at_once)
    monkeypatch.setattr(timers_module, "FIRED_COUNT_MAX", 1)
    await set_timers(opened, *(timer(clock() + 10, b"%d" % n) for n in range(20 * timers_module.FRAMES_PER_TICK)))
    clock.ms += 10
    await opened.tick()
    assert opened.timers.held.timers == 0


@pytest.mark.parametrize("broken", ["leases", "timers"])
async def test_leases_and_timers_do_not_stop_each_other(opened, clock, monkeypatch, broken):
    def fail(*_):
        raise RuntimeError("broken")

    await set_timers(opened, timer(clock(), b"a"), timer(clock() + 5, b"b"))
    await opened.tick()
    await opened.leases.take(16, 1, max_count=1, invisible_ms=5)
    monkeypatch.setattr(
        *(behind(opened).leases, "expire") if broken == "leases" else (behind(opened).timers, "tick"), fail
    )
    clock.ms += 5
    await opened.tick()
    assert len(await bodies(opened, 16)) == (2 if broken == "leases" else 1)
    assert await opened.leases.waiting(16) == 1


async def test_a_timer_that_is_set_while_others_are_read_is_not_passed_over(tmp_path, clock):
    async with await LocalStore.open(tmp_path / "data", now_ms=clock, linger_s=0.001) as store:
        await set_timers(store, timer(clock() + 5, b"first"))
        await store.core.until_dispatched(store.log.confirmed)
        blocking, late = behind(store).timers.blocking, [timer(clock() + 3, b"second")]

        async def slow(*args):
            found = await blocking(*args)
            while late:
                await set_timers(store, late.pop())
                await store.core.until_dispatched(store.log.confirmed)
            return found

        behind(store).timers.blocking = slow
        clock.ms += 10
        await store.tick()
        assert sorted(await bodies(store, 16)) == [b"first", b"second"]


async def test_nothing_comes_to_a_queue_that_was_deleted_since(opened, clock):
    """Its number has no configuration any more, so what came to it kept the log for ever."""
    due_ms = clock() + 5
    both = TimerSet(due_ms, row(16, 4) + row(17, 4, pos=4), b"gonekept")
    await set_timers(opened, timer(due_ms, b"gone"), both)
    await append(opened, records_frame(QueueDeleted(16)))
    await opened.catch_up()
    await set_timers(opened, timer(due_ms, b"begun anew"))
    clock.ms += 5
    await opened.tick()
    assert await bodies(opened, 16) == [b"begun anew"]
    assert await bodies(opened, 17) == [b"kept"]
    assert opened.timers.held == (0, 0)


async def test_nor_to_one_whose_deletion_is_not_in_the_log_any_more_or_not_yet(tmp_path, clock):
    hour_ms = 3_600_000
    small = {"segment_size_bytes": 1_000, "retention": RetentionLimits(hour_ms, FOREVER), "retention_interval_s": 3_600}
    async with await LocalStore.open(tmp_path, now_ms=clock, linger_s=0.001, **small) as store:
        due_ms = clock() + 100 * hour_ms
        await set_timers(store, timer(due_ms, b"gone"), TimerSet(due_ms, row(17, 5), b"going"))
        await store.queues.delete(16)
        for _ in range(12):
            await append(store, frame((18, bytes(200))))
        clock.ms += 2 * hour_ms
        await store.core.until_dispatched(store.log.confirmed)
        await asyncio.to_thread(store.core.engine.trimmer.run)
        assert store.core.engine.log.first > 0
        clock.ms = due_ms
        deleting = asyncio.ensure_future(store.queues.delete(17))
        await asyncio.sleep(0)  # it is on its way
        await store.tick()
        await deleting
        assert await bodies(store, 16) == await bodies(store, 17) == []
