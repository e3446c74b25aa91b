"""Persistent messages to a durable queue, with publisher confirms."""

import os
from typing import Annotated

from msgspec import Meta

from tests.bench.load.amqp.amqp_wire import Confirms, Session, message
from tests.bench.load.base import Count, Load, Measured, json_payload, together

EXCHANGE = "amq.topic"


class AmqpPublish(Load, frozen=True, kw_only=True, tag="amqp-publish"):
    """Messages a second, from the first byte sent to the last confirm."""

    count: Count = 50_000
    conns: Count = 2
    window: Annotated[int, Meta(ge=2, description="messages without a confirm, of one connection")] = 400
    payload: Annotated[int, Meta(ge=1, description="bytes")] = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        queue = f"load-{os.getpid()}"
        sessions = [Session(self.host, self.port) for _ in range(self.conns)]
        sessions[0].declare(queue, exchange=EXCHANGE, routing_key=f"telemetry.{queue}")
        try:
            return self.publish(sessions, f"telemetry.{queue}")
        finally:
            sessions[0].delete(queue)
            for one in sessions:
                one.close()

    def publish(self, sessions: list[Session], routing_key: str, *, exchange: str = EXCHANGE) -> Measured:
        """Publishes `count` messages, in whole half windows, over all sessions."""
        half = self.window // 2
        block = message(exchange, routing_key, json_payload(self.payload)) * half
        total = max(1, self.count // len(sessions) // half) * half
        refused: list[int] = []

        def work(session: Session) -> int:
            session.confirm()
            confirms, sent = Confirms(), 0
            while confirms.answered < total:
                while sent < total and sent - confirms.answered <= half:
                    session.socket.sendall(block)
                    sent += half
                for name, arguments in session.methods():
                    confirms.take(name, arguments)
            refused.append(confirms.nacked)
            return total - confirms.nacked

        done, elapsed_s = together(work, sessions)
        return Measured(value=done / elapsed_s, elapsed_s=elapsed_s, done=done, failed=sum(refused))
