"""Proxies that are stopped (SIGSTOP) and go on when others have gone on for them: nothing is stored twice."""

import contextlib
import os
import signal
import socket
import struct
import time
from collections import Counter

import pytest

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup
from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, controller_of, on_free_ports, started
from tests.support.cluster.two_proxies import TwoProxies
from tests.support.mqtt.paho_client import PahoClient

pytestmark = pytest.mark.slow

TIMEOUT_S = 90
COUNT = 60  # messages whose answers never come, as few as there are in one read


async def by_quorum(plan):
    """Adds a group that acknowledges what most of its replicas have."""
    config = GroupConfig(replicas=plan.replicas, min_in_sync=2, acknowledge="quorum")
    async with controller_of(plan) as controller:
        await controller.do(AddGroup(number=0, config=config))


@pytest.fixture(scope="module", params=[(1, all_groups), (3, by_quorum)], ids=["one replica", "by quorum"])
def running(request, tmp_path_factory):
    replicas, prepare = request.param
    plan = ClusterPlan(tmp_path_factory.mktemp("cluster"), 1, 1, replicas, 1, 2)
    with started(on_free_ports(plan), prepare) as cluster:
        yield TwoProxies(cluster)


class QosTwoPublisher:
    """A client of MQTT 3.1.1 with a session that goes on, which publishes at QoS 2 (4.3.3, 4.4)."""

    def __init__(self, name, topic):
        self.name, self.topic = name.encode(), topic.encode()
        self.sent = {}  # awaiting PUBREC
        self.released = {}  # awaiting PUBCOMP
        self.next = 1
        self._buffered = b""
        self._open = contextlib.ExitStack()

    def close(self):
        self._open.close()

    def connect(self, port):
        """Connects once more; the earlier connection stays open."""
        peer = self.peer = self._open.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
        body = b"\0\4MQTT\4\0\0\x3c" + struct.pack("!H", len(self.name)) + self.name
        peer.sendall(bytes([0x10, len(body)]) + body)
        connack = peer.recv(4)
        assert connack in {b"\x20\2\0\0", b"\x20\2\1\0"}, connack
        self._buffered = b""
        again = b"".join(self.packet(packet_id, 8) for packet_id in self.sent)
        peer.sendall(again + b"".join(struct.pack("!BBH", 0x62, 2, packet_id) for packet_id in self.released))
        return peer

    def packet(self, packet_id, dup=0):
        body = struct.pack("!H", len(self.topic)) + self.topic + struct.pack("!H", packet_id) + self.sent[packet_id]
        return bytes([0x34 | dup, len(body)]) + body

    def publish(self, count):
        out = b""
        for _ in range(count):
            self.sent[self.next] = b"%d" % self.next
            out += self.packet(self.next)
            self.next += 1
        self.peer.sendall(out)

    def finish(self):
        """Waits until every request is answered."""
        while self.sent or self.released:
            data = self.peer.recv(65_536)
            assert data, "closed"
            self._buffered += data
            out = b""
            while len(self._buffered) >= 4:
                (kind, packet_id), self._buffered = struct.unpack("!BxH", self._buffered[:4]), self._buffered[4:]
                if kind == 0x50:
                    del self.sent[packet_id]
                    self.released[packet_id] = None
                    out += struct.pack("!BBH", 0x62, 2, packet_id)
                else:
                    assert kind == 0x70, hex(kind)
                    del self.released[packet_id]
            self.peer.sendall(out)


def until_closed(peer):
    """Returns the bytes that come until the other end closes."""
    found = b""
    while True:
        try:
            data = peer.recv(65_536)
        except ConnectionResetError:
            return found
        if not data:
            return found
        found += data


def bodies_until(subscriber, last):
    found = []
    while not found or found[-1] != last:
        found.append(subscriber.get().payload)
    return found


def test_a_stopped_proxy_that_goes_on_doubles_nothing_that_its_client_has_sent_elsewhere(running):
    subscriber = PahoClient(running.other).connect()
    subscriber.subscribe("pauses/#", qos=1)
    publisher = QosTwoPublisher("sleeper", "pauses/n")
    old = publisher.connect(running.one)
    publisher.publish(10)
    publisher.finish()
    pid = running.cluster.pid("proxy-1")
    os.kill(pid, signal.SIGSTOP)
    try:
        publisher.publish(COUNT)  # into the socket's buffer of who sleeps
        began = time.monotonic()
        publisher.connect(running.other)
        publisher.finish()
        slept_s = time.monotonic() - began
    finally:
        os.kill(pid, signal.SIGCONT)
    heard = until_closed(old)  # it has read what was there, and hears that the session is elsewhere
    assert b"\x50\2" not in heard, "a PUBREC for what was not stored"
    marker = PahoClient(running.one).connect()
    marker.publish("pauses/n", b"the end", qos=1)
    found = Counter(bodies_until(subscriber, b"the end"))
    assert {body: count for body, count in found.items() if count > 1} == {}, f"after {slept_s:.1f} s"
    assert sorted(found) == sorted([b"%d" % n for n in range(1, COUNT + 11)] + [b"the end"])
    for client in (marker, subscriber, publisher):
        client.close()
