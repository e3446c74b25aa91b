"""Virtual hosts of several proxies: made, limited and deleted at all of them."""

import asyncio

import pytest

from controller.api.commands import CreateTopic
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost
from gateway.port.queues import (
    BindQueue,
    DeclareQueue,
    OpenVhost,
)
from gateway.queues.model.bindings import QueueDefinition
from gateway.queues.operated.vhosts import VhostLimits
from gateway.queues.topology.definitions import Changed
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


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
