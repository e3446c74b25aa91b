"""Real MQTT clients against a whole gateway: paho-mqtt, amqtt's client, mosquitto_pub and mosquitto_sub."""

import queue
import shutil
import subprocess
from typing import Any

import pytest
from amqtt.client import MQTTClient
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.mqtt.paho_client import TIMEOUT_S, VERSIONS, PahoClient, fresh, properties


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_subscribe_at_every_qos(client, version, qos):
    topic = fresh("t")
    subscriber, publisher = client(version), client(version)
    assert subscriber.subscribe(f"{topic}/+", qos=qos) == [qos]
    for number in range(50):
        publisher.publish(f"{topic}/{number % 3}", b"%d" % number, qos)
    assert subscriber.bodies(50) == [b"%d" % number for number in range(50)]
    assert subscriber.messages.empty()


def test_retained_messages(client):
    topic = fresh("r")
    publisher = client()
    publisher.publish(f"{topic}/a", b"1", retain=True)
    publisher.publish(f"{topic}/b", b"2", retain=True)
    publisher.publish(f"{topic}/b", b"", retain=True)
    subscriber = client(paho.MQTTv311)
    subscriber.subscribe(f"{topic}/#", qos=1)
    first = subscriber.get()
    assert (first.payload, first.retain) == (b"1", True)
    publisher.publish(f"{topic}/a", b"3", retain=True)
    live = subscriber.get()
    assert (live.payload, live.retain) == (b"3", False)
    publisher.publish(f"{topic}/a", b"", retain=True)


def test_a_will(client):
    topic = fresh("w")
    subscriber = client()
    subscriber.subscribe(topic, qos=1)
    dying = PahoClient(subscriber.port, paho.MQTTv311)
    dying.paho.will_set(topic, b"gone", qos=1)
    dying.connect()
    dying.drop()
    assert subscriber.get().payload == b"gone"


def test_properties_of_version_5(client):
    topic = fresh("p")
    subscriber, publisher = client(), client()
    options = SubscribeOptions(qos=1, retainAsPublished=True)
    subscriber.subscribe(topic, options=options, properties=properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=7))
    sent = properties(
        PacketTypes.PUBLISH,
        PayloadFormatIndicator=1,
        MessageExpiryInterval=100,
        ContentType="text/plain",
        ResponseTopic="r/1",
        CorrelationData=b"\x00\x01",
        UserProperty=[("b", "1"), ("type", "T"), ("b", "2")],
    )
    publisher.publish(topic, "grüße".encode(), properties=sent, retain=True)
    message = subscriber.get()
    received = message.properties
    assert message.retain
    assert received.UserProperty == [("b", "1"), ("type", "T"), ("b", "2")]
    assert (received.ContentType, received.ResponseTopic) == ("text/plain", "r/1")
    assert (received.CorrelationData, received.PayloadFormatIndicator) == (b"\x00\x01", 1)
    assert 99 <= received.MessageExpiryInterval <= 100
    assert received.SubscriptionIdentifier == [7]
    publisher.publish(topic, b"", retain=True)


def test_topic_aliases_and_no_local(client):
    topic = fresh("alias")
    both = client()
    both.subscribe(topic, options=SubscribeOptions(qos=1, noLocal=True))
    other = client()
    alias = properties(PacketTypes.PUBLISH, TopicAlias=1)
    both.publish(topic, b"own")
    other.publish(topic, b"1", properties=alias)
    other.publish("", b"2", properties=alias)
    assert both.bodies(2) == [b"1", b"2"]


def test_a_session_resumes_where_it_was(client):
    topic, name = fresh("s"), fresh("session")
    forever = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
    first = client(client_id=name, connect={"clean_start": True, "properties": forever})
    assert not first.flags.session_present
    first.subscribe(topic, qos=2)
    publisher = client()
    publisher.publish(topic, b"0", 2)
    assert first.bodies(1) == [b"0"]
    first.close()
    for number in range(1, 31):
        publisher.publish(topic, b"%d" % number, qos=2)
    second = client(client_id=name, connect={"clean_start": False, "properties": forever})
    assert second.flags.session_present
    assert second.bodies(30) == [b"%d" % number for number in range(1, 31)]


