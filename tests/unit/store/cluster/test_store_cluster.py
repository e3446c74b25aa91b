"""All groups of a cluster behind one client, over real connections."""

import asyncio

import pytest

from controller.api.client import Group, KnownMetadata, Replica
from store.api.log import Appended, IndexKind
from store.api.lost import LostMessages, LostOffsets
from store.base.errors import BadHandle, NoSuchTimer, StoreUnreachable
from store.cluster import store_groups
from store.cluster.cluster import ClusterStore, connect_remote
from store.format.frame import ROW, ROW_INDEX_ADDRESS, ROW_INDEX_KEY, Position, UnplacedFrame, group_of, origin_of
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig
from store.format.records import TimerSet
from store.integrity.ledger import Damage
from store.local.local import LocalStore
from store.remoting import RemoteStore, client
from tests.support.process.clock import Clock
from tests.support.process.waiting import until
from tests.support.store.remote_kit import Node
from tests.support.store.store_kit import append, begin, bodies, frame, records_frame

pytestmark = pytest.mark.anyio


class TwoGroupsController:
    """A controller as a cluster's client asks it. Even queues lie in group 0, odd ones in group 1."""

    home = 0
    cluster = ""

    def __init__(self):
        self.by_number = {}
        self.gone = set()
        self.next_queue = 1 << 16
        self.listeners = []

    def group_of_queue(self, queue):
        return None if queue in self.gone else queue % 2

    def known(self):
        return KnownMetadata(next_queue=self.next_queue)

    def groups(self):
        return sorted(self.by_number.values(), key=lambda group: group.number)

    def group(self, number):
        return self.by_number.get(number)

    def watch(self, listener):
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def put(self, number, *targets, master=1, zones=()):
        zones = [*zones, *[""] * len(targets)]
        replicas = tuple(
            Replica(id=n, node=f"n{n}", address=target, zone=zone)
            for n, (target, zone) in enumerate(zip(targets, zones, strict=False), 1)
        )
        ids = tuple(one.id for one in replicas)
        self.by_number[number] = Group(number=number, replicas=replicas, master=master, sync_set=ids)
        self.changed()

    def changed(self):
        for listener in self.listeners:
            listener()


@pytest.fixture
async def controller():
    return TwoGroupsController()


@pytest.fixture
async def stores(tmp_path):
    async with (
        await LocalStore.open(tmp_path / "0") as first,
        await LocalStore.open(tmp_path / "1", group=1) as second,
    ):
        yield [first, second]


@pytest.fixture
async def nodes(controller, stores):
    nodes = [await Node(n).start(store) for n, store in enumerate(stores)]
    for n, node in enumerate(nodes):
        controller.put(n, node.target)
    yield nodes
    for node in nodes:
        await node.stop()


@pytest.fixture
async def cluster(controller, nodes):
    async with await ClusterStore.open(controller, connect_remote(controller, budget_s=2)) as cluster:
        for log in cluster.logs.values():
            await log.connected()
        yield cluster


async def test_what_names_a_queue_goes_where_the_queue_lies(cluster, stores):
    assert (cluster.group, list(cluster.logs), cluster.unreachable) == (0, [0, 1], [])
    for queue in (16, 17):
        at = await append(cluster, frame((queue, b"%d" % queue)))
        assert group_of(at.frame) == queue % 2
        assert await cluster.log.read(Position(at.frame, 0)) == b"%d" % queue
    assert await bodies(stores[0], 16) == [b"16"] == await bodies(cluster, 16)
    assert await bodies(stores[1], 17) == [b"17"] == await bodies(cluster, 17)
    assert await cluster.queues.bounds(17) == (0, 1)
    assert await cluster.queues.bounds(19) == (0, 0)
    assert await cluster.queues.offset_at_time(17, 0) == 0
    frames, following = await cluster.log.scan(Position(origin_of(1), 0), [16, 17], max_bytes=1 << 20)
    assert ([one.record(0) for one in frames], following) == ([b"17"], cluster.logs[1].log.confirmed)
    assert cluster.log.pending_bytes == 0
    assert cluster.log.confirmed == cluster.logs[0].log.confirmed
    assert await cluster.log.read(Position(origin_of(7), 0)) is None


