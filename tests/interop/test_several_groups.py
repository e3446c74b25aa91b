"""Real clients of a gateway whose topics and queues lie in several store groups, each with a log of its own."""

import contextlib
import itertools
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from paho.mqtt import client as paho

from controller.api.commands import MoveQueue, NameQueue
from tests.support.mqtt.paho_client import PahoClient
from tests.support.store.two_logs import Served

pytestmark = pytest.mark.slow

TIMEOUT_S = 60


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data").start()
    yield served
    served.close()


Connect = Callable[..., PahoClient]


@pytest.fixture
def client(served: Served) -> Iterator[Connect]:
    made: list[PahoClient] = []
    names = itertools.count()

    def make(name: str = "", *, clean: bool = False, **options: Any) -> PahoClient:
        """Connects by MQTT 3.1.1; messages are acknowledged as they come."""
        name = name or f"c{next(names)}"
        options |= {"clean_session": clean, "reconnect_on_failure": False}
        made.append(PahoClient(served.port("mqtt"), paho.MQTTv311, name, **options).connect())
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(Exception):
            one.close()


def groups_of(served: Served, topic: str) -> set[int]:
    found = served.machine.controller.topic(topic)
    assert found is not None
    return set(found.groups)


def sends(served: Served, client: Connect, count: int = 12) -> list[PahoClient]:
    """Returns publishers whose messages go to every group, by their names."""
    return [client(f"device-{n}", clean=True) for n in range(count)]


def test_a_durable_session_goes_on_in_every_log(served: Served, client: Connect) -> None:
    reader = client("reader")
    reader.subscribe("t/#", 1)
    devices = sends(served, client)
    for n, device in enumerate(devices):
        device.publish(f"t/{n}", b"%d a" % n)
        device.publish(f"t/{n}", b"%d b" % n)
    assert groups_of(served, "t") == {0, 1}
    first = reader.bodies(2 * len(devices))
    assert sorted(first) == sorted(b"%d %s" % (n, x) for n in range(len(devices)) for x in (b"a", b"b"))
    reader.close()
    for n, device in enumerate(devices):
        device.publish(f"t/{n}", b"%d c" % n)
    served.restart()
    reader = client("reader")
    assert reader.present
    assert sorted(reader.bodies(len(devices))) == sorted(b"%d c" % n for n in range(len(devices)))
    assert reader.messages.empty()


def test_what_was_not_acknowledged_comes_again_from_both_logs(served: Served, client: Connect) -> None:
    reader = client("reader", manual_ack=True)
    reader.subscribe("t/#", 1)
    devices = sends(served, client)
    for n, device in enumerate(devices):
        device.publish(f"t/{n}", b"%d" % n)
    held = [reader.get() for _ in devices]
    for message in held[:4] + held[6:8]:
        reader.paho.ack(message.mid, message.qos)
    reader.subscribe("other/#", 1)  # answered behind the acknowledgements: the gateway has them all
    reader.drop()
    served.restart()
    again = client("reader")
    assert again.present
    missing = {message.payload for message in held[4:6] + held[8:]}
    while missing:
        message = again.get()
        assert message.payload not in {message.payload for message in held[:3]}
        missing.discard(message.payload)


def test_a_group_that_joins_is_heard_by_sessions_that_were_there_and_away(served: Served, client: Connect) -> None:
    here, away = client("here"), client("away")
    for one in (here, away):
        one.subscribe("#", 1)
    away.close()
    device = client("device", clean=True)
    device.publish("old/1", b"old")
    assert here.bodies(1) == [b"old"]
    number = served.add_group()
    devices = sends(served, client)
    for n, one in enumerate(devices):
        one.publish(f"new/{n}", b"%d" % n)
    assert number in groups_of(served, "new")
    expected = sorted(b"%d" % n for n in range(len(devices)))
    assert sorted(here.bodies(len(devices))) == expected
    served.restart()
    back = client("away")
    assert sorted(back.bodies(len(devices) + 1)) == sorted([b"old", *expected])


