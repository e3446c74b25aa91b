"""Publishing: one `Publish` a read, confirms in order, refusals in the protocol's words."""

import pytest
from pamqp import header
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue, Tx

from gateway.domain.access import Denied
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Call, Publish
from gateway.port.queues import routing_of
from tests.support.amqp.amqp_peer import NOW_MS, Peer, encoded, publish


def confirms(peer):
    return [
        (type(m).__name__, m.delivery_tag, m.multiple) for m in peer.methods() if isinstance(m, Basic.Ack | Basic.Nack)
    ]


def test_a_read_of_messages_is_one_publish():
    peer = Peer().open()
    data = b"".join(publish(1, "amq.topic", "a.b", b"%d" % n) for n in range(5))
    (effect,) = peer.feed(data)
    assert [message.body for message in effect.messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert {message.address for message in effect.messages} == {"a/b"}
    assert peer.frames() == []
    peer.complete(effect)
    assert peer.frames() == []


@pytest.mark.parametrize(
    ("exchange", "key", "address"),
    [
        ("amq.topic", "a.b", "a/b"),
        ("amq.topic", "a/b.c", "a%2Fb/c"),
        ("amq.topic", "", "$amqp/amq.topic/"),
        ("amq.topic", "$SYS.x", "$amqp/amq.topic/$SYS/x"),
        ("", "queue.name", "$amqp//queue/name"),
        ("logs", "k", "$amqp/logs/k"),
        ("a.b:c", "", "$amqp/a.b:c/"),
    ],
)
def test_exchange_and_routing_key_are_an_address(exchange, key, address):
    peer = Peer().open()
    peer.publish(exchange, key, b"x")
    assert peer.published()[0].address == address


def test_confirms_count_from_confirm_select():
    peer = Peer().open()
    peer.complete(peer.publish("amq.topic", "a", b"before")[0])
    peer.confirming()
    one = publish(1, "amq.topic", "a", b"x")
    (first,) = peer.feed(one)
    (second,) = peer.feed(one * 3)
    peer.complete(first)
    assert confirms(peer) == [("Ack", 1, False)]
    peer.complete(second)
    assert confirms(peer) == [("Ack", 4, True)]
    peer.confirming()
    peer.complete(peer.feed(one)[0])
    assert confirms(peer) == [("Ack", 5, False)]


def test_channels_are_confirmed_each():
    peer = Peer().open(channels=3).confirming(1).confirming(2)
    data = b"".join(publish(n, "amq.topic", "a", b"x") for n in (1, 1, 2, 3, 1))
    (effect,) = peer.feed(data)
    peer.complete(effect)
    assert [(number, m.delivery_tag, m.multiple) for number, m in peer.frames()] == [
        (1, 2, True),
        (2, 1, False),
        (1, 3, False),
    ]


def test_what_may_succeed_later_is_nacked():
    peer = Peer().open().confirming()
    (effect,) = peer.feed(publish(1, "amq.topic", "a", b"x") * 5)
    busy = Refusal(Cause.QUOTA, "too fast")
    peer.complete(effect, refused={0: busy, 3: busy})
    assert confirms(peer) == [("Nack", 1, False), ("Ack", 3, True), ("Nack", 4, False), ("Ack", 5, False)]
    (effect,) = peer.feed(publish(1, "amq.topic", "a", b"x") * 2)
    peer.refuse(effect, Refusal(Cause.UNAVAILABLE, "no disk"))
    assert confirms(peer) == [("Nack", 7, True)]


@pytest.mark.parametrize(
    ("cause", "code"), [(Cause.NOT_FOUND, 404), (Cause.FORBIDDEN, 403), (Cause.TOO_LARGE, 406), (Cause.MALFORMED, 406)]
)
def test_what_never_will_closes_the_channel(cause, code):
    peer = Peer().open().confirming()
    (effect,) = peer.feed(publish(1, "nowhere", "a", b"x") * 3)
    peer.complete(effect, refused={1: Refusal(cause, "no")})
    ack, close = peer.methods()
    assert (ack.delivery_tag, ack.multiple) == (1, False)
    assert (close.reply_code, close.class_id, close.method_id) == (code, 60, 40)


@pytest.mark.parametrize(
    ("address", "exchange"),
    [
        ("a/b", "'amq.topic' in vhost '/'"),
        ("$amqp/orders/a", "'orders' in vhost '/'"),
        ("$amqp//q", "'amq.default' in vhost '/'"),
        ("$vhost/shop/amqp/orders/a", "'orders' in vhost 'shop'"),
        ("$vhost/shop/amqp//q", "'amq.default' in vhost 'shop'"),
    ],
)
def test_a_publisher_without_the_right_hears_so_in_the_words_of_rabbitmq(address, exchange):
    why = f"ACCESS_REFUSED - write access to exchange {exchange} refused for user 'me'"
    peer = Peer().open()
    (effect,) = peer.publish("x", "a", b"x")
    peer.refuse(effect, Denied("me", "publish", address))
    assert peer.one(Channel.Close).reply_text == why
    peer.send(Channel.CloseOk(), Channel.Open(), Tx.Select(), channel=1)
    peer.frames()
    (effect,) = peer.feed(publish(1, "x", "a", b"x") + encoded(1, Tx.Commit()))
    peer.complete(effect, refused={0: Denied("me", "publish", address)})
    assert peer.one(Channel.Close).reply_text == why


def test_without_confirms_a_loss_is_not_silent():
    peer = Peer().open()
    (effect,) = peer.publish("amq.topic", "a", b"x")
    peer.refuse(effect, Refusal(Cause.OVERLOAD, "full"))
    blocked = [m for m in peer.methods() if not isinstance(m, Connection.Blocked)]
    assert [(type(m), m.reply_code) for m in blocked] == [(Channel.Close, 506)]


def test_overload_blocks_the_connection_for_a_while():
    peer = Peer(consumer_timeout_s=0).open().confirming()
    for _ in range(2):
        (effect,) = peer.publish("amq.topic", "a", b"x")
        peer.refuse(effect, Refusal(Cause.OVERLOAD, "full", retry_after_ms=3_000))
    nack, blocked, again = peer.methods()
    assert isinstance(nack, Basic.Nack)
    assert isinstance(blocked, Connection.Blocked)
    assert isinstance(again, Basic.Nack)
    assert peer.conn.deadline_ms() == NOW_MS + 3_000
    peer.tick(3_000)
    peer.one(Connection.Unblocked)
    assert peer.conn.deadline_ms() is None


def test_who_does_not_know_blocked_is_not_told():
    peer = Peer().open(capabilities={}).confirming()
    (effect,) = peer.publish("amq.topic", "a", b"x")
    peer.refuse(effect, Refusal(Cause.OVERLOAD, "full"))
    peer.one(Basic.Nack)


def pressed(peer, why: str):
    peer.effects += peer.conn.pressed(why, now_ms=peer.now_ms)
    return peer.methods()


def test_pressure_blocks_those_that_publish_meanwhile_and_unblocks_them_when_it_is_over():
    publisher, other = Peer().open().confirming(), Peer().open()
    for _ in range(2):
        (effect,) = other.publish("amq.topic", "a", b"before")
        other.complete(effect)
        assert pressed(publisher, "low on disk") == pressed(other, "low on disk") == []
        (effect,) = publisher.publish("amq.topic", "a", b"x")
        assert publisher.one(Connection.Blocked).reason == "low on disk"
        publisher.complete(effect)
        publisher.one(Basic.Ack)
        assert pressed(publisher, "low on memory & disk") == []
        publisher.publish("amq.topic", "a", b"y")
        assert publisher.methods() == []
        assert [type(m) for m in pressed(publisher, "")] == [Connection.Unblocked]
        assert pressed(other, "") == pressed(publisher, "") == []


def test_a_publisher_in_a_transaction_is_told_of_pressure():
    peer = Peer().open()
    pressed(peer, "low on disk")
    peer.send(Tx.Select(), channel=1)
    peer.one(Tx.SelectOk)
    peer.publish("amq.topic", "a", b"x")
    assert peer.one(Connection.Blocked).reason == "low on disk"


def test_pressure_that_outlives_a_refusal_goes_on_blocking():
    peer = Peer().open().confirming()
    (effect,) = peer.publish("amq.topic", "a", b"x")
    peer.refuse(effect, Refusal(Cause.OVERLOAD, "full", retry_after_ms=3_000))
    assert [type(m) for m in peer.methods()] == [Basic.Nack, Connection.Blocked]
    pressed(peer, "low on disk")
    peer.tick(3_000)
    assert peer.methods() == []
    assert [type(m) for m in pressed(peer, "")] == [Connection.Unblocked]


def test_a_refusal_that_outlives_pressure_goes_on_blocking():
    peer = Peer().open().confirming()
    (effect,) = peer.publish("amq.topic", "a", b"x")
    peer.refuse(effect, Refusal(Cause.OVERLOAD, "full", retry_after_ms=3_000))
    peer.frames()
    assert pressed(peer, "low on disk") == pressed(peer, "") == []
    peer.tick(3_000)
    peer.one(Connection.Unblocked)


def test_who_has_not_opened_or_does_not_understand_hears_of_no_pressure():
    early = Peer()
    asked = early.start()
    assert pressed(early, "low on disk") == []
    early.complete(asked, Principal(name="guest"))
    early.send(Connection.TuneOk(channel_max=9, frame_max=4096, heartbeat=0), Connection.Open())
    early.send(Channel.Open(), channel=1)
    early.frames()
    early.publish("amq.topic", "a", b"x")
    early.one(Connection.Blocked)
    deaf = Peer().open(capabilities={})
    deaf.publish("amq.topic", "a", b"x")
    assert pressed(deaf, "low on disk") == []


def test_mandatory_messages_that_no_queue_wants_are_returned_before_their_ack():
    peer = Peer().open().confirming()
    mandatory = {"mandatory": True}
    data = publish(1, "amq.topic", "a", b"wanted", **mandatory) + publish(1, "amq.topic", "b", b"not", **mandatory)
    (stored,) = peer.feed(data + publish(1, "amq.topic", "c", b"whatever"))
    assert list(stored.mandatory) == [0, 1]
    (later,) = peer.publish("amq.topic", "d", b"later")
    assert peer.frames() == []
    peer.complete(stored, unrouted=[1])
    peer.complete(later)
    returned, content, body, ack, last = peer.methods()
    assert (returned.reply_code, returned.exchange, returned.routing_key) == (312, "amq.topic", "b")
    assert (content.body_size, body.value) == (3, b"not")
    assert (ack.delivery_tag, ack.multiple, last.delivery_tag) == (3, True, 4)


def test_mandatory_messages_that_were_refused_are_not_returned():
    peer = Peer().open().confirming()
    (stored,) = peer.feed(publish(1, "amq.topic", "a", b"x", mandatory=True) * 2)
    peer.complete(stored, refused={0: Refusal(Cause.QUOTA)}, unrouted=[0])
    assert confirms(peer) == [("Nack", 1, False), ("Ack", 2, False)]
    (stored,) = peer.feed(publish(1, "amq.topic", "a", b"x", mandatory=True))
    assert peer.complete(stored, error=Refusal(Cause.UNAVAILABLE), unrouted=[0]) == []
    assert confirms(peer) == [("Nack", 3, False)]


def test_a_body_comes_in_many_frames():
    peer = Peer().open(frame_max=4096)
    body = bytes(range(256)) * 60
    data = publish(1, "amq.topic", "a", body)
    for at in range(0, len(data), 1_000):
        peer.feed(data[at : at + 1_000])
    assert peer.published()[0].body == body
    assert peer.conn.assembling_bytes == 0


def test_frames_of_channels_may_mix():
    peer = Peer().open(channels=2)

    def pieces(channel, body):
        yield encoded(channel, Basic.Publish(exchange="amq.topic", routing_key="a"))
        yield encoded(channel, header.ContentHeader(body_size=len(body)))
        for byte in body:
            yield encoded(channel, ContentBody(bytes([byte])))

    peer.feed(b"".join(piece for pair in zip(pieces(1, b"one"), pieces(2, b"two"), strict=True) for piece in pair))
    assert [message.body for message in peer.published()] == [b"one", b"two"]


def test_an_empty_body_has_no_frames():
    peer = Peer().open().confirming()
    (effect,) = peer.feed(publish(1, "amq.topic", "a", b"") * 2)
    assert [message.body for message in effect.messages] == [b"", b""]
    peer.complete(effect)
    assert confirms(peer) == [("Ack", 2, True)]


def test_a_body_over_the_limit_closes_the_channel_and_nothing_of_it_is_kept():
    peer = Peer(message_bytes_max=5_000).open()
    peer.publish("amq.topic", "a", b"x" * 5_001)
    close = peer.one(Channel.Close)
    assert close.reply_code == 406
    assert not peer.published()
    peer.send(Channel.CloseOk(), channel=1)
    peer.send(Channel.Open(), channel=1)
    peer.frames()
    peer.publish("amq.topic", "a", b"x" * 5_000)
    assert len(peer.published()) == 1


def test_bodies_half_received_are_bounded():
    peer = Peer(assembling_bytes_max=6_000).open(channels=2)
    for number in (1, 2):
        half = publish(number, "amq.topic", "a", b"x" * 8_000)[: -len(encoded(number, ContentBody(b"x" * 4_000)))]
        peer.feed(half)
    assert peer.one(Connection.Close).reply_code == 506


def test_properties_of_messages_half_received_are_bounded_too():
    peer = Peer(assembling_bytes_max=20_000).open(channels=3)
    headers = {f"{number:03}": True for number in range(100)}
    for number in (1, 2, 3):
        peer.feed(
            publish(number, "amq.topic", "a", b"xx", headers=headers)[: -len(encoded(number, ContentBody(b"xx")))]
        )
    assert peer.one(Connection.Close).reply_code == 506


def test_a_lost_connection_holds_nothing_of_bodies_half_received():
    peer = Peer().open()
    peer.feed(publish(1, "amq.topic", "a", b"x" * 8_000)[: -len(encoded(1, ContentBody(b"x" * 4_000)))])
    (channel,) = peer.conn.channels.values()
    assert channel.content is not None
    peer.conn.lost(now_ms=0)
    assert channel.content is None  # for channel and connection are a ring, which a process seldom looks for
    assert (peer.conn.assembling_bytes, peer.conn._input) == (0, b"")


def test_a_body_longer_than_announced():
    peer = Peer().open()
    peer.feed(encoded(1, Basic.Publish(), header.ContentHeader(body_size=2), ContentBody(b"1"), ContentBody(b"23")))
    assert peer.one(Connection.Close).reply_code == 501


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Basic.Publish(), header.ContentHeader(body_size=1), header.ContentHeader(body_size=1)], 505),
        ([Basic.Publish(), ContentBody(b"x")], 505),
        ([Basic.Publish(), Queue.Declare(queue="q")], 505),
    ],
)
def test_content_comes_in_its_order(frames, code):
    peer = Peer().open()
    peer.send(*frames, channel=1)
    assert peer.one(Connection.Close).reply_code == code


