"""An operator's levers: each is pulled by its command, on a store group of real nodes."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from controller.api.client import NotElectable, QueueClosed, ReplicaInSync, UnknownQueue, UnknownTopic
from controller.api.commands import CloseQueue, ConfigureGroup, CreateTopic
from controller.node.local import LocalController
from controller.remote.remote import RemoteController
from gateway.cli import commands as cli
from gateway.domain.cursor import offsets_of
from gateway.domain.keys import kv_key
from gateway.groups.state import GroupRecord, QueueRecord, group_key, name_key, queue_key
from gateway.groups.state import encode as encode_group
from gateway.operating import queues
from gateway.operating.members import AddressTaken
from gateway.operating.replicas import CannotVerify
from gateway.ownership.owner_keys import encode as encode_cursor
from gateway.ownership.owners import CURSORS
from store.base.errors import QueueDropped
from store.base.process_errors import ConfigError
from store.format.frame import LogOffset, Position
from store.local.local import LocalStore
from store.node.replica_role import ReplicaRole
from store.node.run import _role_reason
from store.replication.replica_core import Stage
from tests.support.controller.controllers import Controllers, now_ms
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, StoreGroup
from tests.support.store.store_kit import append, bodies, frame

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def controllers(tmp_path):
    async with Controllers(tmp_path / "controllers", count=1) as found:
        await found.leader()
        yield found


@pytest.fixture
async def group(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers) as found:
        await found.in_sync()
        yield found


@pytest.fixture
def headgate(controllers):
    """Calls a command; its output, or raises what the command line says in one line."""

    async def call(*words, answer=None):
        command = ["cluster", *map(str, words), "--controllers", ",".join(controllers.addresses.values())]
        found = await asyncio.to_thread(CliRunner().invoke, cli.app, command, input=answer)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found

    return call


# ---- elect


async def test_elect_elects_another_one_and_says_why_not(group, headgate):
    """It was done without effect where the master served, be it reached or not."""
    old = await group.master()
    epoch = group.group.master_epoch
    said = await headgate("elect", GROUP)
    new = await group.master(after=epoch)
    assert new != old
    assert said.output == f"store group {GROUP}: replica {group.id(new)} is master of epoch {epoch + 1}\n"
    with pytest.raises(NotElectable, match=f"replica {group.id(new)} is already master of store group {GROUP}"):
        await headgate("elect", GROUP, "--replica", group.id(new))
    await group.in_sync()
    third = next(name for name in group.names if name not in {old, new})
    await headgate("elect", GROUP, "--replica", group.id(third))
    assert await group.master(after=epoch + 1) == third


async def test_an_unclean_election_says_what_may_be_lost_and_asks(group, headgate, caplog):
    store = group.store()
    await append(store, frame((16, b"a")))
    await group.settled()
    master = await group.master()
    (late, other) = (name for name in group.names if name != master)
    with pytest.raises(NotElectable, match="nothing needs to be lost, as replicas in sync are alive"):
        await headgate("elect", GROUP, "--unclean", "--yes")
    await group.kill(late)
    await until(lambda: len(group.group.sync_set) == 2)
    await append(store, frame((16, b"lost")))
    lost = {group.id(name) for name in (master, other)}
    await group.kill(other)
    await group.kill(master)
    await group.start(late)
    epoch = group.group.master_epoch
    refused = await headgate("elect", GROUP, "--unclean", answer="n\n")
    assert refused.exit_code == 1
    assert f"replica {group.id(late)}: not in sync, alive, its log ended at" in refused.output
    assert "it lacks" in refused.output
    assert all(f"replica {id_}: in sync, " in refused.output for id_ in lost)
    assert group.group.master_epoch in {epoch, epoch + 1}  # the dead master may have been removed meanwhile

    async def elected():
        try:
            return await headgate("elect", GROUP, "--unclean", answer="y\n")
        except NotElectable:  # the others count as alive for two seconds
            return None

    while (said := await elected()) is None:
        await asyncio.sleep(0.1)
    assert f"replica {group.id(late)} is master" in said.output
    assert await group.master(after=epoch) == late
    assert any(record.levelname == "CRITICAL" and "UNCLEAN ELECTION" in record.message for record in caplog.records)


# ---- configure


async def test_a_group_is_configured_while_it_runs(group, headgate):
    master = await group.master()
    core = group.role(master).core
    said = await headgate("groups", "configure", GROUP, "--min-in-sync", 3)
    assert said.output.startswith(f"store group {GROUP}: min_in_sync is 3, as soon as the master knows it")
    replica = next(name for name in group.names if name != master)
    await until(lambda: core._min_in_sync == 3)
    await group.kill(replica)
    await until(lambda: core.refusal is not None)
    assert "3 are needed" in str(core.refusal)
    await headgate("groups", "configure", GROUP, "--min-in-sync", 1, "--acknowledge", "quorum", "--unclean-election")
    await until(lambda: core.refusal is None)
    await append(group.store(), frame((16, b"a")))
    config = group.group.config
    assert (config.replicas, config.min_in_sync, config.acknowledge, config.unclean_election) == (3, 1, "quorum", True)
    said = await headgate("groups", "configure", GROUP, "--replicas", 5)
    assert said.output == (
        f"store group {GROUP}: 5 replicas are meant to be, 3 are there: start nodes of the group on empty directories\n"
    )
    said = await headgate("groups", "configure", GROUP, "--replicas", 5)
    assert said.output == f"store group {GROUP}: it is configured so already\n"
    with pytest.raises(Exception, match="min_in_sync is at least 1 and at most the number of replicas, 5, not 6"):
        await headgate("groups", "configure", GROUP, "--min-in-sync", 6)
    with pytest.raises(Exception, match="nothing to change"):
        await headgate("groups", "configure", GROUP)


async def test_two_operators_who_configure_a_group_keep_each_others_settings(group, headgate, monkeypatch):
    """The whole configuration was written back as it had been read, with the other's change undone."""
    real = RemoteController.do

    async def behind_another(controller, request):
        if isinstance(request, ConfigureGroup):
            monkeypatch.setattr(RemoteController, "do", real)
            await headgate("groups", "configure", GROUP, "--min-in-sync", 1)
        return await real(controller, request)

    monkeypatch.setattr(RemoteController, "do", behind_another)
    await headgate("groups", "configure", GROUP, "--unclean-election")
    await until(lambda: group.group.config.unclean_election)
    assert group.group.config.min_in_sync == 1


