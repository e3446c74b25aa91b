"""Persistent messages to a fanout exchange that many durable queues are bound to, with publisher confirms."""

import os

from tests.bench.load.amqp.amqp_publish import AmqpPublish
from tests.bench.load.amqp.amqp_wire import (
    BIND,
    BIND_OK,
    DECLARE,
    DECLARE_OK,
    DELETE,
    DELETE_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    NO_ARGUMENTS,
    Session,
    binding,
    declaration,
    deletion,
    method,
    short,
)
from tests.bench.load.base import Count, Load, Measured


class AmqpFanout(Load, frozen=True, kw_only=True, tag="amqp-fanout"):
    """Messages put into queues a second, from the first byte sent to the last confirm: each counts once a queue."""

    count: Count = 1_000
    queues: Count = 100
    window: Count = 100
    payload: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        exchange = f"load-{os.getpid()}"
        names = [f"{exchange}-{number}" for number in range(self.queues)]
        session = Session(self.host, self.port)
        kind = b"\0\0" + short(exchange) + short("fanout") + b"\x02" + NO_ARGUMENTS
        session.call(EXCHANGE_DECLARE, kind, EXCHANGE_DECLARE_OK)
        session.ask([method(DECLARE, declaration(name)) for name in names], DECLARE_OK)
        session.ask([method(BIND, binding(name, exchange, "")) for name in names], BIND_OK)
        try:
            publishing = AmqpPublish(count=self.count, window=self.window, payload=self.payload)
            done = publishing.publish([session], "", exchange=exchange)
        finally:
            session.ask([method(DELETE, deletion(name)) for name in names], DELETE_OK)
            session.call(EXCHANGE_DELETE, b"\0\0" + short(exchange) + b"\0", EXCHANGE_DELETE_OK)
            session.close()
        return Measured(
            value=done.value * self.queues,
            elapsed_s=done.elapsed_s,
            done=done.done,
            failed=done.failed,
            also={"messages_per_s": done.value},
        )
