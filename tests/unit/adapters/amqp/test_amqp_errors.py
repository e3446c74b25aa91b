"""Errors of the peer: the reply code, class, method and text, as RabbitMQ has them where it says something."""

import struct

import pytest
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue, Tx

from adapters.amqp.codec.wire import TABLE_DEPTH_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Close
from tests.support.amqp.amqp_peer import HEADER, PROPERTIES, Peer, encoded, publish

GOOD_BYE = Channel.Close(200, "", 0, 0)
PUBLISH = encoded(1, Basic.Publish(routing_key="k"))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(class_: int, method_: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(1, channel, struct.pack(">HH", class_, method_) + arguments)


def header(size: int = 1, *, class_: int = 60, weight: int = 0, properties: bytes = b"\0\0", channel: int = 1) -> bytes:
    return frame(2, channel, struct.pack(">HHQ", class_, weight, size) + properties)


def declare(fields: bytes, size: int | None = None) -> bytes:
    """Returns queue.declare with a table of these fields, whose size may be another than it says."""
    return method(50, 10, b"\0\0\1q\0" + (len(fields) if size is None else size).to_bytes(4, "big") + fields)


def told(peer: Peer, data: bytes) -> tuple[int, int, int, str]:
    """Returns what closes the connection when it reads this."""
    peer.feed(encoded(1, Basic.Qos()))
    peer.frames()
    peer.feed(data)
    closed = peer.one(Connection.Close)
    assert not ended(peer)
    peer.send(Connection.CloseOk())
    assert ended(peer)
    return closed.reply_code, closed.class_id, closed.method_id, closed.reply_text


def ended(peer: Peer) -> bool:
    return any(isinstance(effect, Close) for effect in peer.effects)


def deep(levels: int) -> bytes:
    table = b"\1aV"
    for _ in range(levels):
        table = b"\1aF" + len(table).to_bytes(4, "big") + table
    return table


CUT = "a field ends behind its frame"
BEHIND = "there are bytes behind the last field"
QOS = bytes(7)


@pytest.mark.parametrize(
    ("data", "class_", "method_", "why"),
    [
        (method(60, 10, QOS[:-3]), 60, 10, f"Basic.Qos: {CUT}"),
        (method(60, 10, QOS + b"z"), 60, 10, f"Basic.Qos: {BEHIND}"),
        (method(60, 80, bytes(4)), 60, 80, f"Basic.Ack: {CUT}"),
        (method(60, 80, bytes(9) + b"z"), 60, 80, f"Basic.Ack: {BEHIND}"),
        (method(60, 40, bytes(4)), 60, 40, f"Basic.Publish: {CUT}"),
        (method(60, 40, bytes(5) + b"z"), 60, 40, f"Basic.Publish: {BEHIND}"),
        (method(60, 40, b"\0\0\5ab"), 60, 40, f"Basic.Publish: {CUT}"),
        (method(90, 10, b"z"), 90, 10, f"Tx.Select: {BEHIND}"),
        (method(20, 40, b"\0\xc8\0\0\0\0\0z"), 20, 40, f"Channel.Close: {BEHIND}"),
        (method(20, 10, channel=3), 20, 10, f"Channel.Open: {CUT}"),
        (method(10, 50, b"\0\xc8\5a", channel=0), 10, 50, f"Connection.Close: {CUT}"),
        (declare(b"\1aZ1"), 50, 10, "Queue.Declare: unknown field type 'Z'"),
        (declare(b"\1at\1", 99), 50, 10, "Queue.Declare: a table ends behind its frame"),
        (declare(b"\1aS\0\0\0\6abcdef", 6), 50, 10, "Queue.Declare: a field ends behind its table"),
        (declare(b"\1aA\0\0\0\x63t\1"), 50, 10, "Queue.Declare: an array ends behind its frame"),
        (declare(b"\1al\0\0"), 50, 10, f"Queue.Declare: {CUT}"),
        (declare(b"\1a"), 50, 10, f"Queue.Declare: {CUT}"),
        (
            declare(deep(TABLE_DEPTH_MAX + 1)),
            50,
            10,
            f"Queue.Declare: more than {TABLE_DEPTH_MAX} tables or arrays are within each other",
        ),
        (PUBLISH + frame(2, 1, b"\0\x3c\0"), 60, 40, "content header: it is too short"),
        (PUBLISH + header(properties=b""), 60, 40, "content header: there are no property flags"),
        (PUBLISH + header(properties=b"\x80\0"), 60, 40, f"content header: {CUT}"),
        (PUBLISH + header(properties=b"\x08\0\1z"), 60, 40, f"content header: {BEHIND}"),
        (PUBLISH + header(properties=b"\0\2"), 60, 40, "content header: properties that class basic does not have"),
    ],
)
def test_bytes_that_cannot_be_decoded_are_a_frame_error_of_their_method(data, class_, method_, why):
    assert told(Peer().open(), data) == (501, class_, method_, f"FRAME_ERROR - cannot decode {why}")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encoded(1, Basic.Qos())[:-1] + b"\0", "a frame does not end where it says"),
        (struct.pack(">BHIB", 1, 1, 1 << 30, 0), "a frame of 1073741832 bytes; 4096 are agreed"),
        (frame(4, 1, b""), "there is no frame type 4"),
        (frame(8, 1, b""), "a heartbeat on a channel, or with a payload"),
        (frame(8, 0, b"x"), "a heartbeat on a channel, or with a payload"),
        (frame(1, 1, b"\0\x32"), "a method frame without a method"),
    ],
)
def test_a_frame_that_is_none_names_no_method(data, why):
    assert told(Peer().open(), data) == (501, 0, 0, f"FRAME_ERROR - {why}")


