"""Sparkplug B: topic names of Sparkplug 3.0.0, chapter 4, and what they say of messages."""

import pytest

from adapters.mqtt.codec.packets import Publish, Subscribe, SubscriptionRequest, Will
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.messages.messages import publisher_of
from adapters.mqtt.messages.options import Options
from adapters.mqtt.messages.sparkplug import sparkplug_of
from gateway.domain.principal import Principal
from gateway.port.adapter import Outcome
from gateway.port.sessions import OpenSession
from tests.support.mqtt.mqtt_driver import Driver, batch_of

PROTOBUF = "application/x-protobuf"
TOPICS = {  # those that the specification shows, and one of each kind
    "spBv1.0/Sparkplug Devices/NBIRTH/JSON": ("NBIRTH", "JSON"),
    "spBv1.0/group1/NDEATH/edge1": ("NDEATH", "edge1"),
    "spBv1.0/group1/NDATA/edge1": ("NDATA", "edge1"),
    "spBv1.0/group1/NCMD/edge1": ("NCMD", "edge1"),
    "spBv1.0/group1/DBIRTH/edge1/dev1": ("DBIRTH", "edge1/dev1"),
    "spBv1.0/group1/DDEATH/edge1/dev1": ("DDEATH", "edge1/dev1"),
    "spBv1.0/group1/DDATA/edge1/dev1": ("DDATA", "edge1/dev1"),
    "spBv1.0/group1/DCMD/edge1/dev1": ("DCMD", "edge1/dev1"),
}
ORDINARY = [
    "spBv1.0",
    "spBv1.0/",
    "spBv1.0/group1/NDATA",
    "spBv1.0/group1/NDATA/",
    "spBv1.0//NDATA/edge1",
    "spBv1.0/group1/NDATA/edge1/dev1",
    "spBv1.0/group1/DDATA/edge1",
    "spBv1.0/group1/DDATA/edge1/",
    "spBv1.0/group1/DDATA/edge1/dev1/more",
    "spBv1.0/group1/ndata/edge1",
    "spBv1.0/group1/STATE/host1",
    "spBv1.0/STATE",
    "spBv1.0/STATE/host1/more",
    "spBv1.0/STATE/NDATA/edge1",
    "spAv1.0/group1/NDATA/edge1",
    "SPBV1.0/group1/NDATA/edge1",
    "STATE/host1",
    "x/spBv1.0/group1/NDATA/edge1",
]


@pytest.fixture(params=[4, 5])
def driver(request):
    driver = Driver(request.param)
    driver.connect()
    return driver


def publish(driver, topic, *, properties=None, qos=1):
    more = {} if properties is None else {"properties": properties}
    driver.send(Publish(topic=topic, payload=b"x", qos=qos, packet_id=1 if qos else None, **more))
    (message,) = driver.published()
    driver.store()
    return message


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_says_type_content_and_device(driver, topic):
    kind, device = TOPICS[topic]
    for qos in (1, 0, 1):
        message = publish(driver, topic, qos=qos)
        assert (message.type, message.content_type, message.device) == (f"sparkplug.{kind}", PROTOBUF, device)
        assert message.principal == ""
        assert publisher_of(message) == "c1"


def test_the_state_of_a_host_application_is_json(driver):
    message = publish(driver, "spBv1.0/STATE/host1")
    assert (message.type, message.content_type, message.device) == ("sparkplug.STATE", "application/json", "host1")


@pytest.mark.parametrize("topic", ORDINARY)
def test_other_topics_are_ordinary(driver, topic):
    assert sparkplug_of(topic) is None
    message = publish(driver, topic)
    assert (message.type, message.content_type, message.device, message.native) == (None, None, "c1", None)


def test_what_the_publisher_says_counts():
    driver = Driver()
    driver.connect()
    said = Properties(content_type="application/json", user=(("type", "mine"), ("a", "b")))
    message = publish(driver, "spBv1.0/group1/NDATA/edge1", properties=said)
    assert (message.type, message.content_type, message.properties) == ("mine", "application/json", (("a", "b"),))


def test_an_identity_is_the_device():
    driver = Driver()
    driver.principal = Outcome(value=Principal(name="plc-7"))
    driver.connect()
    message = publish(driver, "spBv1.0/group1/NDATA/edge1")
    assert (message.device, message.principal, message.type) == ("plc-7", None, "sparkplug.NDATA")
    assert publisher_of(message) == "c1"


def test_a_death_certificate_is_a_will(driver):
    again = Driver(driver.version)
    again.connect(will=Will(topic="spBv1.0/group1/NDEATH/edge1", payload=b"bdSeq", qos=1))
    assert again.asked is not None
    message = again.asked.will.message
    assert (message.type, message.content_type, message.device) == ("sparkplug.NDEATH", PROTOBUF, "edge1")
    assert message.principal == ""
    assert isinstance(again.asked, OpenSession)


def test_clients_are_shown_what_the_publisher_said_and_no_more():
    driver = Driver()
    driver.connect()
    for said in (Properties(), Properties(user=(("a", "1"), ("type", "t"), ("a", "2")))):
        message = publish(driver, "spBv1.0/group1/NDATA/edge1", properties=said)
        driver.send(Subscribe(packet_id=9, requests=(SubscriptionRequest(pattern="spBv1.0/#", qos=0),)))
        driver.deliver(batch_of(message))
        (shown,) = [one for one in driver.out() if isinstance(one, Publish)]
        assert shown.properties == said


def test_it_can_be_turned_off():
    driver = Driver(options=Options(sparkplug=False))
    driver.connect()
    message = publish(driver, "spBv1.0/group1/NDATA/edge1")
    assert (message.type, message.content_type, message.device, message.native) == (None, None, "c1", None)


def test_long_names_are_read_but_not_remembered():
    said = sparkplug_of(f"spBv1.0/group1/DDATA/edge1/{'d' * 1_000}")
    assert said is not None
    assert said.device == f"edge1/{'d' * 1_000}"
