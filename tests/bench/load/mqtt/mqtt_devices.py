"""Many devices, each with one message under way: the next PUBLISH leaves when the PUBACK of the one before has come."""

import os
import select
import socket
import time

from tests.bench.load.base import SILENCE_S, Count, Load, LoadError, Measured, json_payload, percentile
from tests.bench.load.mqtt.mqtt_wire import connect, publish, topic

PUBACK_BYTES = 4  # of MQTT 3.1.1 (3.4)
READY_MAX = 1_024  # sockets of one look


class MqttDevices(Load, frozen=True, kw_only=True, tag="mqtt-devices"):
    """PUBACKs a second at QoS 1, of `conns` connections with one message under way each, from one process.

    Reads and writes sockets as epoll names them, so one core of Python sets its own limit, near 160,000 a second.
    """

    conns: Count = 500
    duration_s: Count = 5
    payload: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        payload = json_payload(self.payload)
        sockets = [connect(self.host, self.port, f"device-{os.getpid()}-{n}") for n in range(self.conns)]
        try:
            return self._drive(
                {
                    one.fileno(): (one, publish(topic(n), payload, qos=1, identifier=n % 65_535 + 1))
                    for n, one in enumerate(sockets)
                }
            )
        finally:
            for one in sockets:
                one.close()

    def _drive(self, devices: dict[int, tuple[socket.socket, bytes]]) -> Measured:
        clock, done, waits, sent_s = time.perf_counter, 0, [], {}
        with select.epoll() as poller:
            for number, (one, packet) in devices.items():
                one.setblocking(False)
                poller.register(number, select.EPOLLIN)
                sent_s[number] = clock()
                one.send(packet)
            began_s = clock()
            ends_s = began_s + self.duration_s
            while (now_s := clock()) < ends_s:
                ready = poller.poll(SILENCE_S, READY_MAX)
                if not ready:
                    raise LoadError(f"nothing came for {SILENCE_S} s")
                for number, _ in ready:
                    one, packet = devices[number]
                    if len(one.recv(64)) != PUBACK_BYTES:
                        raise LoadError("something else than a PUBACK came")
                    now_s = clock()
                    waits.append(now_s - sent_s[number])
                    sent_s[number] = now_s
                    one.send(packet)
                    done += 1
            elapsed_s = clock() - began_s
        waits.sort()
        also = {
            "mean_ms": sum(waits) / len(waits) * 1000,
            "p99_ms": percentile(waits, 0.99) * 1000,
            "max_ms": waits[-1] * 1000,
        }
        return Measured(value=done / elapsed_s, elapsed_s=elapsed_s, done=done, also=also)
