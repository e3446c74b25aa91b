"""A prefetch of a whole channel is shared fairly: who was served last is asked last for what there is room for."""

from collections import Counter

import pytest
from pamqp.commands import Basic, Channel, Tx

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Publish, Ready
from store.api.message import Message
from tests.support.amqp.amqp_peer import Peer, encoded, publish


def sharing(prefetch: int, *tags: str) -> tuple[Peer, list[int]]:
    """Returns a channel with consumers of a queue each, which share a prefetch."""
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=prefetch, global_=True), channel=1)
    peer.frames()
    return peer, [peer.consume(tag, tag=tag) for tag in tags]


def serve(peer, effects):
    """Delivers to those who are ready, in their order, from queues that are never empty; returns how many each took."""
    taken = Counter()
    for effect in effects:
        if isinstance(effect, Ready):
            waiting = [Message("$amqp//q", b"x", native={"amqp": {"properties": b"\0\0"}})] * effect.credit
            taken[effect.consumer] += peer.deliver(effect.consumer, waiting)
    return +taken


@pytest.mark.parametrize("prefetch", [1, 3])
def test_consumers_of_full_queues_take_turns(prefetch):
    peer, consumers = sharing(prefetch, "a", "b", "c")
    served = serve(peer, [Ready(consumer=consumers[0], credit=9)])
    for tag in range(1, 31):
        found = serve(peer, peer.send(Basic.Ack(delivery_tag=tag), channel=1))
        assert found.total() == 1
        served += found
    counts = [served[consumer] for consumer in consumers]
    assert max(counts) - min(counts) <= prefetch


def test_consumers_take_turns_after_a_transaction():
    peer, (one, two) = sharing(1, "a", "b")
    peer.send(Tx.Select(), channel=1)
    peer.frames()
    assert serve(peer, [Ready(consumer=one, credit=1)]) == {one: 1}
    for tag, turn in ((1, two), (2, one)):
        peer.send(Basic.Ack(delivery_tag=tag), channel=1)
        (committing,) = peer.send(Tx.Commit(), channel=1)
        assert isinstance(committing, Publish)
        assert serve(peer, peer.complete(committing)) == {turn: 1}


def test_a_consumer_that_was_cancelled_is_not_asked():
    peer, (one, two) = sharing(1, "a", "b")
    assert serve(peer, [Ready(consumer=one, credit=1)]) == {one: 1}
    peer.send(Basic.Cancel(consumer_tag="a"), channel=1)
    assert serve(peer, peer.send(Basic.Ack(delivery_tag=1), channel=1)) == {two: 1}


def test_a_prefetch_is_set_behind_what_was_published_before():
    peer = Peer().open()
    (publishing,) = peer.feed(publish(1, "nowhere", "k", b"x") + encoded(1, Basic.Qos(prefetch_count=1)))
    assert peer.methods() == []
    peer.refuse(publishing, Refusal(Cause.NOT_FOUND, "no exchange 'nowhere' in vhost '/'"))
    assert peer.one(Channel.Close).reply_code == 404
