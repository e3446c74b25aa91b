"""Named queues of several proxies: what one declares all know, exclusive queues and consumers are counted once."""

import asyncio

import msgspec
import pytest

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, CreateTopic
from controller.node.local import LocalController
from gateway.domain.access import NOTHING, OPEN, Identity, Permissions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost
from gateway.port.adapter import Consume, ConsumerId, Token
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    OpenVhost,
    UnbindExchange,
    UnbindQueue,
)
from gateway.port.streams import StreamRead
from gateway.queues.consumers.consumer_counts import COUNTS
from gateway.queues.leaving.policies import PolicyConfig, StoredPolicy
from gateway.queues.leaving.upkeep import OWNER
from gateway.queues.model.bindings import QueueDefinition
from gateway.queues.operated.vhosts import VhostLimits
from gateway.queues.topology.definitions import Changed
from gateway.queues.topology.topology import Topology
from store.base.errors import AppendOutcomeUnknown, StoreError, StoreFull
from store.local.local import LocalStore
from tests.support.gateway.queues_proxies import QueuesProxies
from tests.support.process.clock import Clock
from tests.support.process.waiting import until
from tests.support.store.remote_kit import Node

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def cluster(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path / "store", now_ms=clock.now_ms) as store:
        controller = LocalController.open(tmp_path / "controller", now_ms=clock.now_ms)
        await controller.do(CreateTopic(name="$amqp"))
        node = await Node().start(store)
        cluster = QueuesProxies(store, node, controller, clock)
        yield cluster
        for proxy in cluster.proxies:
            await proxy.die()
        await node.stop()
        await controller.close()


@pytest.fixture
async def two(cluster):
    return cluster, await cluster.proxy(), await cluster.proxy()


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


@DURABLE
async def test_bindings_made_at_one_proxy_are_used_at_another(two, durable):
    cluster, one, other = two
    await one.ask(DeclareExchange(name="x", kind="topic", durable=durable))
    await one.declare(one.conn(), "q", durable=durable)
    await one.ask(BindQueue(queue="q", exchange="x", routing_key="a.*"))
    number = one.queues.registry.queues["q"].number
    await until(lambda: other.queues.registry.exchange("x") and number in other.routes("x", "a.b"))
    await other.ask(BindQueue(queue="q", exchange="x", routing_key="c"))
    await until(lambda: number in one.routes("x", "c"))
    await one.ask(UnbindQueue(queue="q", exchange="x", routing_key="a.*"))
    await until(lambda: number not in other.routes("x", "a.b"))
    await other.ask(DeleteExchange(name="x"))
    await until(lambda: one.queues.registry.exchange("x") is None)
    assert one.queues.registry.queues["q"].definition.bindings == ()
    await other.ask(DeleteQueue(name="q"))
    await until(lambda: "q" not in one.queues.registry.queues)
    assert await cluster.keys("amqp/") == []


async def test_a_late_proxy_knows_what_there_is(cluster):
    one = await cluster.proxy()
    await one.ask(DeclareExchange(name="x", kind="direct"))
    await one.declare(one.conn(), "q")
    await one.ask(BindQueue(queue="q", exchange="x", routing_key="k"))
    other = await cluster.proxy()
    assert other.routes("x", "k") == one.routes("x", "k") != []


async def test_two_proxies_that_bind_at_the_same_time_both_have_done_so(two):
    _, one, other = two
    await one.declare(one.conn(), "q")
    await other.declare(other.conn(), "q", passive=True)
    await asyncio.gather(
        *[
            proxy.ask(BindQueue(queue="q", exchange="amq.direct", routing_key=f"{n}{m}"))
            for n in range(5)
            for m, proxy in enumerate((one, other))
        ]
    )
    await until(lambda: all(len(p.queues.registry.queues["q"].definition.bindings) == 10 for p in (one, other)))


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


async def test_an_auto_delete_queue_goes_with_the_last_consumer_of_all_proxies(two):
    cluster, one, other = two
    await one.declare(one.conn(), "q", auto_delete=True)
    first, second = one.conn(), other.conn()
    await one.consume(first, "q")
    await other.consume(second, "q")
    assert (await one.declare(first, "q", passive=True)).consumers == 2
    with pytest.raises(Refusal):
        await one.ask(DeleteQueue(name="q", if_unused=True))
    await one.lose(first)
    assert (await one.declare(one.conn(), "q", passive=True)).consumers == 1
    other.cancel(second)
    await until(lambda: "q" not in one.queues.registry.queues)
    await until(lambda: empty(cluster.keys("amqp/")))


