"""AMQP connections, channels and queues that are opened, and the memory that each takes while it is idle."""

import os
import time
from typing import Literal

from tests.bench.load.amqp.amqp_wire import (
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    DECLARE,
    DECLARE_OK,
    Session,
    declaration,
    method,
    short,
)
from tests.bench.load.base import Count, Load, Measured, together
from tests.bench.procfs import rss_kib

AT_ONCE = 8  # connections that are being opened
CHANNELS = 1_000  # of a connection
SETTLE_S = 1.0  # behind the last answer, before memory is read


class AmqpOpen(Load, frozen=True, kw_only=True, tag="amqp-open"):
    """Connections, channels or queues that are opened a second.

    Also the resident memory of the server for each, while all are there and idle.
    """

    what: Literal["connections", "channels", "queues"] = "connections"
    count: Count = 2_000

    def run(self) -> Measured:
        """See `Load.run`."""
        with_first = Session(self.host, self.port)  # the cost of the first one is no part of the figure
        before_kib = rss_kib(self.pid) if self.pid else 0
        sessions: list[Session] = []
        try:
            elapsed_s = getattr(self, f"_{self.what}")(sessions)
            time.sleep(SETTLE_S)
            each_kib = ((rss_kib(self.pid) if self.pid else 0) - before_kib) / self.count
        finally:
            for one in sessions:
                one.close()
            with_first.close()
        value = self.count / elapsed_s
        return Measured(value=value, elapsed_s=elapsed_s, done=self.count, also={"each_kib": each_kib})

    def _connections(self, sessions: list[Session]) -> float:
        def work(count: int) -> int:
            sessions.extend(Session(self.host, self.port) for _ in range(count))
            return count

        share, more = divmod(self.count, AT_ONCE)
        _, elapsed_s = together(work, [share + (n < more) for n in range(AT_ONCE)])
        return elapsed_s

    def _channels(self, sessions: list[Session]) -> float:
        elapsed_s = 0.0
        for first in range(0, self.count, CHANNELS):
            session = Session(self.host, self.port)
            sessions.append(session)
            numbers = range(2, 2 + min(CHANNELS, self.count - first))
            opens = [method(CHANNEL_OPEN, short(""), number) for number in numbers]
            elapsed_s += session.ask(opens, CHANNEL_OPEN_OK)
        return elapsed_s

    def _queues(self, sessions: list[Session]) -> float:
        session = Session(self.host, self.port)
        sessions.append(session)
        names = [f"load-{os.getpid()}-{number}" for number in range(self.count)]
        return session.ask([method(DECLARE, declaration(name)) for name in names], DECLARE_OK)