async def test_what_all_groups_have_lost_is_one_answer(cluster, stores):
    sizes = []
    for queue, store in zip((16, 17), stores, strict=True):
        for _ in range(3):
            await append(cluster, frame((queue, b"x")))
        await store.core.until_dispatched(store.replication.end)
        frames = list(store.core.engine.log.scan(origin_of(store.group), store.replication.end))
        for one in (frames[0], frames[2]):
            store.core.engine.log.damages.report(Damage("0.log", one.start, one.end, "flipped", "scrub"))
            sizes.append(one.end - one.start)
    ranges = [(queue, offset, offset + 1) for queue in (16, 17) for offset in (0, 2)]
    assert await cluster.queues.lost() == LostMessages(4, sum(sizes), 4, tuple(LostOffsets(*one) for one in ranges))
    few = await cluster.queues.lost(1)
    assert (few.messages, few.ranges, few.more) == (4, (ranges[0],), 3)


async def test_keys_and_values_are_at_home(cluster, stores):
    revision = await cluster.keys.put("a", b"1")
    assert group_of(revision) == 0
    assert (await stores[0].keys.get("a")).value == b"1"
    assert await stores[1].keys.get("a") is None
    await cluster.groups.commit("g", {16: 1, 17: 2})
    assert await cluster.groups.offsets("g") == {16: 1, 17: 2}
    assert await stores[1].groups.offsets("g") == {}
    await cluster.log.note_addresses(["a/b"])
    assert await cluster.log.addresses() == ["a/b"]
    await cluster.groups.delete("g")
    assert await cluster.groups.offsets("g") == {}


async def test_what_is_looked_up_without_a_queue_is_looked_up_everywhere(cluster):
    def keyed(queue, n):
        row = ROW.pack(queue, 0, 1, ROW_INDEX_KEY, 5, 9, 0, n)
        return UnplacedFrame.build(row, b"x")

    at = [await append(cluster, keyed(16 + n % 2, n)) for n in range(6)]
    expected = sorted([(one.frame, 0) for one in at], reverse=True)
    assert await cluster.log.find(IndexKind.KEY, 5) == expected
    paged, below = [], None
    while page := await cluster.log.find(IndexKind.KEY, 5, below=below, limit=2):
        paged += page
        below = page[-1]
    assert paged == expected
    assert (await cluster.log.last(9)).frame in {one.frame for one in at[-2:]}
    assert await cluster.log.last(10) is None


def addressed(queue, body, address_hash=9):
    return UnplacedFrame.build(ROW.pack(queue, 0, len(body), 0, 0, address_hash, 0, 0), body)


async def test_records_of_an_address_are_looked_for_in_the_groups_of_its_queues_alone(cluster, nodes):
    row = ROW.pack(16, 0, 1, ROW_INDEX_ADDRESS, 0, 9, 0, 0)
    found = ((await append(cluster, UnplacedFrame.build(row, b"x"))).frame, 0)
    assert await cluster.log.last(9, [17]) is None
    assert await cluster.log.find(IndexKind.ADDRESS, 9, queues=[17]) == []
    await nodes[1].stop()
    assert await cluster.log.last(9, [16, 18]) == found
    assert await cluster.log.find(IndexKind.ADDRESS, 9, queues=[16, 18]) == [found]
    for asked in ([16, 17], None):
        with pytest.raises(StoreUnreachable):
            await cluster.log.last(9, asked)
        with pytest.raises(StoreUnreachable):
            await cluster.log.find(IndexKind.ADDRESS, 9, queues=asked)


async def trimmed(store):
    await store.core.until_dispatched(store.log.confirmed)
    await asyncio.to_thread(store.core.engine.trimmer.run)


