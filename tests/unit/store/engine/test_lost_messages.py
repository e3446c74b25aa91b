"""The messages in damages, by queue and offsets: one pass over the queues, in short transactions, with a bound."""

import asyncio
import shutil
from random import Random
from types import SimpleNamespace

import pytest

from store.api.lost_words import lost_words
from store.base.errors import StoreClosed
from store.engine import lost
from store.engine.lost import lost_messages
from store.engine.recovery import keep_offsets
from store.engine.repair import StoppedStore
from store.format.chunks import QueueEnd
from store.format.frame import FIRST_QUEUE, LogOffset
from store.format.ranges import RangeSet
from store.integrity.ledger import Damage
from store.local.local import LocalStore
from store.log.run import RunBuilder
from store.log.segment import BadRange
from store.views import Views, layout
from store.views.layout import load_passed, save_passed, with_gaps
from store.views.old import OldViews, old_path, set_aside
from tests.support.process.waiting import until
from tests.support.store.flips import flip_all
from tests.support.store.store_kit import append, begin, frame

pytestmark = pytest.mark.anyio

QUEUES = range(16, 28)


def never():
    """Lets the pass go on."""


def damage(start, end):
    return Damage("0.log", start, end, "flipped", "scrub")


@pytest.fixture
async def store(tmp_path):
    """Yields a store of frames with records of some queues each, all in the views."""
    chance = Random(5)
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        for _ in range(300):
            queues = chance.choices(QUEUES, weights=range(1, 1 + len(QUEUES)), k=chance.randint(1, 4))
            await append(store, frame(*((queue, b"x" * chance.randint(1, 30)) for queue in sorted(queues))))
        await store.core.until_dispatched(store.log.confirmed)
        yield store


def chunks_of(views):
    """Returns all chunks of messages, by queue."""
    with views.reading() as txn:
        queues = [queue for queue in views.queues.queues(txn) if queue >= FIRST_QUEUE]
        return {queue: list(views.queues.chunks(txn, queue, 0)) for queue in queues}


def naively(views, damages):
    """Returns the lost ranges by looking at each chunk and each damage, and the number of messages in them."""
    ranges, messages = [], 0
    for queue, chunks in chunks_of(views).items():
        for chunk in chunks:
            if not any(one.start <= chunk.frame < one.end for one in damages):
                continue
            messages += chunk.row_count
            if ranges and ranges[-1][0] == queue and ranges[-1][2] == chunk.first:
                ranges[-1] = (queue, ranges[-1][1], chunk.next)
            else:
                ranges.append((queue, chunk.first, chunk.next))
    return ranges, messages


def damages_of(chance, bounds, count):
    """Returns some damages between frames, which do not touch."""
    picked = sorted(chance.sample(range(len(bounds)), 2 * count))
    return [damage(bounds[a], bounds[b]) for a, b in zip(picked[::2], picked[1::2], strict=True)]


@pytest.mark.parametrize(("leap", "read"), [(64, 8_192), (1, 2), (3, 5), (1, 8_192)])
async def test_all_of_them_are_found_wherever_the_damages_are(store, monkeypatch, leap, read):
    monkeypatch.setattr(lost, "LEAP_CHUNKS", leap)
    monkeypatch.setattr(lost, "READ_CHUNKS", read)
    views, end = store.core.engine.views, store.replication.end
    frames = sorted({chunk.frame for chunks in chunks_of(views).values() for chunk in chunks})
    chance = Random(7)
    for count in [0, 1, 1, 2, 3, 8, 20, 60, 100, 150]:
        damages = damages_of(chance, [*frames, end], count)
        ranges, messages = naively(views, damages)
        found = lost_messages(views, damages, never)
        assert (list(found.ranges), found.messages, found.more) == (ranges, messages, 0)
        assert (found.damages, found.size_bytes) == (count, sum(one.end - one.start for one in damages))


async def test_ranges_beyond_the_limit_are_counted(store, monkeypatch):
    views = store.core.engine.views
    frames = sorted({chunk.frame for chunks in chunks_of(views).values() for chunk in chunks})
    damages = damages_of(Random(9), frames, 40)
    ranges, messages = naively(views, damages)
    monkeypatch.setattr(lost, "LOST_RANGES_COUNT_MAX", 5)
    found = lost_messages(views, damages, never)
    assert (list(found.ranges), found.messages, found.more) == (ranges[:5], messages, len(ranges) - 5)
    fewer = found.first(2)
    assert (list(fewer.ranges), fewer.messages, fewer.more) == (ranges[:2], messages, len(ranges) - 2)
    assert found.first(5) is found


