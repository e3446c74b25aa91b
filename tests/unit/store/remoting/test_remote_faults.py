"""A store over a network that fails: nothing acknowledged is lost, nothing is there twice, and the order holds."""

import asyncio
import random

import pytest

from store.api.keys import Put
from store.api.log import Appended
from store.base.errors import (
    AppendOutcomeUnknown,
    LeaseLost,
    NotMaster,
    NotWritable,
    RevisionConflict,
    SequenceOutOfOrder,
    StoreError,
    StoreFailed,
    StoreOverloaded,
    StoreUnreachable,
)
from store.format.frame import ROW, Position
from store.local.local import LocalStore
from store.remoting import RemoteStore, appender, connection
from store.remoting.caller import CALLS_COUNT_MAX, Caller
from store.rpc import arguments
from store.rpc.table import AGAIN, HELD, ONCE
from tests.support.process.relay import Relay
from tests.support.process.waiting import until
from tests.support.store.remote_kit import Node
from tests.support.store.store_kit import append, begin, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def local(tmp_path):
    async with await LocalStore.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
async def node(local):
    node = await Node().start(local)
    yield node
    await node.stop()


@pytest.fixture
async def relay(node):
    async with Relay(node.port) as relay:
        yield relay


@pytest.fixture
async def store(relay):
    async with await RemoteStore.open(0, lambda: relay.target, budget_s=5) as store:
        yield store


def sequenced(count, *, producer=7, start=1):
    return [frame((16, b"%d" % n), producer_id=producer, sequence=n) for n in range(start, start + count)]


# ---- appends


@pytest.mark.slow
async def test_appends_survive_broken_connections_once_and_in_order(store, relay, local):
    chance = random.Random(1)
    futures, order = [], []
    for n, one in enumerate(sequenced(600)):
        futures += begin(store, one)
        futures[-1].add_done_callback(lambda _, n=n: order.append(n))
        if chance.random() < 0.02:
            relay.cut()
        if chance.random() < 0.2:
            await asyncio.sleep(chance.random() * 0.01)
    outcomes = await asyncio.gather(*futures)
    assert await bodies(local, 16) == [b"%d" % n for n in range(1, 601)]
    assert order == list(range(600))
    frames, _ = await local.log.scan(Position(0, 0), [16], max_bytes=1 << 20)
    assert [outcome.frame for outcome in outcomes] == [one.start for one in frames]


async def test_appends_survive_a_server_that_is_killed(store, relay, node, local):
    futures = []
    for n, one in enumerate(sequenced(400)):
        futures += begin(store, one)
        if n % 100 == 50:
            await asyncio.sleep(0.01)
            await node.kill()
            await asyncio.sleep(0.02)
            await node.start(local)
            relay.cut()
    await asyncio.gather(*futures)
    assert await bodies(local, 16) == [b"%d" % n for n in range(1, 401)]


async def test_appends_survive_a_store_that_is_closed_and_opened_again(tmp_path):
    """As when a node changes its role and comes back to it."""
    local = await LocalStore.open(tmp_path / "data")
    node = await Node().start(local)
    async with await RemoteStore.open(0, lambda: node.target, budget_s=5) as store:
        futures = []
        for n, one in enumerate(sequenced(200)):
            futures += begin(store, one)
            if n % 50 == 25:
                await asyncio.sleep(0.005)
                await node.service.node.stand_down()
                await local.close()
                local = await LocalStore.open(tmp_path / "data")
                node.service.node.serve(local)
        await asyncio.gather(*futures)
        assert await bodies(store, 16) == [b"%d" % n for n in range(1, 201)]
    await node.stop()
    await local.close()


async def test_what_is_not_idempotent_is_unknown_when_the_connection_breaks(store, relay, local, monkeypatch):
    relay.hold()
    sent = begin(store, *(frame((16, b"x")) for _ in range(3)))
    await until(lambda: len(store.connection.appender.sent) == 3)
    relay.cut()
    relay.resume()
    for future in sent:
        with pytest.raises(AppendOutcomeUnknown):
            await future
    await append(store, frame((16, b"y")))  # on the next connection
    assert store.log.pending_bytes == 0