@pytest.mark.slow
@pytest.mark.parametrize("removed", [0, 1])
@pytest.mark.parametrize(("gone", "left"), [(b"old", b"new"), (b"new", b"old")])
async def test_a_record_that_retention_has_removed_hides_none_of_another_group(
    tmp_path, controller, removed, gone, left
):
    clock = Clock()
    limits = {"segment_size_bytes": 2_000, "now_ms": clock.now_ms, "retention_interval_s": 3_600}
    async with (
        await LocalStore.open(tmp_path / "0", **limits) as first,
        await LocalStore.open(tmp_path / "1", group=1, **limits) as second,
    ):
        stores = [first, second]
        for number in (0, 1):
            controller.put(number, "")
        cluster = await ClusterStore.open(controller, stores.__getitem__)
        await cluster.queues.configure([QueueConfig(16, retention_bytes=3_000), QueueConfig(17, retention_bytes=3_000)])
        for body in (b"old", b"new"):
            await append(cluster, addressed(16 + removed if body == gone else 17 - removed, body))
            clock.ms += 1_000
        assert await cluster.log.read(await cluster.log.last(9)) == b"new"
        for _ in range(12):
            clock.ms += 1_000
            await append(cluster, addressed(16 + removed, b"z" * 900, 8))
        await trimmed(stores[removed])
        assert stores[removed].core.engine.log.first > origin_of(removed)
        assert await cluster.log.read(await cluster.log.last(9)) == left
        await append(cluster, addressed(17 - removed, b"newest"))
        assert await cluster.log.read(await cluster.log.last(9)) == b"newest"
        await cluster.close()


async def test_timers_of_all_groups_as_they_are_due(cluster, stores):
    later = 1 << 42
    for n, due_ms in enumerate((later + 5, later + 1, later + 3, later + 2)):
        row = ROW.pack(16 + n % 2, 0, 1, 0, 0, 0, 0, 0)
        await append(stores[n % 2], records_frame(TimerSet(due_ms, row, b"x")))
    await until(lambda: cluster.timers.held.timers == 4)
    found = await cluster.timers.entries()
    assert [one.due_ms - later for one in found] == [1, 2, 3, 5]
    assert [one.due_ms - later for one in await cluster.timers.entries(after=found[1].id, limit=1)] == [3]
    assert await cluster.timers.cancel(found[0].id)
    assert not await cluster.timers.cancel(found[0].id)
    for text in ("", "x"):
        with pytest.raises(NoSuchTimer):
            await cluster.timers.cancel(text)
    with pytest.raises(NoSuchTimer):
        await cluster.timers.entries(after="x")
    cluster.timers.admit(0, 1)


async def test_leases_of_an_owner_in_two_groups(cluster):
    await append(cluster, frame(*((16, b"a") for _ in range(3))))
    await append(cluster, frame(*((17, b"b") for _ in range(3))))
    for queue in (16, 17):
        assert len(await cluster.leases.take(queue, 1, max_count=2)) == 2
        await cluster.leases.settle(queue, 1, [0])
        assert await cluster.leases.waiting(queue) == 1
        assert await cluster.leases.first_waiting(queue) == 2
    assert sorted(cluster.leases.release(1)) == [16, 17]
    assert [await cluster.leases.waiting(queue) for queue in (16, 17)] == [2, 2]
    leases = [*await cluster.leases.take(16, 1, max_count=1, invisible_ms=10_000)]
    leases += await cluster.leases.take(17, 1, max_count=1, invisible_ms=10_000)
    handles = [lease.handle() for lease in leases]
    texts = await cluster.leases.extend_handles([handles[1], "no handle", handles[0], ""], invisible_ms=20_000)
    assert [isinstance(text, str) for text in texts] == [True, False, True, False]
    assert isinstance(texts[1], BadHandle)
    assert await cluster.leases.settle_handles([texts[0], texts[2]]) == [None, None]
    assert await cluster.leases.requeue_handles([]) == []
    assert await cluster.leases.purge(17) == 1
    with pytest.raises(ValueError, match="store group"):
        await cluster.leases.set_policy(16, LeasePolicy(max_deliveries=1, dead_letter_queue=17))
    await cluster.leases.set_policy(16, LeasePolicy(max_deliveries=1, dead_letter_queue=18))
    assert (await cluster.leases.policy(16)).dead_letter_queue == 18
    (lease,) = await cluster.leases.take(16, 1, max_count=1)
    with pytest.raises(ValueError, match="within"):
        await cluster.leases.forward(16, 1, [lease.offset], ROW.pack(17, 0, 1, 0, 0, 0, 0, 0), b"x")
    await cluster.leases.forward(16, 1, [lease.offset], ROW.pack(18, 0, 1, 0, 0, 0, 0, 0), b"x")
    assert await bodies(cluster, 18) == [b"x"]