async def test_many_damages_are_met_in_one_pass(tmp_path, monkeypatch):
    """Each damage was searched for in each queue."""
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        await asyncio.gather(*begin(store, *(frame((16 + n % 2, b"x")) for n in range(600))))
        await store.core.until_dispatched(store.log.confirmed)
        views = store.core.engine.views
        chunks = chunks_of(views)
        starts = [chunk.frame for chunk in chunks[16]]
        damages = [damage(start, LogOffset(start + 1)) for start in starts[::2]]
        searched, search = [], views.queues.search

        def searching(txn, queue, reached):
            searched.append(queue)
            return search(txn, queue, reached)

        monkeypatch.setattr(views.queues, "search", searching)
        found = lost_messages(views, damages, never)
        assert found.messages == len(found.ranges) == len(damages) == 150
        # Queue 17 has none of them: it is searched once for each stretch of sound chunks, and not for each damage.
        assert set(searched) <= {17}
        assert len(searched) <= len(chunks[17]) // lost.LEAP_CHUNKS


async def test_records_of_the_store_itself_are_no_messages(tmp_path):
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        await store.keys.put("a", b"1")
        await append(store, frame((16, b"x")))
        await store.core.until_dispatched(store.log.confirmed)
        views = store.core.engine.views
        with views.reading() as txn:
            assert min(views.queues.queues(txn)) < FIRST_QUEUE
        found = lost_messages(views, [damage(0, store.replication.end)], never)
        assert (found.messages, found.ranges) == (1, ((16, 0, 1),))


async def pass_over(tmp_path):
    """Damages a log so that views that are opened pass two ranges over; returns the directory and these ranges."""
    data, old = tmp_path / "data", tmp_path / "old"
    async with await LocalStore.open(data, scrub_bytes_per_s=0) as store:
        for n in range(5):
            await append(store, frame((16, b"body %04d" % n)))
    shutil.copytree(data / "views", old)
    async with await LocalStore.open(data, scrub_bytes_per_s=0) as store:
        for n in range(5, 20):
            await append(store, frame((16, b"body %04d" % n)))
        frames = list(store.core.engine.log.scan(0, store.replication.end))
    shutil.rmtree(data / "views")
    old.rename(data / "views")
    (log,) = (data / "log").glob("*.log")
    for n in (3, 7, 8, 9, 12):
        assert flip_all(log, b"body %04d" % n) == 1
    return data, [(frames[7].start, frames[10].start), (frames[12].start, frames[13].start)]


async def look(data):
    """Opens a store; returns the ranges that its views have passed over, and what is lost, once all damage is known."""
    async with await LocalStore.open(data, scrub_bytes_per_s=1 << 30) as store:
        await until(lambda: len(store.damages) == 3)
        await store.core.until_dispatched(store.log.confirmed)
        return list(store.core.engine.views.passed), await store.lost()


async def test_what_the_views_have_passed_over_is_not_called_no_message(tmp_path):
    """Three lost messages were none, as no queue had a place for them."""
    data, passed = await pass_over(tmp_path)
    for _ in range(2):  # a restart remembers it
        remembered, found = await look(data)
        assert remembered == passed
        assert (found.damages, found.messages, found.ranges) == (3, 1, ((16, 3, 4),))
        assert found.unfollowed_bytes == sum(end - start for start, end in passed)
        assert lost_words(found, dict) == (
            "no topic, queue 16, offsets 3 to 3; "
            f"which messages are in {found.unfollowed_bytes} bytes of them no queue knows"
        )


async def test_who_sees_that_the_views_are_behind_damage_sees_that_they_have_passed_it_over(tmp_path, monkeypatch):
    """A look in between found that no message was in it."""
    data, passed = await pass_over(tmp_path)
    seen = []

    def setting(views, name, value):
        object.__setattr__(views, name, value)
        if name == "dispatched":
            seen.append((value, list(getattr(views, "passed", ()))))

    monkeypatch.setattr(Views, "__setattr__", setting)
    for _ in range(2):
        await look(data)
    assert {len(ranges) for _, ranges in seen} == {0, 1, 2}
    for at, ranges in seen:
        assert ranges == [one for one in passed if one[1] <= at]


