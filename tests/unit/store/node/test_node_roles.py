"""A store group of real nodes: masters that go away, switch-overs, replicas that come back."""

import asyncio
import contextlib
import dataclasses
import errno

import grpc
import pytest

from controller.api.client import ControllerError, GroupChanges, GroupConfig
from controller.api.commands import ConfigureGroup
from controller.api.requests import Elect
from gateway.operating.switching import CannotHandOver, switch_over
from store.base.errors import NotWritable, StoreError
from store.format.frame import origin_of
from store.local.local import LocalStore
from store.log.retention import RetentionLimits
from store.remoting import RemoteStore
from store.replication.epoch_file import EPOCH_FILES
from store.replication.errors import CannotSwitchOver
from store.rpc.replica_wire import SWITCH_OVER, SwitchRequest, decode, encode, open_channel, path
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, PACE, PATIENCE_S, Load, StoreGroup
from tests.support.store.replica_kit import log_bytes
from tests.support.store.store_kit import FaultyFiles, append, begin, bodies, frame

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def group(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers) as found:
        await found.in_sync()
        yield found


async def test_what_is_appended_is_on_every_replica_and_can_be_read_there(group, tmp_path):
    store = group.store()
    await append(store, frame((16, b"a"), (17, b"b")))
    assert await bodies(store, 16) == [b"a"]
    await group.settled()
    logs = {name: log_bytes(tmp_path / name) for name in group.names}
    assert len(set(logs.values())) == 1
    for node in group.nodes.values():
        assert await bodies(node.disk.store, 17) == [b"b"]


async def test_a_master_that_dies_under_load_is_succeeded_and_nothing_is_lost_or_doubled(group, tmp_path):
    load = Load(group.store())
    await load.until(50)
    old = await group.master()
    epoch = group.group.master_epoch
    await group.kill(old)
    new = await group.master(after=epoch)
    assert new != old
    await load.until(50)
    acknowledged = await load.stop()
    assert not load.errors
    assert await bodies(group.store(), 16) == [load.body(one) for one in acknowledged]
    await group.start(old)
    await group.in_sync()
    await group.settled()
    assert len({log_bytes(tmp_path / name) for name in group.names}) == 1


async def test_a_switch_over_under_load_fails_no_write(group):
    load = Load(group.store())
    await load.until(20)
    for _ in range(3):
        old = await group.master()
        target = next(name for name in group.names if name != old)
        await group.hand_over(target)
        await load.until(20)
        await group.in_sync()
    acknowledged = await load.stop()
    assert not load.errors
    assert await bodies(group.store(), 16) == [load.body(one) for one in acknowledged]
    assert load.longest_s < 2


async def test_a_replica_that_was_away_catches_up(group):
    store = group.store()
    master = await group.master()
    away = next(name for name in group.names if name != master)
    await group.kill(away)
    for i in range(50):
        await append(store, frame((16, b"%d" % i)))
    await until(lambda: len(group.group.sync_set) == 2)
    await group.start(away)
    await group.in_sync()
    await group.settled()
    assert await bodies(group.nodes[away].disk.store, 16) == [b"%d" % i for i in range(50)]


async def test_replicas_answer_readers_and_send_writers_to_the_master(group):
    store = group.store()
    await append(store, frame((16, b"a")))
    await group.settled()
    master = await group.master()
    replica = next(name for name in group.names if name != master)
    reader = RemoteStore(GROUP, lambda: group.nodes[replica].address, reading=True)
    assert await bodies(reader, 16) == [b"a"]
    seen = []
    reader.log.tail(seen.extend)
    misled = RemoteStore(GROUP, lambda: group.nodes[replica].address)
    await append(misled, frame((16, b"b")))  # by way of the hint
    await until(lambda: seen)
    assert await bodies(reader, 16) == [b"a", b"b"]
    await reader.close()
    await misled.close()


async def test_all_nodes_may_be_started_again_at_once(group, tmp_path):
    store = group.store(budget_s=20)
    await append(store, frame((16, b"a")))
    epoch = group.group.master_epoch
    for name in list(group.nodes):
        await group.kill(name)
    await group.start()
    assert await group.master(after=epoch)
    await group.in_sync()
    await append(store, frame((16, b"b")))
    assert await bodies(store, 16) == [b"a", b"b"]
    await group.settled()
    assert len({log_bytes(tmp_path / name) for name in group.names}) == 1


async def test_a_node_that_is_stopped_politely_hands_over(group):
    load = Load(group.store())
    await load.until(20)
    master = await group.master()
    epoch = group.group.master_epoch
    await group.stop(master)
    assert group.group.master_epoch == epoch + 1
    assert await group.master(after=epoch) != master
    await load.until(20)
    await load.stop()
    assert not load.errors
    assert load.longest_s < 1.5


