"""Controllers over real sockets, in one process: their clients, their service, and their members."""

import asyncio
import contextlib
import shutil
import ssl

import grpc
import grpc.aio
import pytest

from controller.api.client import (
    ControllerClosed,
    ControllerOverloaded,
    ControllerUnreachable,
    GroupConfig,
    QueueClosed,
    Replica,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    User,
)
from controller.api.commands import (
    AddGroup,
    AlterSyncSet,
    CloseQueue,
    ClusterLimits,
    CreateTopic,
    DeleteTopic,
    DeleteUser,
    ElectMaster,
    NameQueue,
    RegisterReplica,
    SetUser,
    encode_command,
)
from controller.api.requests import AddMember, Elect, RemoveMember, Transfer
from controller.elections.registry import Heartbeat
from controller.metadata import feed
from controller.raft import ChangeRefused, TransferRefused
from controller.remote import remote
from controller.remote.heartbeats import Heartbeats
from controller.wire import wire
from controller.wire.commander import Commander, settled
from controller.wire.wire import open_channel, path
from tests.support.controller.controllers import TICK_S, Controllers, certificates, now_ms
from tests.support.process.certificates import Authority, node_files
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
OPENSSL = shutil.which("openssl")


@pytest.fixture
async def three(tmp_path):
    async with Controllers(tmp_path) as controllers:
        await controllers.leader()
        yield controllers


@pytest.fixture
async def one(tmp_path):
    async with Controllers(tmp_path, count=1) as controllers:
        await controllers.leader()
        yield controllers


