"""Virtual hosts: what one has, another does not know; nothing crosses, and all of it outlives a restart."""

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost, local_name
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    OpenVhost,
)
from gateway.queues.leaving.policies import Policies, PolicyConfig, QueuesConfig
from gateway.queues.queues import NamedQueues
from gateway.queues.topology.settings_registry import VHOSTS_COUNT_MAX
from store.api.message import Message
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, "$vhost", "eu") as rig:
        await rig.queues.registry.make_vhost("shop")
        yield rig


def shop(name):
    return in_vhost("shop", name)


async def refused(rig, request):
    with pytest.raises(Refusal) as error:
        await rig.request(rig.conn(), request)
    return error.value


async def got(rig, name):
    """Takes the messages that wait in a queue, and returns their bodies."""
    conn, found = rig.conn(), []
    while (one := await rig.request(conn, GetMessage(queue=name, settle=True))) is not None:
        found.append(one.leased.messages[0].body)
    return found


async def test_a_vhost_that_is_not_there_is_not_found(rig):
    conn = rig.conn()
    await rig.request(conn, OpenVhost(name="/"))
    await rig.request(conn, OpenVhost(name="shop"))
    refusal = await refused(rig, OpenVhost(name="other"))
    assert (refusal.cause, refusal.detail) == (Cause.NOT_FOUND, "vhost other not found")


async def test_one_name_is_another_queue_in_each_vhost(rig):
    await rig.declare(rig.conn(), "q")
    assert (await refused(rig, DeclareQueue(name=shop("q"), passive=True))).detail == "no queue 'q' in vhost 'shop'"
    await rig.declare(rig.conn(), shop("q"), durable=True)
    await rig.publish("", "q", b"ours")
    await rig.publish(shop(""), "q", b"theirs")
    assert await got(rig, "q") == [b"ours"]
    assert await got(rig, shop("q")) == [b"theirs"]
    await rig.request(rig.conn(), DeleteQueue(name="q"))
    assert (await rig.declare(rig.conn(), shop("q"), passive=True)).messages == 0


async def test_amq_topic_of_a_vhost_is_not_that_of_all_protocols(rig):
    for name, exchange in (("all", "amq.topic"), (shop("all"), shop("amq.topic"))):
        await rig.declare(rig.conn(), name)
        await rig.request(rig.conn(), BindQueue(queue=name, exchange=exchange, routing_key="#"))
    await rig.publish("amq.topic", "eu.new", b"1")
    await rig.publish(shop("amq.topic"), "eu.new", b"2")
    await rig.publish_to("eu/old", b"3")
    await rig.publish_to("$vhost/shop/amqp/amq.topic/eu/old", b"4")
    assert await got(rig, "all") == [b"1", b"3"]
    assert await got(rig, shop("all")) == [b"2", b"4"]


async def test_every_vhost_has_the_exchanges_that_all_have(rig):
    for name in ("amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"):
        await rig.request(rig.conn(), DeclareExchange(name=shop(name), kind="", passive=True))
        assert (await refused(rig, DeleteExchange(name=shop(name)))).cause is Cause.FORBIDDEN
    for name in ("", "amq.mine"):
        assert (await refused(rig, DeclareExchange(name=shop(name), kind="direct"))).cause is Cause.FORBIDDEN
    unknown = await refused(rig, DeclareExchange(name=in_vhost("other", "amq.topic"), kind="", passive=True))
    assert unknown.detail == "no exchange 'amq.topic' in vhost 'other'"


async def test_queues_that_the_gateway_names_stay_in_their_vhost(rig):
    conn = rig.conn()
    info = await rig.declare(conn, shop(""), exclusive=True)
    assert local_name(info.name).startswith("amq.gen-")
    assert info.name == shop(local_name(info.name))
    other = await refused(rig, DeclareQueue(name=info.name, passive=True))
    assert other.cause is Cause.CONFLICT
    assert (await refused(rig, DeclareQueue(name=local_name(info.name), passive=True))).cause is Cause.NOT_FOUND
    await rig.lose(conn)
    assert (await refused(rig, DeclareQueue(name=info.name, passive=True))).cause is Cause.NOT_FOUND


async def test_dead_letters_stay_in_their_vhost(rig):
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 0}
    for name in ("dead", shop("dead")):
        await rig.declare(rig.conn(), name)
    await rig.declare(rig.conn(), shop("q"), arguments=letters)
    await rig.publish(shop(""), "q", b"1")
    assert (await rig.declare(rig.conn(), shop("q"), passive=True)).messages == 0
    assert await got(rig, "dead") == []
    conn = rig.conn()
    (message,) = (await rig.request(conn, GetMessage(queue=shop("dead"), settle=True))).leased.messages
    (death,) = message.native["amqp"]["deaths"]
    assert (death["queue"], death["exchange"], death["reason"]) == ("q", "", "maxlen")
    assert message.address == "$vhost/shop/amqp//dead"


