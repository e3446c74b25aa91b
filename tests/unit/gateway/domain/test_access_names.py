"""Permissions by names, as RabbitMQ has them: what they allow, and that a filter is never granted more than that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.access import AccessRules, Identity
from gateway.domain.access_filters import matches
from gateway.domain.access_names import VhostPermission
from gateway.domain.access_settings import (
    AccessConfig,
    OwnAccess,
    Permission,
    own_access,
    rights_of,
    without_vhost,
)
from gateway.domain.vhosts import exchange_address, in_vhost, queue_address
from gateway.port.queues import address_of


def access(*said, rules=(), otherwise="deny"):
    own = OwnAccess(otherwise=otherwise, rules=tuple(rules), vhosts=tuple(said))
    return AccessRules(AccessConfig()).access(Identity(name="app"), own_access(rights_of(own)))


SHOP = VhostPermission(vhost="shop", configure="^orders-", write="^(orders|amq.default)$", read="^orders")


def shop(name):
    return in_vhost("shop", name)


@pytest.mark.parametrize(
    ("action", "address", "allowed"),
    [
        ("manage", queue_address(shop("orders-eu")), True),
        ("manage", queue_address(shop("orders-a/b")), True),
        ("manage", exchange_address(shop("orders-x")), True),
        ("manage", queue_address(shop("orders")), False),
        ("manage", queue_address("orders-eu"), False),
        ("manage", queue_address(in_vhost("shop2", "orders-eu")), False),
        ("publish", address_of(shop("orders"), "eu.new"), True),
        ("publish", address_of(shop(""), "orders-eu"), True),
        ("publish", address_of(shop("amq.topic"), "eu"), False),
        ("publish", queue_address(shop("orders")), True),
        ("publish", exchange_address(shop("orders")), True),
        ("publish", queue_address(shop("orders-eu")), False),
        ("publish", address_of("orders", "eu.new"), False),
        ("subscribe", queue_address(shop("orders-eu")), True),
        ("subscribe", queue_address(shop("a")), False),
        ("subscribe", address_of(shop("orders.b"), ""), True),
        ("subscribe", "orders/eu", False),
        ("manage", "$vhost/shop", False),
    ],
)
def test_what_a_permission_allows(action, address, allowed):
    assert access(SHOP).may(action, address) is allowed


def test_names_that_the_gateway_gives_are_found_as_they_are():
    own = access(VhostPermission(vhost="/", configure=r"^amq\.gen-.*$"))
    assert own.may("manage", queue_address(""))
    assert own.may("manage", queue_address("amq.gen-abc"))
    assert not own.may("manage", queue_address("q"))


def test_amq_topic_of_the_default_vhost_is_every_address():
    own = access(VhostPermission(vhost="/", write="", read="^amq.topic$"))
    assert own.may("subscribe", "telemetry/a")
    assert own.reaches_all("subscribe", "#")
    assert not own.may("publish", "telemetry/a")
    other = access(VhostPermission(vhost="shop", read=".*"))
    assert not other.may("subscribe", "telemetry/a")
    assert other.may("subscribe", address_of(shop("amq.topic"), "a"))


def test_an_empty_pattern_allows_nothing():
    own = access(VhostPermission(vhost="shop"))
    assert not own.reaches("manage", "$vhost/shop/#")
    assert not own.may("manage", queue_address(shop("")))


def test_a_deny_wins_over_names():
    deny = Permission(
        effect="deny", actions=("all",), filters=("$vhost/shop/queue/orders-safe", "$vhost/shop/amqp/orders/x/#")
    )
    own = access(SHOP, rules=[deny])
    assert not own.may("manage", queue_address(shop("orders-safe")))
    assert own.may("manage", queue_address(shop("orders-eu")))
    assert not own.reaches_all("publish", "$vhost/shop/amqp/orders/#")
    assert own.reaches("publish", "$vhost/shop/amqp/orders/#")


def test_what_is_granted_as_a_whole_is_certain():
    own = access(SHOP)
    assert own.reaches_all("publish", "$vhost/shop/amqp/orders/#")
    assert not own.reaches_all("publish", "$vhost/shop/amqp/+/#")
    assert not own.reaches_all("subscribe", "$vhost/shop/queue/#")
    assert own.reaches("subscribe", "$vhost/shop/queue/+")
    assert own.reaches("manage", "$vhost/+/queue/orders-eu")
    assert not own.reaches("manage", "#")
    everything = access(VhostPermission(vhost="shop", configure=".*", write=".*", read=".*"))
    assert everything.reaches_all("subscribe", "$vhost/shop/queue/#")
    assert not everything.reaches_all("subscribe", "$vhost/#")


@pytest.mark.parametrize("one", [{"vhost": "a%b"}, {"vhost": "/", "read": "("}, {"vhost": "/", "read": "x" * 5000}, {}])
def test_permissions_that_are_none_are_refused(one):
    with pytest.raises(ValueError, match=r"."):
        own_access({"otherwise": "deny", "vhosts": [one]})


NAME = st.sampled_from(["orders", "orders-a", "orders/b", "a", "amq.topic", "", "amq.gen-x"])
PATTERN = st.sampled_from(["", ".*", "^orders", "^orders$", "a", "^amq", "^$", "b$"])
LEVEL = st.sampled_from(["$vhost", "shop", "other", "queue", "amqp", "exchange", "orders", "orders-a", "a", "+", "#"])


PERMISSION = st.builds(
    VhostPermission, vhost=st.sampled_from(["/", "shop"]), configure=PATTERN, write=PATTERN, read=PATTERN
)
FILTER = st.lists(LEVEL, min_size=1, max_size=6).filter(lambda levels: "#" not in levels[:-1]).map(tuple)
THING = st.builds(in_vhost, st.sampled_from(["shop", "other", "/"]), NAME)


@given(st.lists(PERMISSION, max_size=3), st.sampled_from(["publish", "subscribe", "manage"]), FILTER, THING)
def test_filters_say_the_same_as_addresses(said, action, levels, thing):
    own, pattern = access(*said), "/".join(levels)
    addresses = [address_of(thing, key) for key in ("", "k", "a.b")]
    for address in (queue_address(thing), exchange_address(thing), *addresses):
        if matches(levels, address.split("/")):
            if own.may(action, address):
                assert own.reaches(action, pattern)
            else:
                assert not own.reaches_all(action, pattern)


def test_what_a_user_is_allowed_in_a_deleted_vhost_goes_and_what_is_denied_stays():
    allowed = Permission(effect="allow", filters=("$vhost/shop/#", "$vhost/shops/#", "$vhost/#", "#"))
    denied = Permission(effect="deny", filters=("$vhost/shop/queue/safe",))
    only = Permission(effect="allow", filters=("$vhost/shop/queue/q",))
    vhosts = tuple(VhostPermission(vhost=name, read=".*") for name in ("shop", "other"))
    left = without_vhost(OwnAccess(otherwise="deny", rules=(allowed, denied, only), vhosts=vhosts), "shop")
    assert [rule.filters for rule in left.rules] == [("$vhost/shops/#", "$vhost/#", "#"), denied.filters]
    assert [one.vhost for one in left.vhosts] == ["other"]