@pytest.mark.parametrize("header_frame", [b"\x00\x3c\x00", b"\x00\x3d\x00\x00" + bytes(8) + b"\x00\x00"])
def test_a_content_header_that_is_none(header_frame):
    peer = Peer().open()
    peer.send(Basic.Publish(), channel=1)
    peer.feed(b"\x02\x00\x01" + len(header_frame).to_bytes(4, "big") + header_frame + b"\xce")
    assert peer.one(Connection.Close).reply_code in (501, 505)


def test_reading_stops_while_too_much_is_on_its_way():
    peer = Peer(outstanding_count_max=10).open()
    (effect,) = peer.feed(publish(1, "amq.topic", "a", b"x") * 10)
    assert not peer.conn.wants_data
    peer.complete(effect)
    assert peer.conn.wants_data


def test_a_channel_sees_what_it_has_published():
    """basic.get behind basic.publish in one read waits for the store."""
    peer = Peer().open()
    (stored,) = peer.feed(publish(1, "", "q", b"x") + encoded(1, Basic.Get(queue="q")))
    assert isinstance(stored, Publish)
    (asked,) = peer.complete(stored)
    assert isinstance(asked, Call)


@pytest.mark.parametrize("name", ["per%centt", "per%2Fent", "per\tcentt"])
def test_an_exchange_has_any_name(name):
    peer = Peer().open()
    one = publish(1, "amq.topic", "a", b"x").replace(b"amq.topic", name.encode())
    (effect,) = peer.feed(one)
    assert routing_of(effect.messages[0].address) == (name, "a")


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"user_id": "somebody"}, 406),
        ({"expiration": "soon"}, 406),
        ({"expiration": "-1"}, 406),
        ({"headers": {"x-delay": "later"}}, 406),
        *(({"headers": {"x-delay": value}}, 406) for value in ("10s", "", "1e3", 1 << 54, 1e30, float("nan"))),
    ],
)
def test_properties_that_mean_nothing_close_the_channel(properties, code):
    peer = Peer().open()
    peer.publish("amq.topic", "a", b"x", **properties)
    assert peer.one(Channel.Close).reply_code == code
    assert not peer.published()


