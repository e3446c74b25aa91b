"""Messages that a consumer rejects, on their way to the queue of dead letters."""

import os
import struct
import time
from typing import Annotated

from msgspec import Meta

from tests.bench.load.amqp.amqp_publish import AmqpPublish
from tests.bench.load.amqp.amqp_wire import DECLARE, DECLARE_OK, Session, declaration, long, short
from tests.bench.load.base import Count, Load, LoadError, Measured

END_S = 60.0  # for the dead letters behind the last rejection
LOOK_S = 0.005


class AmqpDeadLetters(Load, frozen=True, kw_only=True, tag="amqp-dead-letters"):
    """Dead letters a second, from the first basic.consume until all are in the queue for them.

    A durable queue was filled before; its only consumer rejects everything by the half prefetch.
    """

    count: Count = 20_000
    prefetch: Annotated[int, Meta(ge=2, le=65_535)] = 500
    payload: Annotated[int, Meta(ge=1, description="bytes")] = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        queue, dead = f"load-{os.getpid()}", f"load-{os.getpid()}-dead"
        session, reader = Session(self.host, self.port), Session(self.host, self.port)
        fields = b"".join(
            short(name) + b"S" + long(value)
            for name, value in (("x-dead-letter-exchange", b""), ("x-dead-letter-routing-key", dead.encode()))
        )
        session.call(DECLARE, declaration(dead), DECLARE_OK)
        session.call(DECLARE, declaration(queue, struct.pack("!I", len(fields)) + fields), DECLARE_OK)
        try:
            filled = AmqpPublish(count=self.count, payload=self.payload).publish([session], queue, exchange="").done
            return self._reject(session, reader, queue, dead, filled)
        finally:
            reader.close()
            session.delete(queue)
            session.delete(dead)
            session.close()

    def _reject(self, session: Session, reader: Session, queue: str, dead: str, total: int) -> Measured:
        began_s = time.perf_counter()
        reader.consume(queue, prefetch=self.prefetch)
        seen = rejected = tag = 0
        while seen < total:
            count, newest = reader.deliveries()
            seen, tag = seen + count, newest or tag
            if tag - rejected >= self.prefetch // 2 or seen == total:
                reader.reject(tag)
                rejected = tag
        while (done := session.count(dead)) < total:
            if time.perf_counter() - began_s > END_S:
                raise LoadError(f"{done} of {total} dead letters came within {END_S:g} s")
            time.sleep(LOOK_S)
        elapsed_s = time.perf_counter() - began_s
        return Measured(value=total / elapsed_s, elapsed_s=elapsed_s, done=total)
