"""Messages for later through a whole gateway: published over HTTP, delivered to all protocols, across kill -9."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pika
import pytest

from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow


def value_of(gateway: Any, address: str) -> bytes | None:
    answer = httpx.get(f"{gateway.url}/topics/{address}", trust_env=False)
    return answer.content if answer.status_code == 200 else None


def publish(gateway: Any, address: str, body: bytes, **query: Any) -> dict[str, Any]:
    answer = httpx.post(f"{gateway.url}/topics/{address}", content=body, params=query, trust_env=False)
    assert answer.status_code == 201
    return answer.json()


def parameters(gateway: Any) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"))


def test_it_comes_at_its_time_and_can_be_called_off(shared_gateway: Any) -> None:
    sent = time.time()
    receipt = publish(shared_gateway, "later/1", b"now and then", delay=1)
    called_off = publish(shared_gateway, "later/2", b"never", delay=3)
    assert receipt["position"] is None
    url = f"{shared_gateway.url}/timers/{called_off['timer']}"
    assert httpx.delete(url, trust_env=False).status_code == 204
    assert httpx.delete(url, trust_env=False).status_code == 404
    publish(shared_gateway, "later/4", b"behind it", delay=3)
    assert wait_until(lambda: value_of(shared_gateway, "later/1")) == b"now and then"
    assert time.time() - sent >= 1
    assert wait_until(lambda: value_of(shared_gateway, "later/4")) == b"behind it"
    assert value_of(shared_gateway, "later/2") is None
    far = httpx.post(f"{shared_gateway.url}/topics/later/3?delay=100000000", content=b"", trust_env=False)
    assert far.status_code == 400


def test_a_named_queue_gets_it_and_its_consumer_is_woken(shared_gateway: Any) -> None:
    with pika.BlockingConnection(parameters(shared_gateway)) as connection:
        channel = connection.channel()
        channel.queue_declare("later-q")
        got: list[bytes] = []
        channel.basic_consume("later-q", lambda *parts: got.append(parts[3]), auto_ack=True)
        channel.basic_publish("", "later-q", b"later", pika.BasicProperties(headers={"x-delay": 300}))
        channel.basic_publish("", "later-q", b"first")
        deadline = time.monotonic() + 20
        while len(got) < 2 and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        assert got == [b"first", b"later"]
        channel.queue_delete("later-q")


def test_killed_and_started_again_it_comes_once(new_gateway: Callable[..., Any]) -> None:
    gateway = new_gateway().start()
    with pika.BlockingConnection(parameters(gateway)) as connection:
        connection.channel().queue_declare("once", durable=True)
        connection.channel().queue_bind("once", "amq.topic", "once.#")
    for n in range(3):
        publish(gateway, f"once/{n}", b"%d" % n, delay=1, retain="true")
    gateway.kill()
    time.sleep(1.2)  # they become due while nothing runs
    gateway.start()
    assert wait_until(lambda: value_of(gateway, "once/2")) == b"2"
    gateway.kill()
    gateway.start()
    with pika.BlockingConnection(parameters(gateway)) as connection:
        channel = connection.channel()
        bodies = [body for _, _, body in iter(lambda: channel.basic_get("once", auto_ack=True), (None, None, None))]
    assert bodies == [b"0", b"1", b"2"]
