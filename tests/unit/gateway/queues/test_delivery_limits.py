"""Messages that have come back too often leave when they are given back, whether or not anybody reads the queue."""

import pytest

from gateway.port.queues import GetMessage
from gateway.queues.leasing import last_tries
from gateway.queues.leaving.rules import QueueRules
from store.api.leases import Lease
from store.base.errors import NotWritable, StoreOverloaded
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path) as rig:
        yield rig


async def declared(rig, **arguments):
    """Declares a queue whose messages may come back twice, and the queue of its dead letters."""
    await rig.declare(rig.conn(), "dead")
    away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await rig.declare(rig.conn(), "q", arguments={**away, "x-delivery-limit": 2, **arguments})


async def waiting(rig, queue):
    return (await rig.declare(rig.conn(), queue, passive=True)).messages


async def fetched(rig, conn, queue="q"):
    got = await rig.request(conn, GetMessage(queue=queue))
    return None if got is None else got.leased


async def test_a_message_that_was_fetched_leaves_when_it_comes_back_once_too_often(rig):
    await declared(rig)
    await rig.publish("", "q", b"poison", b"other")
    conn = rig.conn()
    for tries in range(3):
        leased = await fetched(rig, conn)
        assert (leased.messages[0].body, leased.deliveries[0]) == (b"poison", tries)
        assert await waiting(rig, "dead") == 0
        await rig.settle(conn, "q", "requeue", *leased.offsets)
    assert (await waiting(rig, "q"), await waiting(rig, "dead")) == (1, 1)
    (dead,) = (await fetched(rig, conn, "dead")).messages
    (death,) = dead.native["amqp"]["deaths"]
    assert (death["reason"], death["count"], death["queue"]) == ("delivery_limit", 1, "q")


async def test_of_many_that_come_back_those_leave_that_have_to(rig):
    await declared(rig)
    await rig.publish("", "q", b"0", b"1")
    conn = rig.conn(credit=2)
    await rig.consume(conn, "q")
    await conn.has(2)
    for back in ([0], [0], [0, 1]):
        rig.ready(conn, len(back))
        before = len(conn.taken)
        await rig.settle(conn, "q", "requeue", *back)
        if len(back) == 1:
            await conn.has(before + 1)
    await conn.until(lambda: conn.bodies.count(b"1") == 2)
    assert conn.bodies.count(b"0") == 3
    assert (await waiting(rig, "q"), await waiting(rig, "dead")) == (0, 1)


async def test_without_a_place_for_dead_letters_it_is_gone(rig):
    await rig.declare(rig.conn(), "q", arguments={"x-delivery-limit": 0})
    await rig.publish("", "q", b"poison")
    conn = rig.conn()
    leased = await fetched(rig, conn)
    await rig.settle(conn, "q", "requeue", *leased.offsets)
    assert await waiting(rig, "q") == 0
    assert await fetched(rig, conn) is None
    await rig.lose(conn)
    assert await waiting(rig, "q") == 0


async def test_what_could_not_be_moved_comes_again_and_leaves_the_next_time(rig, monkeypatch):
    await declared(rig, **{"x-delivery-limit": 0})
    await rig.publish("", "q", b"poison")
    conn = rig.conn()
    leased = await fetched(rig, conn)

    async def overloaded(*_args, **_options):
        raise StoreOverloaded(1)

    with monkeypatch.context() as patched:
        patched.setattr(type(rig.store.leases), "forward", overloaded)
        with pytest.raises(StoreOverloaded):
            await rig.settle(conn, "q", "requeue", *leased.offsets)
    again = await fetched(rig, conn)
    assert again.messages[0].body == b"poison"
    await rig.settle(conn, "q", "requeue", *again.offsets)
    assert (await waiting(rig, "q"), await waiting(rig, "dead")) == (0, 1)


async def test_what_is_acknowledged_on_its_last_try_is_consumed(rig):
    await declared(rig, **{"x-delivery-limit": 0})
    await rig.publish("", "q", b"1")
    conn = rig.conn()
    leased = await fetched(rig, conn)
    await rig.settle(conn, "q", "ack", *leased.offsets)
    assert (await waiting(rig, "q"), await waiting(rig, "dead")) == (0, 0)


def test_a_limit_that_is_raised_counts_for_what_is_leased_already():
    limit = 1
    tries = last_tries.LastTries(lambda: QueueRules(delivery_limit=limit))
    tries.leased([Lease(offset, deliveries, None, 0) for offset, deliveries in ((0, 0), (1, 1), (2, 2))])
    assert tries.exhausted([0, 1, 2]) == [1, 2]
    limit = 2
    assert tries.exhausted([0, 1, 2]) == [2]
    tries.left([2])
    limit = None
    assert tries.exhausted([0, 1, 2]) == []


def test_only_so_many_are_known(monkeypatch):
    monkeypatch.setattr(last_tries, "LAST_TRIES_COUNT_MAX", 2)
    tries = last_tries.LastTries(lambda: QueueRules(delivery_limit=0))
    for offset in range(5):
        tries.leased([Lease(offset, 0, None, 0)])
    assert tries.exhausted(range(5)) == [0, 1]


async def test_acknowledgements_that_the_store_cannot_take_bring_no_message_to_its_limit(rig, monkeypatch):
    """A group without enough replicas refused them, and each came back as a delivery that had failed."""
    await declared(rig)
    await rig.publish("", "q", b"x")
    conn = rig.conn()
    monkeypatch.setattr(rig.store.core.recorder, "_append", lambda _frame, done: done(NotWritable("one is in sync")))
    for tries in range(6):
        leased = await fetched(rig, conn)
        assert (leased.messages[0].body, leased.deliveries[0]) == (b"x", min(tries, 1))
        with pytest.raises(NotWritable):
            await rig.settle(conn, "q", "ack", *leased.offsets)
    monkeypatch.undo()
    leased = await fetched(rig, conn)
    await rig.settle(conn, "q", "ack", *leased.offsets)
    assert (await waiting(rig, "q"), await waiting(rig, "dead")) == (0, 0)
