"""Queues that are moved between store groups: clients notice nothing, and nothing is lost, doubled or overtaken."""

import asyncio

import pytest

from controller.api.client import ControllerError, GroupConfig
from controller.api.commands import AddGroup, GrowTopic
from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import BindQueue, DeclareExchange, DeleteQueue, GetMessage, PurgeQueue
from gateway.queues.topology.queue_moves import HEARD_MS, LOOK_MS
from store.api.message import Message
from store.format.frame import QueueNumber
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio

LATER_MS = 1 << 50  # later than any move


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path) as rig:
        for group in (0, 1):
            await rig.controller.do(AddGroup(number=group, config=GroupConfig()))
        await rig.controller.do(GrowTopic(name="$amqp", queues=64, group=1))  # new queues lie in group 0
        yield rig


def queue_of(rig, name="q"):
    return rig.queues.registry.queues[name]


async def move(rig, group=1, name="q"):
    return await rig.queues.registry.move_queue(name, group)


async def look(rig, name="q"):
    """Looks after a queue as the keeper's task does; returns when it would look again."""
    return await rig.queues.keeper.look_after(queue_of(rig, name).number)


async def finish(rig, name="q"):
    """Lets the time pass after which the former group of a queue is forgotten."""
    rig.now_ms = LATER_MS
    assert await look(rig, name) == LATER_MS + HEARD_MS
    rig.now_ms += HEARD_MS
    assert await look(rig, name) is None


