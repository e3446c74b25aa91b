"""The rights that each request needs: none is forgotten, and how queues, exchanges, keys and groups are called."""

import pytest

from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost
from gateway.port.adapter import Consume, ConsumerId, Request, Token
from gateway.port.bodies import BeginBody, PublishBody
from gateway.port.groups import CreateLeaseGroup, DeleteGroup, DescribeGroup, LeaseTerms, ListGroups, PollGroup
from gateway.port.kv import CountKeys, GetKey, HoldKeys, ListKeys, RemoveKey, StoreKey, TransactKeys, WatchKeys
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    OpenVhost,
    PurgeQueue,
    UnbindExchange,
    UnbindQueue,
)
from gateway.port.reads import FindMessages, LastValue, ListAddresses, ReadQueue
from gateway.port.shared import JoinShared, SharedName
from gateway.queues.model.bindings import PREDECLARED, Exchange
from gateway.runtime import access_requests
from gateway.runtime.requests import REQUESTS, served_by
from store.api.keys import Delete, Put
from store.api.message import Message

EXCHANGES = {
    **PREDECLARED,
    "orders": Exchange(name="orders", kind="topic"),
    "all": Exchange(name="all", kind="fanout"),
    "one": Exchange(name="one", kind="direct"),
}


class Hub:
    """As much of one as is asked."""

    class queues:  # noqa: N801
        exchange = staticmethod(EXCHANGES.get)


def permissions(*allowed):
    """Returns the permissions to do this, such as "subscribe:a/#", and nothing else."""
    rules = [
        AccessRule(effect="allow", actions=(action,), filters=(pattern,))
        for action, _, pattern in (one.partition(":") for one in allowed)
    ]
    config = AccessConfig(default="deny", rules=tuple(rules))
    return Permissions(Identity(name="ada"), AccessRules(config).access(Identity(name="ada")))


def may(request, *allowed):
    try:
        served_by(request).needs(Hub, permissions(*allowed), request)
    except Refusal as refusal:
        return refusal.cause is not Cause.FORBIDDEN
    return True


def every(kind):
    for one in kind.__subclasses__():
        yield one
        yield from every(one)


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (DeclareQueue(name="q"), "configure access to queue 'q' in vhost '/'"),
        (DeclareQueue(name="q", passive=True), "configure access to queue 'q' in vhost '/'"),
        (PurgeQueue(name="q"), "read access to queue 'q' in vhost '/'"),
        (BindQueue(queue="q", exchange="x", routing_key=""), "write access to queue 'q' in vhost '/'"),
        (BindExchange(source="x", destination="y", routing_key=""), "write access to exchange 'y' in vhost '/'"),
        (GetMessage(queue=in_vhost("shop", "q")), "read access to queue 'q' in vhost 'shop'"),
        (DeclareExchange(name="x", kind="topic"), "configure access to exchange 'x' in vhost '/'"),
        (DeleteExchange(name="x"), "configure access to exchange 'x' in vhost '/'"),
    ],
)
def test_a_refusal_names_queues_and_exchanges_in_rabbitmqs_words(request_, refused):
    with pytest.raises(Refusal) as caught:
        served_by(request_).needs(Hub, permissions("publish:other"), request_)
    assert caught.value.detail == f"{refused} refused for user 'ada'"


def test_every_request_says_what_it_needs():
    """An engineer who adds a request decides in `gateway.runtime.requests` who answers it and what it needs."""
    asked = {one for one in every(Request) if one.__module__.startswith(("gateway.", "adapters."))}
    assert asked == set(REQUESTS)


def test_a_request_that_nobody_has_thought_of_is_refused():
    class Unheard(Request, frozen=True, kw_only=True):
        pass

    Unheard.__module__ = "nowhere"
    assert not may(Unheard(), "all:#")


