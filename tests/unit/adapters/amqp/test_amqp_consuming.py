"""Consuming: declarations, deliveries within credit, acknowledgements and what they set free."""

import pytest
from pamqp import header
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import (
    Call,
    Cancel,
    Consume,
    ConsumerCancelled,
    ConsumerId,
    Leased,
    Publish,
    Ready,
    SettleLeased,
)
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    Got,
    PurgeQueue,
    QueueInfo,
    UnbindExchange,
    UnbindQueue,
)
from store.api.message import Message
from tests.support.amqp.amqp_peer import Peer, encoded, publish

RECOVER_ASYNC = b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x64\x01\xce"


def messages(count, address="a/b", **fields):
    return [Message(address, b"%d" % n, **fields) for n in range(count)]


def tags(peer):
    return [m.delivery_tag for m in peer.methods() if isinstance(m, Basic.Deliver)]


def settled(effects):
    return [
        (effect.queue, disposition.outcome, list(disposition.offsets))
        for effect in effects
        if isinstance(effect, SettleLeased)
        for disposition in effect.dispositions
    ]


def ready(effects):
    return [effect.consumer for effect in effects if isinstance(effect, Ready)]


# ---- declarations


@pytest.mark.parametrize(
    ("method", "request_", "answer", "reply"),
    [
        (
            Exchange.Declare(exchange="x", exchange_type="topic", durable=True, auto_delete=True),
            DeclareExchange(name="x", kind="topic", durable=True, auto_delete=True),
            None,
            Exchange.DeclareOk,
        ),
        (
            Exchange.Delete(exchange="x", if_unused=True),
            DeleteExchange(name="x", if_unused=True),
            None,
            Exchange.DeleteOk,
        ),
        (
            Queue.Declare(queue="q", durable=True, exclusive=True, auto_delete=True, arguments={"x-message-ttl": 5}),
            DeclareQueue(name="q", durable=True, exclusive=True, auto_delete=True, arguments={"x-message-ttl": 5}),
            QueueInfo(name="q", messages=1, consumers=2),
            Queue.DeclareOk,
        ),
        (
            Exchange.Bind(destination="d", source="s", routing_key="k", arguments={"n": 1}),
            BindExchange(destination="d", source="s", routing_key="k", arguments={"n": 1}),
            None,
            Exchange.BindOk,
        ),
        (
            Exchange.Unbind(destination="d", source="s", routing_key="k", arguments={"n": 1}),
            UnbindExchange(destination="d", source="s", routing_key="k", arguments={"n": 1}),
            None,
            Exchange.UnbindOk,
        ),
        (
            Queue.Bind(queue="q", exchange="x", routing_key="k", arguments={"x-match": "any", "n": 1, "t": True}),
            BindQueue(queue="q", exchange="x", routing_key="k", arguments={"x-match": "any", "n": 1, "t": True}),
            None,
            Queue.BindOk,
        ),
        (
            Queue.Unbind(queue="q", exchange="x", routing_key="k"),
            UnbindQueue(queue="q", exchange="x", routing_key="k"),
            None,
            Queue.UnbindOk,
        ),
        (Queue.Purge(queue="q"), PurgeQueue(name="q"), 7, Queue.PurgeOk),
        (
            Queue.Delete(queue="q", if_unused=True, if_empty=True),
            DeleteQueue(name="q", if_unused=True, if_empty=True),
            3,
            Queue.DeleteOk,
        ),
    ],
)
def test_declarations_are_asked_and_answered(method, request_, answer, reply):
    peer = Peer().open()
    (call,) = peer.send(method, channel=1)
    assert isinstance(call, Call)
    assert call.request == request_
    assert peer.frames() == []
    peer.complete(call, answer)
    found = peer.one(reply)
    if reply is Queue.DeclareOk:
        assert (found.queue, found.message_count, found.consumer_count) == ("q", 1, 2)
    elif answer is not None:
        assert found.message_count == answer