async def test_without_enough_in_sync_nothing_is_taken_and_with_them_all_is(group):
    store, impatient = group.store(), group.store(budget_s=2.0)
    await append(store, frame((16, b"a")))
    master = await group.master()
    replicas = [name for name in group.names if name != master]
    for name in replicas:
        await group.kill(name)
    core = group.role(master).core
    engine = group.nodes[master].disk.store.core.engine
    await until(lambda: engine.refusal is not None)  # which the role tells it at its next look
    with pytest.raises(NotWritable, match="in sync"):
        await append(impatient, frame((16, b"refused")))
    assert len(group.group.sync_set) >= 2  # it never gets smaller than what may acknowledge
    await group.start(replicas[0])
    await until(lambda: core.refusal is None)
    await append(store, frame((16, b"b")))
    assert await bodies(store, 16) == [b"a", b"b"]


async def test_a_learner_follows_and_is_never_counted_nor_elected(tmp_path, controllers):
    group = StoreGroup(tmp_path, controllers, config=GroupConfig(replicas=2, min_in_sync=2))
    group.learners.add("n3")
    async with group:
        await group.in_sync("n1", "n2")
        store = group.store()
        await append(store, frame((16, b"a")))
        await group.settled()
        assert await bodies(group.nodes["n3"].disk.store, 16) == [b"a"]
        await group.kill("n3")
        await append(store, frame((16, b"b")))
        await group.start("n3")
        epoch = group.group.master_epoch
        await group.kill(await group.master())
        assert await group.master(after=epoch) != "n3"


async def test_an_operator_asks_a_node_to_switch_over(group):
    master = await group.master()
    node = group.nodes[master]
    with pytest.raises(CannotSwitchOver):
        await node.switch_over(99)
    replica = next(name for name in group.names if name != master)
    with pytest.raises(CannotSwitchOver):
        await group.nodes[replica].switch_over()
    await group.may_take_over(replica)

    async def ask(target):
        return decode(await call(encode(SwitchRequest(GROUP, target))), int)

    channel = open_channel(node.address, None)
    call = channel.unary_unary(path(SWITCH_OVER))
    with pytest.raises(grpc.aio.AioRpcError, match="replica 99 is not in sync"):
        await ask(99)
    own = group.id(master)
    with pytest.raises(CannotHandOver, match=f"^store group {GROUP}: replica {own} is master already$"):
        await switch_over(group.client, GROUP, own)
    assert await ask(group.id(replica)) == group.id(replica)
    with pytest.raises(grpc.aio.AioRpcError, match="NotMaster"):
        await ask(None)
    await channel.close()


async def test_a_master_whose_disk_fails_gives_up_at_once(tmp_path, controllers):
    # A slow replica stays in the set, so that there is a successor.
    pace = dataclasses.replace(PACE, lag_ms=60_000, gone_ms=60_000, silent_ms=60_000)
    group = StoreGroup(tmp_path, controllers, pace=pace)
    files = {name: FaultyFiles() for name in group.names}
    group.own = {name: {"files": files[name]} for name in group.names}
    async with group:
        await group.in_sync()
        load = Load(group.store())
        await load.until(20)
        old = await group.master()
        epoch = group.group.master_epoch
        files[old].sync_error = errno.EIO
        assert await group.master(after=epoch) != old
        await load.until(20)
        acknowledged = await load.stop()
        assert not load.errors
        assert await bodies(group.store(), 16) == [load.body(one) for one in acknowledged]
        node = group.nodes[old]
        assert isinstance(await node.failed, StoreError)
        assert node._heartbeats()[0].failed
        await group.kill(old)
        del group.own[old]
        await group.start(old)
        await group.in_sync()


async def test_a_master_whose_disk_fails_says_so_before_its_role_has_ended(tmp_path, controllers, monkeypatch):
    """Else it is taken for a master that was started again, and may be elected once more, as its log is the longest."""
    files = {name: FaultyFiles() for name in ("n1", "n2", "n3")}
    group = StoreGroup(tmp_path, controllers)
    group.own = {name: {"files": files[name]} for name in group.names}
    async with group:
        await group.in_sync()
        old = await group.master()
        node = group.nodes[old]
        heard = []
        close = node.disk.close

        async def close_late(**how):
            heard.append(node._heartbeats()[0])
            await close(**how)
            heard.append(node._heartbeats()[0])

        monkeypatch.setattr(node.disk, "close", close_late)
        files[old].sync_error = errno.EIO
        epoch = group.group.master_epoch
        appending = asyncio.ensure_future(append(group.store(), frame((16, b"a"))))
        assert await group.master(after=epoch) != old
        await node.failed
        assert [(one.master, one.failed) for one in heard] == [(False, True)] * 2
        await asyncio.gather(appending, return_exceptions=True)  # it may have been confirmed before the disk failed