async def end_of(stream):
    """Returns how a stream ends."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    return await stream.code()


# ---- commands and reads


async def test_what_a_command_has_done_is_seen_by_its_client_at_once_and_by_all_others_soon(three):
    client, other = three.remote(), three.remote()
    await client.ready()
    await other.ready()
    changes = []
    stop = other.watch(lambda: changes.append(len(other.topics())))
    topic = await client.do(CreateTopic(name="telemetry", queues=3, config={"retention_ms": 5}))
    assert client.topic("telemetry") == topic
    assert [client.topic_of_queue(number) for number in topic.queues] == ["telemetry"] * 3
    assert await client.do(CreateTopic(name="telemetry")) == topic
    named = await client.do(NameQueue(name="orders"))
    assert client.group_of_queue(named.number) == 0
    await until(lambda: other.group_of_queue(named.number) == 0)
    assert other.topics() == [topic]
    assert changes
    stop()
    user = User(name="ada", password="x")
    assert await client.do(SetUser(user=user)) == user
    await other.barrier()
    assert other.users() == [user]
    assert await client.do(DeleteUser(name="ada")) is None
    await until(lambda: len(client.members()) == 3)
    assert [member.node for member in client.members()] == ["c1", "c2", "c3"]


async def test_what_is_refused_is_refused_with_the_same_error_as_in_process(three):
    client = three.remote()
    await client.do(CreateTopic(name="a", queues=1))
    with pytest.raises(TopicExists, match="a"):
        await client.do(CreateTopic(name="a", queues=2))
    with pytest.raises(UnknownTopic):
        await client.do(DeleteTopic(name="b"))
    with pytest.raises(QueueClosed):
        await client.do(CloseQueue(number=client.topic("a").queues[0]))
    with pytest.raises(UnknownGroup):
        await client.do(Elect(group=7))
    await until(lambda: len(client.members()) == 3)
    before = three.nodes[1].status().last
    with pytest.raises(TopicExists):
        await client.do(CreateTopic(name="a", queues=2))
    assert three.nodes[1].status().last == before  # a refused command is not written


async def test_a_controller_that_does_not_lead_is_a_client_too(three):
    follower = three.nodes[(await three.followers())[0]]
    topic = await follower.do(CreateTopic(name="a", queues=2))
    assert follower.topic("a") == topic
    with pytest.raises(TopicExists):
        await follower.do(CreateTopic(name="a", queues=1))
    await follower.barrier()


async def test_a_client_without_a_state_leaves_a_controller_that_has_none_to_show(three, monkeypatch):
    """Found by the joint simulation: such a controller says that it is there, and who leads, and no more."""
    monkeypatch.setattr(remote, "BETTER_S", 0.1)
    ids = [*await three.followers(), await three.leader()]
    lagging = ids[0]
    await until(three.nodes[lagging].current.is_set)
    three.nodes[lagging].current.clear()
    client = three.remote(lagging, ids[-1])
    client._turn = 0  # the lagging one is asked first
    async with asyncio.timeout(60):
        await client.ready()
    assert client.index


async def test_commands_go_on_when_the_leader_goes(three):
    client = three.remote()
    await client.do(CreateTopic(name="before", queues=1))
    await three.stop(await three.leader())
    topic = await client.do(CreateTopic(name="after", queues=1))
    assert client.topics() == [topic, client.topic("before")]


async def test_reads_need_no_controller_and_commands_say_that_there_is_none(three):
    client = three.remote(budget_s=0.3)
    topic = await three.remote().do(CreateTopic(name="a", queues=1))
    await until(lambda: client.topic("a") == topic)
    await three.stop()
    assert client.topic("a") == topic
    with pytest.raises(ControllerUnreachable):
        await client.do(CreateTopic(name="b", queues=1))
    with pytest.raises(ControllerUnreachable):
        await client.routes()
    index = client.index
    await three.start()
    await three.leader()
    while True:
        try:
            await client.do(CreateTopic(name="c", queues=1))
            break
        except ControllerUnreachable:
            continue
    assert client.index > index
    assert client.topic("a") == topic


async def test_a_client_knows_that_the_controllers_that_answer_have_no_leader(three):
    client = three.remote()
    await client.ready()
    assert not client.leaderless
    await three.stop(1, 2)
    await until(lambda: client.leaderless)
    await three.start(1)
    await until(lambda: client.connected and not client.leaderless)
    await three.stop(3)
    await until(lambda: client.leaderless)
    await three.stop()
    await until(lambda: not client.leaderless)  # none answers


async def test_a_client_resumes_where_it_was_and_takes_a_snapshot_only_when_it_is_far_behind(three, monkeypatch):
    client = three.remote(1, 2)
    await client.do(CreateTopic(name="a", queues=1))
    state = client.state
    await three.stop(next(id_ for id_ in await three.followers() if id_ in (1, 2)))
    await client.do(CreateTopic(name="b", queues=1))
    assert client.state is state
    other = three.remote()
    await other.ready()
    monkeypatch.setattr(feed, "FEED_BYTES_MAX", 1000)
    await client.close()
    three.remotes.remove(client)
    for n in range(30):
        await other.do(CreateTopic(name=f"t{n}", queues=1))
    third = three.remote()
    third.index = 1  # as if it had been there from the start
    await until(lambda: len(third.topics()) == 32)
    assert [topic.name for topic in third.topics()] == [topic.name for topic in other.topics()]


async def test_many_commands_at_once_are_all_done_and_too_many_are_refused(one, monkeypatch):
    client = one.remote(limits=ClusterLimits(default_queues=1))
    await client.ready()
    await asyncio.gather(*(client.do(CreateTopic(name=f"t{n}")) for n in range(500)))
    assert len(client.topics()) == 500
    monkeypatch.setattr("controller.wire.commander.ASKED_MAX", 10)
    done = await asyncio.gather(*(client.do(CreateTopic(name=f"u{n}")) for n in range(20)), return_exceptions=True)
    assert sum(isinstance(found, ControllerOverloaded) for found in done) == 10


async def test_a_client_that_is_closed_says_so(one):
    client = one.remote()
    await client.ready()
    await client.close()
    with pytest.raises(ControllerClosed):
        await client.do(CreateTopic(name="a"))
    waiting = one.remote()
    await one.stop()
    ready = asyncio.ensure_future(waiting.ready())
    await asyncio.sleep(0)
    await waiting.close()
    with pytest.raises(ControllerClosed):
        await ready


def test_a_deletion_whose_first_answer_was_lost_is_done_when_there_is_nothing_left_to_delete():
    deletion = DeleteTopic(name="a", time_ms=1)
    assert settled(deletion, UnknownTopic("a"), unsure=True)
    assert not settled(deletion, UnknownTopic("a"), unsure=False)
    creation = CreateTopic(name="a", queues=1, topics_max=1, queues_max=1, time_ms=1)
    assert not settled(creation, TopicExists("a"), unsure=True)


async def test_a_new_stream_of_commands_ends_the_clients_older_one(one):
    async with open_channel(one.addresses[1], None) as channel:
        streams = []
        for _ in range(2):
            streams.append(channel.stream_stream(path(wire.COMMAND))())
            await streams[-1].write(wire.encode(wire.CommandHello("somebody")))
            assert wire.decode(await streams[-1].read(), wire.CommandGreeting).term == one.nodes[1].leading
        assert await end_of(streams[0]) is not grpc.StatusCode.OK
        command = CreateTopic(name="a", queues=1, topics_max=9, queues_max=9, time_ms=1)
        await streams[1].write(wire.encode([wire.NumberedRequest(1, encode_command(command))]))
        while not (answers := wire.decode(await streams[1].read(), wire.Answers).answers):
            pass
        assert wire.decode_answer(answers[0].answer).name == "a"


async def test_elections_are_not_a_clients_to_command(one):
    commander = Commander(lambda: [one.addresses[1]])
    with pytest.raises(wire.BadRequest):
        await commander.ask(ElectMaster(group=0, candidate=1, master_epoch=0, sync_epoch=0, time_ms=1))
    await commander.close()


# ---- store nodes


def saying(replica, *, group=0, **what):
    return Heartbeat(**{"group": group, "replica": replica, "node": f"s{replica}", "address": f"s{replica}:1"} | what)


class Replicas:
    """Store nodes as the controllers hear them."""

    def __init__(self, controllers, client):
        self.controllers, self.client = controllers, client
        self.groups = {}  # replica -> the newest it was told
        self.beats = {}

    def speak(self, id_, **what):
        def said():
            there = self.groups.get(id_)
            epoch = there.master_epoch if there is not None else 0
            return [saying(id_, master=there is not None and there.master == id_, master_epoch=epoch, **what)]

        def changed(group):
            assert id_ not in self.groups or group.master_epoch >= self.groups[id_].master_epoch
            self.groups[id_] = group
            if id_ in self.beats:
                self.beats[id_].send_now()

        self.beats[id_] = Heartbeats((0,), self.client.addresses, said, changed, interval_s=0.1)

    async def register(self, *ids):
        for id_ in ids:
            replica = Replica(id=id_, node=f"s{id_}", address=f"s{id_}:1", check=f"c{id_}")
            await self.client.do(RegisterReplica(group=0, replica=replica))
            self.speak(id_)

    async def close(self, *ids):
        for id_ in ids or list(self.beats):
            await self.beats.pop(id_).close()


async def test_replicas_are_heard_elected_and_told_at_once(three, monkeypatch):
    monkeypatch.setattr(remote, "CONNECT_S", 60.0)  # on a busy machine
    client = three.remote()
    await client.ready()
    await client.do(AddGroup(number=0, config=GroupConfig(replicas=2)))
    replicas = Replicas(three, client)
    await replicas.register(1, 2)
    await until(lambda: client.group(0).master is not None)
    master = client.group(0).master
    replica = 3 - master
    await until(lambda: all(id_ in replicas.groups and replicas.groups[id_].master == master for id_ in (1, 2)))
    assert all(beats.connected == 3 for beats in replicas.beats.values())
    group = client.group(0)
    await client.do(
        AlterSyncSet(
            group=0, master=master, master_epoch=group.master_epoch, sync_epoch=group.sync_epoch, new_set=(1, 2)
        )
    )
    await until(lambda: replicas.groups[replica].sync_set == (1, 2))
    (route,) = await client.routes()
    assert (route.master, [one.alive for one in route.replicas]) == (master, [True, True])
    # A planned switch-over and back, asked of whoever leads.
    await until(lambda: all(n.registry.last(0, master).master for n in three.nodes.values()))
    assert (await client.do(Elect(group=0, candidate=replica))).master == replica
    await until(lambda: replicas.groups[replica].master == replica)
    # The master's connections end: it is succeeded.
    group = client.group(0)
    await client.do(
        AlterSyncSet(
            group=0, master=replica, master_epoch=group.master_epoch, sync_epoch=group.sync_epoch, new_set=(1, 2)
        )
    )
    await replicas.close(replica)
    await until(lambda: replicas.groups[master].master == master)
    await replicas.close()


async def test_an_election_where_a_majority_acknowledges_takes_two_commands(three):
    client = three.remote()
    await client.ready()
    await client.do(AddGroup(number=0, config=GroupConfig(replicas=3, min_in_sync=2, acknowledge="quorum")))
    replicas = Replicas(three, client)
    await replicas.register(1, 2, 3)
    await until(lambda: client.group(0).master is not None)
    for size in (2, 3):
        group = client.group(0)
        members = sorted({1, 2, 3}, key=lambda id_: id_ != group.master)[:size]
        await client.do(
            AlterSyncSet(
                group=0,
                master=group.master,
                master_epoch=group.master_epoch,
                sync_epoch=group.sync_epoch,
                new_set=members,
            )
        )
    before = client.group(0)
    other = next(id_ for id_ in (1, 2, 3) if id_ != before.master)
    await until(lambda: all(n.registry.last(0, before.master).master for n in three.nodes.values()))
    after = await client.do(Elect(group=0, candidate=other))
    assert (after.master, after.master_epoch, after.sync_set) == (other, before.master_epoch + 2, (1, 2, 3))
    await replicas.close()


async def test_a_minority_of_the_controllers_answers_where_groups_are_served(three):
    client = three.remote()
    await client.ready()
    await client.do(AddGroup(number=0, config=GroupConfig(replicas=1)))
    replicas = Replicas(three, client)
    await replicas.register(1)
    await until(lambda: client.group(0).master == 1)
    leader = await three.leader()
    others = [id_ for id_ in three.nodes if id_ != leader]
    await three.stop(leader, others[0])
    await until(lambda: not three.nodes[others[1]].has_leader)
    (route,) = await client.routes(0)
    assert (route.master, route.replicas[0].alive) == (1, True)
    # A heartbeat that is newer than the metadata counts, at whichever controller it arrives.
    node = three.nodes[others[1]]
    node.heartbeat(saying(1, master=True, master_epoch=9))
    assert [(one.master, one.master_epoch) for one in await client.routes(0)] == [(1, 9)]
    late = three.remote(others[1])
    await late.ready()  # a new client is shown the present state
    assert late.group(0) == client.group(0)
    with pytest.raises(ControllerUnreachable):
        await three.remote(budget_s=0.3).do(CreateTopic(name="a"))
    await replicas.close()


async def test_a_node_that_speaks_again_by_another_connection_is_not_thought_to_be_gone(one):
    node = one.nodes[1]
    async with (
        open_channel(one.addresses[1], None) as first,
        open_channel(one.addresses[1], None) as second,
    ):
        streams = [channel.stream_stream(path(wire.HEARTBEAT))() for channel in (first, second)]
        for stream in streams:
            await stream.write(wire.encode(wire.HeartbeatHello((0,))))
            await stream.write(wire.encode([saying(1)]))
            await stream.read()
            await until(lambda: node.registry.last(0, 1) is not None)
        await asyncio.sleep(0.05)
        streams[0].cancel()
        await until(lambda: one.services[1]._counts["Heartbeat"] == 1)
        assert node.registry.dies_ms(0, 1) > node.clock_ms() + 1000
        streams[1].cancel()
        await until(lambda: node.registry.dies_ms(0, 1) < node.clock_ms() + 1000)


# ---- who is a controller


@pytest.mark.slow
async def test_controllers_are_added_removed_and_replaced_while_commands_go_on(three):
    client = three.remote()
    await client.do(CreateTopic(name="first", queues=1))
    done = []

    async def work():
        while True:
            await client.do(CreateTopic(name=f"t{len(done)}", queues=1))
            done.append(None)

    working = asyncio.ensure_future(work())
    await three.start(4, join=True)
    await until(lambda: three.nodes[4].membership.voters == (1, 2, 3, 4))
    gone = await three.leader()
    await three.stop(gone)  # dead for ever, and replaced
    await client.do(RemoveMember(id=gone))
    await three.start(5, join=True)
    alive = {1, 2, 3, 4, 5} - {gone}
    await until(lambda: set(three.nodes[5].membership.voters) == alive)
    await until(lambda: {member.id for member in client.members()} == alive)
    count = len(done)
    await until(lambda: len(done) > count + 5)
    working.cancel()
    await until(lambda: three.nodes[5].topic(f"t{count}") is not None)
    assert three.nodes[5].topic("first") == client.topic("first")
    with pytest.raises(ChangeRefused, match="not given again"):
        await client.do(AddMember(id=gone, address="127.0.0.1:1"))
    heir = min(alive - {await three.leader()})

    async def leads():
        if three.nodes[heir].leading is None:
            await client.do(Transfer(to=heir))  # again where the heir was too slow to be elected
        return three.nodes[heir].leading is not None

    await until(leads)


async def test_a_leader_that_is_to_be_shut_down_hands_over_first(three):
    leader = three.nodes[await three.leader()]
    term = leader.leading
    while leader.leading == term:  # a follower that is slow to answer is asked again
        await leader.resign()
        await asyncio.sleep(TICK_S)
    await until(lambda: any((node.leading or 0) > term for node in three.nodes.values() if node is not leader))
    await leader.resign()  # it does not lead: nothing happens


async def test_a_controller_that_was_removed_knows_it_and_does_not_disturb(three):
    client = three.remote()
    await client.ready()
    await until(lambda: len(client.members()) == 3)
    gone = (await three.followers())[0]
    await client.do(RemoveMember(id=gone))
    await until(lambda: not three.nodes[gone].is_member)
    term = three.nodes[await three.leader()].leading
    await asyncio.sleep(30 * TICK_S)
    assert three.nodes[await three.leader()].leading == term


async def test_the_removal_of_a_controller_that_never_was_is_refused_with_those_that_are(three):
    client = three.remote()
    await client.ready()
    await until(lambda: len(client.members()) == 3)
    with pytest.raises(
        ChangeRefused, match="there is no controller 99, and there was none; the controllers are 1, 2, 3"
    ):
        await client.do(RemoveMember(id=99))
    gone = (await three.followers())[0]
    for _ in range(2):  # by whoever has lost the answer, too
        await client.do(RemoveMember(id=gone))


async def test_a_transfer_to_a_controller_that_cannot_lead_is_refused_with_the_reason(three):
    client = three.remote()
    await client.ready()
    await until(lambda: len(client.members()) == 3)
    with pytest.raises(TransferRefused, match=r"^there is no controller 9; the controllers are 1, 2, 3$"):
        await client.do(Transfer(to=9))
    await client.do(AddMember(id=4, address="127.0.0.1:1"))  # where nobody answers, so it never votes
    with pytest.raises(TransferRefused, match=r"^controller 4 does not vote yet"):
        await client.do(Transfer(to=4))


async def test_the_only_controller_that_votes_is_not_removed(one):
    client = one.remote()
    await client.ready()
    with pytest.raises(ChangeRefused, match=r"^controller 1 is the only one that votes: add another one"):
        await client.do(RemoveMember(id=1))


async def test_who_comes_back_at_another_address_says_so(three):
    client = three.remote()
    await client.ready()
    moved = (await three.followers())[0]
    await three.stop(moved)
    del three.addresses[moved]
    await three.start(moved)
    await until(lambda: {one.address for one in client.members()} == set(three.addresses.values()))
    await until(lambda: three.nodes[moved].topic("after") is not None or client.topic("after") is None)
    await client.do(CreateTopic(name="after", queues=1))
    await until(lambda: three.nodes[moved].topic("after") is not None)


@pytest.mark.parametrize("secure", [False, True])
async def test_a_member_far_behind_is_sent_the_state_in_parts(tmp_path, monkeypatch, secure):
    monkeypatch.setattr("controller.wire.peers.MESSAGE_BYTES_LARGE", 10_000)
    monkeypatch.setattr("controller.wire.peers.PART_BYTES", 4_000)
    files = node_files(Authority(tmp_path), "127.0.0.1") if secure else None
    channel, server = (None, None) if files is None else (files.channel(), files.server())
    controllers = Controllers(tmp_path, credentials=channel)
    controllers.server_credentials = server
    async with controllers:
        client = controllers.remote(limits=ClusterLimits(default_queues=1), credentials=channel)
        await client.ready()
        await controllers.leader()
        late = (await controllers.followers())[0]
        await controllers.stop(late)
        for node in controllers.nodes.values():
            node.driver.compact_bytes, node.driver.keep_entries = 20_000, 10
        await asyncio.gather(*(client.do(CreateTopic(name=f"t{n}")) for n in range(400)))
        leader = controllers.nodes[await controllers.leader()]
        await until(lambda: leader.status().first > 100)
        await controllers.start(late)
        await until(lambda: len(controllers.nodes[late].topics()) == 400)
        state = controllers.nodes[await controllers.leader()].state
        assert controllers.nodes[late].state.snapshot() == state.snapshot()


async def test_everything_is_there_after_all_were_stopped(three):
    client = three.remote()
    topic = await client.do(CreateTopic(name="a", queues=4))
    await client.close()
    three.remotes.clear()
    await three.stop()
    await three.start()
    again = three.remote()
    await again.ready()
    assert again.topics() == [topic]


# ---- who may not


@pytest.mark.parametrize("method", [wire.PEER, wire.INSTALL, wire.FOLLOW, wire.COMMAND, wire.HEARTBEAT, wire.ROUTES])
@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x91\xc3", b"\x81\xa1a\x01", b"\xff" * 4000])
async def test_bytes_that_are_nothing_are_refused_and_hurt_nobody(one, method, message):
    async with open_channel(one.addresses[1], None) as channel:
        stream = channel.stream_stream(path(method))()
        await stream.write(message)
        await stream.done_writing()
        assert await end_of(stream) is grpc.StatusCode.INVALID_ARGUMENT
    assert one.nodes[1].leading is not None


async def test_bytes_in_the_middle_of_a_stream_are_refused(one):
    hellos = {
        wire.PEER: wire.Hello(2, "x:1"),
        wire.COMMAND: wire.CommandHello("c"),
        wire.HEARTBEAT: wire.HeartbeatHello((0,)),
        wire.INSTALL: wire.Hello(2, "x:1"),
    }
    for method, hello in hellos.items():
        for body in (b"\xc1", wire.encode([b"\xc1"]), wire.encode([[1, b"\xc1"]])):
            async with open_channel(one.addresses[1], None) as channel:
                stream = channel.stream_stream(path(method))()
                await stream.write(wire.encode(hello))
                await stream.write(body)
                if method == wire.COMMAND and body == wire.encode([[1, b"\xc1"]]):
                    assert wire.decode(await stream.read(), wire.CommandGreeting)
                    answered = wire.decode(await stream.read(), wire.Answers).answers[0]
                    assert isinstance(wire.revive(answered.error), wire.BadRequest)
                    continue
                await stream.done_writing()
                assert await end_of(stream) is grpc.StatusCode.INVALID_ARGUMENT
    client = one.remote()
    await client.do(CreateTopic(name="a", queues=1))


async def test_bytes_that_are_no_grpc_are_hung_up_on(one):
    host, port = one.addresses[1].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 20)
    async with asyncio.timeout(60):
        while await reader.read(1000):
            pass
    writer.close()
    client = one.remote()
    await client.do(CreateTopic(name="a", queues=1))


async def test_a_command_that_is_too_large_is_refused_before_it_is_sent(one):
    client = one.remote()
    with pytest.raises(wire.ControllerError, match="at most"):
        await client.do(CreateTopic(name="a", queues=1, config={"x": "y" * (1 << 20)}))


async def test_streams_have_a_limit(one, monkeypatch):
    monkeypatch.setattr("controller.node.service.STREAMS_MAX", 6)
    clients = [one.remote() for _ in range(3)]
    for client in clients:
        await client.ready()
    async with open_channel(one.addresses[1], None) as channel:
        stream = channel.stream_stream(path(wire.FOLLOW))()
        assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def without_certificate():
    """Returns the credentials of a client that believes every server, and has no certificate itself."""
    made = grpc.ssl_channel_credentials()
    made.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.tls.check_hostname = False
    made.tls.verify_mode = ssl.CERT_NONE
    return made


async def test_only_who_has_a_certificate_of_the_cluster_is_served(tmp_path):
    files = certificates(tmp_path / "tls")
    controllers = Controllers(tmp_path, credentials=files("node").channel())
    controllers.server_credentials = files("node").server()
    async with controllers:
        await controllers.leader()
        client = controllers.remote(credentials=files("client").channel())
        await client.do(CreateTopic(name="a", queues=1))
        for credentials in (None, files("stranger").channel(), without_certificate()):
            stranger = controllers.remote(credentials=credentials, budget_s=0.3)
            with pytest.raises(ControllerUnreachable):
                await stranger.do(CreateTopic(name="b", queues=1))
            assert stranger.index == 0
            with pytest.raises(ControllerUnreachable):
                await stranger.routes()
        assert now_ms() > 0