@pytest.mark.parametrize(
    "method",
    [
        Exchange.Declare(exchange="x", nowait=True),
        Exchange.Bind(destination="x", source="y", nowait=True),
        Exchange.Unbind(destination="x", source="y", nowait=True),
        Queue.Bind(queue="q", exchange="x", nowait=True),
        Queue.Purge(queue="q", nowait=True),
        Queue.Delete(queue="q", nowait=True),
    ],
)
def test_no_wait_means_no_answer(method):
    peer = Peer().open()
    (call,) = peer.send(method, channel=1)
    peer.complete(call, None)
    assert peer.frames() == []


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.NOT_FOUND, 404),
        (Cause.PRECONDITION, 406),
        (Cause.CONFLICT, 405),
        (Cause.FORBIDDEN, 403),
        (Cause.UNAVAILABLE, 541),
        (Cause.QUOTA, 506),
    ],
)
def test_a_refusal_closes_the_channel(cause, code):
    peer = Peer().open()
    (call,) = peer.send(Queue.Declare(queue="q"), channel=1)
    peer.refuse(call, Refusal(cause, "é" * 300))
    close = peer.one(Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (code, 50, 10)
    assert len(close.reply_text.encode()) <= 255


def test_later_methods_wait_for_the_answer_and_other_channels_do_not_overtake_their_own():
    peer = Peer().open(channels=2)
    (first,) = peer.send(Queue.Declare(queue="a"), Queue.Bind(queue="a", exchange="x"), channel=1)
    assert not peer.conn.wants_data
    assert peer.send(Queue.Purge(queue="b"), channel=2) == []
    bind, purge = peer.complete(first, QueueInfo(name="a", messages=0, consumers=0))
    assert isinstance(bind.request, BindQueue)
    assert isinstance(purge.request, PurgeQueue)
    assert peer.conn.wants_data


def test_no_name_is_the_queue_declared_last():
    peer = Peer().open()
    peer.send(Queue.Bind(queue="", exchange="x"), channel=1)
    assert peer.one(Channel.Close).reply_code == 404
    peer = Peer().open()
    (call,) = peer.send(Queue.Declare(queue=""), channel=1)
    peer.complete(call, QueueInfo(name="amq.gen-1", messages=0, consumers=0))
    assert peer.one(Queue.DeclareOk).queue == "amq.gen-1"
    (call,) = peer.send(Queue.Bind(queue="", exchange="x"), channel=1)
    assert (call.request.queue, call.request.routing_key) == ("amq.gen-1", "amq.gen-1")


# ---- delivering


def test_a_delivery_is_method_header_and_body():
    peer = Peer().open()
    consumer = peer.consume("q", tag="mine")
    found = [Message("a/b%2Fc", b"body", 5_000, id="7", device="dev", content_type="text/plain")]
    assert peer.deliver(consumer, found, before=1) == 1
    method, content, body = peer.methods()
    assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("mine", 1, True)
    assert (method.exchange, method.routing_key) == ("amq.topic", "a.b/c")
    assert content.properties.content_type == "text/plain"
    assert (content.properties.message_id, content.properties.user_id) == ("7", "dev")
    assert body.value == b"body"


def test_a_long_body_is_cut_into_frames_and_an_empty_one_has_none():
    peer = Peer().open(frame_max=4096)
    consumer = peer.consume()
    body = bytes(range(256)) * 50
    peer.deliver(consumer, [Message("a", body), Message("a", b"")])
    frames = peer.methods()
    assert [type(f) for f in frames] == [
        Basic.Deliver, header.ContentHeader, *[ContentBody] * 4, Basic.Deliver, header.ContentHeader
    ]  # fmt: skip
    assert b"".join(f.value for f in frames[2:6]) == body
    assert max(len(f.value) for f in frames[2:6]) == 4088


def test_a_prefetch_is_kept_and_acknowledgements_make_room():
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=3), channel=1)
    peer.one(Basic.QosOk)
    consumer = peer.consume()
    assert peer.deliver(consumer, messages(5)) == 3
    assert tags(peer) == [1, 2, 3]
    assert peer.deliver(consumer, messages(2)) == 0
    effects = peer.send(Basic.Ack(delivery_tag=1), Basic.Ack(delivery_tag=2), channel=1)
    assert settled(effects) == [("q", "ack", [0, 1])]
    assert ready(effects) == [consumer]
    assert peer.deliver(consumer, messages(5), first=3) == 2
    assert tags(peer) == [4, 5]
    effects = peer.send(Basic.Ack(delivery_tag=0, multiple=True), channel=1)
    assert settled(effects) == [("q", "ack", [2, 3, 4])]