@pytest.mark.slow
async def test_what_was_sent_is_unknown_after_the_deadline_and_what_was_not_is_not_stored(relay, node, local):
    async with await RemoteStore.open(0, lambda: relay.target, budget_s=0.3) as store:
        relay.hold()
        (sent,) = begin(store, *sequenced(1))
        await until(lambda: store.connection.appender.sent)
        await node.kill()
        relay.cut()
        await until(lambda: not store.is_connected)
        (waiting,) = begin(store, *sequenced(1, start=2))
        reading = asyncio.ensure_future(store.keys.get("a"))
        with pytest.raises(AppendOutcomeUnknown):
            await sent
        with pytest.raises(StoreUnreachable):
            await waiting
        with pytest.raises(StoreUnreachable):
            await reading
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnreachable):  # from now on without waiting
            await append(store, *sequenced(1, start=3))
        with pytest.raises(StoreUnreachable):
            await store.keys.put("a", b"")
        assert asyncio.get_running_loop().time() - began_s < 0.2
        await node.start(local)
        relay.resume()
        await store.connected()
        await append(store, *sequenced(1, producer=8))


async def test_a_node_that_stands_down_sends_its_clients_to_the_next(tmp_path):
    async with (
        await LocalStore.open(tmp_path / "a") as first,
        await LocalStore.open(tmp_path / "b") as second,
    ):
        one, two = await Node().start(first), await Node().start(None)
        async with await RemoteStore.open(0, lambda: one.target, budget_s=5) as store:
            await store.keys.put("a", b"1")
            putting = [asyncio.ensure_future(store.keys.put(f"k{n}", b"")) for n in range(50)]
            await asyncio.sleep(0.003)
            two.service.node.serve(second)
            await one.service.node.stand_down(two.target)
            assert all(isinstance(revision, int) for revision in await asyncio.gather(*putting))
            assert await store.keys.get("a") is None  # another store altogether
            assert store.target == two.target
        await one.stop()
        await two.stop()


async def test_who_moves_is_followed_at_once(tmp_path):
    async with (
        await LocalStore.open(tmp_path / "a") as first,
        await LocalStore.open(tmp_path / "b") as second,
    ):
        one, two = await Node().start(first), await Node().start(second)
        targets = [one.target]
        async with await RemoteStore.open(0, lambda: targets[-1], budget_s=5) as store:
            store.moved()
            assert store.target == one.target
            targets.append(two.target)
            store.moved()
            await store.keys.put("a", b"")
            assert (store.target, await second.keys.get("a") is not None) == (two.target, True)
        await one.stop()
        await two.stop()


async def test_who_moves_while_it_is_connected_to_is_followed_at_once(relay, node):
    targets = [relay.target]
    relay.hold()  # a machine that is gone: nothing comes back
    began_s = asyncio.get_running_loop().time()
    store = RemoteStore(0, lambda: targets[-1], budget_s=5)
    await asyncio.sleep(0.05)
    store.moved()
    targets.append(node.target)
    store.moved()
    await store.connected()
    assert asyncio.get_running_loop().time() - began_s < connection.CONNECT_S
    await store.close()


@pytest.mark.parametrize("hinted", [False, True])
async def test_who_moves_while_metadata_is_compared_is_followed_at_once(tmp_path, hinted):
    """One that another node has named is stayed with: who is asked knows that later."""
    async with (
        await LocalStore.open(tmp_path / "a") as first,
        await LocalStore.open(tmp_path / "b") as second,
    ):
        one, two = await Node().start(first), await Node().start(second)
        before = await Node().start(None)
        await before.service.node.stand_down(one.target)
        targets, comparing, compared = [before.target if hinted else one.target], asyncio.Event(), asyncio.Event()

        async def agree(_known):
            comparing.set()
            await compared.wait()

        async with RemoteStore(0, lambda: targets[-1], budget_s=5, agree=agree) as store:
            await comparing.wait()
            if not hinted:
                targets.append(two.target)
            compared.set()
            await store.connected()
            assert store.target == (one.target if hinted else two.target)
        for node in (one, two, before):
            await node.stop()


