"""A replica that cannot take what its master sends, for a while: it begins anew, whatever it is to be next.

So does one whose election is over before its disk has answered.
"""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from controller.api.client import GroupChanges, GroupConfig, Replica
from controller.api.commands import AddGroup, AlterSyncSet, ConfigureGroup, ElectMaster, RegisterReplica, encode_command
from controller.metadata.state import MetadataState
from controller.remote.remote import RemoteController
from controller.wire.wire import Fed
from store.base.errors import ViewsDamaged
from store.node import node as store_node
from store.node import replica_role
from store.node.master_role import MasterRole
from store.node.node import StoreNode
from store.node.replica.identity import ReplicaIdentity
from store.node.replica_role import ReplicaRole
from store.node.settings import Credentials, NodeSettings
from store.replication.epochs import EpochList
from tests.support.process.waiting import until
from tests.support.store.node_kit import PATIENCE_S, Load, StoreGroup
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_a_replica_that_is_elected_while_it_has_no_room_begins_anew_and_is_the_master(
    tmp_path, controllers, monkeypatch
):
    """Frames dropped for want of room count as on their way to the disk, and would be waited for."""
    monkeypatch.setattr(replica_role, "AGAIN_S", 3.0)  # it is elected meanwhile
    group = StoreGroup(tmp_path, controllers, count=2, config=GroupConfig(replicas=2, min_in_sync=2))
    files = {name: FaultyFiles() for name in group.names}
    group.own = {name: {"files": files[name], "disk_reserve_bytes": 1 << 20} for name in group.names}
    async with group:
        await group.in_sync()
        load = Load(group.store(), pause_s=0.01)
        await load.until(20)
        old = await group.master()
        full = next(name for name in group.names if name != old)
        epoch = group.group.master_epoch
        node, role = group.nodes[full], group.role(full)
        files[full].free = 0
        await until(lambda: role.broken, PATIENCE_S)
        assert isinstance(role, ReplicaRole)
        assert role.core.flushed < role.core.end
        await group.kill(old)
        files[full].free = None
        assert await group.master(after=epoch) == full
        assert not node.failed.done()
        load.task.cancel()


@pytest.mark.slow
async def test_a_replica_without_room_comes_back_when_there_is_some(tmp_path, controllers, monkeypatch):
    monkeypatch.setattr(replica_role, "AGAIN_S", 0.1)
    group = StoreGroup(tmp_path, controllers, count=3)
    files = {name: FaultyFiles() for name in group.names}
    group.own = {name: {"files": files[name]} for name in group.names}
    async with group:
        await group.in_sync()
        load = Load(group.store(), pause_s=0.01)
        await load.until(20)
        master = await group.master()
        full = next(name for name in group.names if name != master)
        role = group.role(full)
        files[full].fill(5_000)
        await until(lambda: role.broken, PATIENCE_S)
        await load.until(20)  # the others go on
        files[full].write_error = 0
        await group.in_sync()
        acknowledged = await load.stop()
        assert not load.errors
        assert not group.nodes[full].failed.done()
        await group.settled()
        assert await bodies(group.nodes[full].disk.store, 16) == [load.body(one) for one in acknowledged]


@pytest.mark.slow
async def test_a_store_that_was_cut_is_told_again_what_is_confirmed(tmp_path, controllers):
    """Its views may not have come so far before it was closed, and nobody would say it a second time."""
    async with StoreGroup(tmp_path, controllers, count=2) as group:
        await group.in_sync()
        store = group.store()
        await append(store, frame((16, b"a")))
        await group.settled()
        master = await group.master()
        role = group.role(next(name for name in group.names if name != master))
        told = []
        opened = role.context.disk.open_replica

        async def behind(end):
            reopened = await opened(end)
            reopened.replication.confirm = told.append
            return reopened

        role.context.disk.open_replica = behind
        await role._cut(role.core.end)
        assert told == [role.core.confirmed]


def registered(id_):
    return RegisterReplica(group=0, replica=Replica(id=id_, node=f"n{id_}", address=f"n{id_}:1", check=str(id_)))


@pytest.fixture
async def node(tmp_path):
    """Returns a node without a store, of a group with two replicas of which 1 is the master."""
    controller = RemoteController((), now_ms=lambda: 0)
    elect = ElectMaster(group=0, candidate=1, master_epoch=0, sync_epoch=0)
    for command in (AddGroup(number=0, config=GroupConfig(replicas=3)), registered(1), registered(2), elect):
        controller.state.apply(command)
    controller.index = 99
    made = StoreNode(NodeSettings(data_dir=tmp_path / "none"), controller, Credentials())
    made.group = controller.group(0)
    yield made
    await controller.close()


