"""A cluster that goes on from the directory of one controller: what is kept, and what is never given again."""

import asyncio
import shutil

import msgspec
import pytest
from typer.testing import CliRunner

from controller.api.client import ControllerError, GroupConfig, Member, MetadataForgotten, Replica
from controller.api.commands import AddGroup, ClusterLimits, CreateTopic, RaiseQueues, RegisterReplica
from controller.incarnations import operator_texts
from controller.incarnations.recovery import RECOVERED_INDEXES, StoppedController
from controller.metadata.growth import check_growth
from controller.metadata.state import QUEUE_NUMBER_MAX, RECOVERED_EPOCHS, RECOVERED_QUEUES, MetadataState
from controller.raft import StorageFailed
from gateway.cli.commands import app
from store.base.errors import MetadataWentBack
from store.cluster.agreement import MetadataAgreement
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio
ONE_QUEUE = ClusterLimits(default_queues=1)


def survivor_of(controllers, id_):
    return StoppedController(controllers.directory / str(id_), id_)


@pytest.mark.slow
async def test_one_goes_on_alone_and_gives_nothing_again(tmp_path):
    three = Controllers(tmp_path, limits=ONE_QUEUE)
    async with three:
        await three.leader()
        client = three.remote(limits=ONE_QUEUE)
        await client.ready()
        await client.do(AddGroup(number=0, config=GroupConfig(replicas=1, min_in_sync=1)))
        for id_ in (1, 2):
            await client.do(
                RegisterReplica(group=0, replica=Replica(id=id_, node=f"n{id_}", address=f"n{id_}:1", check=f"c{id_}"))
            )
        topic = await client.do(CreateTopic(name="kept"))
        await until(lambda: three.nodes[2].topic("kept") is not None)
        with pytest.raises(StorageFailed, match="in use"):
            survivor_of(three, 2)
        before, index, cluster = three.nodes[2].state.next_queue, three.nodes[2].applied, three.nodes[2].cluster
        epoch = three.nodes[2].state.groups[0].master_epoch
        await three.stop()
        survivor = survivor_of(three, 2)
        found = survivor.found
        assert (found.id, found.cluster, found.topics, found.groups, found.controllers) == (2, cluster, 1, 1, (1, 2, 3))
        survivor.recover(three.addresses[2], "c2")
        survivor.close()
        await three.start(2)
        await three.leader()
        alone = three.nodes[2]
        assert alone.applied >= index + RECOVERED_INDEXES
        assert (alone.cluster, alone.state.generation) == (cluster, 1)
        assert alone.topic("kept") == topic
        assert min((await alone.do(CreateTopic(name="new"))).queues) >= before + RECOVERED_QUEUES
        group = alone.group(0)
        assert (group.master, group.sync_set, group.master_epoch) == (None, (), epoch + RECOVERED_EPOCHS)
        assert [one.id for one in alone.members()] == [2]


@pytest.mark.slow
async def test_one_that_heard_nobody_at_its_start_says_later_that_the_cluster_was_recovered_without_it(tmp_path):
    """It asked once, and had no answer in time: as when the one that goes on is down then, or busy."""
    three = Controllers(tmp_path, limits=ONE_QUEUE)
    async with three:
        await three.leader()
        await until(lambda: all(len(node.members()) == 3 for node in three.nodes.values()))
        await three.stop()
        survivor = survivor_of(three, 2)
        survivor.recover(three.addresses[2], "c2")
        survivor.close()
        await three.start(3)
        left = three.nodes[3]
        await until(lambda: left.driver.raft.node.proven)
        await three.start(2)
        await until(lambda: left.memory.reasons == (operator_texts.RECOVERED,))
        assert not left.driver.raft.node.proven
        assert not left.has_leader
        assert three.nodes[2].leading is not None
        assert three.nodes[2].memory.reasons == ()


def test_what_is_no_controllers_directory_is_refused(tmp_path):
    with pytest.raises(ControllerError, match="no controller's directory"):
        StoppedController(tmp_path, 1)


async def test_nothing_is_changed_before_it_is_confirmed(tmp_path):
    one = Controllers(tmp_path, count=1)
    async with one:
        await one.leader()
        await one.nodes[1].do(CreateTopic(name="kept", queues=1))
    arguments = ["controller", "recover", "--dir", str(tmp_path / "1"), "--address", "127.0.0.1:1"]
    async with one:
        await one.leader()
        running = CliRunner().invoke(app, [*arguments, "--yes"])
    where = tmp_path / "1" / "raft"
    assert str(running.exception) == f"{where} is in use by another process: stop it, or name another directory"
    refused = CliRunner().invoke(app, arguments, input="n\n")
    assert refused.exit_code != 0
    assert "1 topics" in refused.output
    assert survivor_generation(tmp_path / "1") == 0
    done = CliRunner().invoke(app, [*arguments, "--yes"])
    assert done.exit_code == 0, done.output
    assert survivor_generation(tmp_path / "1") == 1


