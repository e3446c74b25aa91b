"""Consumers of named queues: who gets what, when, and what becomes of it."""

import asyncio

import msgspec
import pytest

from adapters.amqp.codec.properties import properties_of
from adapters.amqp.codec.property_fields import edited, read_fields
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import ConsumerId, Token
from gateway.port.queues import DeleteQueue, GetMessage, PurgeQueue
from gateway.queues.leasing import pump
from gateway.queues.leasing.pump import BATCH_COUNT_MAX, ROOM_COUNT_MAX, QueueConsumer
from store.api.message import Message
from store.base.errors import StoreOverloaded
from store.base.futures import failed
from store.format.frame import ROW, UnplacedFrame
from store.local import recorder
from tests.support.gateway.queues_rig import opened_queues
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path) as rig:
        yield rig


async def waiting(rig, queue="q"):
    return (await rig.declare(rig.conn(), queue, passive=True)).messages


async def test_what_waits_and_what_comes_is_delivered_in_order(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1", b"2")
    await rig.consume(conn, "q")
    assert not conn.taken
    assert await conn.has(2) == [b"1", b"2"]
    await rig.publish("", "q", b"3")
    assert await conn.has(3) == [b"1", b"2", b"3"]
    assert [deliveries for _, _, deliveries in conn.taken] == [0, 0, 0]


async def test_a_message_without_an_id_has_the_one_of_its_place_in_the_log(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1", b"2")
    await rig.publish("", "q", b"3", id="own")
    await rig.consume(conn, "q")
    await conn.has(3)
    ids = [message.id for message, _, _ in conn.taken]
    assert ids[2] == "own"
    frame, row = ids[1].split(".")
    assert row == "2"  # the second message's row in its topic's queue: row 1 is the first one's in the named queue
    assert ids[0] == f"{frame}.0"


async def test_a_consumer_that_is_full_gets_the_rest_when_it_is_ready(rig):
    conn = rig.conn(credit=2)
    await rig.declare(conn, "q")
    await rig.publish("", "q", *(b"%d" % n for n in range(6)))
    await rig.consume(conn, "q")
    await conn.has(2)
    assert await waiting(rig) == 4
    rig.ready(conn, 2)
    await conn.has(4)
    assert max(conn.offers[1:]) <= 3  # it has learnt what the consumer takes
    rig.ready(conn, 10)
    assert await conn.has(6) == [b"%d" % n for n in range(6)]
    assert {deliveries for _, _, deliveries in conn.taken} == {0}


def test_how_much_to_offer_follows_what_is_taken():
    consumer = QueueConsumer(None, ConsumerId(1), "q", exclusive=False, settle_on_delivery=False)
    assert consumer.offer_count() == BATCH_COUNT_MAX
    consumer.took(10, BATCH_COUNT_MAX)
    assert consumer.blocked
    assert consumer.ready(None)
    assert consumer.offer_count() == 11
    consumer.took(11, 11)
    assert (consumer.blocked, consumer.offer_count()) == (False, 2)
    consumer.took(2, 2)
    assert consumer.offer_count() == 4
    for _ in range(20):
        consumer.took(consumer.offer_count(), consumer.offer_count())
    assert consumer.offer_count() == BATCH_COUNT_MAX


def test_no_more_is_offered_than_there_is_credit_for():
    consumer = QueueConsumer(None, ConsumerId(1), "q", exclusive=False, settle_on_delivery=False, credit=3)
    assert consumer.offer_count() == 3
    consumer.took(2, 2)
    assert (consumer.blocked, consumer.offer_count()) == (False, 1)
    assert not consumer.ready(2)  # an acknowledgement, and nothing waits for it
    consumer.took(2, 2)
    assert consumer.blocked
    assert not consumer.ready(None)  # its peer reads again, which is no credit
    assert consumer.ready(1_000)
    assert consumer.offer_count() == BATCH_COUNT_MAX
    consumer.took(0, 5)  # its peer does not read
    assert consumer.blocked
    assert consumer.ready(None)
    assert consumer.offer_count() == BATCH_COUNT_MAX


async def test_a_consumer_with_credit_is_leased_no_more(rig):
    conn = rig.conn(credit=2)
    await rig.declare(conn, "q")
    await rig.publish("", "q", *(b"%d" % n for n in range(6)))
    await rig.consume(conn, "q", credit=2)
    await conn.has(2)
    for credit, count in ((1, 3), (3, 6)):
        rig.ready(conn, credit, named=True)
        await conn.has(count)
    assert conn.offers == [2, 1, 3]
    assert {deliveries for _, _, deliveries in conn.taken} == {0}


async def test_consumers_take_turns(rig):
    conns = [rig.conn() for _ in range(3)]
    await rig.declare(conns[0], "q")
    for conn in conns:
        await rig.consume(conn, "q")
    await rig.publish("", "q", *(b"%d" % n for n in range(9)))
    for conn in conns:
        assert len(await conn.has(3)) == 3
    for n in range(3):
        await rig.publish("", "q", b"one by one")
        await conns[n].has(4)


async def test_settled_messages_are_gone_and_requeued_ones_come_again(rig):
    conn = rig.conn(credit=3)
    await rig.declare(conn, "q", durable=True)
    await rig.publish("", "q", b"ack", b"requeue", b"reject")
    await rig.consume(conn, "q")
    await conn.has(3)
    offsets = [offset for _, offset, _ in conn.taken]
    await rig.settle(conn, "q", "ack", offsets[0])
    await rig.settle(conn, "q", "reject", offsets[2])
    await rig.settle(conn, "q", "requeue", offsets[1])
    rig.ready(conn, 5)
    await conn.has(4)
    message, offset, deliveries = conn.taken[3]
    assert (message.body, offset, deliveries) == (b"requeue", offsets[1], 1)
    await rig.settle(conn, "q", "ack", offset)
    await rig.lose(conn)
    assert await waiting(rig) == 0
    await rig.settle(conn, "nobody's", "ack", 0)


@pytest.mark.parametrize(("kind", "counted"), [("quorum", True), ("classic", False)])
async def test_a_quorum_queue_counts_how_often_a_message_was_given_back(rig, kind, counted):
    await rig.declare(rig.conn(), "q", durable=True, arguments={"x-queue-type": kind})
    native = {"amqp": {"properties": edited(b"\x00\x00", added={"mine": 1})}}
    await rig.publish("", "q", b"amqp", native=native)
    await rig.publish("", "q", b"other")
    conn = rig.conn()
    await rig.consume(conn, "q")
    for before in range(3):
        await conn.has(2 * before + 2)
        found = [read_fields(properties_of(one, now_ms=0)).get("headers", {}) for one, _, _ in conn.taken[-2:]]
        assert [headers.get("x-delivery-count") for headers in found] == [before if before and counted else None] * 2
        assert found[0]["mine"] == 1
        await rig.settle(conn, "q", "requeue", *[offset for _, offset, _ in conn.taken[-2:]])
    await rig.lose(conn)
    leased = (await rig.request(rig.conn(), GetMessage(queue="q"))).leased
    headers = read_fields(properties_of(leased.messages[0], now_ms=0))["headers"]
    assert headers.get("x-delivery-count") == (leased.deliveries[0] if counted else None)


@pytest.mark.parametrize(("kind", "count"), [("quorum", 0), ("classic", None)])
async def test_what_is_fetched_from_a_quorum_queue_for_the_first_time_has_come_back_0_times(rig, kind, count):
    await rig.declare(rig.conn(), "q", durable=True, arguments={"x-queue-type": kind})
    await rig.publish("", "q", b"1")
    (message,) = (await rig.request(rig.conn(), GetMessage(queue="q"))).leased.messages
    headers = read_fields(properties_of(message, now_ms=0))["headers"]
    assert headers.get("x-delivery-count") == count


async def test_what_a_lost_connection_held_goes_to_another(rig):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1", b"2")
    await rig.consume(conn, "q")
    await conn.has(2)
    await rig.consume(other, "q")
    await rig.lose(conn)
    assert await other.has(2) == [b"1", b"2"]
    assert [deliveries for _, _, deliveries in other.taken] == [1, 1]


async def test_a_cancelled_consumer_gets_nothing_more_and_keeps_what_it_has(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1")
    await rig.consume(conn, "q")
    await conn.has(1)
    rig.cancel(conn)
    rig.cancel(conn)
    rig.ready(conn, 5)
    await rig.publish("", "q", b"2")
    assert await waiting(rig) == 1
    await rig.settle(conn, "q", "requeue", conn.taken[0][1])
    assert await waiting(rig) == 2
    await rig.consume(conn, "q", 2)
    await conn.has(3)


async def test_settling_on_delivery_needs_no_acknowledgement(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.consume(conn, "q", settle_on_delivery=True)
    await rig.publish("", "q", b"1", b"2")
    await conn.has(2)
    await rig.lose(conn)
    assert await waiting(rig) == 0


async def test_a_consumer_without_acknowledgement_waits_for_no_settlement(rig, monkeypatch):
    monkeypatch.setattr(recorder, "LINGER_S", 3_600)
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1", b"2")
    await rig.consume(conn, "q", 1, settle_on_delivery=True)
    await conn.has(2)
    other = rig.conn(credit=1)
    await rig.consume(other, "q", settle_on_delivery=True)
    await rig.lose(conn)
    assert await waiting(rig) == 0  # messages that are being settled are given to no other consumer
    await rig.publish("", "q", b"3")
    assert await other.has(1) == [b"3"]
    await rig.publish("", "q", b"4")
    await rig.lose(other)
    assert await waiting(rig) == 1


async def test_a_settlement_that_failed_has_the_message_delivered_again(rig, monkeypatch):
    monkeypatch.setattr(pump, "RETRY_S", 0.001)
    refusals = [StoreOverloaded("full")]
    settle_soon = rig.store.leases.settle_soon

    def refuse_once(queue, owner, offsets):
        if not refusals:
            return settle_soon(queue, owner, offsets)
        rig.store.leases.requeue(queue, owner, offsets)
        return failed(refusals.pop())

    monkeypatch.setattr(rig.store.leases, "settle_soon", refuse_once)
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.consume(conn, "q", settle_on_delivery=True)
    await rig.publish("", "q", b"1")
    assert await conn.has(2) == [b"1", b"1"]
    await rig.lose(conn)
    assert await waiting(rig) == 0


async def test_an_exclusive_consumer_is_alone(rig):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(conn, "q")
    await rig.consume(conn, "q", exclusive=True)
    with pytest.raises(Refusal) as info:
        await rig.consume(other, "q")
    assert (info.value.cause, info.value.detail) == (Cause.FORBIDDEN, "queue 'q' in vhost '/' in exclusive use")
    assert await rig.request(other, GetMessage(queue="q")) is None  # which is no consumer, as in RabbitMQ
    rig.cancel(conn)
    await rig.consume(other, "q")
    with pytest.raises(Refusal):
        await rig.consume(conn, "q", exclusive=True)


async def test_consuming_a_queue_that_is_not_there_is_refused(rig):
    with pytest.raises(Refusal) as info:
        await rig.consume(rig.conn(), "nobody's")
    assert info.value.cause is Cause.NOT_FOUND


async def test_consumers_hear_that_their_queue_is_gone(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.consume(conn, "q", 7)
    with pytest.raises(Refusal):
        await rig.request(conn, DeleteQueue(name="q", if_unused=True))
    await rig.request(conn, DeleteQueue(name="q"))
    assert conn.cancelled == [7]
    rig.ready(conn, 1, 7)
    rig.cancel(conn, 7)
    await rig.lose(conn)


async def test_an_auto_delete_queue_goes_with_its_last_consumer(rig):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(conn, "q", auto_delete=True)
    await rig.consume(conn, "q")
    await rig.consume(other, "q")
    rig.cancel(conn)
    await rig.declare(conn, "q", passive=True)
    await rig.lose(other)
    with pytest.raises(Refusal):
        await rig.declare(conn, "q", passive=True)


async def test_expired_messages_are_settled_and_not_delivered(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"old", expires_at_ms=500)
    await rig.publish("", "q", b"young", expires_at_ms=5_000)
    await rig.consume(conn, "q")
    assert await conn.has(1) == [b"young"]
    rig.now_ms = 6_000
    await rig.lose(conn)
    assert await rig.request(rig.conn(), GetMessage(queue="q")) is None
    assert await waiting(rig) == 0


async def test_a_queues_own_time_to_live_counts_from_the_log(rig):
    conn = rig.conn()
    await rig.declare(conn, "q", arguments={"x-message-ttl": 60_000})
    await rig.publish("", "q", b"1")
    rig.now_ms = 1 << 60
    assert await rig.request(conn, GetMessage(queue="q")) is None
    await rig.publish("", "q", b"2")
    rig.now_ms = 1_000
    assert (await rig.request(conn, GetMessage(queue="q"))).leased.messages[0].body == b"2"


@pytest.mark.parametrize("own", [True, False])
async def test_what_has_expired_is_not_counted(rig, own):
    conn, name = rig.conn(), f"q{own}"
    await rig.declare(conn, name, arguments={"x-message-ttl": 60_000} if own else {})
    fields = {} if own else {"expires_at_ms": 5_000}
    late_ms = 1 << 60 if own else 5_000

    async def filled():
        rig.now_ms = 1_000
        await rig.publish("", name, *[b"old"] * 600, **fields)
        assert await waiting(rig, name) == 600
        rig.now_ms = late_ms

    async def asked(request):
        return await rig.request(conn, request)

    await filled()
    assert await waiting(rig, name) == 0
    await filled()
    assert await asked(PurgeQueue(name=name)) == 0
    await filled()
    assert await asked(GetMessage(queue=name)) is None
    await filled()
    assert await asked(DeleteQueue(name=name, if_empty=True)) == 0


async def test_what_has_expired_in_front_of_others_is_not_counted_and_order_is_kept(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    for body in (b"1", b"2", b"3"):
        await rig.publish("", "q", b"old", expires_at_ms=500)
        await rig.publish("", "q", body)
    assert await waiting(rig) == 5  # those behind one that has not expired are there still, as in RabbitMQ
    got = await rig.request(conn, GetMessage(queue="q", settle=True))
    assert (got.leased.messages[0].body, got.remaining) == (b"1", 3)
    await rig.publish("", "q", b"4")
    await rig.consume(conn, "q")
    assert await conn.has(3) == [b"2", b"3", b"4"]
    assert {deliveries for _, _, deliveries in conn.taken} == {0}


async def test_a_store_that_fails_is_tried_again(rig, monkeypatch):
    monkeypatch.setattr("gateway.queues.leasing.pump.RETRY_S", 0.01)
    conn, take, failures = rig.conn(), rig.store.leases.take, [StoreOverloaded("busy"), StoreOverloaded("busy")]

    async def failing(*args, **kwargs):
        if failures:
            raise failures.pop()
        return await take(*args, **kwargs)

    monkeypatch.setattr(rig.store.leases, "take", failing)
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1")
    await rig.consume(conn, "q")
    assert await conn.has(1) == [b"1"]


async def test_what_the_store_refuses_to_settle_is_delivered_again(rig, monkeypatch):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"x")
    await rig.consume(conn, "q")
    await conn.has(1)

    def refusing(*args):
        rig.store.leases.requeue(*args)
        return failed(StoreOverloaded())

    with monkeypatch.context() as patched:
        patched.setattr(rig.store.leases, "settle", refusing)
        patched.setattr(rig.store.leases, "settle_soon", refusing)
        for times, token in enumerate((None, Token(1)), 2):  # a plain acknowledgement, and one of a transaction
            with pytest.raises(StoreOverloaded):
                await rig.settle(conn, "q", "ack", conn.taken[-1][1], token=token)
            assert await conn.has(times) == [b"x"] * times


async def test_an_acknowledgement_does_not_reach_a_later_queue_of_that_name(rig):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"old")
    await rig.consume(conn, "q")
    await conn.has(1)
    number = conn.number
    await rig.request(conn, DeleteQueue(name="q"))
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"new")
    await rig.consume(conn, "q", consumer=2)
    await conn.has(2)
    assert conn.taken[0][1] == conn.taken[1][1]  # the same offset, in another queue
    assert conn.number != number
    await rig.settle(conn, "q", "ack", conn.taken[0][1], number=number)
    await rig.lose(conn)
    await rig.consume(other, "q")
    assert await other.has(1) == [b"new"]


async def test_a_bug_in_a_pump_cancels_its_consumers(rig, monkeypatch):
    conn = rig.conn()

    async def broken(*_args, **_kwargs):
        raise RuntimeError("a bug")

    await rig.declare(conn, "q")
    monkeypatch.setattr(rig.store.leases, "take", broken)
    await rig.consume(conn, "q", 3)
    await conn.until(lambda: conn.cancelled)
    assert conn.cancelled == [3]


async def test_a_record_that_is_no_message_does_not_stop_the_queue(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    (number,) = await rig.publish("", "q", b"before")
    record = msgspec.msgpack.encode("not a message")
    rig.store.log.append(UnplacedFrame.build(ROW.pack(number, 0, len(record), 0, 0, 0, 0, 0), record), lambda _: None)
    await rig.publish("", "q", b"after")
    await rig.consume(conn, "q")
    assert await conn.has(2) == [b"before", b"after"]


async def test_nothing_is_leased_to_a_connection_that_is_gone(rig):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(other, "q")
    await rig.consume(conn, "q")
    conn.gone = True
    await rig.publish("", "q", b"1")
    await rig.lose(conn)
    await rig.consume(other, "q")
    assert await other.has(1) == [b"1"]
    assert other.taken[0][2] == 0


async def test_many_messages_of_many_frames(rig):
    conn = rig.conn(credit=100)
    await rig.declare(conn, "q")
    expected = []
    for n in range(30):
        bodies = [b"%d.%d" % (n, i) for i in range(40)]
        expected += bodies
        await rig.publish("", "q", *bodies)
    await rig.consume(conn, "q", settle_on_delivery=True)
    while len(conn.taken) < len(expected):
        await conn.until(lambda: conn.credit == 0 or len(conn.taken) == len(expected))
        rig.ready(conn, 100)
    assert conn.bodies == expected
    assert isinstance(conn.taken[0][0], Message)


async def test_a_consumer_of_a_higher_priority_that_comes_during_a_take_is_first(rig, monkeypatch):
    await rig.declare(rig.conn(), "q")
    low, high = rig.conn(), rig.conn()
    take, begun, go_on = rig.store.leases.take, asyncio.Event(), asyncio.Event()

    async def slow(*arguments, **options):
        if not begun.is_set():
            begun.set()
            await go_on.wait()
        return await take(*arguments, **options)

    monkeypatch.setattr(rig.store.leases, "take", slow)
    await rig.consume(low, "q", credit=2, priority=-1)
    await begun.wait()
    await rig.consume(high, "q", credit=2, priority=10)
    await rig.publish("", "q", b"1", b"2", b"3")
    go_on.set()
    assert await high.has(2) == [b"1", b"2"]
    assert await low.has(1) == [b"3"]


async def test_a_waiting_consumer_of_a_higher_priority_takes_nothing_from_the_single_active_one(rig, monkeypatch):
    await rig.declare(rig.conn(), "q", arguments={"x-single-active-consumer": True})
    active, waiting = rig.conn(), rig.conn()

    def given_back(*_arguments, **_options):
        raise AssertionError("a message was leased, and not delivered")

    monkeypatch.setattr(rig.store.leases, "requeue", given_back)
    await rig.consume(active, "q", credit=1)
    await rig.consume(waiting, "q", credit=5, priority=10)
    await rig.publish("", "q", b"1", b"2")
    assert await active.has(1) == [b"1"]
    rig.ready(active, 1, named=True)
    assert await active.has(2) == [b"1", b"2"]
    assert not waiting.taken


@pytest.mark.parametrize(
    ("credit", "active", "admitted"),
    [
        ((), False, [True, False, False, False]),
        ((0,), False, [True, False, False, False]),
        ((2,), False, [True, True, True, False]),
        ((1, 1), False, [True, True, True, False]),
        ((1, 5), True, [True, True, False, False]),
        ((None,), False, [True, True, True, True]),
    ],
)
async def test_a_full_queue_takes_the_messages_that_its_consumers_have_room_for(rig, credit, active, admitted):
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish", "x-single-active-consumer": active}
    await rig.declare(rig.conn(), "q", arguments=arguments)
    for each in credit:
        await rig.consume(rig.conn(), "q", credit=each)
    gate = rig.router.gates[rig.queues.registry.queues["q"].number]
    assert [gate.admit(Message("a", b"x")) for _ in range(4)] == admitted


async def test_a_full_queue_refuses_beside_a_consumer_that_takes_nothing(rig):
    await rig.declare(rig.conn(), "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await rig.consume(rig.conn(credit=0), "q")
    await rig.publish("", "q", b"1")
    queue = rig.queues.registry.queues["q"]
    await until(lambda: queue.pump.room == 0)
    await rig.queues.keeper.look_after(queue.number)
    assert not rig.router.gates[queue.number].admit(Message("a", b"2"))


async def test_a_full_queue_has_room_for_as_many_as_a_consumer_without_acknowledgements_took_before(rig):
    conn = rig.conn(credit=3)
    await rig.declare(conn, "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await rig.consume(conn, "q", settle_on_delivery=True)
    pump = rig.queues.registry.queues["q"].pump
    assert pump.room == ROOM_COUNT_MAX  # it has never been blocked
    await rig.publish("", "q", *(b"%d" % n for n in range(9)))
    await until(lambda: pump.room == 0)
    rig.ready(conn, 0)
    assert pump.room == 4  # the three of the last time, and one more
    await until(lambda: pump.room == 0)
    assert await waiting(rig) == 6


async def test_consumers_that_share_their_credit_have_its_room_once(rig):
    await rig.declare(rig.conn(), "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    one, other = rig.conn(), rig.conn()
    for consumer, shares in enumerate((7, 7, 8, 0, 0), 1):
        await rig.consume(one, "q", consumer=consumer, credit=10, shares=shares)
    await rig.consume(other, "q", credit=10, shares=7)
    assert rig.queues.registry.queues["q"].pump.room == 50
    rig.ready(one, 4, consumer=1, named=True)
    assert rig.queues.registry.queues["q"].pump.room == 50
    rig.ready(one, 4, consumer=2, named=True)
    assert rig.queues.registry.queues["q"].pump.room == 44


async def test_the_room_of_many_consumers_is_not_added_up_for_every_message(rig, monkeypatch):
    await rig.declare(rig.conn(), "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    conns = [rig.conn() for _ in range(3)]
    for conn in conns:
        await rig.consume(conn, "q", credit=1)
    queue = rig.queues.registry.queues["q"]
    gate, sums = rig.router.gates[queue.number], []
    candidates = queue.pump._candidates
    monkeypatch.setattr(queue.pump, "_candidates", lambda: sums.append(1) or candidates())
    assert [gate.admit(Message("a", b"x")) for _ in range(6)] == [True] * 4 + [False] * 2
    assert len(sums) == 1
    rig.ready(conns[0], 2, named=True)  # it was not blocked before
    assert [gate.admit(Message("a", b"x")) for _ in range(2)] == [True, False]
    rig.cancel(conns[0])
    assert queue.pump.room == 2
    conns[1].gone = True
    await rig.queues.keeper.look_after(queue.number)
    assert queue.pump.room == 1
