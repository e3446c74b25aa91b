"""A directory that version 0.1 wrote, before there were groups, is opened by this version."""

import shutil

import lmdb
import msgspec
import pytest

from controller.api.client import ControllerDamaged, ControllerError, GroupConfig, NamedQueue, Replica, Topic
from controller.api.commands import AddGroup, CreateTopic, NameQueue, RegisterReplica
from controller.api.requests import Elect
from controller.metadata.state import SNAPSHOT_VERSION, MetadataState
from controller.node.local import LocalController
from controller.node.node import ControllerNode
from tests.support.controller.controllers import Controllers, now_ms
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

# Written by 0.1: a topic of three queues, a named queue, and a topic of two that was deleted again.
SNAPSHOT = (
    b"\x83\xaanext_queue\x16\xa6topics\x91\x83\xa4name\xa9telemetry\xa6queues\x93\x10\x11\x12\xa6config\x82\xac"
    b"retention_ms\xcd\x03\xe8\xa5index\x91\xa3key\xa5named\x91\x82\xa4name\xa6orders\xa6number\x13"
)
COMMANDS = (
    b"\x84\xa4type\xafconfigure_topic\xa4name\xa9telemetry\xa6config\x80\xa7time_ms\x05",
    b"\x84\xa4type\xaaname_queue\xa4name\xa4more\xaaqueues_maxd\xa7time_ms\x06",
    b"\x83\xa4type\xacforget_queue\xa4name\xa6orders\xa7time_ms\x07",
    b"\x87\xa4type\xaccreate_topic\xa4name\xa5$amqp\xa6queues\x01\xa6config\x80\xaatopics_max\n\xaaqueues_maxd\xa7"
    b"time_ms\x08",
    b"\x83\xa4type\xacdelete_topic\xa4name\xa4none\xa7time_ms\t",
)


def written(directory, snapshot=SNAPSHOT, commands=COMMANDS):
    """Makes a controller's directory with a snapshot at index 4, and with these commands after it."""
    with lmdb.open(str(directory), max_dbs=0) as env, env.begin(write=True) as txn:
        txn.put(b"state", (4).to_bytes(8, "big") + snapshot)
        for index, command in enumerate(commands, 5):
            txn.put(index.to_bytes(8, "big"), command)


async def test_an_old_directory_opens_with_everything_in_the_home_group(tmp_path):
    written(tmp_path)
    controller = LocalController.open(tmp_path, now_ms=lambda: 10)
    try:
        telemetry = Topic(name="telemetry", queues=(16, 17, 18), groups=(0, 0, 0))
        assert controller.topics() == [Topic(name="$amqp", queues=(23,), groups=(0,)), telemetry]
        assert telemetry.open == (16, 17, 18)
        assert await controller.do(NameQueue(name="more")) == NamedQueue(name="more", number=22, group=0)
        assert [controller.group_of_queue(number) for number in (16, 18, 19, 20, 22, 23)] == [0, 0, None, None, 0, 0]
        assert (await controller.do(CreateTopic(name="new", queues=2))).queues == (24, 25)
    finally:
        await controller.close()


async def test_an_old_directory_is_read_once_and_kept(tmp_path):
    written(tmp_path)
    controller = LocalController.open(tmp_path, now_ms=lambda: 10)
    await controller.do(NameQueue(name="since"))
    before = (controller.topics(), controller.group_of_queue(22))
    await controller.close()
    assert {path.name for path in tmp_path.iterdir()} == {"raft", "data-before-raft.mdb"}
    again = LocalController.open(tmp_path, now_ms=lambda: 10)
    assert (again.topics(), again.group_of_queue(22)) == before
    assert (await again.do(NameQueue(name="since"))).number == 24
    await again.close()


async def test_a_migration_that_was_cut_off_is_done_again(tmp_path):
    written(tmp_path)
    for leave in ("nothing", "an empty directory", "all but the old name"):
        if leave == "an empty directory":
            (tmp_path / "raft").mkdir()
        controller = LocalController.open(tmp_path, now_ms=lambda: 10)
        assert [topic.name for topic in controller.topics()] == ["$amqp", "telemetry"]
        await controller.close()
        if leave != "all but the old name":
            (tmp_path / "data-before-raft.mdb").rename(tmp_path / "data.mdb")
            shutil.rmtree(tmp_path / "raft")
        else:  # the log has it all, and more
            (tmp_path / "data-before-raft.mdb").rename(tmp_path / "data.mdb")
            controller = LocalController.open(tmp_path, now_ms=lambda: 10)
            await controller.do(CreateTopic(name="since"))
            await controller.close()
            (tmp_path / "data-before-raft.mdb").rename(tmp_path / "data.mdb")
            controller = LocalController.open(tmp_path, now_ms=lambda: 10)
            assert controller.topic("since") is not None
            await controller.close()


