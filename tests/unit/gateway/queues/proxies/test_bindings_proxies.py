"""Bindings of several proxies: those that one makes all use, whatever they have heard of by then."""

import asyncio

import msgspec
import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    UnbindExchange,
    UnbindQueue,
)
from gateway.queues.topology.topology import Topology
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DURABLE = pytest.mark.parametrize("durable", [True, False])


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
