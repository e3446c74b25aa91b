"""Named queues of several proxies: what one declares all know, and what leaves a queue leaves it once."""

import asyncio

import pytest

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup
from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import (
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    GetMessage,
)
from gateway.port.streams import StreamRead
from gateway.queues.leaving.policies import PolicyConfig, StoredPolicy
from store.base.errors import StoreError
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DURABLE = pytest.mark.parametrize("durable", [True, False])


@DURABLE
async def test_a_queue_declared_at_one_proxy_is_known_at_another(two, durable):
    _, one, other = two
    declared = await one.declare(one.conn(), "q", durable=durable)
    passive = await other.declare(other.conn(), "q", passive=True)
    assert declared.name == passive.name
    with pytest.raises(Refusal) as refused:
        await other.declare(other.conn(), "q", durable=not durable)
    assert refused.value.cause is Cause.PRECONDITION
    assert one.queues.registry.queues["q"].number == other.queues.registry.queues["q"].number


@DURABLE
async def test_what_is_published_at_one_proxy_is_consumed_at_another(two, durable):
    _, one, other = two
    await one.declare(one.conn(), "q", durable=durable)
    conn = other.conn()
    await other.consume(conn, "q")
    await one.publish("", "q", b"1", b"2")
    assert await conn.has(2) == [b"1", b"2"]
    await other.settle(conn, "q", "ack", *[offset for _, offset, _ in conn.taken])
    await one.publish("", "q", b"3")
    await conn.has(3)


def with_priority(priority):
    return {"native": {"amqp": {"priority": priority}}}


@DURABLE
async def test_priorities_hold_among_proxies(two, durable):
    _, one, other = two
    await one.declare(one.conn(), "q", durable=durable, arguments={"x-max-priority": 5})
    waiting, getting = other.conn(1), other.conn()
    await other.consume(waiting, "q")
    for count, priority in enumerate((5, 0, 3), 1):  # to lanes in which nothing was found before
        await one.publish("", "q", b"%d" % priority, **with_priority(priority))
        await waiting.has(count)
        other.ready(waiting, 1)
    await other.settle(waiting, "q", "ack", *[offset for _, offset, _ in waiting.taken])
    other.cancel(waiting)
    for priority in (1, 4, 9):
        await one.publish("", "q", b"%d" % priority, **with_priority(priority))
    found = [await other.ask(GetMessage(queue="q"), getting) for _ in range(2)]
    assert [got.leased.messages[0].body for got in found] == [b"9", b"4"]
    await other.lose(getting)
    last = one.conn()
    assert (await one.ask(GetMessage(queue="q"), last)).leased.messages[0].body == b"9"
    assert (await one.declare(last, "q", passive=True)).messages == 2


async def test_a_confirmed_message_is_got_and_counted_at_a_proxy_that_has_not_heard_of_it(two):
    _, one, other = two
    await one.declare(one.conn(), "q", durable=True, arguments={"x-max-priority": 5})
    getting = other.conn()
    assert await other.ask(GetMessage(queue="q"), getting) is None  # every lane was found empty
    other.stop_watching()
    for priority in (1, 4):
        await one.publish("", "q", b"%d" % priority, **with_priority(priority))
    assert (await other.declare(getting, "q", passive=True)).messages == 2
    with pytest.raises(Refusal, match="not empty"):
        await other.ask(DeleteQueue(name="q", if_empty=True), getting)
    found = [await other.ask(GetMessage(queue="q"), getting) for _ in range(2)]
    assert [got.leased.messages[0].body for got in found] == [b"4", b"1"]


async def test_a_stream_is_read_at_any_proxy(two):
    _, one, other = two
    await one.declare(one.conn(), "s", durable=True, arguments={"x-queue-type": "stream"})
    await one.publish("", "s", b"1", b"2")
    conn = other.conn()
    await other.consume(conn, "s", credit=2, limited=True, stream=StreamRead(place="offset", value=1))
    assert await conn.has(1) == [b"2"]
    await one.publish("", "s", b"3", b"4")  # of which the other one hears from the store alone
    assert await conn.has(2) == [b"2", b"3"]
    other.ready(conn, 5, named=True)
    assert await conn.has(3) == [b"2", b"3", b"4"]
    assert (await one.declare(one.conn(), "s", passive=True)).messages == 4


