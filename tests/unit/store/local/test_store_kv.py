"""The key-value store: namespaces, versions, transactions, time to live, limits, ranges, holds."""

import asyncio

import pytest

from store.api.keys import EXISTS, HOLD_MS, Delete, Entry, Namespace, Put
from store.api.kv_rules import KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, OPERATIONS_COUNT_MAX, end_of_prefix
from store.base.errors import (
    KeyTooLong,
    NamespaceFull,
    RevisionCompacted,
    RevisionConflict,
    SnapshotLost,
    StoreClosed,
    TooManyHolds,
    TransactionTooLarge,
)
from store.format.records import KvPut, KvTransaction
from store.local import key_reading as reading
from store.local import keys as local_keys
from store.local.local import LocalStore
from tests.support.process.clock import Clock
from tests.support.store.store_kit import append, behind, records_frame

pytestmark = pytest.mark.anyio
HOUR_S = 3600


@pytest.fixture
async def clock():
    return Clock(1_000_000)


class KvStages:
    """A store, and the way from what is only in memory to what is in the views, or on disk."""

    def __init__(self, path, clock, stage):
        self.path, self.clock, self.stage = path, clock, stage

    async def open(self, **options):
        linger_s = 0.001 if self.stage == "dispatched" else HOUR_S
        self.store = await LocalStore.open(self.path, **{"now_ms": self.clock, "linger_s": linger_s, **options})
        return self.store

    async def settle(self):
        if self.stage == "dispatched":
            await self.store.core.until_dispatched(self.store.log.confirmed)
        elif self.stage == "reopened":
            await self.store.close()
            await self.open()
        return self.store


@pytest.fixture(params=["recent", "dispatched", "reopened"])
async def stores(request, tmp_path, clock):
    stores = KvStages(tmp_path / "data", clock, request.param)
    await stores.open()
    yield stores
    await stores.store.close()


@pytest.fixture
async def store(tmp_path, clock):
    async with await LocalStore.open(tmp_path / "data", now_ms=clock, linger_s=0.001) as store:
        yield store


async def keys(store, **wanted):
    return [entry.key for entry in (await store.keys.range(**wanted)).entries]


# ---- versions and namespaces


async def test_an_entry_tells_where_it_comes_from(stores):
    first = await stores.store.keys.put("a", b"1")
    second = await stores.store.keys.put("a", b"2")
    store = await stores.settle()
    assert await store.keys.get("a") == Entry("a", b"2", second, first, 2)
    assert await store.keys.delete("a")
    third = await store.keys.put("a", b"3", expires_at_ms=stores.clock.ms + 5)
    store = await stores.settle()
    assert await store.keys.get("a") == Entry("a", b"3", third, third, 1, stores.clock.ms + 5)


async def test_keys_of_namespaces_never_meet(stores):
    names = ["", "a", "ab", "a" * NAMESPACE_BYTES_MAX, "é"]
    for name in names:
        for key in ("", "a", "b", "ab"):
            await stores.store.keys.put(key, f"{name}:{key}".encode(), namespace=name)
    store = await stores.settle()
    for name in names:
        page = await store.keys.range(namespace=name)
        assert [(one.namespace, one.key, one.value) for one in page.entries] == [
            (name, key, f"{name}:{key}".encode()) for key in ("", "a", "ab", "b")
        ]
        assert [one.key for one in await store.keys.prefix("a", namespace=name)] == ["a", "ab"]
        assert await store.keys.count(namespace=name) == 4
    assert await store.keys.delete("a", namespace="a")
    assert (await store.keys.get("a", namespace="ab")).value == b"ab:a"
    assert await store.keys.get("a", namespace="a") is None
    assert await store.keys.get("a", namespace="nobody") is None


async def test_what_is_too_long_is_refused(store):
    long = "x" * (KEY_BYTES_MAX + 1)
    calls = [
        lambda: store.keys.get(long),
        lambda: store.keys.put(long, b""),
        lambda: store.keys.delete(long),
        lambda: store.keys.transact({long: 0}, []),
        lambda: store.keys.transact({}, [Delete(long)]),
        lambda: store.keys.range(long),
        lambda: store.keys.range(after=long),
        lambda: store.keys.prefix(long),
        lambda: store.keys.count(long),
        lambda: store.keys.get("", namespace="n" * (NAMESPACE_BYTES_MAX + 1)),
        lambda: store.keys.limit("n" * (NAMESPACE_BYTES_MAX + 1)),
    ]
    for call in calls:
        with pytest.raises(KeyTooLong):
            await call()
    longest = "\x7f" * KEY_BYTES_MAX  # the first key behind this prefix is longer than a key may be
    await store.keys.put(longest, b"1", namespace="n" * NAMESPACE_BYTES_MAX)
    found = await store.keys.prefix(longest, namespace="n" * NAMESPACE_BYTES_MAX)
    assert [one.value for one in found] == [b"1"]