def test_the_gateway_knows_the_credit_of_a_consumer():
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=3), channel=1)
    peer.frames()
    consumer = peer.consume()
    assert peer.effects[-1].credit == 3
    peer.deliver(consumer, messages(2))
    effects = peer.send(Basic.Ack(delivery_tag=1), channel=1)
    assert effects[-1] == Ready(consumer=consumer, credit=2)
    peer.deliver(consumer, messages(2, "c/d"))
    effects = peer.send(Basic.Ack(delivery_tag=4, multiple=True), channel=1)
    assert effects[-1] == Ready(consumer=consumer, credit=3)


def test_acknowledgements_of_others_change_the_credit_within_a_shared_prefetch():
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=4, global_=True), channel=1)
    peer.frames()
    one, two = peer.consume("q", tag="1"), peer.consume("r", tag="2")
    peer.deliver(one, messages(3))
    peer.deliver(two, messages(1))
    effects = peer.send(Basic.Ack(delivery_tag=3, multiple=True), channel=1)
    assert sorted((e.consumer, e.credit) for e in effects if isinstance(e, Ready)) == [(one, 3), (two, 3)]


def test_a_new_consumer_has_no_more_credit_than_its_channel():
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=9), channel=1)
    peer.send(Basic.Qos(prefetch_count=3, global_=True), channel=1)
    peer.frames()
    peer.consume()
    assert (peer.effects[-1].credit, peer.effects[-1].shares) == (3, 1)


def test_a_consumer_with_a_prefetch_of_its_own_shares_no_credit():
    peer = Peer().open()
    peer.consume()
    assert peer.effects[-1].shares == 0


def test_a_consumer_without_acknowledgements_has_no_credit_to_speak_of():
    peer = Peer().open()
    consumer = peer.consume(no_ack=True)
    assert peer.effects[-1].credit is None
    peer.send(Channel.Flow(active=False), channel=1)
    assert peer.deliver(consumer, messages(1)) == 0
    assert peer.send(Channel.Flow(active=True), channel=1) == [Ready(consumer=consumer)]


def test_a_shared_prefetch_bounds_the_channel():
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=3, global_=True), channel=1)
    peer.frames()
    one, two = peer.consume("q", tag="1"), peer.consume("r", tag="2")
    assert peer.deliver(one, messages(2)) == 2
    assert peer.deliver(two, messages(2)) == 1
    assert peer.deliver(one, messages(2)) == 0
    effects = peer.send(Basic.Ack(delivery_tag=1), channel=1)
    assert sorted(ready(effects)) == sorted([one, two])
    assert sorted(ready(peer.send(Basic.Qos(prefetch_count=0, global_=True), channel=1))) == sorted([one, two])


def test_no_prefetch_is_bounded_by_ours():
    peer = Peer(unacknowledged_count_max=4).open()
    assert peer.deliver(peer.consume(), messages(9)) == 4


def test_no_prefetch_is_no_less_than_the_largest():
    peer = Peer().open()
    peer.consume(tag="1")
    credit = peer.effects[-1].credit
    peer.send(Basic.Qos(prefetch_count=0xFFFF), channel=1)
    peer.frames()
    peer.consume(tag="2")
    assert credit == peer.effects[-1].credit == 0xFFFF


def test_without_acknowledgements_there_is_no_bound():
    peer = Peer(unacknowledged_count_max=4).open()
    consumer = peer.consume(no_ack=True)
    assert peer.effects[-1].settle_on_delivery
    assert peer.deliver(consumer, messages(9)) == 9
    peer.frames()
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    assert peer.one(Channel.Close).reply_code == 406