async def test_a_group_that_is_there_is_not_added(group, headgate):
    said = await headgate("groups", "add", GROUP + 1, "--replicas", 1)
    assert said.output == f"store group {GROUP + 1} is added: replicas 1, min_in_sync 1, acknowledge all_in_sync\n"
    again = await headgate("groups", "add", GROUP + 1, "--replicas", 1)
    assert again.output == said.output.replace("is added", "was there already")


async def test_a_closed_group_is_opened_again(group, headgate):
    await headgate("groups", "close", GROUP)
    await until(lambda: group.group.closed)
    said = await headgate("groups", "open", GROUP)
    assert said.output == f"store group {GROUP} gets new queues again\n"
    await until(lambda: not group.group.closed)
    assert (await group.client.do(CreateTopic(name="t", queues=1))).groups == (GROUP,)


# ---- replicas


async def test_a_replica_that_lives_is_retired_and_writing_goes_on(group, headgate, caplog):
    master = await group.master()
    store = group.store()
    await append(store, frame((16, b"a")))
    gone = next(name for name in group.names if name != master)
    id_ = group.id(gone)
    with pytest.raises(
        ReplicaInSync, match=f"replica {group.id(master)} is master of store group {GROUP}: elect another"
    ):
        await headgate("replicas", "retire", GROUP, group.id(master))
    said = await headgate("replicas", "retire", GROUP, id_)
    assert f"replica {id_} is retired" in said.output
    assert "start a node of the group on an empty directory" in said.output
    await until(lambda: group.group.replica(id_) is None)
    assert id_ not in group.group.sync_set
    await until(lambda: id_ not in group.role(master).core.sync_set)
    await append(store, frame((16, b"b")))
    assert await bodies(store, 16) == [b"a", b"b"]
    assert isinstance(group.role(gone), ReplicaRole)
    told = f"store group {GROUP} has no replica {id_} any more, it was retired or forgotten: stop this store"
    await until(lambda: _role_reason(group.nodes[gone]).startswith(told))  # in its /readyz
    await until(lambda: group.role(gone).core.stage is Stage.IDLE)
    assert not group.role(gone)._may_dial()  # it asked the master again and again
    assert [record.levelname for record in caplog.records if record.message.startswith(told)] == ["ERROR"]
    assert group.group.next_replica > id_  # and is not given again
    await headgate("replicas", "retire", GROUP, id_)  # the answer was lost
    said = await headgate("replicas", "forget", GROUP, id_)  # its node runs still; it was told to retire the replica
    assert said.output == f"store group {GROUP}: replica {id_} is forgotten\n"
    rest = next(name for name in group.names if name not in {gone, master})
    with pytest.raises(ReplicaInSync, match="nothing is written until another one is"):
        await headgate("replicas", "retire", GROUP, group.id(rest))
    await headgate("replicas", "retire", GROUP, group.id(rest), "--force")
    await until(lambda: group.group.sync_set == (group.id(master),))