async def test_a_late_answer_does_not_take_the_place_of_a_newer_group_of_the_same_epochs(node):
    """The master went on by settings of before a change that was confirmed, until the next change of anything."""
    heard = []
    node.role = SimpleNamespace(on_group=heard.append)
    node.controller.watch(node._look)
    alter = AlterSyncSet(group=0, master=1, master_epoch=1, sync_epoch=1, new_set=(1, 2))
    leader = MetadataState.restore(node.controller.state.snapshot())
    answer = leader.apply(alter)
    configure = ConfigureGroup(number=0, config=GroupChanges(min_in_sync=2))
    node.controller._take_commands(Fed(102, tuple(map(encode_command, (alter, configure, registered(3))))))
    node._on_group(answer)  # which was on its way
    assert node.group == heard[-1] == node.controller.group(0)
    assert (node.group.config.min_in_sync, [one.id for one in node.group.replicas]) == (2, [1, 2, 3])


async def test_a_heartbeat_between_two_roles_says_all_that_the_last_one_had_acknowledged(node, monkeypatch):
    """With a promise that is newer than what it said of its log, a shorter log was elected by quorum."""
    monkeypatch.setattr(store_node, "REOPEN_S", 0)
    said = {"needs_repair": False, "cut_short": False, "damages": (), "damaged_bytes": 0, "lost_bytes": 0}
    node.identity, node.repairer = SimpleNamespace(id=2), SimpleNamespace(repairing_from=None, **said)
    node.disk.epochs, node.disk.promised = EpochList.of([(5, 0)]), 5
    core = SimpleNamespace(flushed=100, confirmed=100)
    node.role = SimpleNamespace(core=core, complaint=None, slow=False)
    assert node._heartbeats()[0].log_end == 100
    core.flushed, node.disk.promised = 200, 6
    await asyncio.wait_for(node._begin_again(ViewsDamaged("found by the verification")), PATIENCE_S)
    assert node.role is None
    assert (node._heartbeats()[0].master_epoch, node._heartbeats()[0].log_end) == (6, 200)


@pytest.fixture
async def replica(node):
    """Returns the node of replica 1, open, before it takes part."""
    node.identity = ReplicaIdentity(0, 1, "1")
    await node.disk.open_usable()
    yield node
    await node.close()


def elected(node, master, epoch, sync_set=(1,)):
    group = node.group
    sync_epoch = group.sync_epoch + 1
    return msgspec.structs.replace(
        group, master=master, master_epoch=epoch, sync_set=sync_set, sync_epoch=sync_epoch, unclean_epoch=epoch
    )


@pytest.mark.parametrize("step", ["belong", "follow_unclean"])
@pytest.mark.parametrize(("master", "sync_set"), [(2, (1, 2)), (2, (2,)), (None, (1,)), (1, (1,))])
async def test_a_replica_leads_no_epoch_but_the_one_in_which_it_was_elected(
    replica, monkeypatch, step, master, sync_set
):
    """It took the epoch of another one, elected while it waited for its disk, followed nobody, and its log counted."""
    led = []

    class Role(MasterRole):
        async def run(self):
            led.append((self.core.replica, self.core.epoch))
            await super().run()

    async def slowly(told):
        await done(told)
        if replica.group.master_epoch == 2:
            replica._on_group(elected(replica, master, 3, sync_set))

    async def close():
        pass

    monkeypatch.setattr(store_node, "MasterRole", Role)
    done = getattr(replica.disk, step)
    monkeypatch.setattr(replica.disk, step, slowly)
    replica._begin(lambda *_: SimpleNamespace(send_now=lambda: None, close=close))
    replica._on_group(elected(replica, 1, 2))
    await until(lambda: replica.failed.done() or (replica.disk.promised == 3 and (replica.disk.epochs or master != 1)))
    assert not replica.failed.done()
    assert led == ([(1, 3)] if master == 1 else [])
    assert replica.disk.epochs.newest == (3 if master == 1 else 0)


async def test_a_group_that_is_pushed_while_a_replica_registers_again_counts(node, monkeypatch):
    """The answer, which was older by an election, took its place until the next change of anything."""
    answer = node.group

    async def register(*_, **__):
        node._on_group(elected(node, 2, 2))
        return ReplicaIdentity(0, 1, "1"), answer

    monkeypatch.setattr(store_node, "register", register)
    await node._register()
    assert (node.identity.id, node.group.master, node.group.master_epoch) == (1, 2, 2)
