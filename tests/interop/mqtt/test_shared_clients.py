"""Shared subscriptions with real MQTT clients: paho-mqtt and mosquitto_sub against a whole gateway."""

import contextlib
import queue
import random
import shutil
import socket
import subprocess
import threading
import time
from typing import Any

import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.mqtt.paho_client import TIMEOUT_S, VERSIONS, PahoClient, fresh, properties
from tests.support.process.waiting import wait_until


def durable(**options):
    given = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
    return {"connect": {"clean_start": False, "properties": given}, **options}


def drain(members, count):
    """Returns the messages of each member, once together they have this many."""
    found = [[] for _ in members]
    deadline = time.monotonic() + TIMEOUT_S
    while sum(map(len, found)) < count and time.monotonic() < deadline:
        for bodies, member in zip(found, members, strict=True):
            try:
                bodies.append(member.messages.get(timeout=0.01).payload)
            except queue.Empty:
                continue
    return found


def flat(found):
    return [body for bodies in found for body in bodies]


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(client, version, qos):
    topic = fresh("t")
    members = [client(version) for _ in range(3)]
    for member in members:
        assert member.subscribe(f"$share/g/{topic}/+", qos=qos) == [qos]
    all_of_them, publisher = client(version), client(version)
    all_of_them.subscribe(f"{topic}/#", qos=qos)
    bodies = [b"%d" % number for number in range(60)]
    for body in bodies:
        publisher.publish(f"{topic}/x", body, qos)
    found = drain(members, 60)
    assert sorted(flat(found)) == sorted(bodies)
    assert min(map(len, found)) >= 10, [len(one) for one in found]
    assert all_of_them.bodies(60) == bodies


def test_a_member_that_leaves_loses_nothing(client):
    topic = fresh("t")
    slow, fast, publisher = client(manual_ack=True), client(), client()
    for member in (slow, fast):
        member.subscribe(f"$share/g/{topic}", qos=1)
    bodies = [b"%d" % number for number in range(40)]
    for body in bodies:
        publisher.publish(topic, body)
    unacknowledged = [slow.get().payload for _ in range(10)]
    slow.drop()
    (got,) = drain([fast], 40)
    assert sorted(got) == sorted(bodies)
    assert set(unacknowledged) <= set(got)


def test_a_group_waits_for_members_that_are_away(client):
    topic, name = fresh("t"), fresh("away")
    member = client(**durable(client_id=name))
    member.subscribe(f"$share/g/{topic}", qos=1)
    member.close()
    publisher = client()
    for number in range(20):
        publisher.publish(topic, b"%d" % number)
    here = client()
    here.subscribe(f"$share/g/{topic}", qos=1)
    (got,) = drain([here], 20)
    assert sorted(got) == sorted(b"%d" % number for number in range(20))
    back = client(**durable(client_id=name))
    assert back.flags.session_present
    here.close()
    publisher.publish(topic, b"20")
    found = []
    while b"20" not in found:  # messages that the lost receiver had not acknowledged come again
        found += back.bodies(1)
    assert set(found[:-1]) <= set(got)


def test_a_group_that_all_have_left_keeps_nothing(client):
    topic = fresh("t")
    member, publisher = client(), client()
    member.subscribe(f"$share/g/{topic}", qos=1)
    member.paho.unsubscribe(f"$share/g/{topic}")
    answered: queue.Queue[Any] = queue.Queue()
    member.paho.on_unsubscribe = lambda *_: answered.put(None)
    member.paho.unsubscribe("x")
    answered.get(timeout=TIMEOUT_S)
    publisher.publish(topic, b"lost")
    member.subscribe(f"$share/g/{topic}", qos=1)
    publisher.publish(topic, b"1")
    assert member.bodies(1) == [b"1"]


def test_options_of_a_shared_subscription(client):
    topic = fresh("t")
    member, publisher = client(), client()
    publisher.publish(f"{topic}/old", b"old", retain=True)
    given = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=9)
    member.subscribe(f"$share/g/{topic}/#", options=SubscribeOptions(qos=1, retainAsPublished=True), properties=given)
    sent = properties(PacketTypes.PUBLISH, MessageExpiryInterval=100)
    publisher.publish(f"{topic}/new", b"new", retain=True, properties=sent)
    message = member.get()
    assert (message.payload, message.retain, message.topic) == (b"new", True, f"{topic}/new")
    assert message.properties.SubscriptionIdentifier == [9]
    assert 99 <= message.properties.MessageExpiryInterval <= 100
    publisher.publish(f"{topic}/old", b"", retain=True)
    publisher.publish(f"{topic}/new", b"", retain=True)


def test_no_local_is_a_protocol_error(client):
    one = client()
    one.paho.on_disconnect = lambda c, _u, _f, code, _p: (one.left.put(code), c.loop_stop())
    one.paho.subscribe("$share/g/t", options=SubscribeOptions(qos=1, noLocal=True))
    assert one.left.get(timeout=TIMEOUT_S).value == 0x82