async def test_a_store_that_takes_nothing_for_now_is_asked_again(store, local, monkeypatch):
    whole, loop, refused = local.log.append, asyncio.get_running_loop(), []
    error = NotWritable("one replica is in sync, and two are asked for")

    def refuses(one, done):
        if len(refused) < 5:
            loop.call_soon(done, error)
            loop.call_soon(refused.append, one)
        else:
            whole(one, done)

    monkeypatch.setattr(local.log, "append", refuses)
    futures = begin(store, *sequenced(5))
    async with asyncio.timeout(60):
        while not refused:
            await asyncio.sleep(0)
    futures += begin(store, *sequenced(15, start=6))  # on their way when the first are refused
    outcomes = await asyncio.gather(*futures)
    assert all(isinstance(outcome, Appended) for outcome in outcomes)
    assert await bodies(local, 16) == [b"%d" % n for n in range(1, 21)]
    assert store.connection.sessions == 1


async def test_a_store_that_has_failed_is_given_up_after_the_deadline(relay, local, monkeypatch):
    def fails(_, done):
        asyncio.get_running_loop().call_soon(done, StoreFailed("the disk"))

    monkeypatch.setattr(local.log, "append", fails)
    async with await RemoteStore.open(0, lambda: relay.target, budget_s=0.2) as store:
        # The outcome is not known when the deadline comes while an attempt is under way.
        with pytest.raises((StoreFailed, AppendOutcomeUnknown)):
            await append(store, *sequenced(1))


async def test_a_gap_of_the_callers_own_is_refused(store):
    await append(store, *sequenced(1))
    with pytest.raises(SequenceOutOfOrder):
        await append(store, *sequenced(1, start=3))


# ---- a node that hangs


async def test_a_node_that_says_nothing_is_given_up(relay, local, monkeypatch, tmp_path):
    monkeypatch.setattr(connection, "PING_S", 0.05)
    monkeypatch.setattr(connection, "SILENCE_S", 0.2)
    monkeypatch.setattr(connection, "CONNECT_S", 0.2)
    async with await RemoteStore.open(0, lambda: relay.target, budget_s=5) as store:
        await store.keys.put("a", b"1")
        relay.hold()
        reading = asyncio.ensure_future(store.keys.get("a"))
        await until(lambda: not store.is_connected)
        relay.cut()
        relay.resume()
        assert (await reading).value == b"1"


# ---- the tail and watches


async def test_a_tail_goes_on_where_it_was(store, relay, local):
    await append(local, frame((16, b"before")))
    await until(lambda: store.log.confirmed == local.log.confirmed)
    seen = []
    stop = store.log.tail(seen.extend)
    for n in range(100):
        await append(local, frame((16, b"%d" % n)))
        if n % 25 == 10:
            relay.cut()
    await until(lambda: seen and seen[-1].end == local.log.confirmed)
    assert [one.record(0) for one in seen] == [b"%d" % n for n in range(100)]
    late = []
    store.log.tail(late.extend)
    await append(local, frame((16, b"more")))
    await until(lambda: late)
    stop()
    assert [one.record(0) for one in late] == [b"more"]
    assert seen[-1].record(0) == b"more"
    await append(local, frame((16, b"last")))
    await until(lambda: len(late) == 2)
    assert seen[-1].record(0) == b"more"


async def test_what_is_confirmed_is_heard_without_asking(store, local):
    await append(local, frame((16, b"x")))
    await until(lambda: store.log.confirmed == local.log.confirmed)