async def test_a_replica_is_forgotten_when_it_is_gone(group, headgate):
    master = await group.master()
    gone = next(name for name in group.names if name != master)
    id_ = group.id(gone)
    with pytest.raises(ReplicaInSync, match=f"replica {id_} of store group {GROUP} is alive at 127.0.0.1:"):
        await headgate("replicas", "forget", GROUP, id_)
    await group.kill(gone)
    await until(lambda: id_ not in group.group.sync_set)

    async def forgotten():
        try:
            return await headgate("replicas", "forget", GROUP, id_)
        except ReplicaInSync:  # it counts as alive for a moment
            return None

    while (said := await forgotten()) is None:
        await asyncio.sleep(0.1)
    assert said.output == f"store group {GROUP}: replica {id_} is forgotten\n"


async def test_a_replica_reads_its_log_now_and_repairs_what_is_damaged(group, headgate):
    store = group.store()
    for i in range(20):
        await append(store, frame((16, b"%03d" % i + bytes(1_000))))
    await group.settled()
    master = await group.master()
    hurt = next(name for name in group.names if name != master)
    id_ = group.id(hurt)
    said = await headgate("replicas", "repair", GROUP, id_)
    assert said.output.startswith(f"store group {GROUP}: replica {id_} has read ")
    assert said.output.endswith(" bytes of its log: nothing is damaged\n")
    (path,) = [one for one in (group.directory / hurt / "log").iterdir() if one.stat().st_size > 10_000]
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(10_000)
        file.write(bytes([data[10_000] ^ 1]))
    await headgate("replicas", "repair", GROUP, id_)
    await until(lambda: path.read_bytes()[: len(data)] == data)
    await until(lambda: group.nodes[hurt].disk.store.damages_repaired == 1)
    said = await headgate("replicas", "repair", GROUP, id_)
    assert said.output.endswith("nothing is damaged\nrepaired so far: 1\n")
    address = group.nodes[hurt].address
    await group.kill(hurt)
    said = f"replica {id_} of store group {GROUP} does not answer at {address}: start it, and repeat this"
    with pytest.raises(CannotVerify, match=f"^{said}$"):
        await headgate("replicas", "repair", GROUP, id_)


# ---- controllers


async def test_a_controller_that_is_added_is_shown_before_it_was_ever_started(controllers, headgate):
    """Neither list named it, so that a mistyped address was seen nowhere."""
    with pytest.raises(ConfigError, match="'nonsense' is not host:port"):
        await headgate("members", "add", 5, "nonsense")
    taken = controllers.addresses[1]
    with pytest.raises(AddressTaken, match=f"controller 1 is at {taken}: name another address, or remove it first"):
        await headgate("members", "add", 5, taken)  # 5 was asked for there, and 1 answered
    assert (await headgate("members", "add", 1, taken)).output == f"controller 1 was there already, at {taken}\n"
    assert (await headgate("members", "add", 5, "127.0.0.1:9")).output == "controller 5 is added\n"
    lines = (await headgate("members", "list")).output.splitlines()
    assert [line.split() for line in lines if "127.0.0.1:9 " in line] == [
        ["5", "127.0.0.1:9", "does", "not", "answer", "no"]
    ]
    said = await headgate("members", "add", 5, "127.0.0.1:10")
    assert said.output == (
        "controller 5 was there already, at 127.0.0.1:9, and is asked for at 127.0.0.1:10 from now on\n"
    )
    shown = json.loads((await headgate("status", "--json")).output)
    assert shown["troubles"] == ["controller at 127.0.0.1:10 does not answer"]


# ---- topics


@pytest.fixture
async def single(tmp_path):
    """Yields a store and a controller in this process, with a topic of two queues, the first of which is closed."""
    async with await LocalStore.open(tmp_path / "store") as store:
        controller = LocalController.open(tmp_path / "controller", now_ms=now_ms)
        topic = await controller.do(CreateTopic(name="t", queues=2))
        first = topic.queues[0]
        for i in range(10):
            await append(store, frame((first, b"%d" % i)))
        await controller.do(CloseQueue(number=first))
        yield store, controller, first
        await controller.close()


async def test_queues_are_listed_with_what_is_in_them(single):
    store, controller, first = single
    one, other = await queues.lines(controller, store)
    assert (one.number, one.topic, one.state, one.records, one.unread) == (first + 1, "t", "open", 0, 0)
    assert (other.number, other.state, other.records) == (first, "closed", 10)