def test_an_amqp_client_cannot_take_part(client, shared_gateway):
    topic = fresh("t")
    member = client()
    member.subscribe(f"$share/g/{topic}", qos=1)
    parameters = pika.ConnectionParameters("127.0.0.1", shared_gateway.port("amqp"))
    with pika.BlockingConnection(parameters) as connection:
        for code, work in (
            (404, lambda channel: channel.basic_get(f"$share/g/{topic}")),
            (404, lambda channel: channel.basic_consume(f"$share/g/{topic}", print)),
            (403, lambda channel: channel.queue_declare("$share/mine")),
        ):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                work(connection.channel())
            assert refused.value.reply_code == code
        connection.channel().queue_delete(f"$share/g/{topic}")  # as one that is not there
        connection.channel().basic_publish("amq.topic", topic, b"by AMQP")
    assert member.bodies(1) == [b"by AMQP"]


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed")
def test_mosquitto_sub(client, shared_gateway):
    topic = fresh("t")
    command = ["mosquitto_sub", "-p", str(shared_gateway.port("mqtt")), "-V", "mqttv5", "-q", "1"]
    command += ["-t", f"$share/g/{topic}/#"]
    got: queue.Queue[tuple[int, int]] = queue.Queue()  # member and message

    def read(member, out):
        for line in out:
            got.put((member, int(line)))

    members = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    readers = [threading.Thread(target=read, args=(n, one.stdout)) for n, one in enumerate(members)]
    try:
        for reader in readers:
            reader.start()
        publisher, found, deadline, last = client(), [], time.monotonic() + TIMEOUT_S, 0
        while len({member for member, _ in found}) < 2 and time.monotonic() < deadline:  # one of them comes first
            publisher.publish(f"{topic}/a", b"%d" % last)
            last += 1
            with contextlib.suppress(queue.Empty):
                found.append(got.get(timeout=0.05))
        last += 20
        for number in range(last - 20, last):
            publisher.publish(f"{topic}/a", b"%d" % number)
        first = min(number for _, number in found)
        while len(found) < last - first:
            found.append(got.get(timeout=TIMEOUT_S))
        assert sorted(number for _, number in found) == list(range(first, last))
    finally:
        for member in members:
            member.kill()
            member.wait()
        for reader in readers:
            reader.join()
        for member in members:
            member.stdout.close()


def test_a_gateway_that_is_killed_loses_nothing_of_a_group(new_gateway, client):
    gateway = new_gateway().start()
    port, topic = gateway.port("mqtt"), fresh("k")
    names = [fresh("m") for _ in range(2)]
    for name in names:
        member = client(port=port, **durable(client_id=name))
        member.subscribe(f"$share/g/{topic}", qos=2)
        member.close()
    client(port=port).subscribe(f"$share/passing/{topic}", qos=1)
    publisher = client(port=port)
    for number in range(50):
        publisher.publish(topic, b"%d" % number, 1 + number % 2)
    gateway.kill()
    gateway.start()
    later = client(port=port)
    for number in range(50, 60):
        later.publish(topic, b"%d" % number, 2)
    again = [client(port=port, **durable(client_id=name)) for name in names]
    assert all(member.flags.session_present for member in again)
    found = drain(again, 60)
    assert sorted(flat(found)) == sorted(b"%d" % number for number in range(60))
    assert all(member.messages.empty() for member in again)


def test_what_the_gateway_says_of_itself(client):
    one = client()
    one.subscribe("$SYS/broker/#", qos=1)
    found = {}
    while "$SYS/broker/version" not in found:
        message = one.get()
        found[message.topic] = (message.payload, message.retain, message.qos)
    assert found["$SYS/broker/clients/connected"][0].isdigit()
    assert found["$SYS/broker/version"][0].startswith(b"headgate ")
    assert {(retain, qos) for _, retain, qos in found.values()} == {(True, 0)}
    everything = client()
    everything.subscribe([("#", 0), ("+/broker/#", 0)])
    one.paho.publish("$SYS/broker/version", b"mine", 1)
    assert one.published.get(timeout=TIMEOUT_S).value == 0x87
    assert one.subscribe("$share/g/$SYS/#") == [0x8F]
    topic = fresh("after")
    one.publish(topic, b"x")
    heard = ""
    while heard != topic:
        heard = everything.get().topic
        assert not heard.startswith("$")


@pytest.mark.parametrize("qos", [1, 2])
def test_connections_are_cut_again_and_again(client, qos):
    """At QoS 2 each message is received once, by one of them; at QoS 1 at least once."""
    topic, count, chance = fresh("cut"), 1_500, random.Random(qos)
    members = [client(**durable(client_id=fresh("m"))) for _ in range(3)]
    for member in members:
        member.paho.reconnect_delay_set(0.05, 0.05)
        member.subscribe(f"$share/g/{topic}", qos=qos)
    publisher = PahoClient(members[0].port)
    publisher.paho.max_inflight_messages_set(100)
    publisher.connect()
    infos = []
    for number in range(count):
        infos.append(publisher.paho.publish(topic, b"%d" % number, qos))
        if number % 50 == 49:
            with contextlib.suppress(OSError, AttributeError):  # it is away already
                chance.choice(members).paho.socket().shutdown(socket.SHUT_RDWR)
            infos[-40].wait_for_publish(TIMEOUT_S)
    for info in infos:
        info.wait_for_publish(TIMEOUT_S)
    publisher.close()
    wait_until(lambda: len({message.payload for member in members for message in list(member.messages.queue)}) == count)
    if qos == 2:
        assert sum(member.messages.qsize() for member in members) == count
