"""Publishing as fast as acknowledgements allow, alone or with subscribers that count what they get."""

import os
import socket
from typing import Annotated, Literal

from msgspec import Meta

from tests.bench.load.base import Count, Load, LoadError, Measured, json_payload, together
from tests.bench.load.mqtt.mqtt_readers import Readers
from tests.bench.load.mqtt.mqtt_wire import PINGREQ, PINGRESP, connect, publish, receive, topic

BLOCK = 500  # QoS 0 messages in one write
IDENTIFIERS = 65_535  # packet identifiers, and so topics of one connection (2.3.1)


class MqttPublish(Load, frozen=True, kw_only=True, tag="mqtt-publish"):
    """Messages a second, from the first byte sent to the last PUBACK, at QoS 0 to the PINGRESP behind the last one."""

    count: Count = 200_000
    conns: Count = 4
    window: Annotated[int, Meta(ge=2, le=60_000, description="messages without PUBACK, of one connection")] = 200
    payload: Annotated[int, Meta(ge=1, description="bytes")] = 100
    qos: Literal[0, 1] = 1
    topics: Annotated[int, Meta(ge=1, le=IDENTIFIERS, description="of one connection")] = 1

    def run(self) -> Measured:
        """See `Load.run`."""
        done, elapsed_s = self.publish()
        return Measured(value=done / elapsed_s, elapsed_s=elapsed_s, done=done, failed=self.total - done)

    @property
    def total(self) -> int:
        """The messages of all connections: `count` in whole blocks."""
        block = self._block
        return max(1, self.count // self.conns // block) * block * self.conns

    @property
    def _block(self) -> int:
        return self.window // 2 if self.qos else BLOCK

    def publish(self) -> tuple[int, float]:
        """Publishes everything; returns how many messages were acknowledged, and the seconds."""
        connections = [connect(self.host, self.port, f"load-{os.getpid()}-{n}") for n in range(self.conns)]
        work = [(one, self.blocks(n)) for n, one in enumerate(connections)]
        try:
            return together(self._acknowledged if self.qos else self._unacknowledged, work)
        finally:
            for one in connections:
                one.close()

    def blocks(self, connection: int) -> list[bytes]:
        """Returns the blocks that a connection sends over and over: an even number, with every topic in it."""
        payload, block = json_payload(self.payload), self._block
        topics = [topic(connection * self.topics + n) for n in range(self.topics)]
        count = max(2, -(-self.topics // block))
        packets = [
            publish(topics[n % self.topics], payload, qos=self.qos, identifier=n % IDENTIFIERS + 1)
            for n in range(count * block)
        ]
        return [b"".join(packets[n : n + block]) for n in range(0, len(packets), block)]

    def _acknowledged(self, work: tuple[socket.socket, list[bytes]]) -> int:
        """Keeps two blocks in flight: sends the next when the one before the last is acknowledged."""
        connection, blocks = work
        block, total = self._block, self.total // self.conns
        sent = got_bytes = n = 0
        while got_bytes < total * 4:
            while sent < total and sent - got_bytes // 4 <= block:
                connection.sendall(blocks[n % len(blocks)])
                n += 1
                sent += block
            data = receive(connection)
            firsts = data[-got_bytes % 4 :: 4]  # of the PUBACKs, four bytes each
            if firsts.count(b"\x40") != len(firsts):
                raise LoadError(f"not only PUBACK came: {data[:16].hex()}")
            got_bytes += len(data)
        return got_bytes // 4

    def _unacknowledged(self, work: tuple[socket.socket, list[bytes]]) -> int:
        """Sends all blocks, then a PINGREQ, whose answer shows that the server has read everything before it."""
        connection, blocks = work
        total = self.total // self.conns
        for n in range(total // BLOCK):
            connection.sendall(blocks[n % len(blocks)])
        connection.sendall(PINGREQ)
        answer = b""
        while len(answer) < len(PINGRESP):
            answer += receive(connection)
        if answer != PINGRESP:
            raise LoadError(f"PINGREQ was answered {answer[:16].hex()}")
        return total


class MqttFanout(MqttPublish, frozen=True, kw_only=True, tag="mqtt-fanout"):
    """Deliveries a second at QoS 0: of each subscriber from its first byte to its last, added up."""

    subs: Count = 1
    readers: Annotated[int, Meta(ge=1, le=16, description="processes that the subscribers are spread over")] = 1

    def run(self) -> Measured:
        """See `Load.run`."""
        with Readers(self.host, self.port, subs=self.subs, processes=self.readers, expected=self.total) as readers:
            published, elapsed_s = self.publish()
            seen = readers.results()
        delivered = sum(one.count for one in seen)
        rate = sum(one.count / (one.last - one.first) for one in seen if one.last > one.first)
        lost = self.total * self.subs - delivered
        also = {"published_per_s": published / elapsed_s}
        return Measured(value=rate, elapsed_s=elapsed_s, done=delivered, failed=lost, also=also)