@pytest.mark.parametrize("over", [0, 8, 9])
def test_a_frame_may_be_longer_by_its_head_and_end_as_many_clients_count_it_so(over):
    peer = Peer().open()
    body = bytes(4_096 - 8 + over)
    peer.feed(PUBLISH + header(len(body)) + frame(3, 1, body))
    assert [len(one.body) for one in peer.published()] == ([len(body)] if over <= 8 else [])
    assert [one.reply_code for one in peer.methods()] == ([] if over <= 8 else [501])


_NO_HEADER = "expected content header for class 60, got non content header frame instead"
_NO_BODY = "expected content body, got non content body frame instead"
_NO_METHOD = "expected method frame, got non method frame instead"


@pytest.mark.parametrize(
    ("data", "named", "why"),
    [
        (header(), (0, 0), _NO_METHOD),
        (frame(3, 1, b"x"), (0, 0), _NO_METHOD),
        (PUBLISH + header(0) + frame(3, 1, b""), (0, 0), _NO_METHOD),
        (PUBLISH + frame(3, 1, b"x"), (60, 40), _NO_HEADER),
        (PUBLISH + encoded(1, Basic.Qos()), (60, 40), _NO_HEADER),
        (PUBLISH + encoded(1, GOOD_BYE), (60, 40), _NO_HEADER),
        (PUBLISH + header(5) + header(5), (60, 40), _NO_BODY),
        (PUBLISH + header(5) + PUBLISH, (60, 40), _NO_BODY),
        (PUBLISH + header(class_=50), (60, 40), "expected content header for class 60, got one for class 50 instead"),
        (
            PUBLISH + header(weight=1) + frame(3, 1, b"x"),
            (60, 40),
            "expected content header of weight 0, got weight 1 instead",
        ),
        (header(channel=0), (0, 0), "content on channel 0"),
    ],
)
def test_content_out_of_its_order_is_said_in_rabbitmqs_words(data, named, why):
    assert told(Peer().open(), data) == (505, *named, f"UNEXPECTED_FRAME - {why}")


def test_a_weight_is_refused_where_the_whole_message_comes_at_once_too():
    peer = Peer().open()
    peer.publish("", "k", b"x")  # its target and its properties are known now
    sent = publish(1, "", "k", b"x")
    peer.feed(sent[: len(PUBLISH) + 10] + b"\1" + sent[len(PUBLISH) + 11 :])
    assert peer.one(Connection.Close).reply_code == 505