async def test_views_that_are_made_anew_remember_what_the_old_ones_have_passed_over(tmp_path):
    """They found no messages in it, and discarded the old ones, which knew better."""
    data, passed = await pass_over(tmp_path)
    before = await look(data)
    with StoppedStore(data) as store:
        assert store.verify_views().is_sound
    for _ in range(2):
        set_aside(data / "views")
        assert await look(data) == before
    assert before[0] == passed
    assert not old_path(data / "views").exists()


async def test_old_views_that_know_of_nothing_lost_pass_nothing_over(tmp_path):
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        for n in range(10):
            await append(store, frame((16, b"body %04d" % n)))
    (log,) = (tmp_path / "log").glob("*.log")
    for n in (3, 5, 8):
        assert flip_all(log, b"body %04d" % n) == 1
    before = await look(tmp_path)
    set_aside(tmp_path / "views")
    assert await look(tmp_path) == before
    assert (before[0], before[1].messages, before[1].unfollowed_bytes) == ([], 3, 0)


def test_what_no_old_views_know_is_passed_over(tmp_path):
    """The new ones went on behind the next damage, as if they had followed this one."""
    old = SimpleNamespace(
        dispatched=100, chunks=lambda start, _end: None if start < 10 else [], passed=lambda _start, _end: []
    )
    views, builder = Views(tmp_path), RunBuilder(lambda _queue: QueueEnd())
    for start in (0, 10):
        keep_offsets(BadRange(start, start + 10, "flipped"), old, views, builder, force=True)
    assert (list(views.passed), views.dispatched) == ([(0, 10)], 20)
    views.close()
    views = Views(tmp_path)
    assert list(views.passed) == [(0, 10)]
    views.close()


@pytest.mark.parametrize("hurt", [lambda file: flip_all(file, b"passed", within=13), lambda file: file.unlink()])
async def test_old_views_that_cannot_be_read_may_have_passed_all_over(tmp_path, hurt):
    data, passed = await pass_over(tmp_path)
    await look(data)
    assert OldViews(data / "views").passed(0, passed[1][0] + 1) == [passed[0], (passed[1][0], passed[1][0] + 1)]
    hurt(data / "views" / "data.mdb")
    assert OldViews(data / "views").passed(5, 9) == [(5, 9)]


@pytest.mark.parametrize("within", [13, 3])  # of its value, of its key
@pytest.mark.parametrize("rebuildable", [True, False])
async def test_views_are_not_made_anew_for_damage_to_what_they_have_passed_over(tmp_path, within, rebuildable):
    """Views that cannot be made anew were not opened."""
    data, _ = await pass_over(tmp_path)
    await look(data)
    assert flip_all(data / "views" / "data.mdb", b"passed", within=within)
    views = Views(data / "views", rebuildable=rebuildable)
    assert not views.health.is_damaged
    assert list(views.passed) == [(0, views.dispatched)]
    assert not old_path(data / "views").exists()
    views.pass_over([], [(views.dispatched, views.dispatched + 10)], LogOffset(views.dispatched + 10))
    assert not views.health.is_damaged
    end = views.dispatched
    views.close()
    views = Views(data / "views", rebuildable=rebuildable)
    assert list(views.passed) == [(0, end)]
    views.close()


async def test_everything_may_have_been_passed_over_where_that_is_not_known(tmp_path):
    data, _ = await pass_over(tmp_path)
    _, before = await look(data)
    assert flip_all(data / "views" / "data.mdb", b"passed", within=13)
    _, found = await look(data)
    assert (found.messages, found.ranges) == (before.messages, before.ranges)
    assert found.unfollowed_bytes == found.size_bytes


def test_passed_ranges_that_are_too_many_become_one(monkeypatch):
    monkeypatch.setattr(layout, "DAMAGES_KEPT_COUNT_MAX", 2)
    passed = with_gaps(RangeSet([(0, 10)]), [(20, 30), (40, 50), (60, 70)])
    assert list(passed) == [(0, 50), (60, 70)]
    assert list(load_passed(save_passed(passed))) == list(passed)


async def test_a_look_ends_soon_when_the_store_closes(store, monkeypatch):
    monkeypatch.setattr(lost, "READ_CHUNKS", 2)
    views, looks = store.core.engine.views, []

    def closing():
        looks.append(views._readers)
        if len(looks) == 5:
            raise StoreClosed("the store is shut down")

    with pytest.raises(StoreClosed):
        lost_messages(views, [damage(0, store.replication.end)], closing)
    assert looks == [0] * 5  # no transaction is open meanwhile: the map may grow