async def test_a_queue_is_dropped_when_all_have_read_it_and_else_it_is_said_who_has_not(single):
    store, controller, first = single
    await store.keys.put(name_key("g"), encode_group(GroupRecord("t", "averaged")))
    await store.keys.put(group_key("g"), encode_group(GroupRecord("t", "averaged")))
    await store.keys.put(queue_key("g", first), encode_group(QueueRecord(7)))
    with pytest.raises(QueueClosed, match=f"queue {first} of t is not read to its end.*'g': 3; --force"):
        await queues.drop(controller, store, first)
    assert {line.number: line.unread for line in await queues.lines(controller, store)} == {first: 3, first + 1: 0}
    await store.keys.put(queue_key("g", first), encode_group(QueueRecord(10)))
    fourth = (await store.queues.fetch(first, 4, max_bytes=1)).frames[0].start
    cursor = {int(queue): at for queue, at in offsets_of((Position(LogOffset(fourth), 0),)).items()}
    await store.keys.put(kv_key(CURSORS, "mqtt/s"), encode_cursor(cursor))
    with pytest.raises(QueueClosed, match=r"session 'mqtt/s' \(if it subscribes to the topic\): 6; --force"):
        await queues.drop(controller, store, first)
    await store.keys.put(kv_key(CURSORS, "mqtt/s"), encode_cursor({0: store.replication.end, 1: 0}))
    await queues.drop(controller, store, first)
    assert controller.topic_of_queue(first) is None
    with pytest.raises(UnknownQueue, match=f"no topic has a queue {first}"):
        await queues.drop(controller, store, first)


async def test_a_queue_with_readers_is_dropped_by_force(single):
    store, controller, first = single
    await store.keys.put(name_key("g"), encode_group(GroupRecord("t", "averaged")))
    await store.keys.put(group_key("g"), encode_group(GroupRecord("t", "averaged")))
    await queues.drop(controller, None, first)
    assert controller.topic_of_queue(first) is None


async def test_a_topic_grows_where_the_operator_says(group, headgate):
    topic = await group.client.do(CreateTopic(name="t", queues=1))
    said = await headgate("topics", "grow", "t", 3, "--group", GROUP)
    await until(lambda: len(group.client.topic("t").open) == 3)
    grown = group.client.topic("t")
    assert (grown.open[0], set(grown.groups)) == (topic.open[0], {GROUP})
    assert said.output == f"t: 3 queues are written to: {', '.join(map(str, grown.open))}\n"
    store = group.store()
    await append(store, frame(*[(number, b"new") for number in grown.open]))
    with pytest.raises(UnknownTopic, match="there is no topic 'other'"):
        await headgate("topics", "grow", "other", 3)
    assert (await headgate("topics", "grow", "t", 2)).output == said.output.replace(
        "to:", "to, and their number never falls:"
    )


async def test_a_topic_is_deleted_and_its_queues_take_no_more(group, headgate):
    (number,) = (await group.client.do(CreateTopic(name="t", queues=1))).queues
    store = group.store()
    await append(store, frame((number, b"before")))
    refused = await headgate("topics", "delete", "t", "--force", answer="n\n")
    assert refused.exit_code == 1
    assert group.client.topic("t") is not None
    said = await headgate("topics", "delete", "t", "--force", answer="y\n")
    assert said.output.endswith("topic t is deleted\n")
    await until(lambda: group.client.topic("t") is None)
    master = group.nodes[await group.master()]
    await until(lambda: number in master.service.dropped)
    with pytest.raises(QueueDropped, match=str(number)):
        await append(store, frame((number, b"late")))
    again = await group.client.do(CreateTopic(name="t", queues=1))
    assert again.queues[0] > number
    with pytest.raises(UnknownTopic, match="there is no topic 'other'"):
        await headgate("topics", "delete", "other", "--force", "--yes")


async def test_a_topic_with_readers_is_deleted_by_force_alone(single):
    store, controller, first = single
    await store.keys.put(name_key("g"), encode_group(GroupRecord("t", "averaged")))
    await store.keys.put(group_key("g"), encode_group(GroupRecord("t", "averaged")))
    with pytest.raises(QueueClosed, match=f"queue {first} of t is not read.*'g': 10; --force deletes the topic"):
        await queues.delete(controller, store, "t")
    await queues.delete(controller, None, "t")
    assert (controller.topic("t"), controller.dropped(0)) == (None, {first, first + 1})
    with pytest.raises(UnknownTopic, match="there is no topic 't'"):
        await queues.delete(controller, store, "t")