@pytest.mark.parametrize("refused", ["one", "both"])
async def test_an_auto_delete_queue_goes_though_proxies_saw_consumers_that_had_ended(two, monkeypatch, refused):
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 0.001)
    cluster, one, other = two
    await one.declare(one.conn(), "q", auto_delete=True)
    first, second = one.conn(), other.conn()
    await one.consume(first, "q")
    await other.consume(second, "q")

    async def refuse(*_, **__):
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        for proxy in (one, other)[: 1 if refused == "one" else 2]:
            patch.setattr(proxy.store.keys, "transact", refuse)
        await one.lose(first)
        await other.lose(second)
    await until(lambda: not any("q" in proxy.queues.registry.queues for proxy in (one, other)))
    await until(lambda: empty(cluster.keys("amqp/")))


async def test_an_auto_delete_queue_that_is_declared_again_waits_for_a_consumer_again(two, monkeypatch):
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 60)
    _, one, _ = two
    await one.declare(one.conn(), "q", auto_delete=True)
    conn = one.conn()
    await one.consume(conn, "q")

    async def away(_queue):
        raise StoreError("away")

    counts, again = one.queues._counts, one.conn()
    with monkeypatch.context() as patch:
        patch.setattr(counts, "_others", away)
        await one.lose(conn)
    await one.declare(again, "q", auto_delete=True)
    await one.publish("", "q", b"1")
    assert await one.queues.registry.finish()
    await one.consume(again, "q")
    assert await again.has(1) == [b"1"]


async def empty(keys):
    return not await keys


async def test_an_auto_delete_queue_goes_with_the_proxy_of_its_last_consumer(two):
    cluster, one, other = two
    await one.declare(one.conn(), "q", auto_delete=True)
    await one.consume(one.conn(), "q")
    await cluster.lose(one, other)
    await until(lambda: "q" not in other.queues.registry.queues)
    await until(lambda: empty(cluster.keys("amqp/")))


