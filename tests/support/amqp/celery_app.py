"""A Celery application for tests; its worker is a process of its own, with the broker that the environment names."""

import os
from typing import Any

from celery import Celery, chord

app = Celery(
    "headgate-tests",
    broker=os.environ.get("HEADGATE_TESTS_BROKER", "memory://"),
    backend=os.environ.get("HEADGATE_TESTS_RESULTS"),
)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    result_chord_retry_interval=0.1,
    task_default_queue="celery-tests",
)


@app.task
def add(one: int, other: int) -> int:
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def works_at_last(self: Any) -> int:
    """Fails twice, and is retried."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


def sums(count: int) -> Any:
    """Returns a chord: `count` sums in parallel, and their total."""
    return chord([add.s(number, number) for number in range(count)], total.s())


def connected(broker: str, results: str) -> Celery:
    """Returns the application in the process that asks, with a broker of its own choice."""
    app.conf.update(broker_url=broker, result_backend=results)
    return app
