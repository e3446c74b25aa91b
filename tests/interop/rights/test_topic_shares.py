"""Topics that are made by moved messages count for the user who caused that, as those that are published to do."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest

from controller.api.commands import DeleteUser
from gateway.publishing.topic_shares import ANYBODY
from tests.support.gateway.ruled_gateway import ALL as EVERYTHING
from tests.support.gateway.ruled_gateway import (
    RULES,
    SHARE,
    TIMEOUT_S,
    RuledGateway,
    UserClient,
    fresh,
    leave_will,
    ruled,
)
from tests.support.process.waiting import wait_until

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
    found = wait_until(lambda: served.gateway.hub.controller.topic(topic), f"there is no topic {topic}", TIMEOUT_S)
    return str(found.creator)


def take(channel: Any, name: str) -> Any:
    """Waits for a message of a queue; returns its method."""
    return wait_until(lambda: channel.basic_get(name)[0], f"nothing is in {name}", TIMEOUT_S)


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
    topic = fresh("will")
    leave_will(mqtt(eve), f"{topic}/x", 0)
    assert creator(served, topic) == f"user {eve}"


def test_the_dead_letters_of_a_lease_group_count_for_who_made_the_group(served, eve):
    dead = fresh("dead")
    with served.http("admin") as admin, served.http(eve) as http:
        _, group = with_dead_letter(admin, http, dead)
        assert receive(http, group) == []
    assert creator(served, dead) == f"user {eve}"


def with_dead_letter(admin: Any, http: Any, dead: str) -> tuple[str, str]:
    """Makes a lease group whose one message goes to a topic of dead letters; returns its topic and its name."""
    topic, group = fresh("leased"), fresh("group")
    assert admin.post(f"/topics/{topic}/x", content=b"dead").status_code == 201
    terms = {"topic": topic, "attempts": 1, "dead_letter": f"{dead}/x", "start": "earliest"}
    assert http.put(f"/groups/{group}", json=terms).status_code == 201
    (one,) = receive(http, group)
    assert http.post(f"/groups/{group}/nack", json={"handles": [one["handle"]], "delay_s": 0}).is_success
    return topic, group


def receive(http: Any, group: str) -> list[Any]:
    """Receives messages of a group."""
    answer = http.post(f"/groups/{group}/receive", json={"max": 5})
    assert answer.is_success, answer.text
    return list(answer.json()["messages"])


@pytest.fixture
def guests(tmp_path: Path) -> Iterator[RuledGateway]:
    """Serves guests, who may do everything."""
    rules = [*RULES, {"effect": "allow", "users": ["guest"], "filters": EVERYTHING}]
    with RuledGateway(tmp_path / "data", access={"rules": rules}) as served:
        yield served


def test_all_guests_have_one_share(guests):
    """Wills counted for a user of their name."""
    leave_will(UserClient(guests, "guest", "a guest", password=b"guest"), "will/x", 0)
    assert creator(guests, "will") == ANYBODY
    with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", guests.ports["amqp"]))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        expired(channel, "dead")
        assert creator(guests, "dead") == ANYBODY


# ---- beyond the share


@pytest.fixture
def flood(served: RuledGateway, eve: str) -> str:
    """Uses up the share of that user; returns the beginning of the topics' names, which a number follows."""
    name = fresh("flood")
    with served.http(eve) as http:
        found = [http.post(f"/topics/{name}{n}/x", content=b"x").status_code for n in range(SHARE + 1)]
    assert found == [201] * SHARE + [429]
    return name


@pytest.mark.parametrize("arguments", [{}, {"message_ttl": 1}, {"max_length": 0}], ids=["rejected", "expired", "long"])
def test_a_dead_letter_beyond_the_share_is_dropped_and_holds_up_no_other(served, eve, channel, flood, arguments):
    """A queue made as many topics as its dead letters named."""
    keeper, name, beyond = served.gateway.hub.queues.keeper, queue(channel, **arguments), fresh("beyond")
    before = keeper.dropped
    for key in (f"{beyond}0.x", f"{flood}0.letter", f"{beyond}1.x"):
        channel.basic_publish(name, key, b"x")
    for _ in range(0 if arguments else 3):
        channel.basic_reject(take(channel, name).delivery_tag, requeue=False)
    with served.http("admin") as http:
        wait_until(lambda: http.get(f"/topics/{flood}0/letter").status_code == 200, timeout_s=TIMEOUT_S)
    wait_until(lambda: keeper.dropped == before + 2, timeout_s=TIMEOUT_S)
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    assert channel.basic_get(name)[0] is None
    assert channel.queue_purge(name).method.message_count == 0
    channel.queue_delete(name)
    assert [served.gateway.hub.controller.topic(f"{beyond}{n}") for n in range(2)] == [None, None]


def test_queues_take_a_dead_letter_whose_topic_is_beyond_the_share(served, eve, channel, flood):
    name, caught, beyond = queue(channel), fresh("caught"), fresh("beyond")
    channel.queue_declare(caught)
    channel.queue_bind(caught, "amq.topic", f"{beyond}.#")
    channel.basic_publish(name, f"{beyond}.x", b"x")
    channel.basic_reject(take(channel, name).delivery_tag, requeue=False)
    letter = take(channel, caught)
    assert letter.routing_key == f"{beyond}.x"
    channel.basic_ack(letter.delivery_tag)
    channel.queue_delete(caught)
    assert served.gateway.hub.controller.topic(beyond) is None


def test_a_full_queue_publishes_what_it_refuses_letter_by_letter(served, eve, channel, flood):
    """One that could not be published dropped all of its moment."""
    name, beyond = queue(channel, max_length=0, overflow="reject-publish-dlx"), fresh("beyond")
    before = served.gateway.hub.queues.keeper.dropped
    for key in (f"{beyond}.x", f"{flood}1.letter"):
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish(name, key, b"x")
    with served.http("admin") as http:
        wait_until(lambda: http.get(f"/topics/{flood}1/letter").status_code == 200, timeout_s=TIMEOUT_S)
    wait_until(lambda: served.gateway.hub.queues.keeper.dropped == before + 1, timeout_s=TIMEOUT_S)


def test_a_lease_group_keeps_back_dead_letters_beyond_the_share_and_serves_others(served, eve, flood):
    dead = fresh("beyond")
    with served.http("admin") as admin, served.http(eve) as http:
        topic, group = with_dead_letter(admin, http, dead)
        assert admin.post(f"/topics/{topic}/y", content=b"other").status_code == 201
        assert len(receive(http, group)) == 1
    assert served.gateway.hub.controller.topic(dead) is None