async def test_a_late_proxy_knows_what_there_is(cluster):
    one = await cluster.proxy()
    await one.ask(DeclareExchange(name="x", kind="direct"))
    await one.declare(one.conn(), "q")
    await one.ask(BindQueue(queue="q", exchange="x", routing_key="k"))
    other = await cluster.proxy()
    assert other.routes("x", "k") == one.routes("x", "k") != []


async def test_a_queue_that_many_declare_at_the_same_time_is_one(cluster):
    proxies = [await cluster.proxy() for _ in range(3)]
    await asyncio.gather(*[proxy.declare(proxy.conn(), "q") for proxy in proxies * 3])
    assert len({proxy.queues.registry.queues["q"].number for proxy in proxies}) == 1
    assert await cluster.keys("owners") == []


async def test_an_exclusive_queue_is_its_connections_wherever_others_are(two):
    cluster, one, other = two
    conn = one.conn()
    await one.declare(conn, "mine", exclusive=True)
    for request in (
        DeclareQueue(name="mine", exclusive=True),
        DeleteQueue(name="mine"),
        GetMessage(queue="mine"),
        BindQueue(queue="mine", exchange="amq.direct", routing_key="k"),
    ):
        with pytest.raises(Refusal) as refused:
            await other.ask(request)
        assert refused.value.cause is Cause.CONFLICT
    await one.consume(conn, "mine")
    await until(lambda: "mine" in other.queues.registry.queues)
    await other.publish("", "mine", b"reply")
    assert await conn.has(1) == [b"reply"]
    await one.lose(conn)
    await until(lambda: "mine" not in other.queues.registry.queues)
    assert await cluster.keys("owners") == []
    await other.declare(other.conn(), "mine", exclusive=True)


async def test_exclusive_queues_go_with_their_proxy_and_others_stay(two):
    cluster, one, other = two
    await one.declare(one.conn(), "mine", exclusive=True)
    await one.declare(one.conn(), "ours")
    await one.publish("", "ours", b"kept")
    await cluster.lose(one, other)
    await until(lambda: "mine" not in other.queues.registry.queues)
    await other.declare(other.conn(), "mine", durable=True)
    conn = other.conn()
    await other.consume(conn, "ours")
    assert await conn.has(1) == [b"kept"]


async def test_what_a_proxy_that_is_gone_had_leased_is_delivered_elsewhere(two):
    cluster, one, other = two
    await one.declare(one.conn(), "q")
    first, second = one.conn(), other.conn()
    await one.consume(first, "q")
    await one.publish("", "q", b"1")
    await first.has(1)
    await other.consume(second, "q")
    await cluster.lose(one, other)
    assert await second.has(1) == [b"1"]


async def test_what_is_not_durable_goes_when_no_proxy_is_left(cluster):
    one = await cluster.proxy()
    await one.ask(DeclareExchange(name="x", kind="direct"))
    await one.declare(one.conn(), "gone")
    await one.declare(one.conn(), "kept", durable=True)
    await one.ask(BindQueue(queue="kept", exchange="x", routing_key="k"))
    await cluster.lose(one)
    other = await cluster.proxy()
    assert list(other.queues.registry.queues) == ["kept"]
    assert other.queues.registry.exchange("x") is None
    await other.ask(BindQueue(queue="kept", exchange="amq.direct", routing_key="k"))
    assert await cluster.keys("amqp/transient") == []


async def test_a_proxy_that_was_cut_off_begins_anew(two):
    cluster, one, other = two
    conn = one.conn()
    await one.declare(conn, "mine", exclusive=True)
    await one.declare(conn, "q")
    await one.consume(conn, "q")
    cluster.clock.ms += 3_000
    await other.owners.renew()
    await cluster.store.keys.delete(f"proxies/alive/{one.owners.id}")
    await cluster.store.keys.put(f"proxies/heirs/{one.owners.id}", other.owners.id.encode())
    await one.owners.renew()
    await conn.until(lambda: conn.cancelled == [1])
    await until(lambda: "mine" not in other.queues.registry.queues)
    await one.owners.renew()
    await one.consume(conn, "q")
    assert (await other.declare(other.conn(), "q", passive=True)).consumers == 1


async def test_a_use_at_one_proxy_keeps_a_queue_from_expiring_at_another(two):
    _, one, other = two
    arguments = {"x-expires": 10_000}
    await one.declare(one.conn(), "q", arguments=arguments)
    await other.declare(other.conn(), "q", arguments=arguments)
    number = one.queues.registry.queues["q"].number

    async def look(now_ms):
        for proxy in (other, one):
            proxy.now_ms = now_ms
            await proxy.queues.keeper.look_after(number)
        return "q" in one.queues.registry.queues

    assert await look(2_000)
    other.now_ms = 8_000
    await other.declare(other.conn(), "q", passive=True)
    assert await look(9_000)
    assert await look(15_000)
    assert await look(18_500)
    assert not await look(30_000)