async def test_a_record_that_the_view_cannot_hold_has_no_effect(stores):
    await append(
        stores.store,
        records_frame(
            KvPut("x" * 481, b""),
            KvPut("a", b"", None, "n" * 29),
            KvTransaction("", (), (("b", b"1", 0), ("x" * 481, b"", 0))),
            KvTransaction("", (), (("c", b"1", 0), ("c", b"2", 0))),
            KvTransaction("n" * 29, (("d", 0),), (("d", b"1", 0),)),
        ),
    )
    store = await stores.settle()
    assert await keys(store) == []
    assert await store.keys.namespaces() == []


async def test_a_revision_that_only_has_to_be_there(stores):
    store = stores.store
    with pytest.raises(RevisionConflict) as caught:
        await store.keys.put("a", b"", expected_revision=EXISTS)
    assert (caught.value.expected, caught.value.actual) == (EXISTS, 0)
    await store.keys.put("a", b"1")
    store = await stores.settle()
    await store.keys.put("a", b"2", expected_revision=EXISTS)
    assert await store.keys.delete("a", expected_revision=EXISTS)
    with pytest.raises(RevisionConflict):
        await store.keys.delete("a", expected_revision=EXISTS)


# ---- transactions


async def test_a_transaction_is_one_change(stores):
    store = stores.store
    a = await store.keys.put("a", b"1", namespace="n")
    b = await store.keys.put("b", b"1", namespace="n")
    store = await stores.settle()
    done = await store.keys.transact(
        {"a": a, "b": EXISTS, "c": 0},
        [Put("c", b"2"), Delete("a"), Put("b", b"2", stores.clock.ms + 10), Delete("d")],
        namespace="n",
    )
    assert done.existed == (False, True, True, False)
    store = await stores.settle()
    assert (await store.keys.range(namespace="n")).entries == [
        Entry("b", b"2", done.revision, b, 2, stores.clock.ms + 10, "n"),
        Entry("c", b"2", done.revision, done.revision, 1, None, "n"),
    ]


@pytest.mark.parametrize(("compares", "key", "actual"), [({"a": 0}, "a", 1), ({"a": EXISTS, "b": 7}, "b", 0)])
async def test_a_transaction_that_does_not_hold_does_nothing(stores, compares, key, actual):
    revision = await stores.store.keys.put("a", b"1")
    store = await stores.settle()
    with pytest.raises(RevisionConflict) as caught:
        await store.keys.transact(compares, [Put("a", b"2"), Put("b", b"2")])
    assert (caught.value.key, caught.value.actual) == (key, actual and revision)
    store = await stores.settle()
    assert await keys(store) == ["a"]
    assert (await store.keys.get("a")).value == b"1"


async def test_limits_of_a_transaction(store):
    with pytest.raises(TransactionTooLarge):
        await store.keys.transact({}, [Put("a", b""), Delete("a")])
    with pytest.raises(TransactionTooLarge):
        await store.keys.transact({}, [Delete(str(n)) for n in range(OPERATIONS_COUNT_MAX + 1)])
    with pytest.raises(TransactionTooLarge):
        await store.keys.transact({str(n): 0 for n in range(OPERATIONS_COUNT_MAX + 1)}, [])
    done = await store.keys.transact({}, [Put(str(n), b"") for n in range(OPERATIONS_COUNT_MAX)])
    assert await store.keys.count() == OPERATIONS_COUNT_MAX
    assert (await store.keys.transact({"0": done.revision}, [])).revision > done.revision


async def test_of_many_transactions_at_once_one_holds(store):
    outcomes = await asyncio.gather(
        *(store.keys.transact({"a": 0, "b": 0}, [Put("a", b"%d" % n), Put("b", b"%d" % n)]) for n in range(20)),
        return_exceptions=True,
    )
    assert [isinstance(outcome, RevisionConflict) for outcome in outcomes] == [False] + [True] * 19
    assert (await store.keys.get("a")).value == (await store.keys.get("b")).value == b"0"