def test_nothing_is_delivered_before_consume_ok():
    peer = Peer().open()
    (effect,) = peer.send(Basic.Consume(queue="q", exclusive=True), channel=1)
    assert isinstance(effect, Consume)
    assert effect.exclusive
    assert peer.deliver(effect.consumer, messages(1)) == 0
    assert ready(peer.complete(effect)) == [effect.consumer]
    assert peer.one(Basic.ConsumeOk).consumer_tag.startswith("amq.ctag-")
    assert peer.deliver(effect.consumer, messages(1)) == 1


def test_consuming_may_be_refused_or_unanswered():
    peer = Peer().open(channels=2)
    (effect,) = peer.send(Basic.Consume(queue="q"), channel=1)
    peer.refuse(effect, Refusal(Cause.FORBIDDEN, "exclusive"))
    assert peer.one(Channel.Close).reply_code == 403
    (effect,) = peer.send(Basic.Consume(queue="q", nowait=True), channel=2)
    peer.complete(effect)
    assert peer.frames() == []


def test_a_tag_is_used_once_and_consumers_are_bounded():
    peer = Peer().open()
    peer.consume(tag="c")
    peer.send(Basic.Consume(queue="q", consumer_tag="c"), channel=1)
    assert peer.one(Connection.Close).reply_code == 530
    peer = Peer(consumer_count_max=1).open()
    peer.consume(tag="c")
    peer.send(Basic.Consume(queue="q", consumer_tag="d"), channel=1)
    assert peer.one(Connection.Close).reply_code == 530


def test_arguments_of_consumers_that_we_cannot_keep_are_refused():
    peer = Peer().open()
    peer.send(Basic.Consume(queue="q", arguments={"x-stream-speed": 5}), channel=1)
    close = peer.one(Channel.Close)
    assert close.reply_code == 406
    assert "x-stream-speed" in close.reply_text


def test_arguments_that_nobody_knows_mean_nothing_as_in_rabbitmq():
    peer = Peer().open()
    peer.consume(arguments={"x-ha-policy": "all", "note": 1})


def test_the_same_tag_again_is_told_in_rabbitmqs_words():
    peer = Peer().open()
    peer.consume(tag="c")
    peer.send(Basic.Consume(queue="q", consumer_tag="c"), channel=1)
    assert peer.one(Connection.Close).reply_text == "NOT_ALLOWED - attempt to reuse consumer tag 'c'"


@pytest.mark.parametrize("kind", [Basic.Ack, Basic.Nack])
@pytest.mark.parametrize("tag", [1, 4])
def test_a_tag_that_is_not_held_settles_none_of_those_before_it(kind, tag):
    peer = Peer().open()
    consumer = peer.consume()
    peer.deliver(consumer, messages(3))
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    peer.frames()
    effects = peer.send(kind(delivery_tag=tag, multiple=True), channel=1)
    close = peer.one(Channel.Close)
    assert (close.reply_code, close.reply_text) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
    assert settled(effects) == [("q", "requeue", [1, 2])]


def test_cancelling_keeps_what_is_not_acknowledged():
    peer = Peer().open()
    consumer = peer.consume(tag="c")
    peer.deliver(consumer, messages(2))
    peer.frames()
    assert peer.send(Basic.Cancel(consumer_tag="c"), channel=1) == [Cancel(consumer=consumer)]
    assert peer.one(Basic.CancelOk).consumer_tag == "c"
    assert peer.deliver(consumer, messages(1)) == 0
    assert settled(peer.send(Basic.Ack(delivery_tag=2), channel=1)) == [("q", "ack", [1])]
    peer.send(Basic.Cancel(consumer_tag="unknown", nowait=True), channel=1)
    assert peer.frames() == []


@pytest.mark.parametrize(("capabilities", "told"), [({"consumer_cancel_notify": True}, True), ({}, False)])
def test_a_consumer_hears_that_its_queue_is_gone(capabilities, told):
    peer = Peer().open(capabilities=capabilities)
    consumer = peer.consume(tag="c")
    assert peer.conn.deliver(ConsumerCancelled(ConsumerId(consumer)), now_ms=peer.now_ms) == 0
    assert [m.consumer_tag for m in peer.methods()] == (["c"] if told else [])
    peer.send(Basic.CancelOk(consumer_tag="c"), channel=1)
    assert peer.frames() == []
    peer.consume(tag="c")


