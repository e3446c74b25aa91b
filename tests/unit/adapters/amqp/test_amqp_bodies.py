"""Bodies in parts, on a connection without a gateway: a window of them is held, in both directions."""

import pytest
from pamqp import header
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Connection, Queue, Tx

from adapters.amqp import AmqpFactory
from adapters.amqp.body_credit import RETRY_MS
from adapters.amqp.uploads import PARTS_IN_FLIGHT_MAX, WINDOW_BYTES
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, Close, Leased, Publish, Ready, SettleLeased
from gateway.port.bodies import BeginBody, BodyParts, PublishBody, ReadPart, StoredBody, StorePart, parts_of, with_parts
from gateway.port.queues import Got
from store.api.message import Message
from store.format.body_parts import PART_BYTES
from tests.support.amqp.amqp_peer import Peer, encoded, publish

FRAME = 131_072 - 8
WHOLE = 1_000
BODY = b"".join(bytes([n]) * PART_BYTES for n in range(3)) + b"end"
SLOW = Refusal(Cause.OVERLOAD, "too much waits")


def connect(**options):
    return Peer(whole_bytes_max=WHOLE, **options).open(frame_max=131_072, channels=2)


def frames_of(body=BODY, *, mandatory=False, key="q", size=None, **properties):
    """Returns the frames of a message, one by one."""
    content = header.ContentHeader(body_size=size or len(body), properties=Basic.Properties(**properties))
    method = Basic.Publish(exchange="", routing_key=key, mandatory=mandatory)
    return [method, content, *(ContentBody(body[at : at + FRAME]) for at in range(0, len(body), FRAME))]


class Gateway:
    """Answers the requests about bodies of one peer."""

    def __init__(self, peer, groups=(0,)):
        self.peer = peer
        self.groups = groups
        self.parts = []
        self.done = 0

    def pending(self, kind):
        return [
            one for one in self.peer.effects[self.done :] if isinstance(one, Call) and isinstance(one.request, kind)
        ]

    def take(self, kind):
        """Returns the next request, which must be of this type."""
        while True:
            effect = self.peer.effects[self.done]
            self.done += 1
            if isinstance(effect, Call):
                assert isinstance(effect.request, kind), effect
                return effect

    def begin(self):
        asked = self.take(BeginBody)
        self.peer.complete(asked, self.groups)
        return asked.request

    def store(self):
        asked = self.take(StorePart)
        self.parts.append(asked.request.data)
        self.peer.complete(asked, {group: len(self.parts) * 100 + group for group in self.groups})

    def store_all(self):
        while self.pending(StorePart):
            self.store()

    def publish(self, **stored):
        asked = self.take(PublishBody)
        self.peer.complete(asked, StoredBody(**{"queues": 1, **stored}))
        return asked.request


def send(peer, *frames, channel=1):
    for one in frames:
        peer.feed(encoded(channel, one))


# ---- in


@pytest.mark.parametrize("groups", [(0,), (0, 5)])
def test_a_body_is_stored_as_it_comes_and_then_its_message(groups):
    peer = connect().confirming()
    gateway = Gateway(peer, groups)
    send(peer, *frames_of(message_id="m"))
    assert not peer.conn.wants_data  # before it is known where it belongs
    begun = gateway.begin()
    assert (begun.message.id, begun.size_bytes, begun.message.body) == ("m", len(BODY), b"")
    gateway.store_all()
    asked = gateway.publish()
    assert b"".join(gateway.parts) == BODY
    parts = parts_of(asked.message)
    assert parts == BodyParts(
        len(BODY), {group: [100 + group, 200 + group, 300 + group, 400 + group] for group in groups}
    )
    assert asked.began_ms == peer.now_ms
    assert peer.one(Basic.Ack).delivery_tag == 1
    assert not peer.published()
    assert peer.conn.share.reserved_bytes == 0