async def test_a_watch_goes_on_where_it_was(store, relay, local):
    watching = store.keys.watch()
    found = []

    async def watch():
        async for changes in watching:
            found.extend(change.key for change in changes.changes)

    task = asyncio.ensure_future(watch())
    for n in range(60):
        await local.keys.put(f"{n}", b"")
        if n % 20 == 10:
            relay.cut()
            await asyncio.sleep(0.01)
    await until(lambda: len(found) >= 60)
    assert found == [f"{n}" for n in range(60)]
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: not local.core.recent.kv.feeds)


# ---- leases


async def test_what_was_held_is_lost_with_the_connection(store, relay, local):
    told = []
    store.queues.watch(told.extend)
    await append(store, frame((20, b"a"), (20, b"b"), (20, b"c")))
    leases = await store.leases.take(20, 1, max_count=2)
    assert [lease.offset for lease in leases] == [0, 1]
    assert await local.leases.waiting(20) == 1
    relay.cut()
    await until(lambda: 20 in told)
    with pytest.raises(LeaseLost):
        await store.leases.settle(20, 1, [0])
    await until(lambda: not local.core.recent.leases.owners)
    assert await store.leases.waiting(20) == 3
    (again,) = await store.leases.take(20, 1, max_count=1)
    assert (again.offset, again.deliveries) == (0, 1)
    await store.leases.settle(20, 1, [0])
    with pytest.raises(LeaseLost):
        await store.leases.reject(20, 1, [1])
    store.leases.requeue(20, 1, [1])
    with pytest.raises(LeaseLost):
        await store.leases.forward(20, 1, [1], b"", b"")
    assert await store.leases.waiting(20) == 2


async def test_a_client_that_dies_gives_everything_back(node, local):
    await append(local, frame(*((20, b"x") for _ in range(5))))
    store = await RemoteStore.open(0, lambda: node.target)
    other = await RemoteStore.open(0, lambda: node.target)
    await store.leases.take(20, 1, max_count=3)
    mine = await other.leases.take(20, 1, max_count=1)  # an owner of the same number, and somebody else
    held = await store.keys.hold()
    watching = store.keys.watch()
    waiting = asyncio.ensure_future(anext(watching))
    await store.keys.put("a", b"")
    assert (await waiting).changes[0].key == "a"
    fetching = asyncio.ensure_future(store.queues.fetch(16, 0, max_bytes=1, max_wait_ms=60_000))
    await until(lambda: local.arrivals.count == 1)
    await store.connection.close(StoreError("died"))
    with pytest.raises(StoreError, match="died"):
        await fetching
    await until(lambda: not local.arrivals.count and not local.core.recent.kv.feeds and not local.keys.holds._holds)
    await until(lambda: node.service.node.sessions == 1)
    assert await local.leases.waiting(20) == 4
    assert held > 0
    await other.leases.settle(20, 1, [mine[0].offset])
    await other.close()
    await store.close()


async def test_a_release_of_a_session_that_is_over_does_not_end_a_hold_of_this_one(store, relay, local):
    await store.keys.put("a", b"")
    lost = await store.keys.hold()
    relay.cut()
    await until(lambda: not local.keys.holds._holds)
    at = await store.keys.hold()
    assert at == lost
    store.keys.release(lost)
    await store.keys.range(at_revision=at)
    store.keys.release(at)
    await until(lambda: not local.keys.holds._holds)


async def test_what_is_settled_while_the_connection_breaks_is_unknown_and_later_lost(store, relay, local):
    await append(store, frame((20, b"a"), (20, b"b"), (20, b"c")))
    await store.leases.take(20, 1, max_count=3, invisible_ms=60_000)
    relay.hold()
    settling = asyncio.ensure_future(store.leases.settle(20, 1, [0]))
    await until(lambda: store.connection.caller.unsure)
    await asyncio.sleep(0.02)
    relay.cut()
    with pytest.raises(AppendOutcomeUnknown):
        await settling
    with pytest.raises(LeaseLost):  # there is no session in which it could be held
        await store.leases.settle(20, 1, [1])
    assert await store.leases.extend(20, 1, [1], invisible_ms=1) == ()
    relay.resume()
    await store.connected()
    await store.leases.settle(20, 1, [1])  # passed over: nobody holds it
    await until(lambda: not local.core.recent.leases.owners)
    assert await local.leases.unsettled(20) >= 2