def test_flow_stops_and_starts_deliveries():
    peer = Peer().open()
    consumer = peer.consume()
    peer.send(Channel.Flow(active=False), channel=1)
    assert peer.one(Channel.FlowOk).active is False
    assert peer.deliver(consumer, messages(1)) == 0
    assert ready(peer.send(Channel.Flow(active=True), channel=1)) == [consumer]
    assert peer.deliver(consumer, messages(1)) == 1


# ---- acknowledging


def test_settlements_of_a_read_go_together_by_queue():
    peer = Peer().open()
    one, two = peer.consume("q", tag="1"), peer.consume("r", tag="2")
    peer.deliver(one, messages(4))
    peer.deliver(two, messages(3), first=10)
    effects = peer.send(
        Basic.Ack(delivery_tag=1),
        Basic.Reject(delivery_tag=2, requeue=False),
        Basic.Nack(delivery_tag=5, multiple=True, requeue=True),
        Basic.Reject(delivery_tag=6, requeue=True),
        Basic.Nack(delivery_tag=7, requeue=False),
        channel=1,
    )
    assert settled(effects) == [
        ("q", "ack", [0]),
        ("q", "reject", [1]),
        ("q", "requeue", [2, 3]),
        ("r", "requeue", [10, 11]),
        ("r", "reject", [12]),
    ]


@pytest.mark.parametrize(
    "method",
    [
        Basic.Ack(delivery_tag=3),
        Basic.Ack(delivery_tag=0),
        Basic.Reject(delivery_tag=9),
        Basic.Nack(delivery_tag=1, multiple=True),
    ],
)
def test_an_unknown_tag_closes_the_channel_and_gives_back_what_it_held(method):
    peer = Peer().open()
    consumer = peer.consume()
    peer.deliver(consumer, messages(2))
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    peer.frames()
    effects = peer.send(method, channel=1)
    assert peer.one(Channel.Close).reply_code == 406
    assert settled(effects) == [("q", "requeue", [1])]
    assert Cancel(consumer=consumer) in effects
    assert peer.deliver(consumer, messages(1)) == 0


def test_closing_a_channel_gives_back_what_it_held():
    peer = Peer().open()
    peer.deliver(peer.consume(), messages(3))
    close = Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
    assert settled(peer.send(close, channel=1)) == [("q", "requeue", [0, 1, 2])]


def test_recover_gives_back_everything():
    peer = Peer().open()
    peer.deliver(peer.consume(), messages(3))
    peer.frames()
    assert settled(peer.send(Basic.Recover(requeue=True), channel=1)) == [("q", "requeue", [0, 1, 2])]
    peer.one(Basic.RecoverOk)
    assert settled(peer.feed(RECOVER_ASYNC)) == []
    assert peer.frames() == []


# ---- basic.get


def got(remaining=4, before=0):
    return Got(leased=Leased(ConsumerId(0), [Message("$amqp/x/k", b"body")], [9], [before]), remaining=remaining)


def test_get_finds_a_message_or_none():
    peer = Peer().open()
    (call,) = peer.send(Basic.Get(queue="q"), channel=1)
    assert call.request == GetMessage(queue="q", settle=False)
    peer.complete(call, got(before=2))
    method, _, body = peer.methods()
    assert (method.delivery_tag, method.redelivered, method.message_count) == (1, True, 4)
    assert (method.exchange, method.routing_key, body.value) == ("x", "k", b"body")
    assert settled(peer.send(Basic.Ack(delivery_tag=1), channel=1)) == [("q", "ack", [9])]
    (call,) = peer.send(Basic.Get(queue="q", no_ack=True), channel=1)
    assert call.request.settle
    peer.complete(call, None)
    peer.one(Basic.GetEmpty)


def test_get_without_acknowledgement_holds_nothing():
    peer = Peer().open()
    (call,) = peer.send(Basic.Get(queue="q", no_ack=True), channel=1)
    peer.complete(call, got())
    assert len(peer.frames()) == 3
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    assert peer.one(Channel.Close).reply_code == 406