def test_no_more_than_a_window_is_held():
    factory = AmqpFactory()
    peer = Peer(factory=factory, whole_bytes_max=WHOLE).open(frame_max=131_072)
    gateway = Gateway(peer)
    method, content, *chunks = frames_of()
    send(peer, method, content)
    gateway.begin()
    taken = 0
    while peer.conn.wants_data:
        send(peer, chunks[taken])
        taken += 1
    assert len(gateway.pending(StorePart)) == PARTS_IN_FLIGHT_MAX
    assert taken * FRAME <= WINDOW_BYTES
    assert factory.arriving.reserved_bytes == WINDOW_BYTES
    gateway.store()
    assert peer.conn.wants_data


def test_parts_may_be_durable_in_any_order():
    peer = connect().confirming()
    gateway = Gateway(peer)
    send(peer, *frames_of(BODY[: 2 * PART_BYTES])[:2])
    gateway.begin()
    send(peer, *frames_of(BODY[: 2 * PART_BYTES])[2:])
    first, second = gateway.take(StorePart), gateway.take(StorePart)
    peer.complete(second, {0: 2})
    assert not gateway.pending(PublishBody)
    peer.complete(first, {0: 1})
    assert parts_of(gateway.publish().message).frames == {0: [1, 2]}


def test_what_the_channel_has_published_before_comes_first():
    peer = connect().confirming()
    gateway = Gateway(peer)
    peer.publish("", "q", b"small")
    (before,) = [one for one in peer.effects if isinstance(one, Publish)]
    send(peer, *frames_of()[:2])
    assert not gateway.pending(BeginBody)
    peer.complete(before)
    gateway.begin()
    assert peer.one(Basic.Ack).delivery_tag == 1


def test_what_follows_on_the_channel_waits_for_it_and_other_channels_do_not():
    peer = connect().confirming()
    gateway = Gateway(peer)
    send(peer, *frames_of()[:2])
    gateway.begin()
    for chunk in frames_of()[2:]:
        send(peer, chunk)
        gateway.store_all()
    assert gateway.pending(PublishBody)
    peer.feed(publish(2, "", "q", b"other"))
    assert [message.body for message in peer.published()] == [b"other"]
    send(peer, Queue.Declare(queue="q"))
    peer.feed(publish(1, "", "q", b"behind"))
    assert [message.body for message in peer.published()] == [b"other"]
    gateway.publish()
    assert peer.one(Basic.Ack).delivery_tag == 1


def test_the_connection_ends_when_the_message_is_durable():
    peer = connect()
    gateway = Gateway(peer)
    send(peer, *frames_of()[:2])
    gateway.begin()
    for chunk in frames_of()[2:]:
        send(peer, chunk)
        gateway.store_all()
    send(peer, Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0), channel=0)
    assert peer.methods() == []
    gateway.publish()
    peer.one(Connection.CloseOk)


def test_a_refusal_that_may_pass_is_a_nack_behind_the_body():
    peer = connect().confirming()
    gateway = Gateway(peer)
    send(peer, *frames_of()[:2])
    gateway.begin()
    *chunks, last = frames_of()[2:]
    for chunk in chunks:
        send(peer, chunk)
        for asked in gateway.pending(StorePart):
            gateway.take(StorePart)
            peer.refuse(asked, SLOW)
    assert not [one for one in peer.methods() if isinstance(one, Basic.Nack)]
    send(peer, last)
    assert [one.delivery_tag for one in peer.methods() if isinstance(one, Basic.Nack)] == [1]
    assert not gateway.pending(StorePart)  # of what came after the first refusal
    peer.publish("", "q", b"small")
    assert [message.body for message in peer.published()] == [b"small"]
    assert peer.conn.share.reserved_bytes == 0


@pytest.mark.parametrize("confirming", [False, True])
def test_any_other_refusal_closes_the_channel_at_once(confirming):
    peer = connect()
    if confirming:
        peer.confirming()
    gateway = Gateway(peer)
    send(peer, *frames_of()[:2])
    peer.refuse(gateway.take(BeginBody), Refusal(Cause.NOT_FOUND, "no exchange 'x'"))
    assert peer.one(Channel.Close).reply_code == 404
    send(peer, *frames_of()[2:])  # the frames that were on their way
    assert peer.conn.share.reserved_bytes == 0
    send(peer, Channel.CloseOk())
    send(peer, Channel.Open())
    peer.one(Channel.OpenOk)


