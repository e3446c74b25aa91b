"""kombu, and a Celery worker: groups, chords, retries, tasks for later and their revocation."""

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery, group
from celery.exceptions import TaskRevokedError
from kombu.mixins import ConsumerMixin

from tests.support.amqp import celery_app
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 60
ROOT = Path(__file__).resolve().parents[3]


def url(gateway: Any) -> str:
    return f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}//"


# ---- kombu


@pytest.fixture
def connection(shared_gateway: Any) -> Iterator[kombu.Connection]:
    with kombu.Connection(url(shared_gateway), transport_options={"confirm_publish": True}) as connection:
        yield connection


def test_kombu_publishes_with_confirms_and_consumes_with_acknowledgements(connection):
    exchange = kombu.Exchange("kombu-tests", type="topic", durable=True)
    queues = [
        kombu.Queue("kombu-tests-all", exchange, routing_key="#", channel=connection),
        kombu.Queue("kombu-tests-some", exchange, routing_key="a.*", channel=connection),
    ]
    came: queue.Queue[tuple[str, Any, Any]] = queue.Queue()

    def received(body: Any, message: kombu.Message) -> None:
        if not message.delivery_info["redelivered"] and body == {"n": 1}:
            message.requeue()
            return
        message.ack()
        came.put((message.delivery_info["routing_key"], body, message.headers))

    for one in queues:
        one.declare()
        one.purge()
    producer = connection.Producer(serializer="json")
    for number, key in enumerate(("a.b", "c", "a.d")):
        producer.publish(
            {"n": number},
            exchange=exchange,
            routing_key=key,
            declare=[exchange],
            retry=True,
            compression="zlib",
            headers={"nested": {"n": [number]}},
        )
    with connection.Consumer(queues, callbacks=[received], prefetch_count=1):
        while came.qsize() < 5:
            connection.drain_events(timeout=PATIENCE_S)
    found = [came.get_nowait() for _ in range(5)]
    assert sorted((key, body["n"]) for key, body, _ in found) == [
        ("a.b", 0),
        ("a.b", 0),
        ("a.d", 2),
        ("a.d", 2),
        ("c", 1),
    ]
    assert all(headers["nested"] == {"n": [body["n"]]} for _, body, headers in found)
    for one in queues:
        one.delete()


def test_kombus_simple_queue_and_its_empty_answer(connection):
    with connection.SimpleQueue("kombu-tests-simple") as simple:
        simple.clear()
        for number in range(3):
            simple.put({"n": number})
        for number in range(3):
            message = simple.get(timeout=PATIENCE_S)
            assert message.payload == {"n": number}
            message.ack()
        with pytest.raises(simple.Empty):
            simple.get(block=False)
    kombu.Queue("kombu-tests-simple", channel=connection).delete()


def test_a_consumer_of_kombu_goes_on_when_the_gateway_was_killed(new_gateway):
    gateway = new_gateway().start()
    work = kombu.Queue("kombu-tests-lasting", durable=True)

    class Worker(ConsumerMixin):
        connect_max_retries = 600

        def __init__(self, connection: kombu.Connection) -> None:
            self.connection = connection
            self.found: list[Any] = []

        def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:  # noqa: N803 - kombu's interface
            return [Consumer([work], callbacks=[self.received])]

        def received(self, body: Any, message: kombu.Message) -> None:
            message.ack()
            self.found.append(body)
            self.should_stop = body == "after"

        def hear(self) -> None:
            """Consumes one message; raises `TimeoutError` where none comes."""
            consuming = self.consume(timeout=PATIENCE_S)
            next(consuming)
            consuming.close()

    def publish(body: str) -> None:
        with kombu.Connection(url(gateway), transport_options={"confirm_publish": True}) as connection:
            connection.Producer().publish(
                body, routing_key=work.name, declare=[work], delivery_mode=2, confirm_timeout=PATIENCE_S
            )

    publish("before")
    with kombu.Connection(url(gateway)) as connection:
        worker = Worker(connection)
        worker.hear()
        gateway.kill()
        gateway.start()
        publish("after")
        while not worker.should_stop:  # `before` comes again if its acknowledgement was not stored
            worker.hear()
        assert worker.found[-1] == "after"


# ---- Celery


class Worker:
    """A worker process, and the application that sends it tasks."""

    def __init__(self, gateway: Any, directory: Path) -> None:
        results = directory / "results"
        results.mkdir()
        self.app: Celery = celery_app.connected(url(gateway), f"file://{results}")
        self._environ = {
            **os.environ,
            "HEADGATE_TESTS_BROKER": url(gateway),
            "HEADGATE_TESTS_RESULTS": f"file://{results}",
        }
        self._log = directory / "worker.log"
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Starts the worker, and waits until it answers."""
        command = [sys.executable, "-m", "celery", "-A", "tests.support.amqp.celery_app", "worker"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--pool=threads", "--concurrency=2", "--loglevel=WARNING"],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self._environ,
            )
        wait_until(lambda: self.app.control.ping(timeout=1, limit=1), "the worker does not answer")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self.app.close()


@pytest.fixture(scope="module")
def worker(shared_gateway: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    one = Worker(shared_gateway, tmp_path_factory.mktemp("celery"))
    one.start()
    yield one
    one.close()


def test_tasks_groups_and_chords(worker):
    assert celery_app.add.delay(1, 2).get(PATIENCE_S) == 3
    found = group([celery_app.add.s(number, 1) for number in range(20)])().get(PATIENCE_S)
    assert found == list(range(1, 21))
    assert celery_app.sums(10)().get(PATIENCE_S) == 90
    assert (celery_app.add.s(1, 2) | celery_app.add.s(3))().get(PATIENCE_S) == 6


def test_a_task_is_retried(worker):
    assert celery_app.works_at_last.delay().get(PATIENCE_S) == 2


def test_a_task_for_later_comes_later_and_one_that_is_revoked_never(worker):
    began = time.monotonic()
    later = celery_app.add.apply_async((1, 1), countdown=1)
    never = celery_app.add.apply_async((2, 2), countdown=2)
    worker.app.control.revoke(never.id)
    assert later.get(PATIENCE_S) == 2
    assert time.monotonic() - began >= 1
    with pytest.raises(TaskRevokedError):
        never.get(PATIENCE_S)


def test_what_a_worker_tells_of_itself(worker):
    (name,) = {name for one in worker.app.control.ping(timeout=PATIENCE_S, limit=1) for name in one}
    inspected = worker.app.control.inspect(timeout=PATIENCE_S, limit=1)
    assert [one["name"] for one in inspected.active_queues()[name]] == ["celery-tests"]
    assert name.endswith(socket.gethostname())


def test_a_task_of_a_worker_that_was_killed_is_done_by_the_next(worker):
    worker.kill()
    waiting = [celery_app.add.delay(number, 0) for number in range(5)]
    worker.start()
    assert [one.get(PATIENCE_S) for one in waiting] == list(range(5))


def test_a_worker_with_more_tasks_for_later_than_it_prefetches_goes_on(worker):
    later = [celery_app.add.apply_async((number, 0), countdown=3_600) for number in range(6)]  # and it prefetches 2
    assert celery_app.add.delay(1, 2).get(PATIENCE_S) == 3
    assert not any(one.ready() for one in later)
