"""Through which gateways a message has come: only gateways are told, and what has been here is not stored again."""

from random import Random

import pytest
from msgspec.structs import replace

from adapters.mqtt import FACTORY
from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.packets import Puback, Pubcomp, Pubrec
from adapters.mqtt.codec.primitives import PacketReader
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties, decode_properties
from adapters.mqtt.messages.messages import dialect_of, publish_pieces
from gateway.domain.bridge_path import GATEWAY, PATH, PATH_COUNT_MAX, extended, introduced
from tests.support.mqtt.mqtt_driver import INFO, Driver
from tests.support.mqtt.upstream_broker import Broker

HERE, THERE = "aa01", "bb02"
TOLD = Properties(user=((GATEWAY, THERE),))


def bridge(upstream=TOLD, **terms):
    broker = Broker(gateway=HERE, **terms)
    broker.said = broker.connect(properties=upstream)
    return broker


def user_properties(broker):
    return [message.properties for message in broker.store()]


def test_a_bridge_says_whose_it_is():
    connect, _ = bridge().said
    assert connect.properties.user == ((GATEWAY, HERE),)
    connect, _ = Broker(gateway=HERE, version="3.1.1").connect()
    assert connect.properties == NO_PROPERTIES


def test_what_comes_from_a_gateway_notes_both_and_nothing_else_changes():
    broker = bridge()
    broker.publish("plain")
    broker.publish("said", first_id=2, properties=Properties(user=(("b", "1"), ("a", "2"), ("b", "3"))))
    broker.publish("far", first_id=3, properties=Properties(user=(("b", "1"), (PATH, f"cc03 {THERE}"), ("a", "2"))))
    assert user_properties(broker) == [
        ((PATH, f"{THERE} {HERE}"),),
        (("b", "1"), ("a", "2"), ("b", "3"), (PATH, f"{THERE} {HERE}")),
        (("b", "1"), ("a", "2"), (PATH, f"cc03 {THERE} {HERE}")),
    ]


def test_an_event_stays_the_event_that_it_is():
    event = (("specversion", "1.0"), ("id", "1"), ("source", "/a"), ("type", "reading"))
    broker = bridge()
    broker.publish("1", properties=Properties(user=event))
    (message,) = broker.store()
    assert (message.id, message.type) == ("1", "reading")
    _, tail = publish_pieces(message, dialect_of(5), qos=0, retain=False, now_ms=broker.now_ms)
    shown = decode_properties(PacketReader(tail, 0, len(tail)), PacketType.PUBLISH)
    assert shown.user == (*event, (PATH, f"{THERE} {HERE}"))


def test_what_comes_from_another_broker_notes_nothing_unless_it_has_come_through_gateways():
    broker = bridge(NO_PROPERTIES)
    broker.publish("plain")
    broker.publish("far", first_id=2, properties=Properties(user=((PATH, "cc03"),)))
    assert user_properties(broker) == [(), ((PATH, f"cc03 {HERE}"),)]


def test_what_has_been_here_is_acknowledged_and_not_stored():
    broker = bridge()
    been = Properties(user=((PATH, f"{HERE} {THERE}"),))
    for _ in range(2):  # the second time its properties are known
        broker.publish("one", first_id=1, properties=been)
        broker.publish("two", qos=2, first_id=2, properties=been)
        broker.publish("three", qos=0, properties=been)
        assert list(broker.store()) == []
        assert broker.heard() == [Puback(packet_id=1), Pubrec(packet_id=2)]
        broker.release(2)
        assert broker.heard() == [Pubcomp(packet_id=2)]
    assert broker.bridge.passed_over == {"looped": 6}


def test_another_broker_behind_the_same_url_is_another_one():
    broker = bridge()
    broker.bridge.lost()
    broker.connect()
    broker.publish("plain")
    assert user_properties(broker) == [()]


def test_paths_are_bounded():
    ids = [f"x{n}" for n in range(PATH_COUNT_MAX - 1)]
    assert extended(((PATH, " ".join(ids)),), upstream="", own=HERE) == ((PATH, " ".join([*ids, HERE])),)
    assert extended(((PATH, " ".join(ids)),), upstream=THERE, own=HERE) is None


@pytest.mark.parametrize("said", ["", "a b", "x" * 65, "\u00e4"])
def test_what_is_no_id_is_none(said):
    assert introduced(((GATEWAY, said),)) == ""


def told(user):
    """Returns the user properties of a gateway's CONNACK."""
    info = replace(INFO, gateway=HERE)
    client = Driver()
    client.adapter = FACTORY.connect(info, client.options, random=Random(1))
    return client.connect(properties=Properties(user=user)).properties.user


def test_a_gateway_says_who_it_is_to_bridges_alone():
    assert told(((GATEWAY, THERE),)) == ((GATEWAY, HERE),)
    assert told((("a", "b"),)) == ()
    assert told(()) == ()
    assert Driver(4).connect().properties == NO_PROPERTIES
