"""Watching keys: history from the log, news from a feed, no gap between, nothing twice."""

import asyncio

import pytest

from store.api.keys import Change, Delete, Put
from store.base.errors import RevisionCompacted, RevisionConflict
from store.format.frame import LogOffset
from store.format.records import LogTrimmed
from store.local import key_watch as watch_module
from store.local.local import LocalStore
from store.recent import kv_feed as feed_module
from store.recent.kv_feed import KvFeed
from tests.support.store.store_kit import append, frame, records_frame

pytestmark = pytest.mark.anyio
HOUR_S = 3600


@pytest.fixture(params=["recent", "dispatched"])
async def store(request, tmp_path):
    linger_s = 0.001 if request.param == "dispatched" else HOUR_S
    async with await LocalStore.open(tmp_path / "data", linger_s=linger_s) as store:
        yield store


async def seen(store, count, *arguments, **options):
    """Returns this many changes of a watch."""
    found = []
    watching = store.keys.watch(*arguments, **options)
    async with asyncio.timeout(20):
        while len(found) < count:
            found += (await anext(watching)).changes
    await watching.aclose()
    return found


def brief(changes):
    return [(change.kind, change.key, change.value) for change in changes]


async def test_what_is_past_and_what_is_new(store):
    first = await store.keys.put("a", b"1")
    watching = store.keys.watch(from_revision=first)
    assert (await anext(watching)).changes == [Change("put", "a", b"1", first)]
    following = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    assert not following.done()
    second = await store.keys.put("a", b"2")
    changes, at = await following
    assert changes == [Change("put", "a", b"2", second)]
    assert at == second + 1
    await store.keys.delete("a")
    assert brief((await anext(watching)).changes) == [("delete", "a", b"")]
    await watching.aclose()
    assert not store.core.recent.kv.feeds


async def test_a_watch_begins_when_it_is_asked_for(store):
    await store.keys.put("a", b"1")
    watching = store.keys.watch()
    await store.keys.put("a", b"2")  # before anything was read from the watch
    assert brief((await anext(watching)).changes) == [("put", "a", b"2")]
    await watching.aclose()


@pytest.mark.slow
async def test_every_revision_can_be_begun_at(store):
    """Several changes in one frame, several operations in one change, and frames that hold other things, too."""
    await store.keys.put("x", b"0", namespace="other")
    puts = [store.keys.put(f"{n}", b"1", namespace="n") for n in range(5)]
    await asyncio.gather(*puts, store.keys.put("x", b"1", namespace="other"))
    await append(store, frame((16, b"a message")))
    await store.keys.transact({}, [Put("5", b"5"), Delete("0"), Delete("nobody"), Put("6", b"6")], namespace="n")
    await asyncio.gather(store.keys.delete("1", namespace="n"), store.keys.put("7", b"", namespace="n"))
    everything = await seen(store, 10, namespace="n", from_revision=0)
    assert brief(everything) == [
        *(("put", str(n), b"1") for n in range(5)),
        ("put", "5", b"5"),
        ("delete", "0", b""),
        ("put", "6", b"6"),
        ("delete", "1", b""),
        ("put", "7", b""),
    ]
    for at in range(store.log.confirmed + 1):
        wanted = [change for change in everything if change.revision >= at]
        if wanted:
            assert await seen(store, len(wanted), namespace="n", from_revision=at) == wanted
    assert brief(await seen(store, 3, "2", "5", namespace="n", from_revision=0)) == [
        ("put", str(n), b"1") for n in (2, 3, 4)
    ]


async def test_what_had_no_effect_is_not_history(store):
    revision = await store.keys.put("a", b"1")
    outcomes = await asyncio.gather(
        store.keys.put("a", b"no", expected_revision=0),
        store.keys.put("a", b"2", expected_revision=revision),
        store.keys.put("a", b"no", expected_revision=revision),
        store.keys.delete("nobody"),
        store.keys.delete("a", expected_revision=1 << 60),
        store.keys.transact({"b": revision}, [Put("b", b"no")]),
        store.keys.transact({}, [Delete("nobody")]),
        return_exceptions=True,
    )
    assert [isinstance(outcome, RevisionConflict) for outcome in outcomes] == [
        True, False, True, False, True, True, False,
    ]  # fmt: skip
    await store.keys.put("end", b"")
    wanted = [("put", "a", b"1"), ("put", "a", b"2"), ("put", "end", b"")]
    assert brief(await seen(store, 3, from_revision=0)) == wanted
    if store.core.recent.runs():
        await store.core.until_dispatched(store.log.confirmed)
    assert brief(await seen(store, 3, from_revision=0)) == wanted


async def test_a_revision_that_is_still_to_come(store):
    await store.keys.put("a", b"1")
    watching = store.keys.watch(from_revision=store.log.confirmed + 200)
    following = asyncio.ensure_future(anext(watching))
    found = []
    while not following.done():
        found.append(await store.keys.put("a", bytes(30)))
        await asyncio.sleep(0)
    assert (await following).changes[0].revision == next(at for at in found if at > found[0] and at >= found[-1])
    await watching.aclose()


async def test_a_slow_watcher_reads_the_log(store, monkeypatch):
    monkeypatch.setattr(feed_module, "FEED_COUNT_MAX", 8)
    monkeypatch.setattr(watch_module, "HISTORY_BYTES", 1_000)
    watching = store.keys.watch()
    following = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    await store.keys.put("0", b"")
    found = list((await following).changes)
    for n in range(1, 200):
        await store.keys.put(str(n), b"")
        if n in {100, 101, 150}:
            found += (await anext(watching)).changes
    async with asyncio.timeout(20):
        while len(found) < 200:
            found += (await anext(watching)).changes
    assert [change.key for change in found] == [str(n) for n in range(200)]
    assert len(store.core.recent.kv.feeds._feeds[""]._changes) <= 8
    await watching.aclose()