async def test_one_that_joined_later_is_recovered_with_a_file_that_names_the_others_alone(tmp_path):
    """It was told to write one of their ids, or to start with --join."""
    one = Controllers(tmp_path, count=1)
    async with one:
        await one.leader()
    file = tmp_path / "x.toml"
    file.write_text('[cluster]\ncontrollers = { 7 = "127.0.0.1:7" }\n[controller]\nid = 1\nport = 9\n')
    done = CliRunner().invoke(app, ["controller", "recover", "-c", str(file), "--dir", str(tmp_path / "1"), "--yes"])
    assert done.exit_code == 0, done.output
    assert "It will be the only controller, at 127.0.0.1:9." in done.output
    assert survivor_generation(tmp_path / "1") == 1


def survivor_generation(directory):
    survivor = StoppedController(directory, 1)
    try:
        return survivor._state.generation
    finally:
        survivor.close()


def test_queue_numbers_are_raised_and_never_lowered():
    state = MetadataState()
    state.apply(RaiseQueues(next_queue=1_000, time_ms=0))
    state.apply(RaiseQueues(next_queue=500, time_ms=0))
    assert state.next_queue == 1_000
    with pytest.raises(ControllerError):
        state.apply(RaiseQueues(next_queue=QUEUE_NUMBER_MAX + 1, time_ms=0))
    assert MetadataState.restore(state.snapshot()).next_queue == 1_000


@pytest.mark.slow
async def test_clients_do_not_believe_controllers_that_were_all_put_back(tmp_path):
    three = Controllers(tmp_path / "now", limits=ONE_QUEUE)
    async with three:
        await three.leader()
        client = three.remote(limits=ONE_QUEUE, budget_s=1.0)
        await client.ready()
        await client.do(CreateTopic(name="kept"))
        await until(lambda: all(node.topic("kept") for node in three.nodes.values()))
        await until(lambda: all(len(node.members()) == 3 for node in three.nodes.values()))
        await three.stop()
        shutil.copytree(tmp_path / "now", tmp_path / "backup")
        await three.start()
        await three.leader()
        lost = await client.do(CreateTopic(name="lost"))
        await three.stop()
        shutil.rmtree(tmp_path / "now")
        shutil.copytree(tmp_path / "backup", tmp_path / "now")
        await three.start()
        await three.leader()
        await until(lambda: "have forgotten committed metadata" in client.distrust)
        other = three.remote(limits=ONE_QUEUE)
        await other.ready()
        agreement, known = MetadataAgreement(other), client.known()
        for number in range(10):  # they come to where the client is, with something else
            with pytest.raises(MetadataWentBack, match="have forgotten committed metadata"):
                await agreement.check(known)  # which a store does before it serves, and a proxy before it asks a store
            new = await other.do(CreateTopic(name=f"new{number}"))  # of one that does not ask
            assert (new.queues == lost.queues) == (number == 0)
            agreement = MetadataAgreement(other)
        why = ""
        async with asyncio.timeout(60):  # on a busy machine they elect a leader, or answer late
            while "have forgotten" not in why:
                with pytest.raises(ControllerError) as refused:
                    await client.do(CreateTopic(name="mixed"))
                why = str(refused.value)
        assert client.topic("lost") == lost
        assert client.topic_of_queue(lost.queues[0]) == "lost"
        assert client.topic("new0") is None


def test_metadata_that_shrinks_is_not_believed():
    before, after = MetadataState(), MetadataState()
    for state, name in ((before, "a"), (after, "b")):
        state.apply(CreateTopic(name=name, queues=1, topics_max=9, queues_max=9, time_ms=0))
        state.apply(AddGroup(number=0, config=GroupConfig(replicas=1, min_in_sync=1), time_ms=0))
    check_growth(before, before)
    with pytest.raises(MetadataForgotten, match=r"queue 16 was that of topic 'a', and now is that of topic 'b'"):
        check_growth(before, after)
    with pytest.raises(MetadataForgotten, match="next queue"):
        check_growth(before, MetadataState())
    before.recover(Member(id=1, node="n", address="n:1"))
    with pytest.raises(MetadataForgotten, match="recovered 1 times"):
        check_growth(before, after)
    fallen = MetadataState.restore(before.snapshot())
    fallen._groups.groups[0] = msgspec.structs.replace(fallen.groups[0], master_epoch=3)
    with pytest.raises(MetadataForgotten, match="epoch"):
        check_growth(before, fallen)
