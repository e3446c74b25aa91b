"""Times delivery and confirm of persistent AMQP messages while every sync of the server is slow. Prints JSON.

python -m tests.bench.gateway.slow_sync [--delay-ms 500] [--messages 20]

strace(1) holds every fsync(2) and fdatasync(2) of the server back, so whatever waits for the disk takes as long. One
message at a time goes to a durable queue, whose consumer acknowledges by itself (`acknowledged`), leaves deliveries
unacknowledged (`kept`) or takes what needs no acknowledgement (`automatic`).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import which

import pika

from tests.support.amqp.rabbitmq import MISSING, RabbitMQ
from tests.support.process.gateways import GatewayProcess

CONSUMERS = ("acknowledged", "kept", "automatic")
WAIT_S = 60.0


@contextmanager
def slow_syncs(pid: int, delay_ms: int) -> Iterator[None]:
    """Holds the syncs of a process back while the block runs. Raises `RuntimeError` when strace does not begin."""
    tracer = subprocess.Popen(
        [
            *("strace", "--follow-forks", f"--attach={pid}", "--output=/dev/null"),
            *("--trace=fsync,fdatasync", f"--inject=fsync,fdatasync:delay_enter={delay_ms}ms"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = tracer.stderr.readline() if tracer.stderr else ""
        if "attached" not in said:
            raise RuntimeError(f"strace: {said.strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.wait()


class Consumer(threading.Thread):
    """Takes the messages of a queue, and notes when each came."""

    def __init__(self, port: int, queue: str, kind: str) -> None:
        super().__init__(daemon=True)
        self._channel = pika.BlockingConnection(_parameters(port)).channel()
        self._queue, self._kind = queue, kind
        self._came: dict[bytes, float] = {}
        self._news = threading.Condition()

    def run(self) -> None:
        """Takes messages until the server ends."""
        with suppress(pika.exceptions.AMQPError):
            for method, _, body in self._channel.consume(self._queue, auto_ack=self._kind == "automatic"):
                with self._news:
                    self._came[body] = time.monotonic()
                    self._news.notify_all()
                if self._kind == "acknowledged":
                    self._channel.basic_ack(method.delivery_tag)

    def came_s(self, body: bytes) -> float:
        """Returns when a message came. Raises `TimeoutError`."""
        with self._news:
            if not self._news.wait_for(lambda: body in self._came, WAIT_S):
                raise TimeoutError(f"message {body!r} was not delivered within {WAIT_S:.0f} s")
            return self._came[body]


def measure(port: int, name: str, messages: int) -> dict[str, dict[str, float]]:
    """Returns the medians in ms from publish to delivery and to confirm, by kind of consumer.

    The names of the queues begin with `name`.
    """
    found = {}
    for kind in CONSUMERS:
        channel = pika.BlockingConnection(_parameters(port)).channel()
        queue = f"{name}-{kind}"
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        consumer = Consumer(port, queue, kind)
        consumer.start()
        delivered, confirmed = [], []
        for number in range(messages):
            body = b"%d" % number
            begin_s = time.monotonic()
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
            confirmed.append(time.monotonic() - begin_s)
            delivered.append(consumer.came_s(body) - begin_s)
        found[kind] = {"delivered_ms": _median_ms(delivered), "confirmed_ms": _median_ms(confirmed)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=int, default=500)
    parser.add_argument("--messages", type=int, default=20)
    said = parser.parse_args()
    if which("strace") is None:
        sys.exit("python -m tests.bench slow-sync: strace is not installed")
    found: dict[str, object] = {"delay_ms": said.delay_ms, "messages": said.messages}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        gateway = GatewayProcess(Path(directory, "data")).start()
        stack.callback(gateway.close)
        servers = {"headgate": (gateway.process.pid, gateway.port("amqp"))}
        if not MISSING:
            rabbitmq = RabbitMQ(Path(directory)).start()
            stack.callback(rabbitmq.close)
            servers["rabbitmq"] = (rabbitmq.pid, rabbitmq.port)
        for name, (pid, port) in servers.items():
            plain = measure(port, "plain", said.messages)
            with slow_syncs(pid, said.delay_ms):
                found[name] = {"plain": plain, "slow": measure(port, "slow", said.messages)}
    print(json.dumps(found, indent=1))


def _parameters(port: int) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)


def _median_ms(times_s: list[float]) -> float:
    return round(statistics.median(times_s) * 1000, 1)


if __name__ == "__main__":
    main()