async def test_a_dead_letter_exchange_that_is_spelled_like_another_vhosts_is_none(rig):
    await rig.declare(rig.conn(), shop("dead"))
    letters = {"x-dead-letter-exchange": shop(""), "x-dead-letter-routing-key": "dead", "x-max-length": 0}
    await rig.declare(rig.conn(), "q", arguments=letters)
    await rig.publish("", "q", b"1")
    assert (await rig.declare(rig.conn(), "q", passive=True)).messages == 0
    assert await got(rig, shop("dead")) == []


async def test_a_circle_of_dead_letters_ends_in_a_vhost_too(rig):
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 1}
    await rig.declare(rig.conn(), shop("q"), arguments=letters)
    await rig.publish(shop(""), "q", b"1", expires_at_ms=1)
    for _ in range(2):
        rig.now_ms += 3_600_000_000_000
        assert (await rig.declare(rig.conn(), shop("q"), passive=True)).messages == 0


async def test_an_alternate_exchange_is_one_of_the_same_vhost(rig):
    for name in ("lost", shop("lost")):
        await rig.request(rig.conn(), DeclareExchange(name=name, kind="fanout"))
        await rig.declare(rig.conn(), name)
        await rig.request(rig.conn(), BindQueue(queue=name, exchange=name))
    arguments = {"alternate-exchange": "lost"}
    await rig.request(rig.conn(), DeclareExchange(name=shop("x"), kind="direct", arguments=arguments))
    await rig.publish(shop("x"), "nobody", b"1")
    assert await got(rig, "lost") == []
    assert await got(rig, shop("lost")) == [b"1"]


async def test_all_of_a_vhost_outlives_a_restart(rig):
    await rig.declare(rig.conn(), shop("q"), durable=True)
    await rig.request(rig.conn(), DeclareExchange(name=shop("x"), kind="topic", durable=True))
    await rig.request(rig.conn(), BindQueue(queue=shop("q"), exchange=shop("x"), routing_key="a.*"))
    await rig.request(rig.conn(), BindExchange(destination=shop("x"), source=shop("amq.fanout")))
    await rig.publish(shop("x"), "a.b", b"1")
    await rig.restart()
    await rig.request(rig.conn(), OpenVhost(name="shop"))
    await rig.publish(shop("amq.fanout"), "a.b", b"2")
    assert await got(rig, shop("q")) == [b"1", b"2"]


async def test_what_is_in_a_vhost_stays_when_the_configuration_forgets_it(rig):
    def queues(*vhosts):
        policies = Policies(QueuesConfig(vhosts=vhosts))
        return NamedQueues(rig.store, rig.controller, rig.router, policies=policies, now_ms=lambda: rig.now_ms)

    name = in_vhost("config", "q")
    for vhosts in (("config",), (), ("config",)):
        await rig.queues.close()
        rig.queues = queues(*vhosts)
        await rig.queues.load()
        await rig.declare(rig.conn(), name, durable=True)
        await rig.request(rig.conn(), BindQueue(queue=name, exchange=in_vhost("config", "amq.direct"), routing_key="k"))
    assert len(rig.queues.registry.queues[name].definition.bindings) == 1


async def test_policies_are_for_one_vhost(rig):
    said = {"pattern": "^q$", "definition": {"max-length": 1}}
    here = PolicyConfig(name="here", vhost="shop", **said)
    policies = Policies(QueuesConfig(policies=(here,)))
    assert policies.rules(shop("q"), {}).max_length == 1
    assert policies.rules("q", {}).max_length is None
    assert policies.rules(shop("qq"), {}).max_length is None


async def test_vhosts_are_not_without_number(rig):
    registry = rig.queues.registry
    registry.vhosts.names |= {f"v{n}": None for n in range(VHOSTS_COUNT_MAX)}
    with pytest.raises(Refusal) as error:
        await registry.make_vhost("one more")
    assert error.value.cause is Cause.QUOTA


async def test_nothing_may_be_published_below_a_vhost_but_to_its_exchanges(rig):
    for address in ("$vhost/shop/queue/q", "$vhost/other/amqp/amq.topic/k", "$vhost/shop/amqp/none/k", "$vhost/shop"):
        with pytest.raises(Refusal):
            rig.router.resolve(address)
    assert rig.router.named_queues(Message("$vhost/shop/amqp/amq.topic/k", b"")) == []