# ---- time to live


async def test_nobody_sees_what_has_expired(stores):
    store, clock = stores.store, stores.clock
    start_ms = clock.ms
    await store.keys.put("a", b"1", ttl_ms=100)
    await store.keys.put("b", b"1", expires_at_ms=start_ms + 200)
    await store.keys.put("c", b"1")
    store = await stores.settle()
    clock.ms = start_ms + 99
    assert await keys(store) == ["a", "b", "c"]
    clock.ms = start_ms + 100
    assert await store.keys.get("a") is None
    assert await keys(store) == ["b", "c"]
    assert [entry.key for entry in await store.keys.prefix("")] == ["b", "c"]
    assert await store.keys.count() == 2
    assert not await store.keys.delete("a")
    with pytest.raises(RevisionConflict) as caught:
        await store.keys.put("a", b"", expected_revision=EXISTS)
    assert caught.value.actual == 0
    clock.ms = start_ms + 50  # a clock that is set back brings nothing back
    assert await store.keys.get("a") is None
    revision = await store.keys.put("a", b"2", expected_revision=0)
    store = await stores.settle()
    assert await store.keys.get("a") == Entry("a", b"2", revision, revision, 1)


async def test_what_was_expired_stays_so_after_a_restart(tmp_path, clock):
    stores = KvStages(tmp_path, clock, "reopened")
    store = await stores.open()
    await store.keys.put("a", b"1", ttl_ms=10)
    clock.ms += 20
    await store.keys.put("b", b"1")
    clock.ms -= 20  # another machine's clock
    store = await stores.settle()
    assert await store.keys.get("a") is None
    await store.close()


async def test_what_has_expired_is_swept(stores):
    store, clock = stores.store, stores.clock
    for n in range(5):
        await store.keys.put(str(n), b"12345", ttl_ms=100 * (n + 1), namespace="n")
    await store.keys.put("0", b"", ttl_ms=1_000, namespace="n")  # another time counts now
    await store.keys.put("1", b"", namespace="n")  # and here none
    await store.keys.delete("2", namespace="n")
    store = await stores.settle()
    assert [space[:3] for space in await store.keys.namespaces()] == [("n", 4, 4 + 10)]
    clock.ms += 500
    before = store.log.confirmed
    await store.tick()
    assert store.log.confirmed > before
    assert [space[:3] for space in await store.keys.namespaces()] == [("n", 2, 2)]
    store = await stores.settle()
    before = store.log.confirmed
    await store.tick()
    assert store.log.confirmed == before
    assert await keys(store, namespace="n") == ["0", "1"]
    clock.ms += 500
    await store.tick()
    store = await stores.settle()
    assert [space[:3] for space in await store.keys.namespaces()] == [("n", 1, 1)]


async def test_more_expires_than_one_record_takes(stores, monkeypatch):
    monkeypatch.setattr(local_keys, "SWEEP_COUNT_MAX", 7)
    await asyncio.gather(*(stores.store.keys.put(f"{n}", b"", ttl_ms=1 + n % 3) for n in range(50)))
    store = await stores.settle()
    stores.clock.ms += 3
    assert await behind(store).keys.sweep(stores.clock.ms) == 50
    assert await store.keys.namespaces() == []


async def test_a_key_that_is_put_again_is_not_swept(store, clock):
    await store.keys.put("a", b"1", ttl_ms=10)
    clock.ms += 10
    due = behind(store).keys._due(clock.ms)
    assert len(due) == 1
    await store.keys.put("a", b"2", ttl_ms=10)
    assert await store.keys.get("a") is not None
    behind(store).keys._due = lambda _: due  # found before the put
    assert await behind(store).keys.sweep(clock.ms) == 0
    assert (await store.keys.get("a")).value == b"2"


