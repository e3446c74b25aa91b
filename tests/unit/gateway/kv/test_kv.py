"""Keys and values for adapters, over a store."""

import asyncio

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.kv import kv as kv_module
from gateway.kv.kv import KeyValues
from gateway.kv.settings import KvConfig, NamespaceSettings
from gateway.port.kv import (
    Compacted,
    CountKeys,
    GetKey,
    HoldKeys,
    KeyConflict,
    ListKeys,
    Match,
    NextChanges,
    ReleaseKeys,
    RemoveKey,
    StoreKey,
    TransactKeys,
    UnwatchKeys,
    WatchKeys,
)
from store.api.keys import EXISTS, HOLD_MS, Delete, Namespace, Put
from store.base.errors import SnapshotLost
from store.local.local import LocalStore
from tests.support.gateway.kv_rig import Connection, KvRig
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        yield KvRig(store)


EVERYTHING = [
    GetKey(key="a"),
    StoreKey(key="a", value=b""),
    RemoveKey(key="a"),
    TransactKeys(compares={}, operations=[Put("a", b"")]),
    ListKeys(),
    CountKeys(),
    WatchKeys(watch=1),
]


@pytest.mark.parametrize("request_", EVERYTHING, ids=lambda one: type(one).__name__)
async def test_the_gateways_own_namespaces_are_closed(rig, request_):
    kind = type(request_)
    fields = {name: getattr(request_, name) for name in request_.__struct_fields__}
    await rig.store.keys.put("a", b"a session")
    for namespace in ("", "$sys", "$", "_x"):
        assert (await rig.refused(kind(**{**fields, "namespace": namespace}))).cause is Cause.FORBIDDEN
    for namespace in ("a/b", "ü", " ", ".a", "a" * 29, "a\n"):
        assert (await rig.refused(kind(**{**fields, "namespace": namespace}))).cause is Cause.MALFORMED
    await rig.ask(kind(**{**fields, "namespace": "a" * 28}))
    assert (await rig.store.keys.get("a")).value == b"a session"
    assert (await rig.store.keys.range()).entries[0].version == 1


async def test_a_key(rig):
    first = await rig.put("a", b"1")
    done = await rig.ask(StoreKey(key="a", value=b"2", ttl_ms=60_000))
    entry = await rig.ask(GetKey(key="a"))
    assert (entry.value, entry.revision, entry.create_revision) == (b"2", done.revision, first)
    assert entry.expires_at_ms is not None
    assert done.existed == (True,)
    assert (await rig.ask(ListKeys())).entries == [entry]
    assert await rig.ask(CountKeys()) == 1
    assert await rig.ask(RemoveKey(key="a"))
    assert not await rig.ask(RemoveKey(key="a"))
    assert await rig.ask(GetKey(key="a")) is None


async def test_conditions(rig):
    a = await rig.put("a")
    b = await rig.put("a", match=Match(any_of=(a,)))
    for match in (
        Match(any_of=(a,)),
        Match(any_of=(0,)),
        Match(any_of=(a, 0)),
        Match(none_of=(b,)),
        Match(none_of=(EXISTS,)),
        Match(any_of=(EXISTS,), none_of=(a, b)),
    ):
        for request in (StoreKey(key="a", value=b"no", match=match), RemoveKey(key="a", match=match)):
            refusal = await rig.refused(request)
            assert isinstance(refusal, KeyConflict)
            assert (refusal.cause, refusal.key, refusal.revision) == (Cause.PRECONDITION, "a", b)
    assert (await rig.refused(StoreKey(key="c", value=b"", match=Match(any_of=(EXISTS,))))).revision == 0
    c = await rig.put("a", match=Match(any_of=(a, b)))
    d = await rig.put("a", match=Match(none_of=(a, b)))
    await rig.put("a", match=Match(any_of=(EXISTS,), none_of=(c,)))
    await rig.put("b", match=Match(none_of=(d,)))
    await rig.put("c", match=Match(any_of=(5, 0)))


async def test_a_condition_that_takes_several_tries(rig, monkeypatch):
    """Between the look at a key and its change somebody else changes it."""
    await rig.put("a", b"0")
    get, met = rig.store.keys.get, 0

    async def meddling(key, *, namespace):
        nonlocal met
        found = await get(key, namespace=namespace)
        if met:
            met -= 1
            await rig.store.keys.put(key, b"meddled", namespace=namespace)
        return found

    monkeypatch.setattr(rig.store.keys, "get", meddling)
    met = 3
    await rig.put("a", b"mine", match=Match(none_of=(5,)))
    assert (await get("a", namespace="default")).value == b"mine"
    met = kv_module.TRIES_COUNT_MAX
    assert (await rig.refused(StoreKey(key="a", value=b"", match=Match(none_of=(5,))))).cause is Cause.OVERLOAD