def test_a_group_out_of_reach_refuses_its_own_and_delays_nobody_else(served: Served, client: Connect) -> None:
    reader = client("reader")
    reader.subscribe("t/#", 1)
    warm = client("warm", clean=True)
    warm.publish("t/warm", b"warm")
    reader.get()
    served.machine.reaches[1].down = True
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port('http')}", timeout=TIMEOUT_S, trust_env=False) as http:
        answers = {n: http.post(f"/topics/t/{n}?key=k{n}", content=b"%d" % n).status_code for n in range(12)}
        assert set(answers.values()) == {201, 503}
        stored = sorted(b"%d" % n for n, status in answers.items() if status == 201)
        assert sorted(reader.bodies(len(stored))) == stored
        served.run(_back(served))
        assert http.post("/topics/t/later", content=b"later").status_code == 201
        refused = [n for n, status in answers.items() if status == 503]
        assert {http.post(f"/topics/t/{n}?key=k{n}", content=b"x").status_code for n in refused} == {201}
    assert sorted(reader.bodies(1 + len(refused))) == sorted([b"later"] + [b"x"] * len(refused))


async def _back(served: Served) -> None:
    served.machine.reaches[1].back()


def test_retained_messages_of_every_group(served: Served, client: Connect) -> None:
    for n, device in enumerate(sends(served, client)):
        device.publish(f"t/{n}", b"%d" % n, retain=True)
    reader = client("late", clean=True)
    reader.subscribe("t/#", 1)
    found = [reader.get() for _ in range(12)]
    assert sorted(message.payload for message in found) == sorted(b"%d" % n for n in range(12))
    assert all(message.retain for message in found)


def amqp(served: Served) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", served.port("amqp"), socket_timeout=TIMEOUT_S)
    )


def take(channel: Any, name: str, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    for method, _, body in channel.consume(name, inactivity_timeout=TIMEOUT_S):
        assert method is not None, f"{len(bodies)} of {count}"
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)
        if len(bodies) == count:
            break
    channel.cancel()
    return bodies


def test_queues_in_other_groups_than_the_topics_they_are_bound_to(served: Served, client: Connect) -> None:
    connection = amqp(served)
    channel = connection.channel()
    names = ["q0", "q1"]
    for name in names:
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "amq.topic", "t.#")
    numbers = [served.run(served.machine.controller.do(NameQueue(name=name))) for name in names]
    assert {one.group for one in numbers} == {0, 1}
    devices = sends(served, client)
    for n, device in enumerate(devices):
        device.publish(f"t/{n}", b"%d" % n)
    expected = sorted(b"%d" % n for n in range(len(devices)))
    assert sorted(take(channel, "q1", len(devices))) == expected
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "t.amqp", b"from amqp", pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "q1", b"to q1 alone", pika.BasicProperties(delivery_mode=2))
    connection.close()
    served.restart()
    connection = amqp(served)
    channel = connection.channel()
    assert sorted(take(channel, "q1", 2)) == [b"from amqp", b"to q1 alone"]
    assert sorted(take(channel, "q0", len(devices) + 1)) == sorted([*expected, b"from amqp"])
    assert [channel.queue_declare(name, passive=True).method.message_count for name in names] == [0, 0]
    channel.queue_delete("q1")
    channel.queue_declare("q1", durable=True)
    assert channel.queue_declare("q1", passive=True).method.message_count == 0
    connection.close()


def test_a_message_for_two_groups_is_not_stored_again_at_each_retry_while_one_is_away(served: Served) -> None:
    connection = amqp(served)
    channel = connection.channel()
    for name in ("q0", "q1"):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "amq.topic", "t.#")
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "t.x", b"before", pika.BasicProperties(delivery_mode=2))
    served.machine.reaches[1].down = True
    for _ in range(25):
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("amq.topic", "t.x", b"again", pika.BasicProperties(delivery_mode=2))
    served.run(_back(served))
    again = b"again"
    while again:  # a refusal makes the proxy ask the group whether it takes messages again
        with contextlib.suppress(pika.exceptions.NackError):
            channel.basic_publish("amq.topic", "t.x", again, pika.BasicProperties(delivery_mode=2))
            again = b""
    channel.basic_publish("amq.topic", "t.x", b"the end", pika.BasicProperties(delivery_mode=2))
    found = take(channel, "q0", channel.queue_declare("q0", passive=True).method.message_count)
    assert (found[0], found[-1]) == (b"before", b"the end")
    assert found.count(b"again") <= 2, "stored in part once, and once whole"
    connection.close()


