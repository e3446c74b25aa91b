"""The feed of those who follow the state."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.client import GroupConfig, NamedQueue, Replica, Topic, TopicLimit, UnknownTopic
from controller.api.commands import AddGroup, CreateTopic, ForgetReplica, RegisterReplica, RemoveGroup, encode_command
from controller.metadata.feed import CommandFeed
from controller.metadata.machine import Metadata
from controller.metadata.state import MetadataState
from controller.raft import Entry, EntryKind, Snapshot, StorageFailed
from controller.wire import wire

pytestmark = pytest.mark.anyio


@given(st.lists(st.integers(1, 3), max_size=40), st.integers(100, 2000), st.integers(1, 500), st.integers(0, 3))
def test_who_follows_gets_every_command_once_and_in_order_or_a_snapshot(steps, held_bytes, part_bytes, start):
    feed, log, index = CommandFeed(), {}, start
    feed.bytes_max = held_bytes
    feed.restart(start)
    for step in steps:
        index += step  # entries that are no commands lie between
        log[index] = b"%d" % index
        feed.add(index, log[index])
    feed.reached(index + 1)
    for since in range(start, index + 2):
        at, found = since, []
        while at <= index:
            part = feed.since(at, part_bytes)
            if part is None:
                break
            assert part[0] > at
            at = part[0]
            found += part[1]
        if since < feed.start:
            assert feed.since(since, part_bytes) is None
        else:
            assert found == [data for i, data in log.items() if i > since]
    assert feed.since(index + 1, part_bytes) == (index + 1, ())
    assert feed.since(index + 99, part_bytes) == (index + 99, ())


async def test_those_who_wait_are_woken_as_long_as_they_wait():
    feed, event = CommandFeed(), asyncio.Event()
    with feed.wakes(event):
        feed.reached(5)
        assert event.is_set()
        event.clear()
    feed.reached(6)
    assert not event.is_set()
    assert feed.end == 6


def entry(index, command):
    return Entry(1, index, EntryKind.COMMAND, encode_command(command))


def creating(name):
    return CreateTopic(name=name, queues=1, topics_max=1000, queues_max=1000, time_ms=1)


def test_a_snapshot_is_made_once_for_all_who_come_together_as_long_as_the_commands_since_are_there():
    metadata = Metadata()
    metadata.restore(Snapshot(index=1, term=1))
    metadata.apply(entry(2, creating("a")))
    index, data = metadata.shown()
    assert (index, data) == (2, metadata.state.snapshot())
    metadata.apply(entry(3, creating("b")))
    assert metadata.shown() == (2, data)
    replica = MetadataState.restore(data)
    replica.chain(encode_command(creating("b")))
    replica.apply(creating("b"))
    assert replica.snapshot() == metadata.state.snapshot()
    metadata.feed.bytes_max = 1
    for n in range(4, 8):
        metadata.apply(entry(n, creating(f"t{n}")))
    assert metadata.shown() == (7, metadata.state.snapshot())


def test_replicas_that_are_no_more_are_named():
    metadata = Metadata()
    commands = [
        AddGroup(number=1, config=GroupConfig(), time_ms=1),
        RegisterReplica(group=1, replica=Replica(id=1, node="a", address="a:1", check="c"), time_ms=1),
        RegisterReplica(group=1, replica=Replica(id=2, node="b", address="b:1", check="c"), time_ms=1),
        ForgetReplica(group=1, replica=1, time_ms=1),
        RemoveGroup(number=1, time_ms=1),
        RemoveGroup(number=1, time_ms=1),
    ]
    for index, command in enumerate(commands, 1):
        metadata.apply(entry(index, command))
    assert metadata.forgotten == [(1, 1), (1, 2)]


# ---- the bytes


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_are_refused(data):
    for read in (wire.decode_answer, lambda data: wire.decode(data, wire.Fed), wire.revive):
        try:
            read(data)
        except wire.BadRequest:
            continue


@pytest.mark.parametrize(
    "answer", [None, Topic(name="a", queues=(1,), groups=(0,)), NamedQueue(name="q", number=7, group=3)]
)
def test_answers_survive_their_encoding(answer):
    assert wire.decode_answer(wire.encode_answer(answer)) == answer


def test_errors_survive_their_encoding_by_the_nearest_name():
    for error in (TopicLimit("too many"), UnknownTopic("a"), wire.NotLeading("a:1"), wire.NotLeading()):
        again = wire.revive(wire.describe(error))
        assert (type(again), str(again)) == (type(error), str(error))
    assert wire.revive(wire.describe(wire.NotLeading("a:1"))).address == "a:1"
    assert type(wire.revive(wire.describe(StorageFailed("disk")))) is wire.ControllerError
    assert type(wire.revive(wire.encode(("Bogus", "?")))) is wire.ControllerError
