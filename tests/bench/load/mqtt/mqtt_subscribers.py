"""Many subscribers of a topic each: a message for each of them, and the next one only when it was delivered."""

import os
import select
import socket
import time
from typing import Annotated

from msgspec import Meta, structs

from tests.bench.load.base import SILENCE_S, Count, Load, LoadError, Measured, json_payload
from tests.bench.load.mqtt.mqtt_wire import connect, packet_size, publish, subscribe, topic
from tests.bench.load.one_each import measured
from tests.bench.procfs import cpu_s

PUBLISH_QOS_1, DUP = 0x32, 0x08  # first bytes of packets (3.3.1)
READY_MAX = 1_024  # sockets of one look


class MqttSubscribers(Load, frozen=True, kw_only=True, tag="mqtt-subscribers"):
    """Deliveries a second to `conns` subscribers at QoS 1, published by one connection at QoS 1.

    Flat out each subscriber gets its next message when it has had the one before. With `each_s` it gets one in so many
    seconds, and the value is the average time from PUBLISH to delivery, in ms.
    """

    conns: Count = 2_000
    duration_s: Count = 5
    payload: Count = 100
    each_s: Annotated[float, Meta(ge=0, description="between two messages of a subscriber; 0: flat out")] = 0.0

    def run(self) -> Measured:
        """See `Load.run`."""
        name = f"subscriber-{os.getpid()}"
        opened = [connect(self.host, self.port, f"{name}-{n}") for n in range(self.conns + 1)]
        try:
            publisher, *subscribers = opened
            for n, one in enumerate(subscribers):
                subscribe(one, topic(n), qos=1)
            return self._drive(publisher, subscribers)
        finally:
            for one in opened:
                one.close()

    def _drive(self, publisher: socket.socket, subscribers: list[socket.socket]) -> Measured:
        payload, clock = json_payload(self.payload), time.perf_counter
        packets = [publish(topic(n), payload, qos=1, identifier=n % 65_535 + 1) for n in range(self.conns)]
        numbers = {one.fileno(): n for n, one in enumerate(subscribers)}
        sent_s, waits = [0.0] * self.conns, []
        due = list(range(self.conns)) if not self.each_s else []
        scheduled = 0  # messages of a pace that were sent
        with select.epoll() as poller:
            for one in (publisher, *subscribers):
                poller.register(one.fileno(), select.EPOLLIN)
            used_s = cpu_s(self.pid) if self.pid else 0.0
            began_s = clock()
            while (now_s := clock()) < began_s + self.duration_s:
                if self.each_s:
                    until = int((now_s - began_s) / self.each_s * self.conns)
                    due += [n % self.conns for n in range(scheduled, until)]
                    scheduled = until
                for n in due:
                    sent_s[n] = now_s
                publisher.sendall(b"".join([packets[n] for n in due]))
                due.clear()
                ready = poller.poll(self.each_s / self.conns if self.each_s else SILENCE_S, READY_MAX)
                if not ready and not self.each_s:
                    raise LoadError(f"nothing came for {SILENCE_S} s")
                for number, _ in ready:
                    if (n := numbers.get(number)) is None:
                        publisher.recv(1 << 16)  # PUBACK packets
                        continue
                    one = subscribers[n]
                    one.send(pubacks(one.recv(1 << 12)))
                    waits.append(clock() - sent_s[n])
                    if not self.each_s:
                        due.append(n)
            elapsed_s = clock() - began_s
        found = measured(waits, elapsed_s, cpu_s(self.pid) - used_s if self.pid else 0.0)
        return structs.replace(found, value=found.also["mean_ms"]) if self.each_s else found


def pubacks(data: bytes) -> bytes:
    """Returns the PUBACK packets of whole PUBLISH packets at QoS 1. Raises `LoadError` for anything else."""
    acknowledgements, at = b"", 0
    while at < len(data):
        size = packet_size(data, at)
        if data[at] & ~DUP != PUBLISH_QOS_1 or not size or at + size > len(data):
            raise LoadError("something else than a PUBLISH at QoS 1 came")
        name = at + (2 if data[at + 1] < 128 else 3)
        end = name + 2 + (data[name] << 8 | data[name + 1])
        acknowledgements += b"\x40\x02" + data[end : end + 2]
        at += size
    if not data:
        raise LoadError("closed by the server")
    return acknowledgements