async def test_settings_go_to_each_queues_group(cluster, stores):
    configs = [QueueConfig(16, 1_000), QueueConfig(17, 2_000)]
    before = [store.log.confirmed for store in stores]
    await cluster.queues.configure(configs)
    assert [stores[n].queues.config(16 + n) for n in range(2)] == configs
    assert [cluster.queues.config(queue) for queue in (16, 17)] == configs
    after = [store.log.confirmed for store in stores]
    assert all(a > b for a, b in zip(after, before, strict=True))
    await cluster.queues.configure(configs)  # known there: nothing is stored
    assert [store.log.confirmed for store in stores] == after


async def test_a_queue_that_is_forgotten_is_deleted_where_it_was(cluster, controller, stores):
    await append(stores[1], frame((17, b"a"), (19, b"b")))
    await cluster.queues.bounds(17)
    controller.gone |= {17, 19}
    await cluster.queues.delete(17)  # known from before
    await cluster.queues.delete(19)
    assert await stores[1].queues.bounds(17) == (0, 0) == await stores[1].queues.bounds(19)


async def test_the_groups_of_the_queues_in_use_are_remembered(cluster, controller, monkeypatch):
    monkeypatch.setattr(store_groups, "ROUTES_COUNT_MAX", 4)
    queues = range(17, 37, 2)
    for queue in queues:
        assert cluster.store_groups.store_group(queue) == cluster.store_groups.store_group(17) == 1
    controller.gone.update(queues)
    assert [queue for queue in queues if cluster.store_groups.is_known(queue)] == [17, *queues[-3:]]
    assert [cluster.store_groups.store_group(queue) for queue in queues] == [1] + [0] * 6 + [1] * 3


async def test_a_client_forgets_queues_that_another_one_has_deleted(cluster, controller, monkeypatch):
    monkeypatch.setattr(client, "GONE_COUNT_MIN", 8)

    def remembered():
        return [(len(log.queues._configs), len(log.connection._leased_from)) for log in cluster.logs.values()]

    queues, kept = range(16, 80), (16, 17)
    for queue in queues:  # one after the other, as they come and go
        await cluster.queues.configure([QueueConfig(queue, until_settled=True)])
        assert not await cluster.leases.take(queue, 1, max_count=1)
        if queue not in kept:
            controller.gone.add(queue)
        controller.changed()
    assert all(max(counts) <= 8 for counts in remembered()), remembered()
    assert [cluster.queues.config(queue) for queue in kept] == [QueueConfig(one, until_settled=True) for one in kept]
    assert [kept[n] in log.connection._leased_from for n, log in cluster.logs.items()] == [True, True]


async def test_a_client_keeps_a_queue_that_the_controllers_have_not_told_of_yet(cluster, controller, monkeypatch):
    monkeypatch.setattr(client, "GONE_COUNT_MIN", 0)
    assert not await cluster.leases.take(16, 1, max_count=1)
    controller.gone.add(16)
    for next_queue, kept in ((16, [16]), (17, [])):
        controller.next_queue = next_queue
        cluster.logs[0]._queues_count = 0
        controller.changed()
        assert [*cluster.logs[0].connection._leased_from] == kept


async def test_groups_come_and_go(cluster, controller, nodes, tmp_path):
    seen, woken = [], []
    stop_tail, stop_watch = cluster.log.tail(seen.extend), cluster.queues.watch(woken.extend)
    logs = cluster.logs
    async with await LocalStore.open(tmp_path / "2", group=2) as third:
        node = await Node(2).start(third)
        controller.put(2, node.target)
        assert list(logs) == [0, 1, 2]
        await logs[2].connected()
        await append(logs[2], frame((16, b"x")))
        await append(logs[1], frame((17, b"y")))
        await until(lambda: len(seen) == 2)
        gone = logs[2]
        del controller.by_number[2]
        controller.changed()
        assert list(logs) == [0, 1]
        await until(lambda: not gone.is_connected)
        with pytest.raises(StoreUnreachable):
            await cluster.log.scan(Position(origin_of(2), 0), None, max_bytes=1)
        stop_tail()
        stop_watch()
        assert not cluster.store_groups._stops
        await node.stop()


async def test_a_group_out_of_reach_hurts_only_what_is_its_own(cluster, nodes):
    await nodes[1].kill()
    await until(lambda: cluster.unreachable == [1])
    cluster.logs[1].connection.caller._budget_s = 0.2
    assert await cluster.keys.put("a", b"") >= 0
    with pytest.raises(StoreUnreachable):
        await cluster.queues.bounds(17)
    assert await cluster.queues.bounds(16) == (0, 0)
    cluster.leases.requeue(17, 1, [0])
    assert cluster.leases.release(1) == []


