"""A paced publisher and a consumer: how long a message takes from one to the other when the server has little to do."""

import os
import select
import time
from typing import Annotated

from msgspec import Meta

from tests.bench.load.amqp.amqp_publish import EXCHANGE
from tests.bench.load.amqp.amqp_wire import Session, message
from tests.bench.load.base import Count, Load, Measured, json_payload
from tests.bench.load.paced import DRAIN_S, LATE_S, paced

PREFETCH = 500


class AmqpLatency(Load, frozen=True, kw_only=True, tag="amqp-latency"):
    """Milliseconds from sending a persistent message to its delivery, on average; also the percentiles.

    One connection publishes with confirms, another one consumes and acknowledges. A queue with one consumer keeps its
    order, so the nth delivery is of the nth message.
    """

    rate: Annotated[float, Meta(gt=0, description="messages a second")] = 1000.0
    duration_s: Annotated[float, Meta(gt=0)] = 10.0
    payload: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        queue = f"load-{os.getpid()}"
        publisher, consumer = Session(self.host, self.port), Session(self.host, self.port)
        publisher.declare(queue, exchange=EXCHANGE, routing_key=f"telemetry.{queue}")
        try:
            publisher.confirm()
            consumer.consume(queue, prefetch=PREFETCH)
            return self._drive(publisher, consumer, message(EXCHANGE, f"telemetry.{queue}", json_payload(self.payload)))
        finally:
            consumer.close()
            publisher.delete(queue)
            publisher.close()

    def _drive(self, publisher: Session, consumer: Session, packet: bytes) -> Measured:
        sent_s: list[float] = []
        taken_s: list[float] = []
        total, late = int(self.rate * self.duration_s), 0
        started = time.perf_counter()
        end = started + self.duration_s + DRAIN_S
        while len(taken_s) < total and (now := time.perf_counter()) < end:
            due = started + len(sent_s) / self.rate
            if len(sent_s) < total and now >= due:
                late += now - due > LATE_S
                sent_s.append(time.perf_counter())
                publisher.socket.sendall(packet)
                continue
            wait_s = (due if len(sent_s) < total else end) - now
            ready, _, _ = select.select([consumer.socket, publisher.socket], [], [], wait_s)
            if consumer.socket in ready:
                count, tag = consumer.deliveries()
                now = time.perf_counter()
                if count:
                    taken_s += [now - sent_s[at] for at in range(len(taken_s), len(taken_s) + count)]
                    consumer.acknowledge(tag)
            if publisher.socket in ready:
                publisher.methods()
        return paced(taken_s, total=total, late=late, elapsed_s=time.perf_counter() - started)
