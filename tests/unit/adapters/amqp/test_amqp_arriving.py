"""Bodies that arrive on all connections together are bounded: who has no credit for one waits, and is not read."""

import pytest
from pamqp import header
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Connection

from adapters.amqp import AmqpFactory
from adapters.amqp.body_credit import BODY_BYTES_PER_MS, BODY_TIME_MS, FREE_BYTES, RETRY_MS
from tests.support.amqp.amqp_peer import Peer, encoded

MiB = 1 << 20
CHUNK = 128 * 1024 - 8


class SharedCredit:
    """Connections that share 4 MiB of credit."""

    def __init__(self):
        self.factory = AmqpFactory()

    def connect(self, channels=1):
        return Peer(factory=self.factory, arriving_bytes_max=4 * MiB).open(channels=channels, frame_max=131_072)

    @property
    def reserved_bytes(self):
        return self.factory.arriving.reserved_bytes


@pytest.fixture
def process():
    return SharedCredit()


def begin(peer, size, *, channel=1):
    peer.feed(encoded(channel, Basic.Publish(routing_key="q"), header.ContentHeader(body_size=size)))


def end(peer, size, *, channel=1):
    """Sends the rest of a body, and returns the sizes of the messages that are published."""
    for at in range(0, size, CHUNK):
        peer.feed(encoded(channel, ContentBody(bytes(min(CHUNK, size - at)))))
    return [len(message.body) for message in peer.published()]


def test_a_body_reserves_its_size_until_it_is_whole(process):
    peer = process.connect()
    begin(peer, 3 * MiB)
    assert process.reserved_bytes == 3 * MiB
    assert end(peer, 3 * MiB) == [3 * MiB]
    assert process.reserved_bytes == 0
    assert peer.conn.assembling_bytes == 0


def test_who_has_no_credit_is_not_read_and_goes_on_later(process):
    first, second = process.connect(), process.connect()
    begin(first, 3 * MiB)
    begin(second, 2 * MiB)
    assert not second.conn.wants_data
    second.tick(RETRY_MS)
    assert not second.conn.wants_data
    assert end(first, 3 * MiB) == [3 * MiB]
    assert second.conn.deadline_ms() <= second.now_ms + RETRY_MS
    second.tick(RETRY_MS)
    assert second.conn.wants_data
    assert end(second, 2 * MiB) == [2 * MiB]
    assert process.reserved_bytes == 0


def test_small_bodies_and_one_body_alone_need_no_room(process):
    large, small = process.connect(), process.connect()
    begin(large, 8 * MiB)
    begin(small, FREE_BYTES)
    assert end(small, FREE_BYTES) == [FREE_BYTES]
    assert end(large, 8 * MiB) == [8 * MiB]


def test_who_holds_credit_does_not_wait_for_more(process):
    peer = process.connect(channels=2)
    begin(peer, 3 * MiB, channel=1)
    begin(peer, 2 * MiB, channel=2)
    assert peer.one(Connection.Close).reply_code == 506
    assert process.reserved_bytes == 0


@pytest.mark.parametrize("how", ["lost", "closed", "channel"])
def test_what_ends_gives_its_credit_back(process, how):
    peer, waiting = process.connect(), process.connect()
    begin(peer, 4 * MiB)
    begin(waiting, 4 * MiB)
    if how == "lost":
        peer.conn.lost(now_ms=peer.now_ms)
    elif how == "closed":
        peer.send(Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0), channel=0)
    else:
        peer.send(
            Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), channel=1
        )  # within a message: an error
    assert process.reserved_bytes == 0
    waiting.conn.lost(now_ms=waiting.now_ms)
    assert process.factory.arriving.waiting_count == 0


def test_a_body_that_takes_too_long_is_given_up_while_others_wait(process):
    slow, waiting = process.connect(), process.connect()
    begin(slow, 4 * MiB)
    late_ms = BODY_TIME_MS + 4 * MiB // BODY_BYTES_PER_MS
    slow.tick(late_ms)
    assert slow.conn.wants_data  # no connection waits
    begin(waiting, MiB)
    slow.tick(RETRY_MS)
    (close,) = [method for method in slow.methods() if isinstance(method, Connection.Close)]
    assert close.reply_code == 506
    waiting.tick(RETRY_MS)
    assert end(waiting, MiB) == [MiB]


def test_the_smaller_limit_of_adapter_and_gateway_holds_and_is_named():
    peer = Peer(message_bytes_max=2 * MiB, gateway_bytes_max=MiB).open(frame_max=131_072)
    begin(peer, MiB)
    assert end(peer, MiB) == [MiB]
    begin(peer, MiB + 1)
    close = peer.one(Channel.Close)
    assert (close.reply_code, close.reply_text) == (
        406,
        f"PRECONDITION_FAILED - message size {MiB + 1} is larger than configured max size {MiB}",
    )
    assert peer.conn.assembling_bytes == 0
