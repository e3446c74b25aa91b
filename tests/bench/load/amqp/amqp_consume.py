"""Consuming a queue that was filled before, acknowledging everything."""

import os
import time
from typing import Annotated

from msgspec import Meta

from tests.bench.load.amqp.amqp_publish import EXCHANGE, AmqpPublish
from tests.bench.load.amqp.amqp_wire import Session
from tests.bench.load.base import Count, Load, Measured, Silence, together

QUIET_S = 10  # without a single delivery: the rest is lost


class AmqpConsume(Load, frozen=True, kw_only=True, tag="amqp-consume"):
    """Deliveries a second, from the first basic.consume to the last delivery, acknowledged by the half prefetch."""

    count: Count = 50_000
    conns: Count = 2
    prefetch: Annotated[int, Meta(ge=2, le=65_535)] = 500
    payload: Annotated[int, Meta(ge=1, description="bytes")] = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        queue = f"load-{os.getpid()}"
        sessions = [Session(self.host, self.port) for _ in range(self.conns)]
        sessions[0].declare(queue, exchange=EXCHANGE, routing_key=f"telemetry.{queue}")
        try:
            fill = AmqpPublish(count=self.count, payload=self.payload)
            publisher = Session(self.host, self.port)
            filled = fill.publish([publisher], f"telemetry.{queue}").done
            publisher.close()
            done, elapsed_s = self._consume(sessions, queue, filled)
        finally:
            for one in sessions:
                one.close()
            last = Session(self.host, self.port)
            last.delete(queue)
            last.close()
        return Measured(value=done / elapsed_s, elapsed_s=elapsed_s, done=done, failed=filled - done)

    def _consume(self, sessions: list[Session], queue: str, total: int) -> tuple[int, float]:
        """Consumes until all sessions together have everything; each of them may receive any part of it."""
        counts = [0] * len(sessions)
        last_at = [0.0] * len(sessions)

        def work(one: tuple[int, Session]) -> int:
            number, session = one
            tag = acknowledged = silent_s = 0
            session.socket.settimeout(1.0)
            session.consume(queue, prefetch=self.prefetch)
            while sum(counts) < total and silent_s < QUIET_S:
                try:
                    count, newest = session.deliveries()
                except Silence:
                    silent_s += 1
                    continue
                silent_s = 0
                if count:
                    counts[number] += count
                    tag = newest
                    last_at[number] = time.perf_counter()
                if tag - acknowledged >= self.prefetch // 2:
                    session.acknowledge(tag)
                    acknowledged = tag
            if tag > acknowledged:
                session.acknowledge(tag)
            return counts[number]

        started = time.perf_counter()
        done, _ = together(work, list(enumerate(sessions)))
        return done, max(last_at) - started