async def test_an_exclusive_consumer_is_alone_at_all_proxies(two):
    _, one, other = two
    await one.declare(one.conn(), "q")
    first, second = one.conn(), other.conn()
    await one.consume(first, "q", exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(Refusal) as refused:
            await other.consume(second, "q", exclusive=exclusive)
        assert refused.value.cause is Cause.FORBIDDEN
    await one.lose(first)
    await other.consume(second, "q")
    with pytest.raises(Refusal):
        await one.consume(one.conn(), "q", exclusive=True)
    await other.lose(second)
    await one.consume(one.conn(), "q", exclusive=True)


async def test_an_exclusive_consumer_that_ends_while_the_store_is_away_keeps_nobody_out(two, monkeypatch):
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 0.001)
    cluster, one, other = two
    await one.declare(one.conn(), "q", durable=True)
    conn = one.conn()
    await one.consume(conn, "q", exclusive=True)

    async def unknown(*_):
        raise AppendOutcomeUnknown("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(one.store.keys, "transact", unknown)
        await one.lose(conn)
    await until_there(lambda: cluster.keys(COUNTS), [])
    await other.consume(other.conn(), "q")


async def until_there(ask, wanted):
    async with asyncio.timeout(60):
        while await ask() != wanted:
            await asyncio.sleep(0.001)


async def test_consumers_of_a_queue_that_is_deleted_elsewhere_are_told(two):
    _, one, other = two
    await one.declare(one.conn(), "q")
    conn = other.conn()
    await other.consume(conn, "q")
    await one.ask(DeleteQueue(name="q"))
    await conn.until(lambda: conn.cancelled == [1])


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


@DURABLE
async def test_bindings_between_exchanges_are_known_at_every_proxy(two, durable):
    cluster, one, other = two
    await one.declare(one.conn(), "q", durable=durable)
    for name, internal in (("z", False), ("a", True)):
        await one.ask(DeclareExchange(name=name, kind="fanout", durable=durable, internal=internal))
    await one.ask(BindQueue(queue="q", exchange="a"))
    await other.ask(BindExchange(destination="a", source="z"))
    await until(lambda: one.routes("z", "k") and other.routes("z", "k"))
    with pytest.raises(Refusal) as refused:
        other.routes("a", "k")
    assert refused.value.cause is Cause.FORBIDDEN
    late = await cluster.proxy()
    assert late.routes("z", "k") == one.routes("z", "k")
    await late.ask(UnbindExchange(destination="a", source="z"))
    await until(lambda: not one.routes("z", "k") and not other.routes("z", "k"))
    await one.ask(BindExchange(destination="a", source="z"))
    await until(lambda: late.routes("z", "k"))
    await other.ask(DeleteExchange(name="a"))
    await until(lambda: not one.routes("z", "k") and not late.routes("z", "k"))


class LateTopology:
    """Proxies of which some are told late what others have declared."""

    def __init__(self, monkeypatch):
        self.behind, self.late = [], asyncio.Event()
        learn = Topology._learn_all

        async def learn_late(topology, found):
            if topology in self.behind:
                await self.late.wait()
            await learn(topology, found)

        monkeypatch.setattr(Topology, "_learn_all", learn_late)


@pytest.mark.parametrize("destination", ["queue", "exchange"])
async def test_bindings_to_exchanges_that_a_proxy_has_not_heard_of_stay(cluster, monkeypatch, destination):
    """It left them out of what it stored: the messages were dropped everywhere, though the bind was answered."""
    topology = LateTopology(monkeypatch)
    one, other = await cluster.proxy(), await cluster.proxy()
    for name in ("y", "w"):
        await one.ask(DeclareExchange(name=name, kind="fanout", durable=True))
    await one.ask(DeclareQueue(name="q", durable=True))
    await until(lambda: other.queues.exchange("w") and "q" in other.queues.registry.queues)
    topology.behind.append(other.queues.registry)
    await one.ask(DeclareExchange(name="z", kind="fanout", durable=True))
    if destination == "queue":
        await one.ask(BindQueue(queue="q", exchange="z", routing_key="a"))
        await other.ask(BindQueue(queue="q", exchange="w", routing_key="b"))
    else:
        await one.ask(BindExchange(source="z", destination="y", routing_key="a"))
        await one.ask(BindQueue(queue="q", exchange="y", routing_key=""))
        await other.ask(BindExchange(source="w", destination="y", routing_key="b"))
    topology.late.set()
    await until(lambda: all(proxy.routes(name, "a") for proxy in (one, other) for name in ("z", "w")))


@pytest.mark.parametrize("destination", ["queue", "exchange"])
async def test_what_is_bound_to_an_exchange_of_another_type_is_routed_by_that_at_every_proxy(
    cluster, monkeypatch, destination
):
    topology = LateTopology(monkeypatch)
    one, other = await cluster.proxy(), await cluster.proxy()
    await one.ask(DeclareExchange(name="x", kind="topic", durable=True))
    await one.ask(DeclareExchange(name="y", kind="fanout", durable=True))
    await one.ask(DeclareQueue(name="q", durable=True))
    await one.ask(BindQueue(queue="q", exchange="y", routing_key=""))
    bind = BindQueue(queue="q", exchange="x", routing_key="a")
    if destination == "exchange":
        bind = BindExchange(source="x", destination="y", routing_key="a")
    await one.ask(bind)
    await until(lambda: other.routes("x", "a"))
    topology.behind.append(other.queues.registry)
    await one.ask(DeleteExchange(name="x"))
    await one.ask(DeclareExchange(name="x", kind="fanout", durable=True))
    await one.ask(bind)
    with pytest.raises(Refusal, match="declared anew"):
        await other.ask(msgspec.structs.replace(bind, routing_key="b"))
    topology.late.set()
    await until(lambda: all(proxy.routes("x", "anything") for proxy in (one, other)))
    with pytest.raises(Refusal, match="in use"):
        await other.ask(DeleteExchange(name="x", if_unused=True))


@pytest.mark.parametrize("destination", ["queue", "exchange"])
async def test_nothing_is_bound_to_an_exchange_that_is_of_another_type_by_now(cluster, monkeypatch, destination):
    """Rights were judged by the type that it had, and the binding took all: at one proxy, and at the other nothing."""
    topology = LateTopology(monkeypatch)
    one, other = await cluster.proxy(), await cluster.proxy()
    await one.ask(DeclareExchange(name="x", kind="topic", durable=True))
    await one.ask(DeclareExchange(name="y", kind="fanout", durable=True))
    await one.ask(DeclareQueue(name="q", durable=True))
    await until(lambda: other.queues.exchange("y") and "q" in other.queues.registry.queues)
    topology.behind.append(other.queues.registry)
    await one.ask(DeleteExchange(name="x"))
    await one.ask(DeclareExchange(name="x", kind="fanout", durable=True))
    assert other.queues.exchange("x").kind == "topic"
    bind = BindQueue(queue="q", exchange="x", routing_key="a")
    if destination == "exchange":
        bind = BindExchange(source="x", destination="y", routing_key="a")
    with pytest.raises(Refusal, match="declared anew") as refused:
        await other.ask(bind)
    assert refused.value.cause is Cause.PRECONDITION
    assert other.queues.exchange("x").kind == "fanout"
    await other.ask(bind)
    topology.late.set()
    if destination == "queue":
        await until(lambda: all(proxy.routes("x", "secret") for proxy in (one, other)))


async def test_one_proxy_has_the_single_active_consumer_until_it_is_gone(two):
    cluster, one, other = two
    arguments = {"x-single-active-consumer": True}
    first, second = one.conn(), other.conn()
    for proxy, conn in ((one, first), (other, second)):
        await proxy.declare(conn, "q", arguments=arguments)
        await proxy.consume(conn, "q")
        await proxy.queues.keeper.look_after(proxy.queues.registry.queues["q"].number)
    await other.publish("", "q", b"1", b"2")
    assert await first.has(2) == [b"1", b"2"]
    assert not second.taken
    number = other.queues.registry.queues["q"].number
    assert await other.queues.keeper.look_after(number) is not None  # it asks again
    await cluster.lose(one, other)

    async def taken_over():
        return await other.queues.keeper.look_after(number) is None

    await until(taken_over)
    assert await second.has(2) == [b"1", b"2"]


async def test_a_proxy_whose_consumers_may_not_read_any_more_lets_another_have_the_active_one(two):
    _, one, other = two
    first, second = one.conn(), other.conn()
    who = Permissions(Identity(name="x"), None)
    for proxy, conn, permissions in ((one, first, who), (other, second, OPEN)):
        await proxy.declare(conn, "q", arguments={"x-single-active-consumer": True})
        effect = Consume(consumer=ConsumerId(1), queue="q", token=Token(0))
        await proxy.queues.consume(conn, effect, permissions)
        await proxy.queues.keeper.look_after(proxy.queues.registry.queues["q"].number)
    who.access = NOTHING
    one.queues.wake()
    number = one.queues.registry.queues["q"].number
    assert await one.queues.keeper.look_after(number) is None

    async def taken_over():
        return await other.queues.keeper.look_after(number) is None

    await until(taken_over)
    await other.publish("", "q", b"1")
    assert await second.has(1) == [b"1"]
    assert not first.taken


async def test_the_active_consumer_of_a_deleted_queue_keeps_none_of_the_next_one_waiting(two):
    """Its proxy kept the name, and the next queue of that name was delivered nowhere."""
    _, one, other = two
    arguments = {"x-single-active-consumer": True}
    await other.declare(other.conn(), "q", arguments=arguments)
    await other.consume(other.conn(), "q")
    before = other.queues.registry.queues["q"].number
    assert await other.queues.keeper.look_after(before) is None
    await other.ask(DeleteQueue(name="q"))
    conn = one.conn()
    await one.declare(conn, "q", arguments=arguments)
    await one.consume(conn, "q")
    number = one.queues.registry.queues["q"].number
    assert await one.queues.keeper.look_after(number) is not None, "its upkeep has not looked yet"
    other.spawn(other.queues.keeper.run())

    async def taken():
        return await one.queues.keeper.look_after(number) is None

    await until(taken)
    await other.publish("", "q", b"1")
    assert await conn.has(1) == [b"1"]


@pytest.mark.parametrize("arguments", [{"x-message-ttl": 100_000}, {"x-message-ttl": 100_000, "x-max-priority": 3}])
async def test_a_proxy_without_a_ready_consumer_leases_nothing_to_learn_of_messages(two, arguments, monkeypatch):
    """It gave back what it had leased, when another proxy's consumer had been given later messages already."""
    _, one, other = two
    for proxy in (one, other):
        await proxy.declare(proxy.conn(), "q", arguments=arguments)
    head = other.queues.registry.queues["q"].pump.head
    taken, take = [], type(other.store.leases).take

    async def noted(leases, queue, owner, *, max_count, **options):
        taken.append(max_count)
        return await take(leases, queue, owner, max_count=max_count, **options)

    monkeypatch.setattr(type(other.store.leases), "take", noted)
    told = []
    other.store.queues.watch(told.extend)
    assert not await head.probe(OWNER)
    await one.publish("", "q", b"1")
    await until(lambda: set(told) & set(other.queues.registry.queues["q"].numbers))
    assert set(taken) == {0}
    taken.clear()
    assert await head.probe(OWNER)
    assert not taken, "it is told of no more while one waits"
    assert (await one.ask(GetMessage(queue="q"))).leased is not None


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


async def test_a_vhost_that_one_proxy_makes_is_known_to_all(cluster):
    await cluster.controller.do(CreateTopic(name="$vhost"))
    await cluster.controller.do(CreateTopic(name="a"))
    one, two = await cluster.proxy(), await cluster.proxy()
    await one.queues.registry.make_vhost("shop")
    await two.ask(OpenVhost(name="shop"))
    await one.ask(DeclareQueue(name=in_vhost("shop", "q")))
    bind = BindQueue(queue=in_vhost("shop", "q"), exchange=in_vhost("shop", "amq.topic"), routing_key="#")
    await two.ask(bind)
    third = await cluster.proxy()
    for proxy in (one, two, third):
        await until(lambda proxy=proxy: proxy.routes(in_vhost("shop", "amq.topic"), "a.b"))
        assert not proxy.routes("amq.topic", "a.b")
    with pytest.raises(Refusal) as refused:
        await two.ask(OpenVhost(name="other"))
    assert refused.value.cause is Cause.NOT_FOUND


async def test_a_vhost_that_is_made_again_keeps_its_exchanges_while_a_proxy_still_clears_it(two):
    cluster, one, _ = two
    await cluster.controller.do(CreateTopic(name="$vhost"))
    registry = one.queues.registry
    await registry.make_vhost("shop")
    registry.vhosts.delete("shop")
    async with registry._changing:
        clearing = asyncio.ensure_future(registry.finish())
        await until(lambda: registry._changing._gate._waiters)
        registry.vhosts.made("shop")
        registry._know_vhost("shop")
    await clearing
    await one.declare(one.conn(), in_vhost("shop", "q"))


async def test_a_vhost_that_one_proxy_deletes_is_gone_at_all_with_what_another_has_there(two):
    cluster, one, other = two
    await cluster.controller.do(CreateTopic(name="$vhost"))
    await one.queues.registry.make_vhost("shop")
    conn = other.conn()
    await other.ask(OpenVhost(name="shop"), conn)
    for n in range(3):
        await other.declare(conn, in_vhost("shop", f"q{n}"), durable=n == 0, exclusive=n == 2)
        bind = BindQueue(queue=in_vhost("shop", f"q{n}"), exchange=in_vhost("shop", "amq.topic"), routing_key="#")
        await other.ask(bind, conn)
    deleting = asyncio.ensure_future(one.queues.registry.delete_vhost("shop"))
    await until(lambda: conn.closed == ["vhost 'shop' is deleted"])
    await other.lose(conn)
    await deleting
    for proxy in (one, other):
        await until(lambda proxy=proxy: not [name for name in proxy.queues.registry.queues if "shop" in name])
        with pytest.raises(Refusal) as refused:
            await proxy.ask(OpenVhost(name="shop"))
        assert refused.value.cause is Cause.NOT_FOUND
    await one.queues.registry.make_vhost("shop")
    await other.ask(OpenVhost(name="shop"))
    await other.declare(other.conn(), in_vhost("shop", "q0"))
    third = await cluster.proxy()
    await third.ask(OpenVhost(name="shop"))


async def test_a_proxy_that_has_not_heard_of_a_deletion_makes_nothing_there(two):
    _, one, other = two
    await one.queues.registry.make_vhost("shop")
    await other.ask(OpenVhost(name="shop"))
    async with other.queues.registry._changing:  # it hears of nothing
        await one.queues.registry.delete_vhost("shop")
        declared = asyncio.ensure_future(other.declare(other.conn(), in_vhost("shop", "q")))
        definition = QueueDefinition(name=in_vhost("shop", "q"), number=99)
        with pytest.raises(Changed):
            await other.queues.registry._definitions.put(definition, 0, lasting=True)
    with pytest.raises(Refusal):
        await declared


async def test_connections_to_a_vhost_are_limited_over_all_proxies(two):
    _, one, other = two
    await one.queues.registry.make_vhost("shop")
    following = [proxy.spawn(proxy.queues.follow_members()) for proxy in two[1:]]
    first = one.conn()
    await one.ask(OpenVhost(name="shop"), first)
    await other.queues.registry.set_limits("shop", VhostLimits(max_connections=1))
    counts = other.queues._shares

    async def is_refused():
        conn = other.conn()
        try:
            await other.ask(OpenVhost(name="shop"), conn)
        except Refusal as refusal:
            return "connection limit (1) is reached" in refusal.detail
        await other.lose(conn)
        return False

    await until(lambda: counts.elsewhere("$vhost/shop") == 1)
    assert await is_refused()
    await one.lose(first)
    await until(lambda: counts.elsewhere("$vhost/shop") == 0)
    assert not await is_refused()
    assert not any(task.done() for task in following)


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