@pytest.mark.parametrize("sent", [Basic.Qos(), Channel.Open(), Connection.Open(), Connection.TuneOk()])
def test_a_method_that_does_not_belong_on_channel_0(sent):
    named = sent.index >> 16, sent.index & 0xFFFF
    why = f"CHANNEL_ERROR - unexpected method in connection state running: {sent.name}"
    assert told(Peer().open(), encoded(0, sent)) == (504, *named, why)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((1, 100), "frame_max = 100 is lower than the minimum allowed value (4096)"),
        ((1, 131_073), "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ((2_048, 4_096), "channel_max = 2048 is higher than the maximum allowed value (2047)"),
    ],
)
def test_limits_that_are_refused_are_named(values, why):
    peer = Peer()
    peer.complete(peer.start(), Principal(name="guest"))
    peer.frames()
    peer.send(Connection.TuneOk(*values, 0))
    closed = peer.one(Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (530, f"NOT_ALLOWED - negotiated {why}")


# ---- logins


@pytest.mark.parametrize("properties", [{}, {"capabilities": {"consumer_cancel_notify": True}}])
@pytest.mark.parametrize("mechanism", ["PLAIN", "NONE"])
def test_a_client_that_knows_no_close_in_the_handshake_hears_the_end_of_the_connection_alone(properties, mechanism):
    peer = Peer()
    peer.feed(HEADER)
    peer.frames()
    effects = peer.send(Connection.StartOk(properties, mechanism, "\0me\0x", "en_US"))
    if mechanism == "PLAIN":
        peer.refuse(effects[0], Refusal(Cause.UNAUTHENTICATED, "wrong name or password"))
    assert peer.frames() == []
    assert ended(peer)


def test_a_refused_login_names_no_method():
    peer = Peer()
    peer.feed(HEADER)
    peer.frames()
    (asked,) = peer.send(Connection.StartOk(PROPERTIES, "PLAIN", "\0me\0x", "en_US"))
    peer.refuse(asked, Refusal(Cause.UNAUTHENTICATED, "wrong name or password"))
    closed = peer.one(Connection.Close)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (403, 0, 0)


def test_only_a_refused_login_is_called_one():
    peer = Peer()
    peer.feed(HEADER)
    peer.frames()
    (asked,) = peer.send(Connection.StartOk(PROPERTIES, "PLAIN", "\0me\0x", "en_US"))
    peer.refuse(asked, Refusal(Cause.RATE, "too many wrong passwords"))
    assert peer.one(Connection.Close).reply_text == "RESOURCE_ERROR - too many wrong passwords"


# ---- channels that their peer has closed


def test_methods_that_a_peer_sends_before_it_reads_close_ok_mean_nothing():
    peer = Peer().open(channels=2)
    behind = encoded(1, GOOD_BYE, Basic.Ack(1), Tx.Commit()) + publish(1, "", "k", b"x") + encoded(1, GOOD_BYE)
    peer.feed(behind + encoded(2, Basic.Qos()))
    assert [type(one) for one in peer.methods()] == [Channel.CloseOk, Channel.CloseOk, Basic.QosOk]
    assert not peer.published()
    peer.send(Basic.Ack(1), channel=1)
    closed = peer.one(Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (504, "CHANNEL_ERROR - expected 'channel.open'")


def test_a_channel_may_be_opened_again_right_behind_its_close():
    peer = Peer().open()
    peer.send(GOOD_BYE, Channel.Open(), Basic.Qos(), channel=1)
    assert [type(one) for one in peer.methods()] == [Channel.CloseOk, Channel.OpenOk, Basic.QosOk]


def test_a_method_behind_close_ok_is_an_error():
    peer = Peer().open()
    peer.send(Basic.Ack(9), channel=1)
    peer.one(Channel.Close)
    peer.send(Channel.CloseOk(), Basic.Qos(), channel=1)
    assert peer.one(Connection.Close).reply_code == 504


def test_a_channel_above_those_agreed_on():
    peer = Peer().open()
    peer.send(Channel.Open(), channel=101)
    closed = peer.one(Connection.Close)
    assert closed.reply_text == "NOT_ALLOWED - channel 101 is above the negotiated channel_max (100)"
    assert (closed.reply_code, closed.class_id, closed.method_id) == (530, 20, 10)


def test_old_clients_get_their_ticket():
    peer = Peer().open()
    peer.feed(method(30, 10, b"\5/data\x1f"))
    assert peer.conn.take_output() == method(30, 11, b"\0\1")
    peer.feed(method(30, 10, b"\5/data") + encoded(1, Exchange.Declare()))
    assert peer.one(Connection.Close).reply_text == f"FRAME_ERROR - cannot decode Access.Request: {CUT}"


def test_no_client_grants_a_ticket():
    peer = Peer().open()
    peer.feed(method(30, 11, b"\0\1") + encoded(1, Queue.Declare()))
    assert peer.one(Connection.Close).reply_code == 503


# ---- values that mean nothing


@pytest.mark.parametrize(("value", "type_"), [("high", "longstr"), (True, "bool"), ([1], "array")])
def test_a_consumers_priority_is_a_number(value, type_):
    peer = Peer().open()
    peer.send(Basic.Consume(queue="q", arguments={"x-priority": value}), channel=1)
    why = f"invalid arg 'x-priority' for queue 'q' in vhost '/': expected integer, got {type_}"
    assert peer.one(Channel.Close).reply_text == f"PRECONDITION_FAILED - {why}"


@pytest.mark.parametrize(
    ("value", "why"), [("odd", "'odd'"), (-1, "a value of type signedint"), ({}, "a value of type table")]
)
def test_a_place_in_a_stream_is_not_understood(value, why):
    peer = Peer().open()
    peer.send(Basic.Consume(queue="q", arguments={"x-stream-offset": value}), channel=1)
    text = f"PRECONDITION_FAILED - invalid arg 'x-stream-offset': {why} is not understood"
    assert peer.one(Channel.Close).reply_text == text


def test_an_expiration_that_is_no_number_is_named():
    peer = Peer().open()
    peer.publish("", "k", b"x", expiration="soon")
    closed = peer.one(Channel.Close)
    why = "invalid expiration 'soon': it is a decimal number of milliseconds"
    assert (closed.reply_code, closed.reply_text) == (406, f"PRECONDITION_FAILED - {why}")


def test_nothing_behind_a_wrong_protocol_header_is_read():
    peer = Peer()
    peer.feed(encoded(0, Connection.Close(200, "", 0, 0)) * 2)
    assert peer.conn.take_output() == HEADER
    assert ended(peer)