async def test_handles_of_a_group_that_is_away_are_refused_alone(cluster, nodes):
    """All handles were refused, though those of the other groups had been settled, given back or extended."""
    handles = []
    for queue in (16, 17):
        await append(cluster, frame(*((queue, b"x") for _ in range(4))))
        leases = await cluster.leases.take(queue, 1, max_count=4, invisible_ms=60_000)
        handles.append([lease.handle() for lease in leases])
    await nodes[1].kill()
    await until(lambda: cluster.unreachable == [1])
    cluster.logs[1].connection.caller._budget_s = 0.2
    (a, b, c, d), (away, *_) = handles
    leases = cluster.leases
    text, refused, other = await leases.extend_handles([a, away, b], invisible_ms=60_000)
    assert (isinstance(text, str), isinstance(refused, StoreUnreachable), isinstance(other, str)) == (True, True, True)
    none, refused, bad = await leases.settle_handles([c, away, "no handle"])
    assert (none, isinstance(refused, StoreUnreachable), isinstance(bad, BadHandle)) == (None, True, True)
    refused, none = await leases.requeue_handles([away, d])
    assert (isinstance(refused, StoreUnreachable), none) == (True, None)
    assert await leases.waiting(16) == 1
    assert await leases.unsettled(16) == 3
    with pytest.raises(StoreUnreachable):
        await leases.settle_handles([away])


async def test_the_master_is_another(controller, tmp_path):
    async with (
        await LocalStore.open(tmp_path / "a") as first,
        await LocalStore.open(tmp_path / "b") as second,
    ):
        one, two = await Node().start(first), await Node().start(second)
        controller.put(0, one.target, two.target)
        async with await ClusterStore.open(controller, connect_remote(controller, budget_s=5)) as cluster:
            futures = [
                future for n in range(50) for future in begin(cluster, frame((16, b"x"), producer_id=7, sequence=n + 1))
            ]
            controller.put(0, one.target, two.target, master=2)
            assert all(isinstance(outcome, Appended) for outcome in await asyncio.gather(*futures))
            await until(lambda: cluster.logs[0].target == two.target)
        await one.stop()
        await two.stop()


@pytest.mark.slow
async def test_nobody_at_home_is_said(controller):
    controller.put(0, "127.0.0.1:1")
    with pytest.raises(StoreUnreachable):
        await ClusterStore.open(controller, connect_remote(controller, budget_s=0.2))
    controller.put(0, "", master=None)
    with pytest.raises(StoreUnreachable):
        await ClusterStore.open(controller, connect_remote(controller, budget_s=0.2))


async def test_a_replica_near_by_answers_reads(controller, tmp_path):
    """Two stores stand for the master and a replica that is behind it, so that it shows who was asked."""
    async with (
        await LocalStore.open(tmp_path / "a") as first,
        await LocalStore.open(tmp_path / "b") as second,
    ):
        for store, body in ((first, b"master"), (second, b"second")):
            await append(store, frame((16, body)))
        await append(first, frame((16, b"only the master has it")))
        one, two = await Node().start(first), await Node().start(second, master=False)
        controller.put(0, one.target, two.target, zones=("far", "here"))
        connect = connect_remote(controller, zone="here", budget_s=2)
        async with await ClusterStore.open(controller, connect) as cluster:
            log = cluster.logs[0]
            assert isinstance(log, RemoteStore)
            await until(lambda: log.near.is_connected)
            assert await cluster.log.read(Position(0, 0)) == b"second"
            assert await bodies(cluster, 16) == [b"second", b"only the master has it"]
            (found,), following = await cluster.log.scan(Position(0, 0), None, max_bytes=1 << 20)
            assert (found.record(0), following) == (b"second", second.log.confirmed)
            (found,), _ = await cluster.log.scan(Position(following, 0), None, max_bytes=1 << 20)
            assert found.record(0) == b"only the master has it"
            assert await cluster.queues.bounds(16) == (0, 2)
            await two.kill()
            await until(lambda: not log.near.is_connected)
            assert await cluster.log.read(Position(0, 0)) == b"master"
            controller.put(0, one.target, two.target, zones=("here", "here"))
        await one.stop()
        await two.stop()
