"""The configuration of bridges over AMQP: every mistake is named with what to write, and templates make addresses."""

import pytest

from gateway.base.config_reader import Secret
from gateway.bridges.amqp.places import Routes, place_of
from gateway.bridges.shared.amqp_settings import AmqpBinding, AmqpConsume, AmqpForward
from gateway.bridges.shared.settings import BridgeConfig, BridgeSubscription, bridge_mistakes

CONSUME = AmqpConsume(queue="work")
FORWARD = AmqpForward(filter="plant/+/state/#")


def mistakes(url="amqp://broker/vhost", **fields):
    fields.setdefault("consume", (CONSUME,))
    return list(bridge_mistakes({"up": BridgeConfig(url=url, **fields)}))


def test_a_bridge_that_reads_and_forwards_has_no_mistakes():
    assert mistakes(forward=(FORWARD,), username="u", password=Secret("p")) == []
    assert mistakes("amqps://broker:5671/%2F", consume=(), forward=(FORWARD,)) == []


@pytest.mark.parametrize(
    ("fields", "key", "what"),
    [
        ({"consume": ()}, "bridges.up.consume", "is missing"),
        ({"version": "3.1.1"}, "bridges.up.version", "over MQTT"),
        ({"clean": True}, "bridges.up.clean", "over MQTT"),
        ({"subscribe": (BridgeSubscription(filter="#"),)}, "bridges.up.subscribe", "over MQTT"),
        ({"consume": (CONSUME, CONSUME)}, "bridges.up.consume", "2 times"),
        ({"consume": (AmqpConsume(queue="q", to="a/{x}"),)}, "bridges.up.consume[0].to", "stands for nothing"),
        ({"consume": (AmqpConsume(queue="q", to="a/#"),)}, "bridges.up.consume[0].to", "wildcard"),
        ({"consume": (AmqpConsume(queue="q", to="$amqp/x"),)}, "bridges.up.consume[0].to", "reserved"),
        ({"consume": (AmqpConsume(queue="q", device="{1"),)}, "bridges.up.consume[0].device", "brace"),
        (
            {"consume": (AmqpConsume(queue="q", bindings=(AmqpBinding(exchange="e"),)),)},
            "bridges.up.consume[0].declare",
            "write true",
        ),
        ({"forward": (AmqpForward(filter="a/#/b"),)}, "bridges.up.forward[0].filter", "write a filter"),
        (
            {"forward": (AmqpForward(filter="a/+", routing_key="{2}"),)},
            "bridges.up.forward[0].routing_key",
            "stands for nothing",
        ),
    ],
)
def test_each_mistake_is_named(fields, key, what):
    ((found, said),) = mistakes(**fields)
    assert found == key
    assert what in said


@pytest.mark.parametrize("url", ["amqp://broker/a/b", "amqp://broker/v?heartbeat=1", "amqp://u:p@broker/"])
def test_a_url_is_a_broker_and_a_virtual_host(url):
    ((key, _),) = mistakes(url)
    assert key == "bridges.up.url"


def test_what_is_for_amqp_is_refused_over_mqtt():
    found = mistakes("mqtt://broker", subscribe=(BridgeSubscription(filter="#"),))
    assert [key for key, _ in found] == ["bridges.up.consume"]


@pytest.mark.parametrize(
    ("to", "exchange", "key", "address"),
    [
        ("{topic}", "orders", "order.new", "order/new"),
        ("shop/{exchange}/{queue}/{2}", "orders", "order.new", "shop/orders/jobs/new"),
        ("shop/{exchange}/{topic}", "", "jobs", "shop/jobs"),
        ("shop/{1}/{3}", "orders", "order.new", "shop/order"),
        ("{topic}", "orders", "a/b.c", "a%2Fb/c"),
        ("{exchange}", "a/+", "x", "a%2F%2B"),
    ],
)
def test_where_a_message_goes(to, exchange, key, address):
    assert place_of("up", AmqpConsume(queue="jobs", to=to), exchange, key).address == address


@pytest.mark.parametrize(
    ("routing_key", "address", "key"),
    [
        ("{key}", "plant/a/state/b", "plant.a.state.b"),
        ("{1}.{2}", "plant/a/state/b/c", "a.b.c"),
        ("{1}.{2}", "plant/a/state", "a"),
        ("work", "plant/a/state", "work"),
        ("{address}", "plant/a.b/state", "plant/a.b/state"),
        ("{key}", "plant/a.b/state", "plant.a%2Eb.state"),
    ],
)
def test_what_it_is_forwarded_with(routing_key, address, key):
    route = Routes("up", [AmqpForward(filter="plant/+/state/#", routing_key=routing_key)])(address)
    assert (route.routing_key, route.too_long) == (key, False)


def test_the_first_that_matches_counts_and_a_key_has_255_bytes():
    routes = Routes("up", [AmqpForward(filter="a/#", exchange="one"), AmqpForward(filter="#", exchange="two")])
    assert routes("a/b").exchange == "one"
    assert routes("b").exchange == "two"
    assert routes("a/" + "x" * 260).too_long
    assert Routes("up", [FORWARD])("other") is None
