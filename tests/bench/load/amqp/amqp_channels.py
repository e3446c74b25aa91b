"""Many AMQP channels, each with one publish that is not confirmed yet."""

import os
import select
import time

from tests.bench.load.amqp.amqp_publish import EXCHANGE
from tests.bench.load.amqp.amqp_wire import (
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    SELECT,
    SELECT_OK,
    ChannelAcks,
    Session,
    message,
    short,
)
from tests.bench.load.base import SILENCE_S, Count, Load, LoadError, Measured, json_payload
from tests.bench.load.one_each import measured
from tests.bench.procfs import cpu_s


class AmqpChannels(Load, frozen=True, kw_only=True, tag="amqp-channels"):
    """Confirms a second, of `conns` connections with `channels` channels each, and one message of each under way.

    Persistent messages to a durable queue; the next of a channel leaves when the one before is confirmed.
    """

    conns: Count = 10
    channels: Count = 50  # of each connection
    duration_s: Count = 5
    payload: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        queue = f"load-{os.getpid()}"
        key = f"telemetry.{queue}"
        sessions = [Session(self.host, self.port) for _ in range(self.conns)]
        keeper = Session(self.host, self.port)
        keeper.declare(queue, exchange=EXCHANGE, routing_key=key)
        try:
            for session in sessions:
                for channel in range(1, self.channels + 1):
                    if channel > 1:
                        session.call(CHANNEL_OPEN, short(""), CHANNEL_OPEN_OK, channel)
                    session.call(SELECT, b"\0", SELECT_OK, channel)
            body = json_payload(self.payload)
            return self._drive(
                sessions, [message(EXCHANGE, key, body, channel=channel) for channel in range(self.channels + 1)]
            )
        finally:
            for session in sessions:
                session.close()
            keeper.delete(queue)
            keeper.close()

    def _drive(self, sessions: list[Session], messages: list[bytes]) -> Measured:
        clock, waits = time.perf_counter, []
        with select.epoll() as poller:
            readers = {one.socket.fileno(): ChannelAcks(one) for one in sessions}
            used_s = cpu_s(self.pid) if self.pid else 0.0
            sent_s = {number: [clock()] * len(messages) for number in readers}
            for number, reader in readers.items():
                poller.register(number, select.EPOLLIN)
                reader.session.socket.sendall(b"".join(messages[1:]))
            began_s = clock()
            ends_s = began_s + self.duration_s
            while clock() < ends_s:
                ready = poller.poll(SILENCE_S)
                if not ready:
                    raise LoadError(f"nothing came for {SILENCE_S} s")
                for number, _ in ready:
                    reader, since_s = readers[number], sent_s[number]
                    acknowledged = reader.read()
                    now_s = clock()
                    for channel in acknowledged:
                        waits.append(now_s - since_s[channel])
                        since_s[channel] = now_s
                    reader.session.socket.sendall(b"".join([messages[channel] for channel in acknowledged]))
            elapsed_s = clock() - began_s
        return measured(waits, elapsed_s, cpu_s(self.pid) - used_s if self.pid else 0.0)
