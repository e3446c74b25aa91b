"""Virtual hosts that are limited and deleted: all that is in one goes, whatever ends meanwhile, and stays away."""

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost, vhost_of
from gateway.port.queues import BindExchange, BindQueue, DeclareExchange, DeclareQueue, OpenVhost, address_of
from gateway.queues.leaving.policies import Policies, PolicyConfig, QueuesConfig, StoredPolicy
from gateway.queues.operated import stored
from gateway.queues.operated.vhosts import VhostLimits
from gateway.queues.queues import NamedQueues
from store.api.message import Message
from store.base.errors import StoreUnreachable
from tests.support.gateway.asking import refusal_of
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, "$vhost", "eu") as rig:
        await rig.queues.registry.make_vhost("shop")
        yield rig


def shop(name):
    return in_vhost("shop", name)


async def fill(rig, count=2):
    """Makes queues and exchanges of all kinds, bound to each other, with messages."""
    conn = rig.conn()
    await rig.request(conn, OpenVhost(name="shop"))
    for n in range(count):
        await rig.declare(rig.conn(), shop(f"q{n}"), durable=True)
    await rig.declare(conn, shop("own"), exclusive=True)
    await rig.declare(rig.conn(), shop("urgent"), arguments={"x-max-priority": 3})
    for name, options in (("e", {"durable": True}), ("f", {"auto_delete": True})):
        await rig.request(conn, DeclareExchange(name=shop(name), kind="topic", **options))
    for source, target in (("e", "f"), ("f", "e"), ("e", "amq.fanout")):
        await rig.request(conn, BindExchange(source=shop(source), destination=shop(target), routing_key="#"))
    for queue in ("q0", "own"):
        for exchange in ("e", "f", "amq.topic"):
            await rig.request(conn, BindQueue(queue=shop(queue), exchange=shop(exchange), routing_key="#"))
    await rig.publish(shop("e"), "a", b"1")
    policy = PolicyConfig(name="p", vhost="shop", pattern="", definition={"max-length": 9})
    await rig.queues.registry.set_policy(StoredPolicy(policy=policy))
    await rig.queues.registry.set_limits("shop", VhostLimits(max_queues=10))
    return conn


async def keys(rig):
    """Returns the keys of all that is in the virtual host."""
    entries = await rig.store.keys.prefix("amqp/")
    return [one.key for one in entries if "shop" in one.key and not one.key.startswith(f"{stored.DELETED}/")]


def leftovers(rig):
    registry = rig.queues.registry
    return [name for name in (*registry.queues, *registry._exchanges) if vhost_of(name) == "shop"]


async def test_all_that_is_in_a_deleted_vhost_goes_and_its_connections_are_closed(rig):
    before = sorted(rig.queues.registry._exchanges.keys() - set(leftovers(rig)))
    await rig.declare(rig.conn(), "q0", durable=True)
    conn, other = await fill(rig), rig.conn()
    await rig.request(other, OpenVhost(name="/"))
    await rig.queues.registry.delete_vhost("shop")
    assert conn.closed == ["vhost 'shop' is deleted"]
    assert other.closed == []
    assert leftovers(rig) == []
    assert await keys(rig) == []
    assert list(rig.queues.registry.queues) == ["q0"]
    assert sorted(rig.queues.registry._exchanges) == before
    assert not rig.queues.registry.policies.stored
    with pytest.raises(Refusal):
        rig.router.named_queues(Message(address_of(shop("e"), "a"), b""))
    assert (await refusal_of(rig.request(rig.conn(), OpenVhost(name="shop")))).cause is Cause.NOT_FOUND
    for request in (
        DeclareQueue(name=shop("q")),
        DeclareExchange(name=shop("e"), kind="fanout"),
        BindQueue(queue=shop("q0"), exchange=shop("amq.topic")),
        BindExchange(source=shop("amq.topic"), destination=shop("amq.fanout")),
    ):
        assert (await refusal_of(rig.request(conn, request))).cause is Cause.NOT_FOUND
    await rig.lose(conn)
    await rig.restart()
    assert leftovers(rig) == []
    assert "shop" not in rig.queues.registry.vhosts.names


async def test_a_vhost_that_is_made_again_is_empty(rig):
    await fill(rig)
    await rig.queues.registry.delete_vhost("shop")
    await rig.queues.registry.make_vhost("shop")
    conn = rig.conn()
    await rig.request(conn, OpenVhost(name="shop"))
    assert (await rig.declare(conn, shop("q0"))).messages == 0
    assert not rig.queues.registry.queues[shop("q0")].definition.bindings
    assert rig.queues.registry.queues[shop("q0")].rules.max_length is None
    await rig.restart()
    assert "shop" in rig.queues.registry.vhosts.names
    await rig.publish(shop("amq.topic"), "a", b"1")