def test_a_full_queue_is_a_nack():
    peer = connect().confirming()
    gateway = Gateway(peer)
    send(peer, *frames_of())
    gateway.begin()
    gateway.store_all()
    gateway.publish(overflowed=True)
    assert peer.one(Basic.Nack).delivery_tag == 1


def test_a_transaction_takes_none():
    peer = connect()
    send(peer, Tx.Select())
    peer.one(Tx.SelectOk)
    send(peer, *frames_of()[:2])
    close = peer.one(Channel.Close)
    assert (close.reply_code, str(WHOLE) in close.reply_text) == (406, True)


def test_the_limit_of_all_bodies_holds():
    peer = connect(message_bytes_max=2 * PART_BYTES)
    send(peer, *frames_of()[:2])
    assert peer.one(Channel.Close).reply_code == 406


def test_a_connection_that_goes_leaves_nothing():
    factory = AmqpFactory()
    peer = Peer(factory=factory, whole_bytes_max=WHOLE).open(frame_max=131_072)
    gateway = Gateway(peer)
    send(peer, *frames_of()[:4])
    gateway.begin()
    peer.conn.lost(now_ms=peer.now_ms)
    assert factory.arriving.reserved_bytes == 0


def test_a_body_that_waits_for_its_window_begins_later():
    factory = AmqpFactory()
    peers = [
        Peer(factory=factory, whole_bytes_max=WHOLE, arriving_bytes_max=WINDOW_BYTES).open(frame_max=131_072)
        for _ in range(2)
    ]
    for peer in peers:
        send(peer, *frames_of()[:2])
    assert [len(Gateway(peer).pending(BeginBody)) for peer in peers] == [1, 0]
    peers[0].conn.lost(now_ms=0)
    peers[1].tick(RETRY_MS)
    Gateway(peers[1]).begin()


# ---- out