async def test_a_replica_that_is_too_far_behind_begins_with_a_snapshot(tmp_path, controllers):
    group = StoreGroup(
        tmp_path,
        controllers,
        segment_size_bytes=20_000,
        retention=RetentionLimits(-1, 30_000),
        retention_interval_s=0.05,
    )
    async with group:
        await group.in_sync()
        store = group.store()
        await store.keys.put("k", b"v")
        await append(store, frame((16, b"first")))
        master = await group.master()
        away = next(name for name in group.names if name != master)
        await group.kill(away)
        was = group.nodes[master].disk.store
        load = Load(store, size=2_000, pause_s=0.005)
        await until(lambda: was.replication.first > origin_of(GROUP) + 40_000, PATIENCE_S)
        await load.stop()  # else retention here is faster than anybody who begins anew
        assert not load.errors
        await group.start(away)
        await group.in_sync()
        await group.settled()
        fresh = group.nodes[away].disk.store
        assert fresh.replication.first > origin_of(GROUP)
        assert (await fresh.keys.get("k")).value == b"v"
        assert (await bodies(fresh, 16, (await fresh.queues.bounds(16)).first))[-1] == load.body(load.acknowledged[-1])
        epoch = group.group.master_epoch
        await group.nodes[master].switch_over(group.id(away))
        assert await group.master(after=epoch) == away
        assert (await store.keys.get("k")).value == b"v"
        await append(store, frame((16, b"last")))


async def test_keys_are_not_read_from_a_master_that_may_be_none(group):
    """Its replicas are gone, and it does not know it: another one may be master."""
    store = group.store()
    await store.keys.put("k", b"v")
    assert (await store.keys.get("k")).value == b"v"
    master = await group.master()
    local = group.nodes[master].disk.store
    assert (await local.keys.get("k")).value == b"v"
    for name in group.names:
        if name != master:
            await group.kill(name)
    reads = [local.keys.get("k"), local.keys.range(), local.keys.prefix("k"), local.keys.count(), local.keys.hold()]
    assert all(isinstance(one, NotWritable) for one in await asyncio.gather(*reads, return_exceptions=True))


async def test_reads_of_keys_share_rounds_and_end_with_the_role(group):
    master = await group.master()
    role, local = group.role(master), group.nodes[master].disk.store
    await local.keys.put("k", b"v")
    before = role.core.ask_round()
    found = await asyncio.gather(*(local.keys.get("k") for _ in range(500)))
    assert {one.value for one in found} == {b"v"}
    assert role.core.ask_round() - before < 20
    epoch = group.group.master_epoch
    waiting = asyncio.ensure_future(_read_for_ever(local))
    await group.nodes[master].switch_over()
    await group.master(after=epoch)
    with pytest.raises(StoreError):
        await waiting


async def _read_for_ever(store):
    while True:
        await store.keys.get("k")


@pytest.mark.parametrize("acknowledge", ["quorum", "master"])
async def test_other_rules_of_acknowledgement(tmp_path, controllers, acknowledge):
    config = GroupConfig(replicas=3, min_in_sync=2 if acknowledge == "quorum" else 1, acknowledge=acknowledge)
    async with StoreGroup(tmp_path, controllers, config=config) as group:
        await group.in_sync()
        load = Load(group.store())
        await load.until(50)
        epoch = group.group.master_epoch
        await group.nodes[await group.master()].switch_over()
        await group.master(after=epoch)
        await load.until(50)
        old = await group.master()
        epoch = group.group.master_epoch
        if acknowledge == "quorum":
            await group.kill(old)
            await group.master(after=epoch)
            await load.until(50)
        acknowledged = await load.stop()
        assert not load.errors
        await group.settled()
        assert await bodies(group.store(), 16) == [load.body(one) for one in acknowledged]


async def test_a_group_may_acknowledge_by_another_rule_from_now_on(group):
    store = group.store()
    await append(store, frame((16, b"a")))
    await group.client.do(ConfigureGroup(number=GROUP, config=GroupChanges(acknowledge="quorum")))
    await append(store, frame((16, b"b")))
    await group.in_sync()
    epoch = group.group.master_epoch
    await group.kill(await group.master())
    await group.master(after=epoch)
    await append(store, frame((16, b"c")))
    assert await bodies(store, 16) == [b"a", b"b", b"c"]