@pytest.mark.parametrize(
    ("request_", "needs"),
    [
        (BeginBody(message=Message("a/b"), size_bytes=1), "publish:a/b"),
        (PublishBody(message=Message("a/b"), began_ms=0), "publish:a/b"),
        (LastValue(address="a/b"), "subscribe:a/b"),
        (FindMessages(address="a/b"), "subscribe:a/b"),
        (ReadQueue(queue=16, addresses=("a/b", "a/b")), "subscribe:a/b"),
        (DeclareExchange(name="x", kind="topic"), "manage:$exchange/x"),
        (DeclareExchange(name="x", kind="topic", passive=True), "publish:$exchange/x"),
        (DeclareExchange(name="x", kind="topic", passive=True), "subscribe:$exchange/x"),
        (DeclareExchange(name="x", kind="topic", passive=True), "manage:$exchange/x"),
        (DeclareExchange(name="x", kind="topic", passive=True), "publish:$amqp/x/a/b"),
        (DeclareExchange(name="x", kind="topic", passive=True), "subscribe:$amqp/x/#"),
        (DeclareExchange(name=in_vhost("shop", "x"), kind="topic", passive=True), "publish:$vhost/shop/amqp/x/a"),
        (DeleteExchange(name="x"), "manage:$exchange/x"),
        (DeclareQueue(name="a/b"), "manage:$queue/a/b"),
        (DeclareQueue(name="q", passive=True), "publish:$amqp//q"),
        (DeclareQueue(name=in_vhost("shop", "a.b"), passive=True), "publish:$vhost/shop/amqp//a/b"),
        (DeclareQueue(name="q", passive=True), "subscribe:$queue/q"),
        (DeclareQueue(name="", exclusive=True), "manage:$queue/amq.gen/#"),
        (DeleteQueue(name="amq.gen-xyz"), "manage:$queue/amq.gen/xyz"),
        (DeleteQueue(name="q"), "manage:$queue/+"),
        (UnbindQueue(queue="q", exchange="amq.topic", routing_key="a"), "manage:$queue/q"),
        (GetMessage(queue="q"), "subscribe:$queue/q"),
        (DeclareQueue(name=in_vhost("shop", "q")), "manage:$vhost/shop/queue/q"),
        (DeclareQueue(name=in_vhost("shop", "")), "manage:$vhost/shop/queue/amq.gen/#"),
        (DeclareExchange(name=in_vhost("shop", "x"), kind="topic"), "manage:$vhost/shop/exchange/x"),
        (GetMessage(queue=in_vhost("shop", "q")), "subscribe:$vhost/shop/queue/q"),
        (GetKey(key="a/b", namespace="n"), "subscribe:$kv/n/a/b"),
        (StoreKey(key="a", value=b"", namespace="n"), "publish:$kv/n/a"),
        (RemoveKey(key="a", namespace="n"), "publish:$kv/n/#"),
        (TransactKeys(compares={}, operations=[Put("a", b"")], namespace="n"), "publish:$kv/n/a"),
        (TransactKeys(compares={"a": 1}, operations=[Delete("a")], namespace="n"), "publish:$kv/n/a"),
        (ListKeys(namespace="n"), "subscribe:$kv/n/some"),
        (HoldKeys(), "subscribe:$kv/n/some"),
        (WatchKeys(watch=1, namespace="n"), "subscribe:$kv/n/some"),
        (CountKeys(namespace="n"), "subscribe:$kv/n/#"),
        (CountKeys(start="a/", end="a0", namespace="n"), "subscribe:$kv/n/a/#"),
        (PollGroup(group="g", member="m"), "subscribe:$group/g"),
        (DeleteGroup(group="g"), "manage:$group/g"),
    ],
)
def test_what_a_request_needs(request_, needs):
    assert may(request_, needs)
    action, _, pattern = needs.partition(":")
    assert not may(request_, f"{action}:elsewhere")
    if not getattr(request_, "passive", False):
        assert not may(request_, *[f"{one}:{pattern}" for one in ("publish", "subscribe", "manage") if one != action])


def test_what_everybody_may_ask():
    assert may(DeclareExchange(name="amq.topic", kind="topic", passive=True))
    assert not may(DeclareExchange(name="amq.topic", kind="topic"))
    assert may(ListAddresses())
    assert may(ListGroups())
    assert may(JoinShared(names=[SharedName("g", "a/#")]))  # each filter is refused by itself
    assert may(FindMessages(id="x"))  # messages that may not be read are left out


def test_each_address_of_a_queue_needs_the_right():
    asked = ReadQueue(queue=16, addresses=("a/b", "c"))
    assert may(asked, "subscribe:a/b", "subscribe:c")
    assert not may(asked, "subscribe:a/b")
    assert not may(asked, "subscribe:c")


def test_a_part_of_what_a_range_holds_is_not_counted():
    for end in ("a/z", None):
        assert not may(CountKeys(start="a/", end=end, namespace="n"), "subscribe:$kv/n/a/#")


@pytest.mark.parametrize(
    ("arguments", "publish"),
    [
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "w"}, "$amqp//w"),
        ({"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "a.b"}, "a/b"),
        ({"x-dead-letter-exchange": "x"}, "$amqp/x/#"),
    ],
)
def test_a_queue_with_dead_letters_needs_what_moving_them_by_hand_needs(arguments, publish):
    request = DeclareQueue(name="q", arguments=arguments)
    needed = ("manage:$queue/q", "subscribe:$queue/q", f"publish:{publish}")
    assert may(request, *needed)
    for missing in needed:
        assert not may(request, *[one for one in needed if one != missing])
    assert not may(request, *needed[:2], "publish:$amqp/x/+", "publish:a")
    assert may(DeclareQueue(name="q", arguments=arguments, passive=True), "subscribe:$queue/q")


@pytest.mark.parametrize("action", ["publish", "subscribe", "manage"])
def test_any_right_to_a_group_shows_it(action):
    assert may(DescribeGroup(group="g"), f"{action}:$group/g")
    assert not may(DescribeGroup(group="g"), f"{action}:$group/h")


def test_a_queue_is_not_seen_by_the_right_to_another_one():
    for name, other in (("#", "q"), ("q", "r")):
        assert not may(DeclareQueue(name=name, passive=True), f"publish:$amqp//{other}")


