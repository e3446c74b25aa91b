"""The ids by which clusters and logs are told apart: given once, kept, and compared by everybody who connects."""

import asyncio
import logging
import shutil

import grpc
import grpc.aio
import msgspec
import pytest

from controller.api.client import ControllerClosed, GroupConfig, Replica, WrongCluster, WrongLog
from controller.api.commands import AddGroup, ElectMaster, ForgetReplica, NameCluster, RegisterReplica
from controller.disk import cluster_file
from controller.disk.cluster_file import ClusterFile
from controller.metadata.state import MetadataState
from controller.node.local import LocalController
from controller.remote.heartbeats import Heartbeats
from controller.wire import wire
from controller.wire.commander import Commander
from controller.wire.wire import open_channel, path
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


# ---- the state


def replica(id_, log=""):
    return Replica(id=id_, node=f"n{id_}", address=f"n{id_}:1", check=f"check {id_}", log=log)


def register(state, one):
    return state.apply(RegisterReplica(group=0, replica=one, time_ms=0))


def elect(state, id_):
    group = state.groups[0]
    return state.apply(
        ElectMaster(group=0, candidate=id_, master_epoch=group.master_epoch, sync_epoch=group.sync_epoch, time_ms=0)
    )


def fresh(cluster="c1"):
    state = MetadataState()
    if cluster:
        state.apply(NameCluster(id=cluster, time_ms=0))
    state.apply(AddGroup(number=0, config=GroupConfig(replicas=3), time_ms=0))
    return state


def test_the_first_name_stays():
    state = fresh()
    state.apply(NameCluster(id="c2", time_ms=0))
    assert state.cluster == "c1"
    assert MetadataState.restore(state.snapshot()).cluster == "c1"


def test_the_first_election_gives_the_log_its_id_for_ever():
    state = fresh()
    for id_ in (1, 2):
        register(state, replica(id_))
    assert state.groups[0].log == ""
    assert elect(state, 2).log == "c1.0"
    elect(state, None)
    assert elect(state, 2).log == "c1.0"


def test_a_log_that_is_brought_keeps_its_id():
    state = fresh()
    register(state, replica(1))
    register(state, replica(2, "single"))
    assert elect(state, 2).log == "single"
    assert register(state, replica(1, "single")).replica(1).log == "single"


def test_of_two_logs_that_are_brought_the_second_is_refused():
    state = fresh()
    register(state, replica(1, "one"))
    before = state.snapshot()
    with pytest.raises(WrongLog, match=r"node n1 brings to store group 0 is one, .* node n2 is two"):
        register(state, replica(2, "two"))
    assert state.snapshot() == before
    register(state, replica(1, "one"))  # again
    state.apply(ForgetReplica(group=0, replica=1, time_ms=0))
    assert register(state, replica(2, "two")).replica(2).log == "two"


def test_a_log_of_elsewhere_is_refused_by_name():
    state = fresh()
    register(state, replica(1))
    elect(state, 1)
    with pytest.raises(WrongLog, match=r"store group 0 is c1\.0, and that of node n2 is other"):
        register(state, replica(2, "other"))
    register(state, replica(2, "c1.0"))
    register(state, replica(3))


def test_groups_of_before_are_named_with_the_cluster():
    state = fresh("")
    state.apply(AddGroup(number=1, config=GroupConfig(), time_ms=0))
    register(state, replica(1))
    assert elect(state, 1).log == ""
    old = msgspec.msgpack.decode(state.snapshot())
    del old["cluster"]
    for group in old["groups"]:
        del group["log"]
    state = MetadataState.restore(msgspec.msgpack.encode({**old, "version": 2}))
    state.apply(NameCluster(id="late", time_ms=0))
    assert (state.groups[0].log, state.groups[1].log) == ("late.0", "")


# ---- nodes


async def test_a_single_node_names_its_cluster_once(tmp_path):
    controller = LocalController.open(tmp_path, now_ms=lambda: 0)
    await controller.barrier()
    name = controller.cluster
    assert len(name) == 16
    await controller.close()
    again = LocalController.open(tmp_path, now_ms=lambda: 0)
    assert again.cluster == name
    await again.close()


async def test_controllers_agree_on_a_name_and_know_it_at_a_restart(tmp_path):
    async with Controllers(tmp_path) as controllers:
        leader = controllers.nodes[await controllers.leader()]
        name = leader.cluster
        assert name
        file = tmp_path / "1" / "raft" / "cluster"
        await until(lambda: file.exists() and controllers.nodes[1].cluster == name)
        assert ClusterFile(file.parent).id == name
        client = controllers.remote()
        await client.ready()
        await client.barrier()
        assert client.cluster == name


