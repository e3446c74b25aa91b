"""The limits on a client's messages: each is answered with its own reason code, and hurts nothing else."""

import pytest

from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import Connect, Disconnect, Puback, Publish, Pubrec, Will
from adapters.mqtt.messages.options import Options
from gateway.port.adapter import Close
from tests.support.mqtt.mqtt_driver import Driver

TIGHT = Options(topic_levels_max=3, topic_bytes_max=12, user_properties_max=2, will_bytes_max=5)
MANY = Properties(user=(("a", "1"),) * 3)


def connected(version=5, options=TIGHT) -> Driver:
    driver = Driver(version, options)
    driver.connect()
    return driver


def publish(topic: str, qos: int = 1, **fields) -> Publish:
    return Publish(topic=topic, payload=b"x", qos=qos, packet_id=7 if qos else None, **fields)


TOO_MUCH = [
    ("a/b/c/d", Properties(), 0x90),
    ("a/" + "b" * 11, Properties(), 0x90),
    ("ä" * 7, Properties(), 0x90),
    ("$delayed/5/a/b/c/d", Properties(), 0x90),
    ("a/b", MANY, 0x97),
]


@pytest.mark.parametrize(("topic", "properties", "code"), TOO_MUCH)
def test_a_message_that_is_too_much_is_refused_alone(topic, properties, code):
    driver = connected()
    before, behind = Publish(topic="a", qos=1, packet_id=1), Publish(topic="b", qos=1, packet_id=2)
    driver.send(before, publish(topic, properties=properties), behind)
    assert driver.store() == [Puback(packet_id=1), Puback(packet_id=7, code=code), Puback(packet_id=2)]
    assert driver.send(publish(topic, 2, properties=properties)) == [Pubrec(packet_id=7, code=code)]
    assert driver.closed is None
    driver.send(publish("a", 2))
    assert len(driver.published()) == 1  # the identifier is free again


@pytest.mark.parametrize(("topic", "properties", "code"), TOO_MUCH)
def test_at_qos_0_only_the_end_can_say_so(topic, properties, code):
    driver = connected()
    (disconnect,) = driver.send(Publish(topic="a"), publish(topic, 0, properties=properties))
    assert isinstance(disconnect, Disconnect)
    assert disconnect.code == code
    assert "at most" in str(driver.closed)
    assert len(driver.published()) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_version_3_1_1_has_only_the_end(qos):
    driver = connected(4)
    assert driver.send(publish("a/b/c/d", qos)) == []
    assert driver.closed == "a topic name has at most 3 levels and 12 bytes"


@pytest.mark.parametrize("topic", ["a/b/c", "a" * 12, "ä" * 6, "$delayed/5/a/b/c"])
def test_what_is_just_enough_is_taken(topic):
    driver = connected()
    assert driver.send(publish(topic, properties=Properties(user=MANY.user[:2]))) == []
    assert driver.send(publish(topic)) == []
    assert len(driver.published()) == 2


def test_an_alias_stands_for_its_topic_though_the_message_was_too_much():
    driver = connected()
    aliased = Properties(topic_alias=1, user=MANY.user)
    driver.send(publish("a", properties=aliased))
    driver.send(Publish(topic="", qos=1, packet_id=8, properties=Properties(topic_alias=1)))
    assert driver.store() == [Puback(packet_id=8)]
    driver.send(publish("a/b/c/d", properties=Properties(topic_alias=2)))
    answer = driver.send(Publish(topic="", qos=1, packet_id=8, properties=Properties(topic_alias=2)))
    assert answer == [Puback(packet_id=8, code=0x90)]


def test_by_default_topics_have_as_many_levels_as_addresses():
    driver = connected(options=Options())
    assert driver.send(publish("/".join("x" * 128))) == []
    assert driver.store() == [Puback(packet_id=7)]
    assert driver.send(publish("/".join("x" * 129))) == [Puback(packet_id=7, code=0x90)]


@pytest.mark.parametrize(
    ("will", "code"),
    [
        (Will(topic="w", payload=b"123456"), 0x95),
        (Will(topic="a/b/c/d", payload=b""), 0x90),
        (Will(topic="w", payload=b"", properties=MANY), 0x97),
    ],
)
def test_a_will_that_is_too_much_is_refused(will, code):
    driver = Driver(5, TIGHT)
    (connack,) = driver.send(Connect(version=5, client_id="c", will=will))
    assert connack.code == code
    assert driver.closed


def test_a_will_that_is_just_enough_is_taken():
    driver = Driver(5, TIGHT)
    assert driver.connect(will=Will(topic="a/b/c", payload=b"12345")).code == 0


# ---- what is sent again and again


@pytest.mark.parametrize("version", [4, 5])
def test_the_gateway_is_told_of_an_end_that_comes_again(version):
    driver = connected(version, Options(max_packet_bytes=100))
    driver.send(Publish(topic="a", payload=bytes(200), qos=1, packet_id=1))
    (close,) = driver.take(Close)
    assert close.reason == f"a packet of {208 if version == 4 else 209} bytes; at most 100"
    assert close.again


def test_other_ends_do_not_come_again():
    driver = connected()
    driver.send(Disconnect())
    (close,) = driver.take(Close)
    assert not close.again
    driver = Driver(5, TIGHT)
    driver.send(Connect(version=5, client_id="c", will=Will(topic="w", payload=b"123456")))
    (close,) = driver.take(Close)
    assert not close.again