async def test_transactions(rig):
    a = await rig.put("a")
    done = await rig.ask(TransactKeys(compares={"a": a}, operations=[Delete("a"), Put("b", b"1", ttl_ms=60_000)]))
    assert done.existed == (True, False)
    refusal = await rig.refused(TransactKeys(compares={"b": 0}, operations=[]))
    assert (refusal.key, refusal.revision) == ("b", done.revision)
    assert (await rig.refused(TransactKeys(compares={}, operations=[Delete("a")] * 2))).cause is Cause.TOO_LARGE


async def test_what_the_store_refuses(rig, monkeypatch):
    assert (await rig.refused(GetKey(key="x" * 481))).cause is Cause.MALFORMED
    assert (await rig.refused(StoreKey(key="x", value=bytes(64 << 20)))).cause is Cause.TOO_LARGE
    await rig.store.keys.limit("default", keys_max=1)
    await rig.put("a")
    assert (await rig.refused(StoreKey(key="b", value=b""))).cause is Cause.QUOTA

    async def lost(*_args, **_options):
        raise SnapshotLost("the views have grown")

    monkeypatch.setattr(rig.store.keys, "range", lost)
    assert isinstance(await rig.refused(ListKeys(at_revision=5)), Compacted)
    await rig.store.close()
    assert (await rig.refused(GetKey(key="a"))).cause is Cause.UNAVAILABLE


# ---- holds


async def test_holds_end_with_their_connection(rig):
    for key in "ab":
        await rig.put(key)
        mine, its = await rig.ask(HoldKeys()), await rig.ask(HoldKeys(), rig.other)
    assert mine == its
    await rig.put("a", b"new")
    assert [one.value for one in (await rig.ask(ListKeys(at_revision=mine), rig.other)).entries] == [b"", b""]
    await rig.ask(ReleaseKeys(revision=mine))
    assert (await rig.refused(ReleaseKeys(revision=mine))).cause is Cause.NOT_FOUND
    await rig.ask(ListKeys(at_revision=its))
    await rig.keys.leave(rig.one)
    await rig.keys.leave(rig.other)
    refusal = await rig.refused(ListKeys(at_revision=its))
    assert isinstance(refusal, Compacted)
    assert not rig.keys.holds
    assert not rig.store.keys.holds._holds


async def test_a_connection_holds_only_so_much(rig):
    for n in range(kv_module.HOLDS_COUNT_MAX):
        await rig.put(str(n))
        await rig.ask(HoldKeys())
    assert (await rig.refused(HoldKeys())).cause is Cause.QUOTA
    await rig.ask(HoldKeys(), rig.other)
    gone = Connection(3)
    gone.gone = True
    assert (await rig.refused(HoldKeys(), gone)).cause is Cause.UNAVAILABLE


async def test_holds_asked_for_at_once_count(rig, monkeypatch):
    """All of them counted the holds that the store had given before."""
    hold = rig.store.keys.hold

    async def far_away():
        await asyncio.sleep(0)
        return await hold()

    monkeypatch.setattr(rig.store.keys, "hold", far_away)
    done = await asyncio.gather(*(rig.ask(HoldKeys()) for _ in range(9)), return_exceptions=True)
    assert [getattr(one, "cause", None) for one in done] == [None] * kv_module.HOLDS_COUNT_MAX + [Cause.QUOTA] * 5
    await rig.keys.leave(rig.one)
    await rig.ask(HoldKeys())


