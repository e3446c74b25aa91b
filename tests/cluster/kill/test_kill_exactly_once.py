"""kill -9 in the middle of QoS 2: the log has every message once, when the client does as the specification says."""

import random
import socket
import struct
import threading
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

from tests.support.cluster.senders import Refused, stored

pytestmark = pytest.mark.slow

CYCLES = 5
WINDOW = 24  # as few identifiers as messages under way: they are used again at once
CUTS = 0.01  # of what a client writes, how much is the last on its connection
TOPIC = b"kill/exactly/n"


class Cut(Exception):
    """The client begins a new connection, whatever is under way on the old one."""


class ResendingPublisher(threading.Thread):
    """A client whose session goes on: what is not answered is sent again on the next connection (4.3.3, 4.4)."""

    def __init__(self, gateway, state, seed):
        super().__init__(daemon=True)
        self.gateway = gateway
        self.state = state
        self.chance = random.Random(seed)
        self.ended = None

    def run(self):
        try:
            with ExitStack() as left:  # connections that may still be open when the next one takes the session over
                while not self.state.stopping or self.state.sent or self.state.released:
                    peer = socket.create_connection((self.gateway.host, self.gateway.port("mqtt")), timeout=10)
                    left.enter_context(peer)
                    with suppress(Cut):
                        self.publish(peer)
                    if self.chance.random() < 0.5:
                        peer.close()
        except (OSError, EOFError) as error:
            self.ended = error

    def publish(self, peer):
        state = self.state
        body = b"\0\4MQTT\4\0\0\x3c\0\7exactly"  # clean session: no
        peer.sendall(bytes([0x10, len(body)]) + body)
        connack = receive(peer, 4)
        if connack not in {b"\x20\2\0\0", b"\x20\2\1\0"}:
            raise Refused(connack.hex())
        assert connack[2] or not state.known, "the session is gone"
        state.known = True
        out = b"".join(packet(packet_id, number, 8) for packet_id, number in state.sent.items())
        out += b"".join(struct.pack("!BBH", 0x62, 2, packet_id) for packet_id in state.released)
        buffered = b""
        while not state.stopping or state.sent or state.released:
            for packet_id in range(1, WINDOW + 1):
                if not state.stopping and packet_id not in state.sent and packet_id not in state.released:
                    state.sent[packet_id] = state.next
                    out += packet(packet_id, state.next)
                    state.next += 1
            peer.sendall(out)
            if self.chance.random() < CUTS and not state.stopping:
                raise Cut
            out = b""
            buffered += receive(peer)
            while len(buffered) >= 4:
                (kind, packet_id), buffered = struct.unpack("!BxH", buffered[:4]), buffered[4:]
                if kind == 0x50:
                    if state.sent.pop(packet_id, None) is not None:
                        state.released[packet_id] = None
                    out += struct.pack("!BBH", 0x62, 2, packet_id)
                else:
                    assert kind == 0x70
                    state.done += state.released.pop(packet_id, 0) is None


class State:
    """The state that the client keeps from one connection to the next."""

    def __init__(self):
        self.known = self.stopping = False
        self.next = self.done = 0
        self.sent = {}  # awaiting PUBREC
        self.released = {}  # awaiting PUBCOMP


def packet(packet_id, number, dup=0):
    body = struct.pack("!H", len(TOPIC)) + TOPIC + struct.pack("!H", packet_id) + str(number).encode()
    return bytes([0x34 | dup, len(body)]) + body


def receive(peer, size=65_536):
    data = peer.recv(size)
    if not data:
        raise EOFError("closed")
    return data


def test_every_message_is_in_the_log_once_whenever_the_gateway_dies(new_gateway):
    gateway, state = new_gateway(), State()
    for seed in range(CYCLES):
        chance = random.Random(seed)
        gateway.start()
        publisher = ResendingPublisher(gateway, state, seed)
        publisher.start()
        enough = state.done + chance.randrange(20, 1_500)
        while state.done < enough:
            assert publisher.is_alive(), publisher.ended
            publisher.join(0.001)
        publisher.join(chance.random() * 0.01)
        gateway.kill()
        publisher.join(15)
        assert not publisher.is_alive()
    gateway.start()
    state.stopping = True
    publisher = ResendingPublisher(gateway, state, CYCLES)
    publisher.start()
    publisher.join(30)
    assert not publisher.is_alive()
    assert publisher.ended is None
    found = Counter(stored(gateway)[TOPIC.decode()])
    assert {number: count for number, count in found.items() if count > 1} == {}
    assert sorted(found) == list(range(state.next))