@pytest.mark.parametrize("how", ["cut", "closed"])
async def test_what_was_leased_for_a_time_outlives_the_session(store, relay, local, how):
    await append(store, frame((20, b"a"), (20, b"b")))
    (timed,) = await store.leases.take(20, 1, max_count=1, invisible_ms=60_000)
    (_held,) = await store.leases.take(20, 1, max_count=1)
    if how == "cut":
        relay.cut()
    else:
        await store.close()
    await until(lambda: not local.core.recent.leases.owners)
    assert [lease.offset for lease in await local.leases.take(20, 99, max_count=2)] == [1]
    assert await local.leases.settle_handles([timed.handle()]) == [None]
    assert await local.leases.unsettled(20) == 1


async def test_calls_wait_for_a_store_that_takes_nothing_for_now(store, local, monkeypatch):
    whole, left = local.log.append, [2]

    def refuses(one, done):
        left[0] -= 1
        if left[0] >= 0:
            asyncio.get_running_loop().call_soon(done, NotWritable("one replica is in sync, and two are asked for"))
        else:
            whole(one, done)

    await append(store, frame((20, b"a")))
    await store.leases.take(20, 1, max_count=1)
    monkeypatch.setattr(local.log, "append", refuses)
    monkeypatch.setattr(local.core.recorder, "_append", refuses)
    assert await store.keys.put("a", b"1") > 0
    left[0] = 1
    with pytest.raises(NotWritable):  # and it is leased again
        await store.leases.settle(20, 1, [0])
    assert [lease.offset for lease in await store.leases.take(20, 1, max_count=1)] == [0]


async def test_what_a_cancelled_take_was_leased_comes_back(store, relay, local):
    await append(store, frame((20, b"a")))
    relay.hold()
    taking = asyncio.ensure_future(store.leases.take(20, 1, max_count=1))
    await until(lambda: store.connection.caller.sent)
    taking.cancel()
    await asyncio.wait([taking])
    relay.resume()
    await store.keys.get("")
    await until(lambda: not local.core.recent.leases.of_queues or local.core.recent.leases.get(20, "").waiting(1) == 1)
    (lease,) = await store.leases.take(20, 2, max_count=1)
    assert lease.deliveries == 0


async def test_what_a_take_is_leased_on_the_next_session_comes_back_where_its_owner_has_left(store, relay, local):
    await append(store, frame((20, b"a"), (20, b"b")))
    relay.hold()
    taking = asyncio.ensure_future(store.leases.take(20, 1, max_count=2))
    await until(lambda: store.connection.caller.sent)
    relay.cut()
    await until(lambda: not store.connection.up.is_set())
    store.leases.release(1)  # while no store hears it
    relay.resume()
    assert list(await taking) == []
    found = [lease async for lease in _taken(store, 2, 2)]
    assert [lease.deliveries for lease in found] == [0, 0]


async def _taken(store, owner, count):
    """Takes messages until there were so many."""
    async with asyncio.timeout(60):
        while count:
            for lease in await store.leases.take(20, owner, max_count=count):
                yield lease
                count -= 1


# ---- what is asked once


async def test_what_may_have_been_done_is_unknown(store, relay):
    await store.keys.put("a", b"0")
    relay.hold()
    putting = asyncio.ensure_future(store.keys.put("a", b"1"))
    reading = asyncio.ensure_future(store.keys.get("a"))
    await until(lambda: len(store.connection.caller.sent) >= 2)
    relay.cut()
    relay.resume()
    with pytest.raises(AppendOutcomeUnknown):
        await putting
    assert (await reading).value in {b"0", b"1"}