async def test_a_hold_that_was_not_read_for_a_minute_counts_no_more_and_ends_no_other(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        rig = KvRig(store, now_ms=clock)
        read = await rig.ask(HoldKeys())
        for n in range(2 * kv_module.HOLDS_COUNT_MAX):
            clock.ms += HOLD_MS - 1
            await rig.ask(ListKeys(at_revision=read))
            clock.ms += 1
            await store.keys.look()
            await rig.put(str(n))
            last = await rig.ask(HoldKeys())
        clock.ms += HOLD_MS
        await store.keys.look()
        mine = await rig.ask(HoldKeys(), rig.other)
        assert mine == last
        await rig.keys.leave(rig.one)
        await rig.ask(ListKeys(at_revision=mine), rig.other)
        await rig.keys.leave(rig.other)
        assert not rig.store.keys.holds._holds


# ---- watches


async def test_a_watch(rig):
    first = await rig.put("a", b"1")
    await rig.put("z", b"1", namespace="other")
    await rig.ask(WatchKeys(watch=7, start="a", end="c", from_revision=first))
    assert [change.value for change in (await rig.ask(NextChanges(watch=7))).changes] == [b"1"]
    reading = asyncio.ensure_future(rig.ask(NextChanges(watch=7)))
    await asyncio.sleep(0)
    assert (await rig.refused(NextChanges(watch=7))).cause is Cause.CONFLICT
    await rig.put("c")
    await rig.put("b", b"2")
    assert [change.key for change in (await reading).changes] == ["b"]
    assert (await rig.refused(WatchKeys(watch=7))).cause is Cause.CONFLICT
    assert (await rig.refused(NextChanges(watch=7), rig.other)).cause is Cause.NOT_FOUND
    await rig.ask(WatchKeys(watch=7), rig.other)
    await rig.ask(UnwatchKeys(watch=7))
    await rig.ask(UnwatchKeys(watch=7))
    assert (await rig.refused(NextChanges(watch=7))).cause is Cause.NOT_FOUND
    await rig.keys.leave(rig.other)
    assert not rig.keys._watches
    assert not rig.store.core.recent.kv.feeds


async def test_a_watch_says_where_it_begins(rig):
    """A client that loses its connection before the first change goes on from there."""
    revision = await rig.put("b", b"1")
    began = await rig.ask(WatchKeys(watch=1, start="a", end="c"))
    assert began >= revision
    await rig.ask(UnwatchKeys(watch=1))
    await rig.put("b", b"2")
    assert await rig.ask(WatchKeys(watch=1, start="a", from_revision=began + 1)) == began
    assert [change.value for change in (await rig.ask(NextChanges(watch=1))).changes] == [b"2"]
    assert await rig.ask(WatchKeys(watch=2, from_revision=0)) == 0
    await rig.keys.leave(rig.one)


async def test_a_watch_behind_the_newest_revision_begins_now(rig):
    """Its client has seen a log that has been replaced since, and would hear nothing until that is as long."""
    revision = await rig.put("b", b"1")
    began = await rig.ask(WatchKeys(watch=1, from_revision=revision + 1_000_000))
    assert revision <= began < revision + 1_000_000
    await rig.put("b", b"2")
    assert [change.value for change in (await rig.ask(NextChanges(watch=1))).changes] == [b"2"]
    await rig.keys.leave(rig.one)


@pytest.mark.parametrize("end", ["unwatch", "leave"])
async def test_a_watch_that_ends_while_it_begins_leaves_nothing(rig, end, monkeypatch):
    """Over HTTP/2 its stream is reset and its connection goes on, which may have so many watches."""
    read = rig.store.keys.range

    async def ended(*given, **named):
        found = await read(*given, **named)
        await (rig.ask(UnwatchKeys(watch=1)) if end == "unwatch" else rig.keys.leave(rig.one))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(rig.store.keys, "range", ended)
        assert (await rig.refused(WatchKeys(watch=1))).cause is Cause.UNAVAILABLE
    assert not rig.keys._watches
    assert not rig.store.core.recent.kv.feeds


@pytest.mark.parametrize("end", ["unwatch", "leave"])
async def test_a_watch_that_ends_while_it_is_read(rig, end):
    await rig.ask(WatchKeys(watch=1))
    reading = asyncio.ensure_future(rig.ask(NextChanges(watch=1)))
    for _ in range(3):
        await asyncio.sleep(0)
    if end == "unwatch":
        await rig.ask(UnwatchKeys(watch=1))
    else:
        await rig.keys.leave(rig.one)
    with pytest.raises(Refusal) as caught:
        await reading
    assert caught.value.cause is Cause.UNAVAILABLE
    assert not rig.store.core.recent.kv.feeds


async def test_a_reader_that_is_cancelled(rig):
    await rig.ask(WatchKeys(watch=1))
    reading = asyncio.ensure_future(rig.ask(NextChanges(watch=1)))
    for _ in range(3):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await rig.keys.leave(rig.one)


async def test_so_many_watches(rig, monkeypatch):
    monkeypatch.setattr(kv_module, "WATCHES_COUNT_MAX", 2)
    for n in range(2):
        await rig.ask(WatchKeys(watch=n))
    assert (await rig.refused(WatchKeys(watch=2))).cause is Cause.QUOTA
    await rig.ask(UnwatchKeys(watch=0))
    await rig.ask(WatchKeys(watch=2))
    await rig.keys.leave(rig.one)


# ---- configuration


async def test_limits_of_namespaces_are_told_once(rig):
    config = KvConfig(namespaces=(NamespaceSettings(name="small", keys_max=1), NamespaceSettings(name="free")))
    keys = KeyValues(rig.store, config)
    await keys.start()
    before = rig.store.log.confirmed
    await KeyValues(rig.store, config).start()
    assert rig.store.log.confirmed == before
    assert await rig.store.keys.namespaces() == [Namespace("small", 0, 0, 1, 0)]
    await rig.put("a", namespace="small")
    assert (await rig.refused(StoreKey(key="b", value=b"", namespace="small"))).cause is Cause.QUOTA
    await KeyValues(rig.store, KvConfig(namespaces=(NamespaceSettings(name="small", bytes_max=9),))).start()
    await rig.put("b", namespace="small")
    await rig.store.close()
    await keys.start()  # says so in the log, and does not keep the gateway from starting


async def test_only_configured_namespaces(rig):
    rig.keys = KeyValues(rig.store, KvConfig(open=False, namespaces=(NamespaceSettings(name="mine"),)))
    await rig.put("a", namespace="mine")
    for namespace in ("default", "", "other"):
        assert (await rig.refused(GetKey(key="a", namespace=namespace))).cause is Cause.FORBIDDEN