def large(body=BODY, **fields):
    count = -(-len(body) // PART_BYTES)
    return with_parts(Message("$amqp//q", time_ms=1, **fields), BodyParts(len(body), {0: list(range(1, count + 1))}))


def read(peer, body=BODY, *, until=99):
    """Answers what is asked of the log, as the peer takes it; returns how many parts were asked for."""
    count, done = 0, len(peer.effects)
    while count < until:
        peer.tick(1)
        asked = [one for one in peer.effects[done:] if isinstance(one, Call) and isinstance(one.request, ReadPart)]
        done = len(peer.effects)
        if not asked:
            break
        for one in asked:
            at = (one.request.frame - 1) * PART_BYTES
            peer.complete(one, body[at : at + PART_BYTES])
            count += 1
            done = min(done, len(peer.effects))
        peer.took = getattr(peer, "took", b"") + peer.conn.take_output()
    return count


def taken(peer):
    """Returns all frames that the peer has taken, by way of `read`."""
    peer.rest, peer.took = getattr(peer, "took", b""), b""
    found = peer.frames()
    peer.rest = b""
    return found


def test_a_body_is_read_as_the_peer_takes_it():
    peer = connect()
    consumer = peer.consume()
    assert peer.deliver(consumer, [large(), Message("$amqp//q", b"next")]) == 1
    assert peer.conn.deadline_ms() == 0
    assert read(peer) == 4
    (_, deliver), (_, content), *chunks = taken(peer)
    assert isinstance(deliver, Basic.Deliver)
    assert content.body_size == len(BODY)
    assert b"".join(one.value for _, one in chunks) == BODY
    assert any(isinstance(one, Ready) for one in peer.effects)  # it can take the next message
    assert peer.deliver(consumer, [Message("$amqp//q", b"next")]) == 1


def test_nothing_more_is_read_while_the_peer_takes_nothing():
    peer = connect()
    peer.deliver(peer.consume(), [large()])
    peer.frames()
    done = len(peer.effects)
    for _ in range(10):
        peer.tick(1)
        for one in [one for one in peer.effects[done:] if isinstance(one, Call)]:
            done = len(peer.effects)
            at = (one.request.frame - 1) * PART_BYTES
            peer.complete(one, BODY[at : at + PART_BYTES])
    assert len(peer.conn.take_output()) < 2 * PART_BYTES


def test_what_follows_waits_for_the_body():
    peer = connect().confirming(2)
    consumer = peer.consume()
    peer.deliver(consumer, [Message("$amqp//q", b"before"), large()])
    peer.feed(publish(2, "", "q", b"small"))
    (stored,) = [one for one in peer.effects if isinstance(one, Publish)]
    peer.complete(stored)
    assert peer.deliver(consumer, [Message("$amqp//q", b"after")]) == 0
    peer.took = peer.conn.take_output()
    read(peer)
    kinds = [type(one) for _, one in taken(peer)]
    assert kinds[:4] == [Basic.Deliver, header.ContentHeader, ContentBody, Basic.Deliver]
    assert kinds[-2:] == [ContentBody, Basic.Ack]


def test_two_bodies_come_one_after_the_other():
    peer = connect()
    one, two = peer.consume(tag="a"), peer.consume(tag="b", channel=2)
    peer.deliver(one, [large()])
    assert peer.deliver(two, [large()]) == 0
    read(peer)
    assert peer.deliver(two, [large(b"x" * 1_000_000)]) == 1
    read(peer, b"x" * 1_000_000)
    numbers = [number for number, value in taken(peer) if isinstance(value, ContentBody)]
    assert numbers == sorted(numbers)


def test_basic_get_and_basic_return_send_parts():
    peer = connect().confirming()
    (asked,) = peer.send(Basic.Get(queue="q"), channel=1)
    peer.complete(asked, Got(leased=Leased(0, [large()], [7], [0], 3), remaining=0))
    read(peer)
    (_, got), _, *chunks = taken(peer)
    assert isinstance(got, Basic.GetOk)
    assert b"".join(one.value for _, one in chunks) == BODY

    gateway = Gateway(peer)
    gateway.done = len(peer.effects)
    send(peer, *frames_of(mandatory=True))
    gateway.begin()
    gateway.store_all()
    asked = gateway.take(PublishBody)
    peer.complete(asked, StoredBody(queues=0))
    places = parts_of(asked.request.message).frames[0]
    while True:
        peer.tick(1)
        reads = gateway.pending(ReadPart)
        if not reads:
            break
        for one in reads:
            gateway.take(ReadPart)
            peer.complete(one, gateway.parts[places.index(one.request.frame)])
        peer.took = getattr(peer, "took", b"") + peer.conn.take_output()
    (_, returned), _, *chunks, (_, ack) = taken(peer)
    assert (type(returned), type(ack)) == (Basic.Return, Basic.Ack)
    assert b"".join(one.value for _, one in chunks) == BODY


@pytest.mark.parametrize(("cause", "settled"), [(Cause.DAMAGED, True), (Cause.UNAVAILABLE, False)])
def test_a_body_that_breaks_off_ends_the_connection(cause, settled):
    """A message that is lost for good is settled; any other goes back with the connection."""
    peer = connect()
    peer.deliver(peer.consume(), [large()], first=9)
    read(peer, until=2)
    peer.tick(1)
    asked = [one for one in peer.effects if isinstance(one, Call) and isinstance(one.request, ReadPart)][-1]
    peer.refuse(asked, Refusal(cause, "gone"))
    taken_frames = taken(peer)
    assert isinstance(taken_frames[-1][1], Connection.Close)
    assert taken_frames[-1][1].reply_code == 541
    assert [one.dispositions[0].offsets for one in peer.effects if isinstance(one, SettleLeased)] == [[9]] * settled


def test_a_client_that_closes_does_not_wait_for_the_rest():
    peer = connect()
    peer.deliver(peer.consume(), [large()])
    read(peer, until=1)
    peer.send(Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert isinstance(taken(peer)[-1][1], Connection.CloseOk)
    assert any(isinstance(one, Close) for one in peer.effects)


def test_a_parts_message_of_another_length_than_it_says_ends_the_connection():
    peer = connect()
    peer.deliver(peer.consume(), [large()])
    read(peer, BODY + b"more")
    assert isinstance(taken(peer)[-1][1], Connection.Close)
