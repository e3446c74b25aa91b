"""A durable session that was offline while others published: how fast it gets, at QoS 1, what it has missed."""

import os
import socket
import time
from collections.abc import Iterator

import numpy as np

from tests.bench.load.base import LoadError, Measured
from tests.bench.load.mqtt.mqtt_publish import MqttPublish
from tests.bench.load.mqtt.mqtt_wire import connect, packet_size, receive, subscribe

FILTER = b"telemetry/#"
RECEIVE_BYTES = 1 << 20
PUBACK = 0x40
QOS_1 = 0x32


class MqttCatchUp(MqttPublish, frozen=True, kw_only=True, tag="mqtt-catch-up"):
    """Messages a second, from the CONNECT that resumes the session to the last message, each acknowledged."""

    def run(self) -> Measured:
        """See `Load.run`."""
        client_id = f"offline-{os.getpid()}"
        with connect(self.host, self.port, client_id, clean=False) as away:
            subscribe(away, FILTER, qos=1)
            away.sendall(b"\xe0\x00")
        published, publishing_s = self.publish()
        started = time.perf_counter()
        with connect(self.host, self.port, client_id, clean=False) as back:
            firsts = self._taken(back, published)
            elapsed_s = time.perf_counter() - started
            back.sendall(b"\xe0\x00")
        with connect(self.host, self.port, client_id):
            pass  # a clean session ends this one
        also = {"published_per_s": published / publishing_s, "first_ms": (firsts - started) * 1e3}
        return Measured(value=published / elapsed_s, elapsed_s=elapsed_s, done=published, also=also)

    @staticmethod
    def _taken(connection: socket.socket, count: int) -> float:
        """Reads and acknowledges this many messages, and returns when the first one came."""
        first_s = 0.0
        for data, size in _alike(connection):
            first_s = first_s or time.perf_counter()
            packets = np.frombuffer(data, np.uint8).reshape(-1, size)
            topic = 2 if size < 130 else 3  # behind the remaining length (2.1.4)
            identifier = topic + 2 + int(packets[0, topic]) * 256 + int(packets[0, topic + 1])
            acks = np.empty((len(packets), 4), np.uint8)
            acks[:, 0], acks[:, 1], acks[:, 2:] = PUBACK, 2, packets[:, identifier : identifier + 2]
            connection.sendall(acks.tobytes())
            count -= len(packets)
            if count <= 0:
                break
        return first_s


def _alike(connection: socket.socket) -> Iterator[tuple[bytes, int]]:
    """Yields whole PUBLISH packets at QoS 1 as they come, all of one size, and that size. Raises `LoadError` for
    anything else.
    """
    rest, size = b"", 0
    while True:
        data = rest + receive(connection, RECEIVE_BYTES)
        size = size or packet_size(data, 0)
        whole = len(data) // size * size if size else 0
        if firsts := data[:whole:size] if whole else b"":
            if firsts.count(QOS_1) != len(firsts) or packet_size(data, whole - size) != size:
                raise LoadError(f"not only PUBLISH at QoS 1 came: {data[:16].hex()}")
            yield data[:whole], size
        rest = data[whole:]