@pytest.mark.parametrize("failing", range(12))
async def test_a_deletion_that_is_cut_off_goes_on_by_itself_or_at_the_next_start(rig, monkeypatch, failing):
    await fill(rig)
    keys_of = rig.store.keys
    left = failing

    def once(name, work):
        async def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == -1:
                raise StoreUnreachable("for a test")
            return await work(*arguments, **options)

        monkeypatch.setattr(keys_of, name, call)

    once("delete", keys_of.delete)
    once("put", keys_of.put)
    try:
        await rig.queues.registry.delete_vhost("shop")
    except (Refusal, StoreUnreachable):
        assert (await refusal_of(rig.request(rig.conn(), OpenVhost(name="shop")))).cause is Cause.NOT_FOUND
        if failing % 2:
            await rig.restart()
    while not await rig.queues.registry.finish():
        pass
    assert leftovers(rig) == []
    assert await keys(rig) == []


async def test_while_something_is_left_none_of_the_name_is_made(rig, monkeypatch):
    await fill(rig)

    async def fails(*_arguments, **_options):
        raise StoreUnreachable("for a test")

    with monkeypatch.context() as patched:
        patched.setattr(rig.store.keys, "delete", fails)
        await refusal_of(rig.queues.registry.delete_vhost("shop"))
        assert (await refusal_of(rig.queues.registry.make_vhost("shop"))).cause is Cause.CONFLICT
    assert await rig.queues.registry.finish()
    await rig.queues.registry.make_vhost("shop")


async def test_some_vhosts_stay(rig):
    policies = Policies(QueuesConfig(vhosts=("ours",)))
    rig.queues = NamedQueues(rig.store, rig.controller, rig.router, policies=policies, now_ms=lambda: rig.now_ms)
    await rig.queues.load()
    for vhost, cause in (("/", Cause.CONFLICT), ("ours", Cause.CONFLICT), ("none", Cause.NOT_FOUND)):
        assert (await refusal_of(rig.queues.registry.delete_vhost(vhost))).cause is cause
    await rig.declare(rig.conn(), shop("q"), durable=True)
    await rig.queues.registry.delete_vhost("shop")
    policies = Policies(QueuesConfig(vhosts=("shop",)))  # it is configured after it was deleted
    await rig.queues.close()
    rig.queues = NamedQueues(rig.store, rig.controller, rig.router, policies=policies, now_ms=lambda: rig.now_ms)
    await rig.queues.load()
    await rig.queues.registry.finish()
    await rig.request(rig.conn(), OpenVhost(name="shop"))
    await rig.restart()
    assert not rig.queues.registry.vhosts.deleted


async def test_a_vhost_has_no_more_queues_than_its_limit(rig):
    registry = rig.queues.registry
    await rig.declare(rig.conn(), shop("a"))
    await registry.set_limits("shop", VhostLimits(max_queues=2))
    own = rig.conn()
    await rig.declare(own, shop("b"), exclusive=True)
    refusal = await refusal_of(rig.declare(rig.conn(), shop("c")))
    assert refusal.cause is Cause.PRECONDITION
    assert refusal.detail == "cannot declare queue 'c': queue limit in vhost 'shop' (2) is reached"
    await rig.declare(rig.conn(), shop("a"))  # is there
    await rig.declare(rig.conn(), "elsewhere")
    await rig.lose(own)
    await rig.declare(rig.conn(), shop("c"), durable=True)
    await rig.restart()
    assert rig.queues.registry.vhosts.limits("shop").max_queues == 2
    assert rig.queues.registry.vhosts.queues("shop") == 1
    await rig.queues.registry.set_limits("shop", VhostLimits(max_queues=0))
    assert (await refusal_of(rig.declare(rig.conn(), shop("d")))).cause is Cause.PRECONDITION
    await rig.queues.registry.clear_limits("shop")
    await rig.declare(rig.conn(), shop("d"))
    assert (await refusal_of(rig.queues.registry.clear_limits("shop"))).cause is Cause.NOT_FOUND
    assert (await refusal_of(rig.queues.registry.set_limits("none", VhostLimits()))).cause is Cause.NOT_FOUND


async def test_a_vhost_has_no_more_connections_than_its_limit(rig):
    registry = rig.queues.registry
    await registry.set_limits("shop", VhostLimits(max_connections=1))
    first, gone = rig.conn(), rig.conn()
    gone.gone = True
    await rig.request(gone, OpenVhost(name="shop"))  # has ended meanwhile, and is counted no more
    await rig.request(first, OpenVhost(name="shop"))
    refusal = await refusal_of(rig.request(rig.conn(), OpenVhost(name="shop")))
    assert refusal.cause is Cause.FORBIDDEN
    assert refusal.detail == "access to vhost 'shop' refused for user 'guest': connection limit (1) is reached"
    await rig.request(rig.conn(), OpenVhost(name="/"))
    await rig.lose(first)
    await rig.request(rig.conn(), OpenVhost(name="shop"))
    assert registry.vhosts.connections("shop") == 1
    refusal = await refusal_of(registry.set_limits("/", VhostLimits(max_connections=1)))
    assert "gateway.connections_max" in refusal.detail
