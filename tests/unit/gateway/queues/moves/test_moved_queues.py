"""Queues that are moved between store groups: clients notice nothing, and nothing is lost, doubled or overtaken."""

import asyncio
from http import HTTPStatus

import pytest

from controller.api.client import ControllerError, GroupConfig
from controller.api.commands import AddGroup, GrowTopic, RemoveGroup
from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import BindQueue, DeclareExchange, DeleteQueue, GetMessage, PurgeQueue
from gateway.queues.topology.queue_moves import AGAIN_MS, HEARD_MS, LOOK_MS
from gateway.runtime.amqp_settings import done
from store.api.message import Message, encode
from store.base.admin import ActionRefused
from store.base.errors import StoreUnreachable
from store.format.frame import ROW, ROW_EXTRA, QueueNumber, UnplacedFrame
from store.format.records import TIMERS_QUEUE, TimerSet
from store.format.records import encode as encode_record
from tests.support.gateway.queues_rig import opened_queues
from tests.support.store.store_kit import append

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
    rig.now_ms += LATER_MS
    assert await look(rig, name) is None
    assert queue_of(rig, name).definition.move.forgotten


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
    assert definition.move.at_ms == rig.now_ms
    assert await look(rig) == rig.now_ms + LOOK_MS, "other processes may write there for a while"
    rig.now_ms = definition.move.at_ms + HEARD_MS - 1
    assert await look(rig) == rig.now_ms + 1
    rig.now_ms = LATER_MS
    assert await look(rig) == LATER_MS + LOOK_MS, "a message waits"
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(1)
    assert await look(rig) == LATER_MS + LOOK_MS, "a message is held"
    await rig.settle(conn, "q", "consume", conn.taken[0][1], number=conn.number)
    await finish(rig)
    assert rig.controller.group_of_queue(number) is None
    assert number in rig.store.core.recent.limits.closed, "what is written there still is refused"
    assert queue_of(rig).definition.earlier == ()
    await rig.publish("", "q", b"2")
    assert await conn.has(2) == [b"1", b"2"]
    assert conn.cancelled == []


async def test_a_message_that_comes_before_the_former_group_refuses_it_keeps_that(rig, monkeypatch):
    await rig.declare(rig.conn(), "q", durable=True)
    (number,) = await rig.publish("", "q", b"1")
    await rig.request(rig.conn(), PurgeQueue(name="q"))
    await move(rig)
    lanes = rig.router.lanes.of(queue_of(rig).number)
    retire = rig.store.leases.retire

    async def late(queue):
        rig.router.lanes.set(queue_of(rig).number, ())  # as a process that has not heard of the move
        assert await rig.publish("", "q", b"late") == [number]
        rig.router.lanes._lanes[queue_of(rig).number] = lanes
        return await retire(queue)

    monkeypatch.setattr(rig.store.leases, "retire", late)
    rig.now_ms = LATER_MS
    assert await look(rig) == LATER_MS + AGAIN_MS
    conn = rig.conn()
    await rig.consume(conn, "q")
    assert await conn.has(1) == [b"late"]