async def test_a_file_that_cannot_be_read_counts_for_nothing(tmp_path):
    (tmp_path / "cluster").write_bytes(b"\xff\xff no name\n")
    file = ClusterFile(tmp_path)
    assert file.id == ""
    await file.learn(lambda: "c1", asyncio.sleep)
    assert ClusterFile(tmp_path).id == "c1"
    await file.learn(lambda: "c2", asyncio.sleep)  # said loudly, and left as it is
    assert ClusterFile(tmp_path).id == "c1"


async def test_an_id_that_the_disk_refuses_is_written_when_it_takes_it(tmp_path, monkeypatch, caplog):
    """The failure ended the task that writes the file, and nobody was told."""
    monkeypatch.setattr(cluster_file, "AGAIN_S", 0.001)
    file = ClusterFile(tmp_path / "raft")
    learning = asyncio.ensure_future(file.learn(lambda: "c1", asyncio.sleep))
    await until(lambda: learning.done() or caplog.records)
    assert not learning.done()
    assert f"{tmp_path}/raft/cluster cannot be written: " in caplog.text
    (tmp_path / "raft").mkdir()
    await learning
    assert ClusterFile(tmp_path / "raft").id == "c1"
    assert caplog.text.count("cannot be written") == 1


# ---- two clusters mixed up


@pytest.fixture
async def two(tmp_path):
    """Yields two clusters of one controller each."""
    async with Controllers(tmp_path / "a", count=1) as a, Controllers(tmp_path / "b", count=1) as b:
        for one in (a, b):
            await one.leader()
        yield a, b


@pytest.mark.parametrize(
    ("method", "hello"),
    [
        (wire.PEER, wire.Hello(2, "x:1", "other")),
        (wire.INSTALL, wire.Hello(2, "x:1", "other")),
        (wire.FOLLOW, wire.FollowRequest(1, "other")),
        (wire.COMMAND, wire.CommandHello("c", "other")),
        (wire.HEARTBEAT, wire.HeartbeatHello((0,), "other")),
    ],
)
async def test_whoever_is_of_another_cluster_is_refused_by_name(two, method, hello):
    a, _ = two
    async with open_channel(a.addresses[1], None) as channel:
        upload = method in {wire.PEER, wire.INSTALL}
        call = (channel.stream_unary if upload else channel.stream_stream)(path(method))()
        await call.write(wire.encode(hello))
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        told = await call.details()
        assert a.nodes[1].cluster in told
        assert "other" in told


async def test_a_client_of_two_clusters_stays_with_the_one_it_met_first(two, caplog):
    a, b = two
    client = a.remote()
    await client.ready()
    await client.barrier()
    client._given = (b.addresses[1],)  # as if b's controller had come to the address of a's
    await a.stop(1)
    await until(lambda: f"not following {b.addresses[1]}" in caplog.text)
    assert b.nodes[1].cluster in caplog.text
    assert client.cluster in caplog.text
    assert client.cluster != b.nodes[1].cluster


async def test_commands_and_heartbeats_do_not_go_to_another_cluster(two, caplog):
    a, b = two
    mine = a.nodes[1].cluster
    caplog.set_level(logging.DEBUG, "controller.wire.commander")
    commander = Commander(lambda: [b.addresses[1]], cluster=lambda: mine)
    asking = asyncio.ensure_future(commander.ask(wire.Barrier()))
    await until(lambda: f"commands to {b.addresses[1]}: " in caplog.text and b.nodes[1].cluster in caplog.text)
    await commander.close()
    with pytest.raises(ControllerClosed):
        await asking
    told = []
    beats = Heartbeats((0,), lambda: [b.addresses[1]], list, told.append, cluster=lambda: mine)
    await until(lambda: f"no heartbeats to {b.addresses[1]}" in caplog.text)
    await beats.close()
    assert told == []


async def test_a_controller_of_another_cluster_gets_no_votes(tmp_path, caplog):
    """Started at the address of one of ours, with the directory of theirs."""
    ours, theirs = Controllers(tmp_path / "ours"), Controllers(tmp_path / "theirs")
    theirs.addresses = dict(ours.addresses)
    async with theirs:
        await theirs.leader()
        await until((tmp_path / "theirs" / "3" / "raft" / "cluster").exists)
        await until(lambda: theirs.nodes[3].cluster)
        name = theirs.nodes[3].cluster
    async with ours:
        await ours.leader()
        await until((tmp_path / "ours" / "3" / "raft" / "cluster").exists)
    shutil.rmtree(tmp_path / "ours" / "3")
    shutil.copytree(tmp_path / "theirs" / "3", tmp_path / "ours" / "3")
    async with ours:
        await until(lambda: "refuses messages of this controller" in caplog.text)
        assert name in caplog.text
        leader = await ours.leader()
        assert leader != 3
        assert ours.nodes[3].cluster == name


def test_the_error_travels_as_what_it_is():
    assert isinstance(wire.revive(wire.describe(WrongCluster("a, not b"))), WrongCluster)
    assert isinstance(wire.revive(wire.describe(WrongLog("a, not b"))), WrongLog)