async def test_one_of_several_controllers_does_not_begin_with_what_a_single_node_knew(tmp_path):
    written(tmp_path)
    with pytest.raises(ControllerError, match="let the others join it"):
        await ControllerNode.open(tmp_path, node_id=1, members={1: "a:1", 2: "b:1"}, address="a:1", now_ms=lambda: 1)
    node = await ControllerNode.open(tmp_path, node_id=1, members={1: "a:1"}, address="a:1", now_ms=lambda: 1)
    assert [topic.name for topic in node.topics()] == ["$amqp", "telemetry"]
    await node.close()


@pytest.mark.slow
async def test_a_single_nodes_directory_is_a_controllers_and_back_as_long_as_it_is_alone(tmp_path):
    single = LocalController.open(tmp_path / "1", now_ms=now_ms)
    topic = await single.do(CreateTopic(name="a"))
    await single.close()
    controllers = Controllers(tmp_path, count=1)
    async with controllers:
        await controllers.leader()
        client = controllers.remote()
        await client.ready()
        assert client.topics() == [topic]
        await until(lambda: [member.address for member in client.members()] == [controllers.addresses[1]])
        await controllers.stop()
        again = LocalController.open(tmp_path / "1", now_ms=now_ms)
        assert again.topics() == [topic]
        await again.close()
        await controllers.start()
        await controllers.start(2, join=True)
        await until(lambda: controllers.nodes[2].membership.voters == (1, 2))
        assert controllers.nodes[2].topics() == [topic]
        await controllers.stop()
        with pytest.raises(ControllerError, match="one controller of several"):
            LocalController.open(tmp_path / "1", now_ms=now_ms)


def test_groups_can_be_added_to_what_a_single_node_left():
    state = MetadataState.restore(SNAPSHOT)
    state.apply(AddGroup(number=0, config=GroupConfig(), time_ms=1))
    state.apply(AddGroup(number=1, config=GroupConfig(), time_ms=1))
    again = MetadataState.restore(state.snapshot())
    assert again.snapshot() == state.snapshot()
    assert sorted(again.groups) == [0, 1]
    assert again.topics["telemetry"].groups == (0, 0, 0)


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(SNAPSHOT[:-1], id="cut"),
        pytest.param(SNAPSHOT.replace(b"orders", b"\xff" * 6), id="no text"),
        pytest.param(SNAPSHOT.replace(b"\x93\x10\x11\x12", b"\xa3\x10\x11\x12"), id="another type"),
    ],
)
def test_a_damaged_snapshot_is_said_to_be_damaged(tmp_path, snapshot):
    written(tmp_path, snapshot)
    with pytest.raises(ControllerDamaged, match="restore the directory from a backup"):
        LocalController.open(tmp_path, now_ms=lambda: 1)


def test_a_command_that_nobody_knows_is_damage(tmp_path):
    written(tmp_path, commands=(b"\x81\xa4type\xa5bogus",))
    with pytest.raises(ControllerDamaged):
        LocalController.open(tmp_path, now_ms=lambda: 1)


def test_a_snapshot_of_a_newer_version_is_not_guessed_at():
    held = msgspec.msgpack.decode(MetadataState().snapshot())
    with pytest.raises(ControllerDamaged, match="newer version"):
        MetadataState.restore(msgspec.msgpack.encode({**held, "version": SNAPSHOT_VERSION + 1}))


async def test_a_single_node_is_group_0_with_itself(tmp_path):
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)
    try:
        (group,) = controller.groups()
        assert (group.number, group.master, group.sync_set, controller.home) == (0, 1, (1,), 0)
        assert controller.group(0) == group
        assert controller.group(1) is None
        assert await controller.do(Elect(group=0)) == group
        assert (await controller.do(CreateTopic(name="a"))).groups == (0,) * 8
        assert (await controller.do(NameQueue(name="q"))).group == 0
        replica = Replica(id=1, node="a", address="a:1", check="x")
        await controller.do(AddGroup(number=0, config=GroupConfig()))
        await controller.do(RegisterReplica(group=0, replica=replica))
        assert (await controller.do(Elect(group=0))).master == 1
        assert controller.group(0).replicas == (replica,)
    finally:
        await controller.close()
