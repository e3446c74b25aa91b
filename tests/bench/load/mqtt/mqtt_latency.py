"""A paced publisher: how long a PUBACK takes when the server has little to do."""

import os
import select
import time
from typing import Annotated

from msgspec import Meta

from tests.bench.load.base import Count, Load, LoadError, Measured, json_payload
from tests.bench.load.mqtt.mqtt_wire import connect, publish, receive, topic
from tests.bench.load.paced import DRAIN_S, LATE_S, paced


class MqttLatency(Load, frozen=True, kw_only=True, tag="mqtt-latency"):
    """Milliseconds from sending a QoS 1 message to reading its PUBACK, on average; also the percentiles."""

    rate: Annotated[float, Meta(gt=0, description="messages a second")] = 1000.0
    duration_s: Annotated[float, Meta(gt=0)] = 10.0
    payload: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        connection = connect(self.host, self.port, f"paced-{os.getpid()}")
        name, payload = topic(1), json_payload(self.payload)
        packets = [publish(name, payload, qos=1, identifier=n + 1) for n in range(65_535)]
        sent_at: dict[int, float] = {}
        taken: list[float] = []
        rest = b""
        total, sent, late = int(self.rate * self.duration_s), 0, 0
        started = time.perf_counter()
        end = started + self.duration_s + DRAIN_S
        while len(taken) < total and (now := time.perf_counter()) < end:
            due = started + sent / self.rate
            if sent < total and now >= due:
                late += now - due > LATE_S
                sent_at[sent % 65_535 + 1] = time.perf_counter()
                connection.sendall(packets[sent % 65_535])
                sent += 1
                continue
            wait_s = (due if sent < total else end) - now
            if select.select([connection], [], [], wait_s)[0]:
                rest += receive(connection)
                now = time.perf_counter()
                whole = len(rest) - len(rest) % 4
                for at in range(0, whole, 4):
                    if rest[at] != 0x40:
                        raise LoadError(f"not only PUBACK came: {rest[at : at + 16].hex()}")
                    taken.append(now - sent_at.pop(rest[at + 2] << 8 | rest[at + 3]))
                rest = rest[whole:]
        connection.close()
        return paced(taken, total=total, late=late, elapsed_s=time.perf_counter() - started)