async def test_an_epoch_without_data_is_told_apart(group, tmp_path):
    """A writes what nobody has and dies; B's epoch begins where A's began; A comes back and cuts what it wrote."""
    store = group.store()
    await append(store, frame((16, b"common")))
    await group.settled()
    a = await group.master()
    others = [name for name in group.names if name != a]
    for name in others:
        await group.kill(name)
    local = group.nodes[a].disk.store
    lost = begin(local, frame((16, b"of A alone")), frame((16, b"and more")))
    await until(lambda: local.replication.flushed == local.replication.end > local.log.confirmed)
    epoch = group.group.master_epoch
    await group.kill(a)
    for future in lost:
        with pytest.raises(StoreError):
            await future
    await group.start(*others)
    await group.master(after=epoch)
    await append(store, frame((16, b"of B")))
    await group.start(a)
    await group.in_sync()
    await group.settled()
    assert await bodies(group.nodes[a].disk.store, 16) == [b"common", b"of B"]
    assert len({log_bytes(tmp_path / name) for name in group.names}) == 1


async def test_unclean_election_goes_on_with_less_and_says_so(group, caplog):
    """Whoever had what was lost takes the views of the new master in place of its own."""
    store = group.store()
    await append(store, frame((16, b"a")))
    await group.settled()
    master = await group.master()
    behind = next(name for name in group.names if name != master)
    ahead = [name for name in group.names if name != behind]
    await group.kill(behind)
    await until(lambda: len(group.group.sync_set) == 2)
    await append(store, frame((16, b"acknowledged, and lost")))
    await group.settled()
    epoch = group.group.master_epoch
    for name in ahead:
        await group.kill(name)
    await group.start(behind)
    await group.client.do(ConfigureGroup(number=GROUP, config=GroupChanges(min_in_sync=1, unclean_election=True)))
    await until(lambda: group.id(behind) in {one.id for one in group.group.replicas})
    async with asyncio.timeout(PATIENCE_S):
        while group.group.master_epoch == epoch:
            with contextlib.suppress(ControllerError):  # the others are alive as long as they may only be silent
                await group.client.do(Elect(group=GROUP, candidate=group.id(behind)))
    assert await group.master(after=epoch) == behind
    await append(store, frame((16, b"b")))
    await group.start(*ahead)
    await group.in_sync()
    await group.settled()
    for name in group.names:
        assert await bodies(group.nodes[name].disk.store, 16) == [b"a", b"b"]
    assert "UNCLEAN" in caplog.text
    discarded = "this replica discards confirmed frames that the group lacks since an unclean election, from "
    assert sum(discarded in line.getMessage() and line.levelname == "CRITICAL" for line in caplog.records) == 2


async def test_a_group_of_one(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers, count=1) as group:
        store = group.store()
        await append(store, frame((16, b"a")))
        await store.keys.put("k", b"v")
        await group.kill("n1")
        await group.start("n1")
        await append(store, frame((16, b"b")))
        assert await bodies(store, 16) == [b"a", b"b"]
        assert (await store.keys.get("k")).value == b"v"


async def test_the_log_of_a_single_node_becomes_a_group_s(tmp_path, controllers):
    async with await LocalStore.open(tmp_path / "n2", group=GROUP) as single:
        await append(single, frame((16, b"of before")))
        await single.keys.put("k", b"v")
    async with StoreGroup(tmp_path, controllers) as group:
        await group.in_sync()
        assert await group.master() == "n2"
        store = group.store()
        await append(store, frame((16, b"of now")))
        await group.settled()
        for node in group.nodes.values():
            assert await bodies(node.disk.store, 16) == [b"of before", b"of now"]
            assert node.disk.epochs.entries[0] == (1, origin_of(GROUP))


@pytest.mark.parametrize("names", [EPOCH_FILES[:1], EPOCH_FILES[1:], EPOCH_FILES])
async def test_damaged_files_of_epochs_are_made_again_from_the_other_one_or_the_log(group, tmp_path, names):
    store = group.store()
    await append(store, frame((16, b"a")))
    epoch = group.group.master_epoch
    await group.nodes[await group.master()].switch_over()
    await group.master(after=epoch)
    await group.in_sync()
    await append(store, frame((16, b"b")))
    await group.settled()
    replica = next(name for name in group.names if not group.role(name).master)
    was = group.nodes[replica].disk.epochs
    await group.kill(replica)
    for name in names:
        (tmp_path / replica / name).write_bytes(b"nonsense")
    await group.start(replica)
    await group.in_sync()
    await append(store, frame((16, b"c")))
    await group.settled()
    assert group.nodes[replica].disk.epochs == was
    assert await bodies(group.nodes[replica].disk.store, 16) == [b"a", b"b", b"c"]