async def test_a_message_that_expires_is_moved_by_one_of_the_proxies(two):
    _, one, other = two
    await one.declare(one.conn(), "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 5}
    await one.declare(one.conn(), "q", arguments=arguments)
    await other.declare(other.conn(), "q", passive=True)
    await one.publish("", "q", *[b"%d" % n for n in range(20)])
    number = one.queues.registry.queues["q"].number
    one.now_ms = other.now_ms = 1 << 50
    await asyncio.gather(*(proxy.queues.keeper.look_after(number) for proxy in (one, other, one, other)))
    await one.queues.keeper.look_after(number)
    assert (await one.declare(one.conn(), "dead", passive=True)).messages == 20
    assert (await one.declare(one.conn(), "q", passive=True)).messages == 0


async def test_a_policy_that_one_proxy_sets_holds_at_all_until_another_removes_it(two):
    cluster, one, other = two
    await one.declare(one.conn(), "q")
    policy = StoredPolicy(policy=PolicyConfig(name="p", pattern="^q$", definition={"max-length": 1}))
    await one.queues.registry.set_policy(policy)
    third = await cluster.proxy()

    def lengths():
        return [proxy.queues.registry.queues["q"].rules.max_length for proxy in (one, other, third)]

    await until(lambda: lengths() == [1, 1, 1])
    await other.queues.registry.clear_policy(policy.place)
    await until(lambda: lengths() == [None, None, None])


@pytest.mark.parametrize("arguments", [{"x-max-length": 2}, {"x-max-length-bytes": 4}])
async def test_proxies_that_shorten_a_queue_together_drop_no_more_than_is_too_much(two, arguments):
    _, one, other = two
    await one.declare(one.conn(), "q", arguments=arguments)
    await other.declare(other.conn(), "q", passive=True)
    number = one.queues.registry.queues["q"].number
    for _ in range(6):
        await one.publish("", "q", b"01", b"02", b"03")
        await asyncio.gather(*(proxy.queues.keeper.look_after(number) for proxy in (one, other, one, other)))
        conn = one.conn()
        found = [await one.ask(GetMessage(queue="q"), conn) for _ in range(3)]
        assert len([got for got in found if got is not None]) == 2
        await one.lose(conn)


async def test_a_queue_is_made_anew_though_another_proxy_has_changed_the_one_that_is_to_be_removed(two, monkeypatch):
    _, one, other = two
    await one.declare(one.conn(), "q", durable=True)
    definitions = one.queues.registry._definitions
    delete = definitions.delete

    async def failing(*_arguments, **_options):
        raise StoreError("not now")

    async def late(*arguments, **options):
        monkeypatch.undo()
        await other.ask(BindQueue(queue="q", exchange="amq.topic", routing_key="#"))
        return await delete(*arguments, **options)

    monkeypatch.setattr(definitions, "delete", failing)
    async with one.queues.registry._changing:
        await one.queues.registry._drop_soon(["q"])
    monkeypatch.setattr(definitions, "delete", late)
    await one.declare(one.conn(), "q", durable=True)
    assert not one.queues.registry.queues["q"].definition.bindings


async def test_a_queue_moved_by_one_proxy_is_written_to_in_its_new_group_by_another(two):
    cluster, one, other = two
    for group in (0, 1):
        await cluster.controller.do(AddGroup(number=group, config=GroupConfig()))
    await one.declare(one.conn(), "q", durable=True)
    conn = other.conn()
    await other.consume(conn, "q")
    await other.publish("", "q", b"1")
    await conn.has(1)
    definition = one.queues.registry.queues["q"].definition
    moved = await one.queues.registry.move_queue("q", 1 - definition.group)
    await until(lambda: other.queues.registry.queues["q"].definition.move == moved.move)
    assert await other.publish("", "q", b"2") == list(moved.lanes)
    await one.publish("", "q", b"3")
    assert await conn.has(3) == [b"1", b"2", b"3"]
    assert not conn.cancelled
    with pytest.raises(Refusal) as refused:
        await other.queues.registry.move_queue("q", definition.group)
    assert refused.value.cause is Cause.CONFLICT
