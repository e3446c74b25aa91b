"""Whoever comes to the address of a master has to be of its cluster, its log and its group, and to be who it says."""

import asyncio
import logging
import struct

import pytest

from controller.api.client import Group, Replica
from store.base.errors import StoreUnreachable
from store.base.pipes.pipe import OPENING
from store.base.streams import Stream
from store.node import replication_service
from store.node.replica.auth import refusal, sign
from store.node.replica.identity import ReplicaIdentity
from store.replication.messages import Hello, Refused, Why, decode, encode
from store.rpc import replica_wire as wire
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, StoreGroup
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio

MINE, THEIRS = ReplicaIdentity(GROUP, 1, "code 1", "c1"), ReplicaIdentity(GROUP, 2, "code 2", "c1")
TWO = Replica(id=2, node="n2", address="n2:1", check="code 2")
GROUP_OF_TWO = Group(number=GROUP, replicas=(Replica(id=1, node="n1", address="n1:1", check="code 1"), TWO), log="log")


def hello(**said):
    return Hello(group=GROUP, replica=2, session=5, epoch=1, epochs=(), first=0, end=0, **said)


def signed(identity=THEIRS, log="log"):
    return sign(hello(), identity, log)


@pytest.mark.parametrize(
    ("said", "why", "text"),
    [
        (signed(), None, ""),
        (hello(), None, ""),  # of an older version
        (signed(log=""), None, ""),
        (signed(ReplicaIdentity(GROUP, 2, "code 2", "c2")), Why.WRONG_CLUSTER, "this is cluster c1, not c2"),
        (signed(log="other"), Why.WRONG_LOG, f"the log of store group {GROUP} is log, not other"),
        (
            signed(ReplicaIdentity(GROUP, 2, "code 9", "c1")),
            Why.WRONG_CHECK,
            "replica 2 of store group 3 is n2 at n2:1",
        ),
    ],
)
def test_replica_auth(said, why, text):
    found = refusal(decode(encode(said)), MINE, "log", GROUP_OF_TWO)
    assert (None if found is None else found.why) is why
    assert found is None or (text in found.text and found.session == 5)


def test_where_nothing_is_known_nothing_is_held_against_anybody():
    assert refusal(signed(), ReplicaIdentity(GROUP, 1, "code 1"), "", GROUP_OF_TWO) is None
    assert refusal(signed(), MINE, "log", Group(number=GROUP)) is None  # the core says that it is unknown


@pytest.fixture
async def group(tmp_path):
    async with (
        Controllers(tmp_path / "controllers", count=1) as controllers,
        StoreGroup(tmp_path, controllers, count=2) as store_group,
    ):
        yield store_group


async def answer_to(node, message):
    """Returns the master's answer to the first message of a replica."""
    channel = wire.open_channel(node.address, None)
    try:
        call = channel.stream_stream(wire.path(wire.REPLICATE))()
        await call.write(encode(message))
        return decode(await Stream(call, wire.ERRORS, node.address).read())
    finally:
        await channel.close()


async def test_strangers_get_no_frames_of_a_group_and_give_none(group, caplog):
    await group.in_sync()
    master = group.nodes[await group.master()]
    replica = next(node for node in group.nodes.values() if node is not master)
    log = group.group.log
    assert log.endswith(f".{GROUP}")
    assert master.disk.log == replica.disk.log == log
    said = hello()
    for identity, its_log, why in (
        (ReplicaIdentity(GROUP, replica.identity.id, replica.identity.check, "elsewhere"), log, Why.WRONG_CLUSTER),
        (replica.identity, "elsewhere", Why.WRONG_LOG),
        (ReplicaIdentity(GROUP, replica.identity.id, "guessed", replica.identity.cluster), log, Why.WRONG_CHECK),
    ):
        found = await answer_to(master, sign(said, identity, its_log))
        assert isinstance(found, Refused)
        assert found.why is why
    await group.in_sync()  # still

    context = replica.context
    context.identity = ReplicaIdentity(GROUP, replica.identity.id, replica.identity.check, "elsewhere")
    replica.role._hang_up()
    await until(lambda: "the master does not take this replica: this is cluster" in caplog.text)
    assert "elsewhere" in caplog.text
    context.identity = replica.identity
    await group.in_sync()


async def test_streams_without_a_hello_keep_no_replica_out(group, monkeypatch):
    await group.in_sync()
    name = await group.master()
    master, replica = group.nodes[name], next(node for node in group.nodes.values() if node is not group.nodes[name])
    host, _, port = master.address.rpartition(":")
    method = wire.path(wire.REPLICATE).encode()
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    for _, writer in silent:
        writer.write(OPENING + struct.pack("<I", len(method)) + method)
    elsewhere = ReplicaIdentity(GROUP, replica.identity.id, replica.identity.check, "elsewhere")
    await answer_to(master, sign(hello(), elsewhere, group.group.log))  # so the others have been read
    monkeypatch.setattr(replication_service, "STREAMS_MAX", 3)
    replica.role._hang_up()
    async with group.store() as store:
        await append(store, frame((16, b"acknowledged")))
    await group.settled()
    for _, writer in silent:
        writer.close()


@pytest.mark.slow
async def test_a_client_of_another_cluster_is_refused_by_name(group, caplog):
    store = group.store(cluster=lambda: "elsewhere", budget_s=2.0)
    cluster = group.client.cluster
    with pytest.raises(StoreUnreachable, match=f"a store of cluster {cluster}, not of elsewhere"):
        await store.keys.get("k")
    assert sum("not of elsewhere" in one.message and one.levelno == logging.ERROR for one in caplog.records) == 1
    await group.in_sync()
    right = group.store(cluster=lambda: cluster)
    await append(right, frame((16, b"taken")))