async def broken(store, relay, work):
    """Runs work whose connection breaks before it reaches the store."""
    relay.hold()
    doing = asyncio.ensure_future(work)
    await until(lambda: store.connection.caller.unsure)
    relay.cut()
    relay.resume()
    return await doing


async def test_what_takes_effect_once_at_most_is_tried_again(store, relay, local):
    first = await store.keys.put("a", b"0")
    second = await broken(store, relay, store.keys.put("a", b"1", expected_revision=first))
    assert (await local.keys.get("a")).revision == second > first
    done = await broken(store, relay, store.keys.transact({"a": second}, [Put("a", b"2")]))
    assert (await local.keys.get("a")).revision == done.revision
    assert await broken(store, relay, store.keys.delete("a", expected_revision=done.revision))
    assert await local.keys.get("a") is None
    with pytest.raises(AppendOutcomeUnknown):
        await broken(store, relay, store.keys.put("a", b"3", expected_revision=0))


async def test_a_conflict_with_what_may_be_ones_own_is_unknown(store, relay, local, monkeypatch):
    first = await store.keys.put("a", b"0")
    put = local.keys.put

    async def put_and_break(*arguments, **options):
        revision = await put(*arguments, **options)
        monkeypatch.undo()
        relay.cut()
        return revision

    monkeypatch.setattr(local.keys, "put", put_and_break)
    with pytest.raises(AppendOutcomeUnknown):
        await store.keys.put("a", b"1", expected_revision=first)
    assert (await local.keys.get("a")).value == b"1"
    with pytest.raises(RevisionConflict):  # of one that was not tried twice it is known
        await store.keys.put("a", b"2", expected_revision=first)


async def test_a_client_keeps_to_its_limits(store, monkeypatch):
    monkeypatch.setattr(appender, "FRAMES_COUNT_MAX", 4)
    futures = begin(store, *sequenced(50))
    await asyncio.gather(*futures)
    assert CALLS_COUNT_MAX < 1 << 13


@pytest.mark.parametrize("how", ["settle", "settle_soon", "reject"])
async def test_what_cannot_be_settled_for_too_many_calls_is_leased_again(store, local, monkeypatch, how):
    """The store never heard of the settlement, and kept the lease until the owner was gone."""
    await append(store, frame((20, b"a")))
    assert [lease.delivered for lease in await store.leases.take(20, 1, max_count=1)] == [0]
    monkeypatch.setattr("store.remoting.caller.CALLS_COUNT_MAX", 0)
    with pytest.raises(StoreOverloaded):
        await getattr(store.leases, how)(20, 1, [0])
    monkeypatch.undo()
    assert [lease.delivered for lease in await store.leases.take(20, 2, max_count=1)] == [1]


# ---- who is asked


async def test_a_replica_answers_reads_and_nothing_else(tmp_path):
    async with await LocalStore.open(tmp_path / "data") as local:
        await append(local, frame((16, b"a", 7)))
        node = await Node().start(local, master=False, hint="127.0.0.1:1")
        with pytest.raises(StoreUnreachable):
            await RemoteStore.open(0, lambda: node.target, budget_s=0.2)
        async with await RemoteStore.open(0, lambda: node.target, reading=True, budget_s=0.5) as store:
            assert await bodies(store, 16) == [b"a"]
            assert (await store.log.scan(Position(0, 0), None, max_bytes=1))[0][0].record(0) == b"a"
            assert await store.log.read(Position(0, 0)) == b"a"
            assert await store.queues.bounds(16) == (0, 1)
            assert await store.log.last(7) == (0, 0)
            seen = []
            store.log.tail(seen.extend)
            await append(local, frame((16, b"b")))
            await until(lambda: seen)
            with pytest.raises(NotMaster) as refused:
                await store.keys.get("a")
            assert refused.value.master == "127.0.0.1:1"
        await node.stop()