def test_who_publishes_to_queues_does_not_see_those_of_shared_subscriptions():
    request = DeclareQueue(name="$share/g/a/b", passive=True)
    assert not may(request, "publish:$amqp//#")
    assert not may(DeclareQueue(name=in_vhost("shop", "$share/g/a"), passive=True), "publish:$vhost/shop/amqp//#")
    assert may(request, "subscribe:$queue/$share/g/a/b")


def test_a_compare_reads_and_an_operation_writes():
    both = TransactKeys(compares={"a": 1}, operations=[Put("b", b"")], namespace="n")
    assert not may(both, "publish:$kv/n/b")
    assert not may(both, "subscribe:$kv/n/a")
    assert may(both, "publish:$kv/n/b", "subscribe:$kv/n/a")


@pytest.mark.parametrize(
    ("exchange", "key", "needs"),
    [
        ("amq.topic", "a.b", "a/b"),
        ("amq.topic", "a.#", "a/#"),
        ("amq.topic", "a.*.c", "a/+/c"),
        ("amq.topic", "a.#.c", "a/#"),
        ("orders", "eu.*", "$amqp/orders/eu/+"),
        ("one", "eu", "$amqp/one/eu"),
        ("all", "eu", "$amqp/all/#"),
        ("unknown", "eu", "$amqp/unknown/#"),
    ],
)
def test_who_binds_has_to_read_all_that_comes(exchange, key, needs):
    request = BindQueue(queue="q", exchange=exchange, routing_key=key)
    assert may(request, "manage:$queue/q", f"subscribe:{needs}")
    assert not may(request, "manage:$queue/q")
    assert not may(request, f"subscribe:{needs}")
    assert not may(request, "manage:$queue/q", "subscribe:a/b/c")
    if needs.endswith("#"):
        assert not may(request, "manage:$queue/q", f"subscribe:{needs[:-1]}+")


@pytest.mark.parametrize("kind", [BindQueue, UnbindQueue, BindExchange, UnbindExchange])
def test_who_may_write_to_the_destination_binds_and_unbinds_as_in_rabbitmq(kind):
    if kind in (BindQueue, UnbindQueue):
        request, place = kind(queue="q", exchange="orders", routing_key="eu.*"), "$queue/q"
    else:
        request, place = kind(destination="q", source="orders", routing_key="eu.*"), "$exchange/q"
    assert may(request, f"publish:{place}", "subscribe:$amqp/orders/eu/+")
    assert not may(request, f"publish:{place}")
    assert not may(request, f"publish:{place}", "subscribe:$amqp/orders/eu/de")
    assert not may(request, "subscribe:$amqp/orders/eu/+")


def test_who_may_read_a_queue_may_purge_it():
    assert may(PurgeQueue(name="q"), "manage:$queue/q")
    assert may(PurgeQueue(name="q"), "subscribe:$queue/q")
    assert not may(PurgeQueue(name="q"), "publish:$queue/q", "publish:$amqp//q", "subscribe:$queue/other")


def test_who_is_denied_to_manage_a_queue_neither_binds_nor_purges_it():
    rule = AccessRule(effect="deny", filters=("$queue/q",), actions=("manage",))
    access = AccessRules(AccessConfig(default="allow", rules=(rule,))).access(Identity(name="ada"))
    for request in (
        PurgeQueue(name="q"),
        BindQueue(queue="q", exchange="amq.topic", routing_key="a"),
        UnbindQueue(queue="q", exchange="amq.topic", routing_key="a"),
    ):
        with pytest.raises(Refusal, match="configure access to queue 'q'"):
            served_by(request).needs(Hub, Permissions(Identity(name="ada"), access), request)


def test_a_pattern_that_begins_with_a_wildcard_takes_what_has_no_level_too():
    request = BindQueue(queue="q", exchange="amq.topic", routing_key="#")
    assert not may(request, "manage:$queue/q", "subscribe:#")
    assert may(request, "manage:$queue/q", "subscribe:#", "subscribe:$amqp/amq.topic/#")


def test_consuming():
    def consume(queue):
        return Consume(consumer=ConsumerId(1), queue=queue, token=Token(1))

    access_requests.check_consume(permissions("subscribe:$queue/q"), consume("q"))
    with pytest.raises(Refusal):
        access_requests.check_consume(permissions("subscribe:$queue/q"), consume("other"))
    access_requests.check_consume(permissions(), consume("$share/g/a"))  # each filter is refused by itself


@pytest.mark.parametrize("some", ["subscribe:$vhost/shop/queue/q", "publish:$vhost/+/amqp/x/#", "manage:$vhost/shop/#"])
def test_any_right_in_a_vhost_opens_it(some):
    assert may(OpenVhost(name="shop"), some)
    assert may(OpenVhost(name="/"))
    assert not may(OpenVhost(name="shop"), "all:#", "manage:$queue/#", "publish:$amqp/#", "manage:$vhost/shops/#")


def test_a_lease_group_needs_the_right_to_publish_its_dead_letters():
    plain = CreateLeaseGroup(group="g", topic="t")
    request = CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(attempts=2, dead_letter="dead/letters"))
    assert may(plain, "subscribe:$group/g")
    assert not may(request, "subscribe:$group/g")
    assert not may(request, "publish:dead/#")
    assert may(request, "subscribe:$group/g", "publish:dead/#")
