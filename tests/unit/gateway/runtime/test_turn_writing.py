"""The acknowledgements of a frame are written together, and each connection gets its own."""

import socket
from contextlib import ExitStack
from types import SimpleNamespace

import msgspec
import pytest

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Puback
from gateway.runtime import turn
from gateway.runtime.turn import ReadBatch
from gateway.sockets import batches, plain_batches
from store.format.frame import LogOffset, Position
from tests.support.gateway.singles_client import SinglesClient

MUCH = 1 << 24
AT = Position(LogOffset(7), 0)


class Plain:
    """The socket of a connection, and what it did not take."""

    def __init__(self, stack):
        ours, self.peer = (stack.enter_context(one) for one in socket.socketpair())
        ours.setblocking(False)
        self.ours, self.writable_number = ours, ours.fileno()
        self.left = []
        self.peer.setblocking(False)

    def wrote(self, data, taken):
        self.left.append((data, taken))

    def said(self):
        try:
            return self.peer.recv(MUCH)
        except BlockingIOError:
            return b""


class TurnRig:
    def __init__(self, stack, made):
        self.turn = ReadBatch(SimpleNamespace(), batches=made)
        self._stack = stack
        self.waiting = []

    def client(self, packet_id):
        """Returns a client with a message that waits for its acknowledgement."""
        peer = SinglesClient()
        peer.plain = peer.connection.plain = Plain(self._stack)
        peer.publish(packet_id)
        self.waiting.append(peer.hub.singles.pop())
        return peer

    def acknowledge(self):
        self.turn.acknowledged(self.waiting, AT)


@pytest.fixture(params=[plain_batches, batches.CALLS], ids=["plain", "chosen"])
def rig(request):
    with ExitStack() as stack:
        yield TurnRig(stack, request.param)


def puback(packet_id):
    return encode(Puback(packet_id=packet_id), 5)


def test_each_connection_gets_its_own(rig):
    clients = {packet_id: rig.client(packet_id) for packet_id in range(2, 12)}
    before = {packet_id: one.connection.flow.bytes_out for packet_id, one in clients.items()}
    rig.acknowledge()
    for packet_id, one in clients.items():
        assert one.plain.said() == puback(packet_id)
        assert one.connection.flow.bytes_out - before[packet_id] == 4
        assert one.rests
        assert not one.transport.written


def test_one_whose_transport_keeps_something_is_written_to_by_that(rig):
    first, second = rig.client(2), rig.client(3)
    first.plain.writable_number = -1
    rig.acknowledge()
    assert first.said(Puback(packet_id=2))
    assert first.rests
    assert second.plain.said() == puback(3)


def test_its_transport_is_told_what_a_socket_did_not_take(rig):
    first, second = rig.client(2), rig.client(3)
    try:
        while True:
            first.plain.ours.send(bytes(1_000))
    except BlockingIOError:
        pass
    rig.acknowledge()
    assert first.plain.left == [(puback(2), 0)]
    assert (second.plain.said(), second.plain.left) == (puback(3), [])
    assert first.rests


def test_its_transport_is_told_of_the_error_of_a_socket(rig):
    first, second = rig.client(2), rig.client(3)
    first.plain.peer.close()
    rig.acknowledge()
    ((data, taken),) = first.plain.left
    assert data == puback(2)
    assert taken < 0
    assert second.plain.said() == puback(3)


def test_nothing_is_written_by_a_transport_before_all_are_written_to(rig):
    """It might keep a part of that, and what is written directly would come in its middle."""
    first, second = rig.client(2), rig.client(3)
    first.plain.writable_number = -1
    said_before = []
    first.transport.write = lambda _data: said_before.append(second.plain.said())
    rig.acknowledge()
    assert said_before == [puback(3)]


def test_an_answer_that_cannot_be_made_ends_its_connection_and_no_other(rig, monkeypatch):
    monkeypatch.setattr(turn, "log", SimpleNamespace(exception=lambda *_, **__: None))
    first, second = rig.client(2), rig.client(3)

    def answer(*_):
        raise KeyError("a bug of ours")

    connection, single, size_bytes = rig.waiting[0]
    single = connection.singles_in_flight[0] = msgspec.structs.replace(single, answer=answer)
    rig.waiting[0] = (connection, single, size_bytes)
    rig.acknowledge()
    assert first.transport.is_closing()
    assert second.plain.said() == puback(3)


def test_a_write_of_unknown_outcome_ends_the_connections(rig, monkeypatch):
    """A stream may have no hole."""
    monkeypatch.setattr(turn, "log", SimpleNamespace(exception=lambda *_, **__: None))

    def send(*_):
        raise MemoryError

    rig.turn = ReadBatch(SimpleNamespace(), batches=SimpleNamespace(send=send))
    clients = [rig.client(2), rig.client(3)]
    rig.acknowledge()
    assert all(one.transport.aborted for one in clients)


def test_a_half_closed_peer_gets_its_acknowledgement_and_then_the_end(rig):
    peer = rig.client(2)
    assert peer.connection.eof_received()
    rig.acknowledge()
    assert peer.plain.said() == puback(2)
    assert peer.transport.closed