async def test_expiry_needs_no_call(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        watching = store.keys.watch()
        await store.keys.put("a", b"1", ttl_ms=30)
        kinds = []
        async with asyncio.timeout(60):
            while len(kinds) < 2:  # together, where the write took longer than the key was to live
                kinds += [change.kind for change in (await anext(watching)).changes]
        assert kinds == ["put", "expire"]
        await watching.aclose()


@pytest.mark.parametrize("wrong", [{"ttl_ms": 0}, {"ttl_ms": -1}, {"expires_at_ms": 0}, {"expires_at_ms": 1 << 63}])
async def test_times_that_are_none(store, wrong):
    with pytest.raises(ValueError, match=r"time to live|cannot expire"):
        await store.keys.put("a", b"", **wrong)


# ---- limits of a namespace


async def test_a_full_namespace(stores):
    store = stores.store
    await store.keys.limit("n", keys_max=2, size_bytes_max=10)
    await store.keys.put("a", b"12", namespace="n")
    await store.keys.put("b", b"12", namespace="n")
    store = await stores.settle()
    with pytest.raises(NamespaceFull) as caught:
        await store.keys.put("c", b"", namespace="n")
    assert (caught.value.namespace, caught.value.keys_max, caught.value.size_bytes_max) == ("n", 2, 10)
    with pytest.raises(NamespaceFull):
        await store.keys.transact({}, [Put("b", b""), Put("a", b"1234567890")], namespace="n")
    await store.keys.transact({}, [Delete("b"), Put("c", b"123456")], namespace="n")
    store = await stores.settle()
    assert await store.keys.namespaces() == [Namespace("n", 2, 10, 2, 10)]
    with pytest.raises(NamespaceFull):
        await store.keys.put("a", b"123", namespace="n")
    await store.keys.limit("n", keys_max=1)
    await store.keys.put("a", b"1234567890", namespace="n")  # an existing key may be changed
    await store.keys.put("c", b"", namespace="other")
    assert [space.name for space in await store.keys.namespaces()] == ["n", "other"]
    for key in "ac":
        await store.keys.delete(key, namespace="n")
    await store.keys.limit("n")
    store = await stores.settle()
    assert [space.name for space in await store.keys.namespaces()] == ["other"]


# ---- ranges


def test_the_end_of_a_prefix():
    assert [end_of_prefix(prefix) for prefix in ("", "a", "a/", "a\U0010ffff", "\U0010ffff", "\ud7ff")] == [
        None,
        "b",
        "a0",
        "b",
        None,
        "\ue000",
    ]


async def test_pages_of_a_range(stores):
    everything = [f"{a}{b}" for a in "abc" for b in "xyz"]
    for key in everything:
        await stores.store.keys.put(key, key.encode())
    store = await stores.settle()
    await store.keys.delete("bx")
    await store.keys.put("by", b"new")
    everything.remove("bx")
    for limit in (1, 2, 3, 100):
        found, after, more = [], None, True
        while more:
            page = await store.keys.range("ay", "cy", after=after, limit=limit)
            more, after = page.more, page.entries[-1].key
            found += page.entries
        assert [entry.key for entry in found] == [key for key in everything if "ay" <= key < "cy"]
    assert await keys(store, start="b", end="b") == []
    assert await keys(store, start="c", end="a") == []
    assert await keys(store, after="cx") == ["cy", "cz"]
    assert await store.keys.count("b", "c") == 2
    page = await store.keys.range(limit=0)
    assert (page.entries, page.more) == ([], True)


async def test_a_page_is_not_larger_than_some_bytes(stores, monkeypatch):
    monkeypatch.setattr(reading, "PAGE_BYTES", 1000)
    for n in range(9):
        await stores.store.keys.put(str(n), bytes(400))
    store = await stores.settle()
    page = await store.keys.range()
    assert (len(page.entries), page.more) == (3, True)
    assert len(await store.keys.prefix("")) == 9
    assert len(await store.keys.prefix("", limit=5)) == 5


async def test_a_page_is_one_revision_whatever_is_written(store):
    """Two keys that change together are never seen apart."""
    await store.keys.transact({}, [Put("a", b"0"), Put("z", b"0")])
    stop = False

    async def write():
        n = 0
        while not stop:
            n += 1
            await store.keys.transact({}, [Put("a", b"%d" % n), Put("z", b"%d" % n)])

    writing = asyncio.ensure_future(write())
    last = 0
    for _ in range(200):
        page = await store.keys.range()
        a, z = page.entries
        assert a[1:3] == z[1:3]
        assert a.revision <= page.revision
        assert page.revision >= last
        last = page.revision
    stop = True
    await writing


@pytest.mark.slow
async def test_more_ranges_at_once_than_transactions(store):
    await store.keys.put("a", b"")
    pages = await asyncio.gather(*(store.keys.range() for _ in range(500)))
    assert all(len(page.entries) == 1 for page in pages)


async def test_a_cancelled_range_gives_its_transaction_back(store):
    reads = [asyncio.ensure_future(store.keys.range()) for _ in range(100)]
    await asyncio.sleep(0)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    await store.keys.range()
    async with asyncio.timeout(60):
        while store.core.engine.views.snapshots:
            await asyncio.sleep(0.001)


# ---- holds


async def test_a_held_state_stays_as_it_was(stores):
    store, clock = stores.store, stores.clock
    for n in range(10):
        await store.keys.put(str(n), b"old", ttl_ms=1000)
    store = await stores.settle()
    await store.keys.put("5", b"newer")
    at = await store.keys.hold()
    before = (await store.keys.range()).entries
    await store.keys.put("1", b"new")
    await store.keys.delete("2")
    await store.keys.put("55", b"new")
    clock.ms += 1000
    await store.tick()
    found, after, more = [], None, True
    while more:
        page = await store.keys.range(after=after, limit=3, at_revision=at)
        assert page.revision == at
        found += page.entries
        more, after = page.more, page.entries[-1].key
    assert found == before
    assert await keys(store) == ["1", "5", "55"]
    store.keys.release(at)
    with pytest.raises(RevisionCompacted):
        await store.keys.range(at_revision=at)


async def test_holds_of_one_revision_are_counted(store):
    await store.keys.put("a", b"")
    first, second = await store.keys.hold(), await store.keys.hold()
    assert first == second
    store.keys.release(first)
    assert len((await store.keys.range(at_revision=first)).entries) == 1
    store.keys.release(first)
    store.keys.release(first)
    with pytest.raises(RevisionCompacted):
        await store.keys.range(at_revision=first)
    assert not store.core.engine.views.snapshots


async def test_holds_that_nobody_reads_are_released(store, clock):
    at = await store.keys.hold()
    clock.ms += HOLD_MS - 1
    await store.tick()
    await store.keys.range(at_revision=at)
    clock.ms += HOLD_MS - 1
    await store.tick()
    await store.keys.range(at_revision=at)
    clock.ms += HOLD_MS
    await store.tick()
    with pytest.raises(RevisionCompacted):
        await store.keys.range(at_revision=at)


async def test_a_late_release_does_not_end_another_hold_of_the_same_revision(store, clock):
    late = [await store.keys.hold(), await store.keys.hold()]
    clock.ms += HOLD_MS
    await store.tick()
    at = await store.keys.hold()
    assert [at, at] == late
    for one in late:
        store.keys.release(one)
    await store.keys.range(at_revision=at)
    store.keys.release(at)
    with pytest.raises(RevisionCompacted):
        await store.keys.range(at_revision=at)
    assert not store.core.engine.views.snapshots


async def test_too_many_holds(store, monkeypatch):
    monkeypatch.setattr(reading, "HOLDS_COUNT_MAX", 2)
    for key in "ab":
        await store.keys.put(key, b"")
        at = await store.keys.hold()
    with pytest.raises(TooManyHolds):
        await store.keys.hold()
    store.keys.release(at)
    await store.keys.hold()


async def test_a_hold_is_lost_where_the_map_grows(tmp_path, clock):
    async with await LocalStore.open(tmp_path, now_ms=clock, linger_s=0.001, map_size_bytes=1 << 20) as store:
        await store.keys.put("a", b"1")
        at = await store.keys.hold()
        for n in range(8):
            await store.keys.put(str(n), bytes(1 << 18))
        await store.core.until_dispatched(store.log.confirmed)
        with pytest.raises(SnapshotLost):
            await store.keys.range(at_revision=at)
        assert len((await store.keys.range()).entries) == 9


async def test_a_closed_store(tmp_path, clock):
    store = await LocalStore.open(tmp_path, now_ms=clock)
    await store.keys.put("a", b"")
    at = await store.keys.hold()
    watching = store.keys.watch()
    following = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreClosed):
        await following
    for call in (
        store.keys.range,
        lambda: store.keys.range(at_revision=at),
        store.keys.count,
        store.keys.hold,
        store.keys.namespaces,
        lambda: store.keys.transact({}, []),
        lambda: store.keys.limit("n"),
    ):
        with pytest.raises(StoreClosed):
            await call()
    with pytest.raises(StoreClosed):
        store.keys.watch()