def test_a_user_id_that_is_true_is_taken():
    peer = Peer().open()
    peer.publish("amq.topic", "a", b"x", user_id="guest")
    assert peer.published()[0].device == "guest"


def test_only_a_trusted_gateway_speaks_for_others():
    headers = {"ce-deviceid": "dev42"}
    peer = Peer().open()
    peer.publish("amq.topic", "a", b"x", headers=headers)
    trusted = Peer().open(principal=Principal(name="bridge", trusted_gateway=True))
    trusted.publish("amq.topic", "a", b"x", headers=headers)
    trusted.publish("amq.topic", "a", b"x", user_id="dev43")
    trusted.publish("amq.topic", "a", b"x")
    found = [(m.device, m.principal) for m in (*peer.published(), *trusted.published())]
    assert found == [("guest", None), ("dev42", "bridge"), ("dev43", "bridge"), ("bridge", None)]


def test_confirm_select_without_an_answer():
    peer = Peer().open()
    peer.send(Confirm.Select(nowait=True), channel=1)
    assert peer.frames() == []
    (effect,) = peer.publish("amq.topic", "a", b"x")
    peer.complete(effect)
    assert confirms(peer) == [("Ack", 1, False)]


def test_outcomes_after_the_channel_or_connection_has_ended_are_passed_over():
    peer = Peer().open(channels=2).confirming()
    (effect,) = peer.publish("amq.topic", "a", b"x")
    peer.send(Basic.Ack(delivery_tag=5), channel=1)
    peer.one(Channel.Close)
    peer.complete(effect)
    assert peer.frames() == []
    (effect,) = peer.publish("amq.topic", "a", b"x", channel=2)
    peer.conn.shutdown(now_ms=peer.now_ms)
    peer.frames()
    assert peer.complete(effect) == ()