def test_a_transaction_of_leases_ends_with_its_connection_in_every_group(served: Served) -> None:
    connection = amqp(served)
    channel = connection.channel()
    for name in ("q0", "q1"):
        channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", name, name.encode())
        assert channel.basic_get(name)[2] == name.encode()
    connection.close()
    connection = amqp(served)
    channel = connection.channel()
    for name in ("q0", "q1"):
        assert take(channel, name, 1) == [name.encode()]
    connection.close()


class Events:
    """An event stream, read by a thread."""

    def __init__(self, served: Served, last: str | None = None) -> None:
        self.found: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{served.port('http')}",
            timeout=httpx.Timeout(TIMEOUT_S, read=None),
            trust_env=False,
        )
        headers = {} if last is None else {"last-event-id": last}
        self._stream = self._client.stream("GET", "/subscribe?filter=t/%23", headers=headers)
        self._response = self._stream.__enter__()
        assert self._response.status_code == 200
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        id_ = ""
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError, OSError, ValueError):
            for line in self._response.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    id_ = value
                elif name == "data":
                    self.found.put((id_, str(json.loads(value)["data"]).encode()))

    def get(self, count: int) -> list[tuple[str, bytes]]:
        return [self.found.get(timeout=TIMEOUT_S) for _ in range(count)]

    def close(self) -> None:
        self._response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)
        self._client.close()


def post(served: Served, bodies: range) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port('http')}", timeout=TIMEOUT_S, trust_env=False) as http:
        headers = {"content-type": "application/json"}
        for n in bodies:
            answer = http.post(f"/topics/t/{n % 5}?key=k{n % 7}", content=b"%d" % n, headers=headers)
            assert answer.status_code == 201


def test_an_event_stream_goes_on_exactly_in_every_log(served: Served) -> None:
    post(served, range(3))
    events = Events(served)
    post(served, range(3, 23))
    first = events.get(20)
    assert all(len(id_.split(",")) == 2 for id_, _ in first)
    events.close()
    post(served, range(23, 33))
    served.restart()
    for seen in (0, 7, 19):
        events = Events(served, last=first[seen][0])
        expected = {body for _, body in first[seen + 1 :]} | {b"%d" % n for n in range(23, 33)}
        got = events.get(len(expected))
        assert {body for _, body in got} == expected
        events.close()
    number = served.add_group()
    events = Events(served, last=first[19][0])
    served.run(
        served.machine.controller.do(MoveQueue(number=served.machine.controller.topic("t").open[0], group=number))
    )
    post(served, range(33, 60))
    got = events.get(10 + 27)
    assert sorted(int(body) for _, body in got) == list(range(23, 60))
    assert len(got[-1][0].split(",")) == 3
    events.close()


def test_delayed_messages_of_every_group(served: Served, client: Connect) -> None:
    reader = client("reader")
    reader.subscribe("t/#", 1)
    connection = amqp(served)
    channel = connection.channel()
    for name in ("q0", "q1"):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "amq.topic", "t.#")
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port('http')}", timeout=TIMEOUT_S, trust_env=False) as http:
        soon = [http.post(f"/topics/t/{n}?key=k{n}&delay=1", content=b"%d" % n) for n in range(8)]
        late = [http.post(f"/topics/t/{n}?key=k{n}&delay=3600&retain=true", content=b"no") for n in range(4)]
        assert {answer.status_code for answer in soon + late} == {201}
        timers = [answer.json()["timer"] for answer in late]
        assert all("~" in timer for timer in timers)
        assert {http.delete(f"/timers/{timer}").status_code for timer in timers} == {204}
        assert {http.delete(f"/timers/{timer}").status_code for timer in timers} == {404}
    expected = sorted(b"%d" % n for n in range(8))
    assert sorted(reader.bodies(8)) == expected
    for name in ("q0", "q1"):
        assert sorted(take(channel, name, 8)) == expected
    left = [served.run(reach.timers.entries()) for reach in served.machine.reaches.values()]
    assert left == [[], []]
    connection.close()