async def test_a_consumer_gets_the_older_messages_first_and_then_those_in_the_new_group(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    old = await rig.publish("", "q", b"1", b"2")
    await move(rig)
    new = await rig.publish("", "q", b"3")
    assert [rig.controller.group_of_queue(number) for number in (*old, *new)] == [0, 1]
    conn = rig.conn()
    await rig.consume(conn, "q")
    assert await conn.has(3) == [b"1", b"2", b"3"]
    assert (await rig.declare(rig.conn(), "q", passive=True)).messages == 0


async def test_a_consumer_that_is_there_goes_on_and_settles_what_it_holds(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    await rig.publish("", "q", b"1", b"2", b"3")
    conn = rig.conn(credit=2)
    await rig.consume(conn, "q")
    await conn.has(2)
    await move(rig)
    await rig.publish("", "q", b"4")
    (_, first, _), (_, second, _) = conn.taken
    await rig.settle(conn, "q", "consume", first, number=conn.number)
    await rig.settle(conn, "q", "requeue", second, number=conn.number)
    assert conn.cancelled == []
    rig.ready(conn, 10)
    await conn.has(5)
    assert conn.bodies[2:] == [b"2", b"3", b"4"], "what was given back keeps its place"
    await rig.settle(conn, "q", "consume", *(offset for _, offset, _ in conn.taken[2:]), number=conn.number)
    await rig.lose(conn)
    assert (await rig.declare(rig.conn(), "q", passive=True)).messages == 0


async def test_the_former_group_forgets_a_queue_once_it_holds_nothing_of_it(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    (number,) = await rig.publish("", "q", b"1")
    definition = await move(rig)
    assert await look(rig) == definition.move.at_ms + HEARD_MS, "other processes may write there for a while"
    rig.now_ms = LATER_MS
    assert await look(rig) == LATER_MS + LOOK_MS, "a message waits"
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(1)
    assert await look(rig) == LATER_MS + LOOK_MS, "a message is held"
    await rig.settle(conn, "q", "consume", conn.taken[0][1], number=conn.number)
    await finish(rig)
    assert rig.controller.group_of_queue(number) is None
    assert number in rig.controller.dropped(0), "the stores refuse what is written there still"
    assert queue_of(rig).definition.earlier == ()
    await rig.publish("", "q", b"2")
    assert await conn.has(2) == [b"1", b"2"]
    assert conn.cancelled == []


async def test_a_message_that_comes_before_the_stores_refuse_it_keeps_the_former_group(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    (number,) = await rig.publish("", "q", b"1")
    await rig.request(rig.conn(), PurgeQueue(name="q"))
    await move(rig)
    rig.now_ms = LATER_MS
    assert await look(rig) == LATER_MS + HEARD_MS
    conn = rig.conn(credit=0)
    lanes = rig.router.lanes.of(queue_of(rig).number)
    rig.router.lanes.set(queue_of(rig).number, ())  # as a process that has not heard of the move
    assert await rig.publish("", "q", b"late") == [number]
    rig.router.lanes._lanes[queue_of(rig).number] = lanes
    rig.now_ms += HEARD_MS
    assert await look(rig) == rig.now_ms + LOOK_MS
    await rig.consume(conn, "q")
    rig.ready(conn, 1)
    assert await conn.has(1) == [b"late"]


async def test_a_queue_is_where_it_was_moved_to_after_a_restart(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    await rig.publish("", "q", b"1")
    await move(rig)
    await rig.publish("", "q", b"2")
    await rig.restart()
    await rig.publish("", "q", b"3")
    assert queue_of(rig).definition.group == 1
    got = [await rig.request(rig.conn(), GetMessage(queue="q", settle=True)) for _ in range(3)]
    assert [one.leased.messages[0].body for one in got] == [b"1", b"2", b"3"]
    await finish(rig)
    await rig.restart()
    await rig.publish("", "q", b"4")
    assert (await rig.request(rig.conn(), GetMessage(queue="q", settle=True))).leased.messages[0].body == b"4"


async def test_a_queue_is_moved_again_and_back_to_where_it_was(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    conn = rig.conn()
    await rig.consume(conn, "q", settle_on_delivery=True)
    for turn, group in enumerate((1, 0, 1), 1):
        await move(rig, group)
        await rig.publish("", "q", b"%d" % turn)
        await conn.has(turn)
        while await rig.store.leases.leased(QueueNumber(queue_of(rig).definition.written[0])):
            await asyncio.sleep(0)
        rig.now_ms = LATER_MS
        await finish(rig)
    assert conn.bodies == [b"1", b"2", b"3"]
    await rig.request(rig.conn(), DeleteQueue(name="q"))
    assert not rig.controller.state.named


async def test_a_second_move_waits_for_the_first_and_a_stream_stays(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    await rig.declare(rig.conn(), "s", durable=True, arguments={"x-queue-type": "stream"})
    await rig.publish("", "q", b"1")
    await move(rig)
    assert (await move(rig, 1)).move.count == 1, "it is there"
    for name, cause, words in (
        ("q", Cause.CONFLICT, "being moved from store group 0 still"),
        ("s", Cause.PRECONDITION, "readers hold offsets"),
        ("none", Cause.NOT_FOUND, "no queue 'none'"),
    ):
        with pytest.raises(Refusal, match=words) as refused:
            await move(rig, 1 if name == "s" else 0, name)
        assert refused.value.cause is cause
    await rig.declare(rig.conn(), "p")
    with pytest.raises(ControllerError, match="7"):
        await move(rig, 7, "p")
    await rig.publish("", "p", b"1")
    assert (await rig.request(rig.conn(), GetMessage(queue="p", settle=True))).leased.messages[0].body == b"1"


async def test_priorities_go_before_groups(rig):
    await rig.declare(rig.conn(), "q", durable=True, arguments={"x-max-priority": 2})
    for priority in (0, 2):
        await rig.publish("", "q", b"old%d" % priority, native={"amqp": {"priority": priority}})
    await move(rig)
    for priority in (2, 0):
        await rig.publish("", "q", b"new%d" % priority, native={"amqp": {"priority": priority}})
    conn = rig.conn()
    await rig.consume(conn, "q")
    assert await conn.has(4) == [b"old2", b"new2", b"old0", b"new0"]


async def test_dead_letters_of_both_groups_are_stored_with_the_settlement_of_their_source(rig):
    await rig.declare(rig.conn(), "dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await rig.declare(rig.conn(), "q", durable=True, arguments=arguments)
    await rig.publish("", "q", b"1", b"2")
    await move(rig)
    await rig.publish("", "q", b"3")
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(3)
    await rig.settle(conn, "q", "reject", *(offset for _, offset, _ in conn.taken), number=conn.number)
    dead = rig.conn()
    await rig.consume(dead, "dead")
    assert sorted(await dead.has(3)) == [b"1", b"2", b"3"]
    await finish(rig)


async def test_limits_count_what_is_in_both_groups(rig):
    await rig.declare(rig.conn(), "q", durable=True, arguments={"x-max-length": 3})
    await rig.declare(rig.conn(), "b", durable=True, arguments={"x-max-length-bytes": 30})
    for name in ("q", "b"):
        await rig.publish("", name, b"old1......", b"old2......")
        await move(rig, 1, name)
        await rig.publish("", name, b"new1......", b"new2......")
        await look(rig, name)
        conn = rig.conn()
        await rig.consume(conn, name)
        assert await conn.has(3) == [b"old2......", b"new1......", b"new2......"]


async def test_a_full_queue_refuses_in_its_new_group_too(rig):
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    await rig.declare(rig.conn(), "q", durable=True, arguments=arguments)
    await rig.publish("", "q", b"1")
    await move(rig)
    await rig.publish("", "q", b"2")
    await look(rig)
    gate = rig.router.gates[queue_of(rig).definition.written[0]]
    assert not gate.admit(Message("a", b"3"))


async def test_bindings_lead_to_the_new_group(rig):
    await rig.request(rig.conn(), DeclareExchange(name="e", kind="topic"))
    await rig.declare(rig.conn(), "q", durable=True)
    await rig.request(rig.conn(), BindQueue(queue="q", exchange="e", routing_key="a.*"))
    await move(rig)
    (number,) = await rig.publish("e", "a.b", b"1")
    assert rig.controller.group_of_queue(number) == 1
    await rig.request(rig.conn(), BindQueue(queue="q", exchange="e", routing_key="c"))
    assert await rig.publish("e", "c", b"2") == [number]


async def test_a_queue_that_does_not_last_is_cleared_away_wherever_it_was_moved(rig):
    await rig.declare(rig.conn(), "q")
    await rig.publish("", "q", b"1")
    await move(rig)
    await rig.publish("", "q", b"2")
    numbers = queue_of(rig).numbers
    await rig.restart()
    assert "q" not in rig.queues.registry.queues
    assert [rig.controller.group_of_queue(number) for number in numbers] == [None, None]
    await rig.declare(rig.conn(), "q")
    assert (await rig.declare(rig.conn(), "q", passive=True)).messages == 0