def test_what_was_fetched_takes_no_room_of_the_channels_prefetch():
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=1, global_=True), channel=1)
    peer.frames()
    (call,) = peer.send(Basic.Get(queue="other"), channel=1)
    peer.complete(call, got())
    peer.frames()
    consumer = peer.consume()
    assert peer.deliver(consumer, messages(2)) == 1
    peer.frames()
    assert settled(peer.send(Basic.Ack(delivery_tag=1), channel=1)) == [("other", "ack", [9])]
    assert peer.deliver(consumer, messages(1)) == 0
    peer.send(Basic.Ack(delivery_tag=2), channel=1)
    assert peer.deliver(consumer, messages(2)) == 1


@pytest.mark.parametrize(
    "method",
    [
        Basic.Get(queue="q"),
        Queue.Declare(queue="q", passive=True),
        Queue.Purge(queue="q"),
        Queue.Delete(queue="q", if_empty=True),
    ],
)
def test_who_looks_into_a_queue_sees_what_other_channels_of_the_connection_have_published(method):
    peer = Peer().open(channels=2)
    (stored,) = peer.feed(publish(1, "", "q", b"x") + encoded(2, method))
    assert isinstance(stored, Publish)
    assert not peer.conn.wants_data
    (asked,) = peer.complete(stored)
    assert isinstance(asked, Call)


def test_a_prefetch_for_consumers_to_come_ends_the_channels():
    peer = Peer().open()
    for method in (Basic.Qos(prefetch_count=1, global_=True), Basic.Qos(prefetch_count=2)):
        peer.send(method, channel=1)
    peer.frames()
    consumers = [peer.consume(tag=tag) for tag in "ab"]
    assert [peer.deliver(consumer, messages(3)) for consumer in consumers] == [2, 2]


def test_what_was_fetched_for_a_channel_that_has_ended_goes_back():
    peer = Peer().open(channels=2)
    (call,) = peer.send(Basic.Get(queue="q"), channel=1)
    peer.feed(encoded(2, Basic.Qos(prefetch_size=1)))
    peer.frames()
    assert settled(peer.complete(call, got())) == [("q", "requeue", [9])]
    assert peer.frames() == []


def test_fetching_without_acknowledging_is_bounded():
    peer = Peer(unacknowledged_count_max=1).open()
    (call,) = peer.send(Basic.Get(queue="q"), channel=1)
    peer.complete(call, got())
    peer.frames()
    peer.send(Basic.Get(queue="q"), channel=1)
    assert peer.one(Channel.Close).reply_code == 406


def test_acknowledgements_name_the_queue_their_message_came_from():
    peer = Peer().open()
    consumer = peer.consume()
    peer.conn.deliver(Leased(consumer, messages(1), [0], [0], 17), now_ms=peer.now_ms)
    (settle,) = [e for e in peer.send(Basic.Ack(delivery_tag=1), channel=1) if isinstance(e, SettleLeased)]
    assert (settle.queue, settle.number) == ("q", 17)


def test_a_peer_that_does_not_read_its_answers_gets_no_more_of_them():
    peer = Peer().open(channels=20)
    large = Got(leased=Leased(ConsumerId(0), [Message("a/b", bytes(300_000))], [9], [0]), remaining=1)
    calls = peer.feed(b"".join(encoded(n, Basic.Get(queue="q")) * 3 for n in range(1, 21)))
    assert len(calls) == 1  # of each channel one, and the second of the first holds up what follows
    while calls:
        calls = [e for call in calls for e in peer.complete(call, large)]
    assert not peer.conn.wants_data
    assert 1 << 20 < len(peer.conn.take_output()) < 4 << 20
    assert peer.conn.deadline_ms() == 0
    (call,) = peer.tick(1)
    assert isinstance(call, Call)
    assert peer.conn.deadline_ms() != 0


def test_only_so_many_channels_fetch_at_once():
    peer = Peer().open(channels=20)
    calls = peer.feed(b"".join(encoded(n, Basic.Get(queue="q")) for n in range(1, 21)))
    assert len(calls) == 8
    assert len(peer.complete(calls[0], None)) == 1
