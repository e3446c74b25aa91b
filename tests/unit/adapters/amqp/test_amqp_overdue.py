"""Consumers that keep messages without acknowledging them: when their channel closes, and when it does not."""

import pytest
from pamqp.commands import Basic, Channel

from adapters.amqp.consumers import LOOKS_COUNT
from gateway.port.adapter import TimedAdapter
from store.api.message import Message
from tests.support.amqp.amqp_peer import Peer

TIMEOUT_S = 160
STEP_MS = TIMEOUT_S * 1_000 // LOOKS_COUNT


def consuming(count: int, **options: int) -> tuple[Peer, int]:
    peer = Peer(**{"consumer_timeout_s": TIMEOUT_S, **options}).open(channels=2)
    peer.tick(0)
    consumer = peer.consume()
    assert peer.deliver(consumer, [Message("a/b", b"x")] * count) == count
    peer.frames()
    return peer, consumer


def passes(peer: Peer, seconds: int) -> list[Channel.Close]:
    """Lets time pass, and wakes the connection whenever it asks to be woken."""
    end_ms = peer.now_ms + seconds * 1_000
    while (due_ms := peer.conn.deadline_ms()) is not None and due_ms <= end_ms:
        peer.tick(max(0, due_ms - peer.now_ms))
    peer.tick(end_ms - peer.now_ms)
    return [method for method in peer.methods() if isinstance(method, Channel.Close)]


def test_a_message_that_is_held_too_long_closes_its_channel_and_goes_back():
    peer, _ = consuming(2)
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    assert passes(peer, TIMEOUT_S) == []
    (close,) = passes(peer, 2 * STEP_MS // 1_000)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 0, 0)
    assert close.reply_text.startswith("PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out.")
    assert "160000 ms" in close.reply_text
    (back,) = [effect for effect in peer.effects if getattr(effect, "dispositions", None)][-1:]
    assert [(one.outcome, list(one.offsets)) for one in back.dispositions] == [("requeue", [1])]
    peer.send(Basic.Qos(prefetch_count=1), channel=2)  # which goes on
    peer.one(Basic.QosOk)


@pytest.mark.parametrize("channel_is_busy", [True, False])
def test_messages_that_are_acknowledged_in_time_close_nothing(channel_is_busy):
    peer, consumer = consuming(1)
    tag = 1
    for _ in range(8):
        assert passes(peer, TIMEOUT_S * 3 // 4) == []
        if channel_is_busy:  # there is always one that is not acknowledged
            peer.deliver(consumer, [Message("a/b", b"x")])
        peer.send(Basic.Ack(delivery_tag=tag), channel=1)
        if not channel_is_busy:
            peer.deliver(consumer, [Message("a/b", b"x")])
        tag += 1


def clock_set(peer: Peer, by_ms: int) -> None:
    """Sets the clock of the gateway, which tells the connection."""
    assert isinstance(peer.conn, TimedAdapter)
    peer.now_ms += by_ms
    peer.conn.clock_set(by_ms)


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_a_message_may_be_held_as_long_when_the_clock_is_set(by_ms: int):
    peer, _ = consuming(1)
    assert passes(peer, TIMEOUT_S // 2) == []
    clock_set(peer, by_ms)
    assert passes(peer, TIMEOUT_S // 2) == []
    (close,) = passes(peer, 2 * STEP_MS // 1_000)
    assert close.reply_code == 406


def test_without_a_timeout_messages_are_held_for_ever():
    peer, _ = consuming(1, consumer_timeout_s=0)
    assert passes(peer, 10 * TIMEOUT_S) == []
    assert peer.conn.deadline_ms() is None


def test_a_connection_without_an_open_channel_asks_not_to_be_woken():
    peer = Peer(consumer_timeout_s=TIMEOUT_S).open(channels=1)
    peer.tick(0)
    assert peer.conn.deadline_ms() == peer.now_ms + STEP_MS
    peer.send(Channel.Close(200, "", 0, 0), channel=1)
    assert peer.conn.deadline_ms() is None