def test_a_takeover(client):
    name = fresh("taken")
    first = client(client_id=name)
    first.paho.on_disconnect = None
    left: queue.Queue[Any] = queue.Queue()
    first.paho.on_disconnect = lambda c, _u, _f, code, _p: (left.put(code), c.loop_stop())
    client(client_id=name)
    assert left.get(timeout=TIMEOUT_S).value == 0x8E


def test_a_gateway_that_is_killed_forgets_nothing(new_gateway, client):
    gateway = new_gateway().start()
    port, topic = gateway.port("mqtt"), fresh("k")
    durable = {"clean_start": False, "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=600)}
    subscriber = client(port=port, client_id="durable", connect=durable)
    subscriber.subscribe(topic, qos=2)
    publisher = client(port=port, client_id="publisher", connect=durable)
    publisher.publish(topic, b"0", 2)
    assert subscriber.bodies(1) == [b"0"]
    subscriber.close()
    for number in range(1, 21):
        publisher.publish(topic, b"%d" % number, 2)
    gateway.kill()
    gateway.start()
    again = client(port=port, client_id="durable", connect=durable)
    assert again.flags.session_present
    assert again.bodies(20) == [b"%d" % number for number in range(1, 21)]
    late = client(port=port)
    late.publish(topic, b"21", 2)
    assert again.bodies(1) == [b"21"]
    assert again.messages.empty()


def test_refusals_of_version_5(client):
    one = client(connect={"clean_start": True})
    assert one.subscribe([("$share//t", 1), ("ok", 1)]) == [0x8F, 1]
    text = properties(PacketTypes.PUBLISH, PayloadFormatIndicator=1)
    one.paho.publish(fresh("t"), b"\xff", 1, properties=text)
    assert one.published.get(timeout=TIMEOUT_S).value == 0x99


@pytest.mark.anyio
async def test_amqtt_client(shared_gateway):
    topic = fresh("amqtt")
    one = MQTTClient(client_id=fresh("amqtt"), config={"auto_reconnect": False})
    await one.connect(f"mqtt://127.0.0.1:{shared_gateway.port('mqtt')}/")
    try:
        await one.subscribe([(f"{topic}/#", 2)])
        for qos in range(3):
            await one.publish(f"{topic}/{qos}", b"%d" % qos, qos=qos)
        found = set()
        for _ in range(3):
            message = await one.deliver_message(timeout_duration=TIMEOUT_S)
            found.add((message.topic, bytes(message.data)))
        assert found == {(f"{topic}/{qos}", b"%d" % qos) for qos in range(3)}
    finally:
        await one.disconnect()


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed")
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_clients(shared_gateway, version):
    topic, port = fresh("mosquitto"), str(shared_gateway.port("mqtt"))
    common = ["-h", "127.0.0.1", "-p", port, "-V", version, "-q", "2"]
    for number in range(3):
        subprocess.run(
            ["mosquitto_pub", *common, "-t", f"{topic}/{number}", "-m", f"m{number}", "-r"],
            check=True,
            timeout=TIMEOUT_S,
        )
    found = subprocess.run(
        ["mosquitto_sub", *common, "-t", f"{topic}/#", "-C", "3", "-W", str(TIMEOUT_S), "-F", "%t %p %r"],
        check=True,
        timeout=TIMEOUT_S + 5,
        capture_output=True,
        text=True,
    )
    assert sorted(found.stdout.split("\n")[:-1]) == [f"{topic}/{number} m{number} 1" for number in range(3)]
    for number in range(3):
        subprocess.run(["mosquitto_pub", *common, "-t", f"{topic}/{number}", "-n", "-r"], check=True, timeout=TIMEOUT_S)