async def test_a_delayed_message_keeps_the_former_group_until_it_has_come(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    (number,) = await rig.publish("", "q", b"1")
    await rig.request(rig.conn(), PurgeQueue(name="q"))
    record = encode(Message("a", b"later"))
    timer = encode_record(TimerSet(LATER_MS, ROW.pack(number, 0, len(record), ROW_EXTRA, 0, 0, 0, 0), record))
    row = ROW.pack(TIMERS_QUEUE, 0, len(timer), 0, 0, 0, 0, 0)
    await append(rig.store, UnplacedFrame.build(row, timer))
    await move(rig)
    rig.now_ms = LATER_MS
    assert await look(rig) == LATER_MS + AGAIN_MS
    (entry,) = await rig.store.timers.entries()
    await rig.store.timers.cancel(entry.id)
    await finish(rig)


async def test_an_end_that_comes_late_is_not_that_of_the_next_move(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    number = queue_of(rig).number
    await move(rig)
    await finish(rig)
    await move(rig, 0)
    await rig.publish("", "q", b"1")
    await rig.queues.registry.finish_move("q", number, 1)
    assert queue_of(rig).definition.is_moving


async def test_a_crash_in_the_end_of_a_move_leaves_nothing_behind(rig, monkeypatch):
    await rig.declare(rig.conn(), "q", durable=True)
    (number,) = await rig.publish("", "q", b"1")
    await rig.request(rig.conn(), PurgeQueue(name="q"))
    await move(rig)
    delete = rig.store.queues.delete

    async def broken(_):
        raise StoreUnreachable("gone")

    monkeypatch.setattr(rig.store.queues, "delete", broken)
    rig.now_ms = LATER_MS
    assert await look(rig) == LATER_MS + AGAIN_MS
    assert queue_of(rig).definition.numbers == queue_of(rig).definition.lanes, "nobody reads there any more"
    monkeypatch.setattr(rig.store.queues, "delete", delete)
    await rig.restart()
    assert rig.controller.group_of_queue(number) == 0
    await finish(rig)
    assert rig.controller.group_of_queue(number) is None


async def test_a_move_that_fails_leaves_no_mark_that_takes_another_queue_away(rig):
    await rig.declare(rig.conn(), "q")
    with pytest.raises(ControllerError):
        await move(rig, 7)
    await rig.request(rig.conn(), DeleteQueue(name="q"))
    await rig.declare(rig.conn(), "q", durable=True)
    await move(rig)
    await rig.publish("", "q", b"1")
    await rig.restart()
    assert (await rig.request(rig.conn(), GetMessage(queue="q", settle=True))).leased.messages[0].body == b"1"


async def test_a_mark_of_a_queue_that_lasts_takes_nothing_away(rig):
    await rig.queues.registry._garbage.mark("q")
    await rig.declare(rig.conn(), "q", durable=True)
    await rig.publish("", "q", b"1")
    await rig.restart()
    assert (await rig.request(rig.conn(), GetMessage(queue="q", settle=True))).leased.messages[0].body == b"1"


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
        while await rig.store.leases.unsettled(QueueNumber(queue_of(rig).definition.written[0])):
            await asyncio.sleep(0)
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
    with pytest.raises(ActionRefused, match="there is no store group 7") as unknown:
        await done(move(rig, 7, "p"))
    assert unknown.value.status == HTTPStatus.NOT_FOUND
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
    rejected = [conn.taken[nth][1] for nth in (1, 2, 0)]
    await rig.settle(conn, "q", "reject", *rejected, number=conn.number)
    dead = rig.conn()
    await rig.consume(dead, "dead")
    assert await dead.has(3) == [b"2", b"3", b"1"]
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


async def test_a_take_under_way_while_a_queue_is_moved_does_not_hide_its_messages(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    await move(rig)
    lane = queue_of(rig).definition.lanes[0]
    found = rig.queues._laned._found
    stamp = found.stamp(lane)
    found.forget([lane])
    found.nothing_in(lane, stamp)
    found.came([lane])
    assert found.may_have(lane)
    conn = rig.conn()
    await rig.consume(conn, "q")
    await rig.publish("", "q", b"1")
    assert await conn.has(1) == [b"1"]


async def test_the_numbers_of_another_queue_of_the_name_are_not_forgotten(rig):
    await rig.declare(rig.conn(), "q", durable=True)
    number = queue_of(rig).number
    await rig.queues.registry._garbage.clear("q", number + 1_000)
    assert rig.controller.group_of_queue(number) == 0


async def test_a_group_that_all_queues_have_left_is_removed(rig):
    await rig.controller.do(AddGroup(number=2, config=GroupConfig()))
    await rig.declare(rig.conn(), "q", durable=True)
    assert queue_of(rig).definition.group == 2
    await move(rig, 0)
    with pytest.raises(ControllerError):
        await rig.controller.do(RemoveGroup(number=2))
    await finish(rig)
    await rig.controller.do(RemoveGroup(number=2))


async def test_a_number_that_was_retired_is_not_given_to_a_queue_that_is_declared_anew(rig, monkeypatch):
    await rig.declare(rig.conn(), "q", durable=True)
    number = queue_of(rig).number
    await rig.store.leases.retire(number)
    forgotten = []

    async def crash(name, number):
        forgotten.append(name)

    monkeypatch.setattr(rig.queues.registry._garbage, "_forget", crash)
    await rig.request(rig.conn(), DeleteQueue(name="q"))
    assert forgotten == ["q"]
    monkeypatch.undo()
    await rig.declare(rig.conn(), "q", durable=True)
    assert queue_of(rig).number != number


async def crash_in_a_move(rig, monkeypatch, group):
    """Begins to move a queue with priorities, and ends before its definition says so."""

    async def broken(*_):
        raise StoreUnreachable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(rig.queues.registry, "_redefine", broken)
        with pytest.raises(StoreUnreachable):
            await move(rig, group)
    assert len(rig.controller.state.named) == 6


@pytest.mark.parametrize("durable", [True, False])
async def test_a_crash_in_the_middle_of_a_move_leaves_nothing_behind_a_deleted_queue(rig, monkeypatch, durable):
    await rig.declare(rig.conn(), "q", durable=durable, arguments={"x-max-priority": 2})
    await crash_in_a_move(rig, monkeypatch, 1)
    await rig.request(rig.conn(), DeleteQueue(name="q"))
    assert not rig.controller.state.named


async def test_nor_does_it_once_the_gateway_is_started_again(rig, monkeypatch):
    await rig.controller.do(AddGroup(number=2, config=GroupConfig()))
    await rig.declare(rig.conn(), "q", durable=True, arguments={"x-max-priority": 2})
    await move(rig, 1)
    await finish(rig)
    await crash_in_a_move(rig, monkeypatch, 2)
    with pytest.raises(ControllerError):
        await rig.controller.do(RemoveGroup(number=2))
    await rig.restart()
    await rig.controller.do(RemoveGroup(number=2))
    await rig.publish("", "q", b"1")
    assert (await rig.request(rig.conn(), GetMessage(queue="q", settle=True))).leased.messages[0].body == b"1"
