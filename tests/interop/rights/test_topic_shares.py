"""Topics that are made by moved messages count for the user who caused that, as those that are published to do."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from controller.api.commands import DeleteUser
from tests.support.gateway.ruled_gateway import SHARE, TIMEOUT_S, RuledGateway, fresh, ruled

pytestmark = pytest.mark.slow

ALL = ("all:#", "all:$queue/#", "all:$exchange/#", "all:$amqp/#", "all:$group/#")
DLX = {"x-dead-letter-exchange": "amq.topic"}


@pytest.fixture
def eve(served: RuledGateway) -> Iterator[str]:
    """Makes a user that may do everything."""
    name = fresh("eve")
    served.do(served.set_user(name, ruled(*ALL)))
    yield name
    served.do(served.gateway.hub.controller.do(DeleteUser(name=name)))


@pytest.fixture
def channel(eve: str, amqp: Callable[[str], pika.BlockingConnection]) -> Any:
    """Opens a channel of that user."""
    opened = amqp(eve).channel()
    opened.confirm_delivery()
    return opened


def queue(channel: Any, **arguments: Any) -> str:
    """Declares a queue and an exchange of its name that fills it; its dead letters go to amq.topic by their keys."""
    name = fresh("q")
    channel.exchange_declare(name, "fanout", auto_delete=True)
    said = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, auto_delete=True, arguments={**DLX, **said})
    channel.queue_bind(name, name)
    return name


def creator(served: RuledGateway, topic: str) -> str:
    """Waits for a topic; returns in whose share it is."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        if (found := served.gateway.hub.controller.topic(topic)) is not None:
            return found.creator
        time.sleep(0.01)
    raise AssertionError(f"there is no topic {topic}")


def take(channel: Any, name: str) -> Any:
    """Waits for a message of a queue; returns its method."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        method, _, _ = channel.basic_get(name)
        if method is not None:
            return method
        time.sleep(0.01)
    raise AssertionError(f"nothing is in {name}")


# ---- ways; each has one message moved to a topic that there is not yet


def rejected(channel: Any, topic: str) -> None:
    name = queue(channel)
    channel.basic_publish(name, f"{topic}.x", b"x")
    channel.basic_reject(take(channel, name).delivery_tag, requeue=False)


def expired(channel: Any, topic: str) -> None:
    channel.basic_publish(queue(channel, message_ttl=1), f"{topic}.x", b"x")


def too_long(channel: Any, topic: str) -> None:
    channel.basic_publish(queue(channel, max_length=0), f"{topic}.x", b"x")


def turned_away(channel: Any, topic: str) -> None:
    name = queue(channel, max_length=0, overflow="reject-publish-dlx")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish(name, f"{topic}.x", b"x")


@pytest.mark.parametrize("way", [rejected, expired, too_long, turned_away])
def test_the_topic_of_a_dead_letter_counts_for_the_declarer_of_its_queue(served, eve, channel, way):
    topic = fresh("dead")
    way(channel, topic)
    assert creator(served, topic) == f"user {eve}"


def test_a_delayed_message_counts_for_its_publisher(served, eve):
    topic = fresh("later")
    with served.http(eve) as http:
        assert http.post(f"/topics/{topic}/x", content=b"x", params={"delay": "600"}).status_code == 201
    assert creator(served, topic) == f"user {eve}"


def test_a_message_for_an_alternate_exchange_counts_for_its_publisher(served, eve, channel):
    channel.exchange_declare("narrow", "topic", arguments={"alternate-exchange": "amq.topic"}, auto_delete=True)
    topic = fresh("alternate")
    channel.basic_publish("narrow", f"{topic}.x", b"x")
    channel.basic_publish("amq.topic", f"{topic}.x", b"x")
    assert creator(served, topic) == f"user {eve}"
    assert creator(served, "$amqp") == ""


def test_a_will_counts_for_its_client(served, eve, mqtt):
    topic, client = fresh("will"), mqtt(eve)
    delay = Properties(PacketTypes.WILLMESSAGE)
    delay.WillDelayInterval = 0
    client.paho.will_set(f"{topic}/x", b"x", 1, properties=delay)
    assert client.connect(expiry_s=1000) == 0
    client.paho.loop_stop()
    client.paho.socket().close()
    assert creator(served, topic) == f"user {eve}"


def test_the_dead_letters_of_a_lease_group_count_for_who_made_the_group(served, eve):
    topic, dead, group = fresh("leased"), fresh("dead"), fresh("group")
    with served.http("admin") as admin, served.http(eve) as http:
        assert admin.post(f"/topics/{topic}/x", content=b"x").status_code == 201
        terms = {"topic": topic, "attempts": 1, "dead_letter": f"{dead}/x", "start": "earliest"}
        assert http.put(f"/groups/{group}", json=terms).status_code == 201
        (one,) = receive(http, group)
        assert http.post(f"/groups/{group}/nack", json={"handles": [one["handle"]], "delay_s": 0}).is_success
        assert receive(http, group) == []
    assert creator(served, dead) == f"user {eve}"


def receive(http: Any, group: str) -> list[Any]:
    """Receives messages of a group."""
    answer = http.post(f"/groups/{group}/receive", json={"max": 5})
    assert answer.is_success, answer.text
    return list(answer.json()["messages"])


# ---- beyond the share


def test_a_dead_letter_beyond_the_share_stays_in_its_queue(served, eve, channel):
    """A queue made as many topics as its dead letters named."""
    flood = fresh("flood")
    with served.http(eve) as http:
        found = [http.post(f"/topics/{flood}{n}/x", content=b"x").status_code for n in range(SHARE + 1)]
        assert found == [201] * SHARE + [429]
        name, topic = queue(channel), fresh("beyond")
        channel.basic_publish(name, f"{topic}.x", b"x")
        for _ in range(2):
            channel.basic_reject(take(channel, name).delivery_tag, requeue=False)
        again = take(channel, name)  # it was given back
        assert served.gateway.hub.controller.topic(topic) is None
        served.publish(f"{topic}/x")
        channel.basic_reject(again.delivery_tag, requeue=False)
        assert creator(served, topic) == "user admin"