async def test_batches_are_bounded_and_divide_no_revision(store, monkeypatch):
    monkeypatch.setattr(watch_module, "BATCH_COUNT_MAX", 3)
    for n in range(3):
        await store.keys.transact({}, [Put(f"{n}{i}", b"") for i in range(5)])
        await asyncio.gather(*(store.keys.put(f"{n}-{i}", b"") for i in range(5)))
    for options in ({}, {"from_revision": 0}):
        watching = store.keys.watch("0", "3", **options)
        if not options:
            reading = asyncio.ensure_future(anext(watching))
            await asyncio.sleep(0)
            await store.keys.transact({}, [Put(f"0{i}", b"") for i in range(7)])
            assert len((await reading).changes) == 7
        else:
            sizes = []
            while sum(sizes) < 37:
                batch = await anext(watching)
                assert batch.next == batch.changes[-1].revision + 1
                sizes.append(len(batch.changes))
            assert sizes == [5, 3, 2 + 5, 3, 2 + 5, 3, 2 + 7]
        await watching.aclose()


async def test_history_crosses_a_restart(tmp_path):
    found = []
    for n in range(3):
        async with await LocalStore.open(tmp_path, linger_s=HOUR_S) as store:
            found.append(await store.keys.put("a", b"%d" % n))
            with pytest.raises(RevisionConflict):
                await store.keys.put("a", b"no", expected_revision=0)
            changes = await seen(store, n + 1, from_revision=0)
            assert [(change.value, change.revision) for change in changes] == [
                (b"%d" % i, revision) for i, revision in enumerate(found)
            ]


async def test_many_watchers_see_the_same(store):
    watches = [store.keys.watch(f"{n % 3}", f"{n % 3 + 1}") for n in range(30)]
    readings = [asyncio.ensure_future(anext(watching)) for watching in watches]
    await asyncio.sleep(0)
    await asyncio.gather(*(store.keys.put(f"{n}", b"") for n in range(3)))
    for n, reading in enumerate(readings):
        assert [change.key for change in (await reading).changes] == [f"{n % 3}"]
    for watching in watches:
        await watching.aclose()
    assert not store.core.recent.kv.feeds


@pytest.mark.parametrize("linger_s", [0.001, HOUR_S])
async def test_retention_has_taken_it(tmp_path, monkeypatch, linger_s):
    monkeypatch.setattr(watch_module, "HISTORY_BYTES", 500)
    async with await LocalStore.open(tmp_path, linger_s=linger_s, segment_size_bytes=2_000) as store:
        revisions = []
        for _ in range(50):
            revisions.append(await store.keys.put("a", bytes(100)))
            with pytest.raises(RevisionConflict):
                await store.keys.put("a", b"", expected_revision=0)
        slow, quick = store.keys.watch(from_revision=revisions[0]), store.keys.watch(from_revision=revisions[30])
        await anext(slow)
        found = [change.revision for change in (await anext(quick)).changes]
        first = revisions[20] - 1
        await append(store, records_frame(LogTrimmed(first, 0)))
        if linger_s < 1:
            await store.core.until_dispatched(store.log.confirmed)
            with store.core.engine.views.reading() as txn:
                assert min(at for at, _ in store.core.engine.views.kv.voids(txn, 0, 1 << 62)) > first
        for at in (0, revisions[0], first):
            with pytest.raises(RevisionCompacted) as caught:
                store.keys.watch(from_revision=at)
            assert (caught.value.revision, caught.value.earliest) == (at, first + 1)
        left = revisions[20:]
        for at in (first + 1, left[0], left[1]):
            changes = await seen(store, len([n for n in left if n >= at]), from_revision=at)
            assert [change.revision for change in changes] == [n for n in left if n >= at]
        with pytest.raises(RevisionCompacted):
            await anext(slow)
        while found[-1] < revisions[-1]:
            found += [change.revision for change in (await anext(quick)).changes]
        assert found == revisions[30:]
        await quick.aclose()
        assert (await store.keys.get("a")).revision == revisions[-1]


async def test_damage_is_no_gap_in_silence(tmp_path):
    async with await LocalStore.open(tmp_path, linger_s=HOUR_S, cache_bytes_max=0) as store:
        await store.keys.put("a", b"1")
        second = await store.keys.put("a", b"2")
        path = next((tmp_path / "log").iterdir())
        data = bytearray(path.read_bytes())
        data[second + 70] ^= 1
        path.write_bytes(data)
        watching = store.keys.watch(from_revision=0)
        assert brief((await anext(watching)).changes) == [("put", "a", b"1")]
        with pytest.raises(RevisionCompacted) as caught:
            await anext(watching)
        assert caught.value.revision == second
        assert caught.value.earliest == store.replication.end + 1


@pytest.mark.slow
def test_a_feed_forgets_whole_revisions():
    feed = KvFeed(5)
    for revision in range(5, 400):
        for _ in range(100):
            feed.add(Change("put", "k", b"", revision))
    changes = feed.since(feed.complete_from)
    assert 0 < len(changes) <= feed_module.FEED_COUNT_MAX
    assert len(changes) % 100 == 0
    assert changes[0].revision == feed.complete_from
    assert feed.since(399) == changes[-100:]
    assert feed.since(400) == []
    feed.add(Change("put", "k", bytes(feed_module.FEED_BYTES_MAX + 1), 400))
    assert len(feed.since(400)) == 1
    feed.add(Change("put", "k", b"", 401))
    assert LogOffset(feed.complete_from) in {400, 401}