async def test_another_group_is_refused(node):
    with pytest.raises(StoreUnreachable, match="store group 3"):
        await RemoteStore.open(3, lambda: node.target, budget_s=0.2)


async def test_nobody_known_is_waited_for(node):
    targets = [None]
    store = RemoteStore(0, lambda: targets[-1], budget_s=5)
    putting = asyncio.ensure_future(store.keys.put("a", b""))
    (appending,) = begin(store, *sequenced(1))
    seen = []
    store.log.tail(seen.extend)
    await asyncio.sleep(0.05)
    targets.append(node.target)
    store.moved()
    assert await putting >= 0
    assert isinstance(await appending, Appended)
    await until(lambda: len(seen) == 2)
    await store.close()


async def test_a_refusal_says_who_it_is(tmp_path):
    node = await Node(group=4).start(None)
    with pytest.raises(StoreUnreachable):
        await RemoteStore.open(4, lambda: node.target, budget_s=0.2)
    assert NotMaster("text", "host:1").master == "host:1"
    await node.stop()


@pytest.mark.parametrize("mode", [ONCE, HELD])
async def test_a_change_that_is_written_and_never_confirmed_is_answered_in_time(mode):
    """Whoever changed a key heard nothing for as long as too few replicas had it. What only reads may take long."""
    caller = Caller(asyncio.get_running_loop(), wake=lambda: None, budget_s=0.0, follows=True)
    caller.connected()
    change = caller.begin("kv_delete", arguments.KvGet("k", ""), lambda body: body, mode)
    reading = caller.begin("kv_get", arguments.KvGet("k", ""), lambda body: body, AGAIN)
    caller.take_message()
    async with asyncio.timeout(60):
        while not change.future.done():
            await asyncio.sleep(0)
            caller.expire_sent()
    with pytest.raises(AppendOutcomeUnknown, match="not confirmed by enough replicas"):
        await change.future
    assert not reading.future.done()
    assert caller.unsure  # its answer may still come


@pytest.mark.parametrize("how", ["settle", "settle_soon", "forward", "commit"])
async def test_a_settlement_that_is_given_up_is_done_once_all_the_same(node, local, monkeypatch, how):
    """It was waited for as long as too few replicas had it. Until that is known no other consumer gets the message."""
    await append(local, frame((20, b"a"), (20, b"b")))
    row = ROW.pack(21, 0, 1, 0, 0, 0, 0, 0)
    written = []  # and not confirmed
    async with await RemoteStore.open(0, lambda: node.target, budget_s=0.5) as store:
        leases = store.leases
        assert len(await leases.take(20, 1, max_count=1)) == 1
        with monkeypatch.context() as patch:
            for appending in (local.leases._leasing.settlements, local.core.recorder):
                patch.setattr(appending, "_append", lambda *appended: written.append(appended))
            settling = {
                "settle": lambda: leases.settle(20, 1, [0]),
                "settle_soon": lambda: leases.settle_soon(20, 1, [0]),
                "forward": lambda: leases.forward(20, 1, [0], row, b"x"),
                "commit": lambda: leases.commit(1, [(20, [0])], row, b"x"),
            }
            with pytest.raises(AppendOutcomeUnknown, match="not confirmed by enough replicas"):
                await settling[how]()
        leases.requeue(20, 1, [0], delivered=False)
        leases.release(1)
        assert [lease.offset for lease in await leases.take(20, 2, max_count=2)] == [1]
        (appended,) = written
        local.log.append(*appended)
        leases.release(2)
        await until(lambda: not local.core.recent.leases.get(20, "").in_flight.busy)
        assert [lease.offset for lease in await leases.take(20, 3, max_count=2)] == [1]
        assert await bodies(store, 21) == ([b"x"] if how in {"forward", "commit"} else [])
