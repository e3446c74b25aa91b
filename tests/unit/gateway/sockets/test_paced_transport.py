"""Output above TLS: passed on in pieces, counted, and written before the end."""

import asyncio
import random
import weakref
from types import SimpleNamespace

import pytest

from gateway.sockets.paced import PIECE_BYTES, PacedTransport


class Below(asyncio.Transport):
    """A transport that takes `room` bytes, and then wants no more until there is room again."""

    above = None

    def __init__(self):
        super().__init__({"peername": ("a", 1)})
        self.taken = bytearray()
        self.room = 0
        self.reading, self.closed, self.aborted = True, False, False

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high

    def write(self, data):
        assert not self.closed
        self.taken += data
        self.room -= len(data)
        if self.room < 0:
            self.above.pause_writing()

    def read(self, size):
        """Reads this many bytes at the peer."""
        self.room += size
        if self.room >= 0:
            self.above.resume_writing()

    def get_write_buffer_size(self):
        return max(-self.room, 0)

    def is_closing(self):
        return self.closed

    def is_reading(self):
        return self.reading

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = self.closed = True


class Above(asyncio.Protocol):
    def __init__(self):
        self.said = []

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(high=1_000_000)

    def data_received(self, data):
        self.said.append(data)

    def pause_writing(self):
        self.said.append("pause")

    def resume_writing(self):
        self.said.append("resume")

    def connection_lost(self, exc):
        self.said.append("lost")


@pytest.fixture
def rig():
    above, below = Above(), Below()
    below.above = PacedTransport(above)
    below.above.connection_made(below)
    return above, below


def test_a_large_output_is_kept_and_counted_until_the_peer_reads(rig):
    above, below = rig
    above.transport.write(bytes(5_000_000))
    assert len(below.taken) == PIECE_BYTES
    assert above.transport.get_write_buffer_size() == 5_000_000
    assert above.said == ["pause"]
    while above.said == ["pause"]:
        below.read(100_000)
    assert above.said == ["pause", "resume"]
    assert above.transport.get_write_buffer_size() <= 250_000 + 2 * PIECE_BYTES
    below.read(5_000_000)
    assert (len(below.taken), above.transport.get_write_buffer_size()) == (5_000_000, 0)


def test_all_is_written_before_the_end_and_nothing_read_meanwhile(rig):
    above, below = rig
    above.transport.write(b"x" * 300_000)
    above.transport.close()
    above.transport.write(b"late")
    above.transport.resume_reading()
    assert (above.transport.is_closing(), above.transport.is_reading()) == (True, False)
    assert (below.closed, below.reading) == (False, False)
    below.read(1_000_000)
    assert below.closed
    assert below.taken == b"x" * 300_000


def test_an_end_without_output_is_at_once(rig):
    above, below = rig
    above.transport.close()
    assert below.closed


def test_whoever_is_cut_off_is_sent_nothing_more(rig):
    above, below = rig
    above.transport.write(bytes(300_000))
    above.transport.abort()
    assert below.aborted
    below.read(1_000_000)
    assert len(below.taken) == PIECE_BYTES
    below.above.connection_lost(None)
    assert above.said[-1] == "lost"


def test_another_protocol_goes_on_with_what_comes(rig):
    above, below = rig
    below.above.data_received(b"1")
    other = Above()
    above.transport.set_protocol(other)
    below.above.data_received(b"2")
    assert (above.said, other.said) == ([b"1"], [b"2"])
    assert above.transport.get_protocol() is other


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_their_order_and_each_once(rig, seed):
    above, below = rig
    chance, written = random.Random(seed), b""
    for _ in range(80):
        if chance.random() < 0.5:
            data = chance.randbytes(chance.choice((1, 100, PIECE_BYTES, PIECE_BYTES + 1, 150_000)))
            written += data
            above.transport.write(bytearray(data) if chance.random() < 0.5 else data)
        else:
            below.read(chance.randrange(200_000))
        assert len(below.taken) + above.transport.get_write_buffer_size() - below.get_write_buffer_size() == len(
            written
        )
    below.read(1 << 30)
    assert below.taken == written
    assert above.said[::2] == ["pause"] * len(above.said[::2])


def test_what_reads_the_socket_is_told_when_to_go_on(rig):
    above, below = rig
    told = []
    below.above.lie_on(SimpleNamespace(changed=lambda: told.append((below.above.reading, below.above.ended))))
    above.transport.pause_reading()
    assert not below.above.reading
    above.transport.resume_reading()
    above.transport.close()
    above.transport.resume_reading()
    assert told == [(True, False), (False, True)]


def test_tls_is_let_go_with_the_connection():
    """Its buffers stayed until the next search for cycles, tens of KB for each connection."""
    above, below = Above(), Below()
    made, lost = PacedTransport(above), weakref.ref(below)
    made.connection_made(below)
    del below
    made.connection_lost(None)
    assert lost() is None
    transport = above.transport
    transport.write(b"late")
    transport.pause_reading()
    transport.resume_reading()
    transport.close()
    transport.abort()
    made.data_received(b"late")
    assert (transport.is_closing(), transport.is_reading(), transport.get_write_buffer_size()) == (True, False, 0)
    assert transport.get_extra_info("peername") is None
    assert above.said == ["lost"]


def test_nothing_is_written_to_a_transport_that_is_closing(rig):
    above, below = rig
    above.transport.write(bytes(300_000))
    below.closed = True
    below.read(1_000_000)
    assert len(below.taken) == PIECE_BYTES
