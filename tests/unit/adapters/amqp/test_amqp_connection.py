"""The connection: handshake, limits, heartbeats, errors and the end."""

import msgspec
import pytest
from pamqp import heartbeat
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

from adapters.amqp import AmqpOptions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.domain.vhosts import in_vhost, split_name
from gateway.port.adapter import Close, Publish
from gateway.port.queues import OpenVhost, QueueInfo, address_of
from tests.support.amqp.amqp_peer import HEADER, PROPERTIES, Peer, encoded, publish

GOOD_BYE = Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0)


def closes(effects) -> bool:
    return any(isinstance(effect, Close) for effect in effects)


def closed_with(peer, code: int):
    """Checks that the connection was closed for this error, and that our side waits for close-ok."""
    close = peer.one(Connection.Close)
    assert close.reply_code == code, close.reply_text
    assert not closes(peer.effects)
    assert closes(peer.send(Connection.CloseOk()))
    return close


def channel_closed_with(peer, code: int):
    close = peer.one(Channel.Close)
    assert close.reply_code == code, close.reply_text
    return close


def test_the_handshake_ends_with_an_open_connection():
    peer = Peer()
    asked = peer.start()
    assert (asked.request.mechanism, asked.request.username, asked.request.password) == ("password", "guest", b"guest")
    assert peer.frames() == []
    peer.complete(asked, Principal(name="guest"))
    tune = peer.one(Connection.Tune)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
    peer.send(Connection.TuneOk(channel_max=10, frame_max=8192, heartbeat=30), Connection.Open())
    peer.one(Connection.OpenOk)
    assert peer.conn.payload_max == 8184


def test_start_says_what_we_can_do():
    peer = Peer()
    peer.feed(HEADER)
    start = peer.one(Connection.Start)
    assert start.mechanisms == "PLAIN AMQPLAIN"
    # kombu asks by product and version whether it can change the prefetch of consumers that there are.
    assert start.server_properties["product"] == "RabbitMQ"
    assert (3, 3) <= tuple(map(int, start.server_properties["version"].split("."))) < (4, 0)
    assert "Headgate" in start.server_properties["information"]
    capabilities = start.server_properties["capabilities"]
    assert capabilities["publisher_confirms"] is True
    assert capabilities["exchange_exchange_bindings"] is True


def test_amqplain_is_understood():
    peer = Peer()
    peer.feed(HEADER)
    response = b"\x05LOGINS\x00\x00\x00\x02me\x08PASSWORDS\x00\x00\x00\x03\xff\x00s"
    method = Connection.StartOk(mechanism="AMQPLAIN", response="", locale="en_US")
    raw = encoded(0, method)
    at = raw.index(b"AMQPLAIN") + 8
    raw = raw[:at] + len(response).to_bytes(4, "big") + response + raw[at + 4 :]
    raw = raw[:3] + (len(raw) - 8).to_bytes(4, "big") + raw[7:]
    (asked,) = peer.feed(raw)
    assert (asked.request.username, asked.request.password) == ("me", b"\xff\x00s")


@pytest.mark.parametrize("cut", range(9))
def test_a_client_of_0_9_is_one_of_0_9_1(cut):
    header = b"AMQP\x01\x01\x00\x09"
    peer = Peer()
    for part in (header[:cut], header[cut:]):
        assert not closes(peer.feed(part))
    start = peer.one(Connection.Start)
    assert (start.version_major, start.version_minor) == (0, 9)


@pytest.mark.parametrize(
    "header", [b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x01", b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"X"]
)
def test_another_protocol_is_told_ours(header):
    peer = Peer()
    assert closes(peer.feed(header))
    assert peer.conn.take_output() == HEADER
    assert peer.feed(HEADER) == ()


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [("EXTERNAL", "", 403), ("PLAIN", "nonsense", 502), ("PLAIN", "other\0me\0x", 403), ("AMQPLAIN", "x", 502)],
)
def test_credentials_that_are_none(mechanism, response, code):
    peer = Peer()
    peer.feed(HEADER)
    peer.frames()
    peer.send(Connection.StartOk(PROPERTIES, mechanism, response, "en_US"))
    closed_with(peer, code)


def test_a_wrong_password_is_access_refused():
    peer = Peer()
    asked = peer.start()
    peer.refuse(asked, Refusal(Cause.UNAUTHENTICATED, "wrong name or password"))
    why = "Login was refused using authentication mechanism PLAIN: wrong name or password"
    assert closed_with(peer, 403).reply_text == f"ACCESS_REFUSED - {why}"


def test_input_waits_for_authentication():
    peer = Peer()
    asked = peer.start()
    peer.send(Connection.TuneOk(frame_max=4096), Connection.Open())
    assert not peer.conn.wants_data
    peer.complete(asked, Principal(name="guest"))
    assert peer.conn.wants_data
    assert [type(m) for m in peer.methods()] == [Connection.Tune, Connection.OpenOk]


@pytest.mark.parametrize(
    "tune", [{"frame_max": 1000}, {"frame_max": 200_000}, {"channel_max": 3000, "frame_max": 4096}]
)
def test_limits_beyond_ours_are_not_allowed(tune):
    peer = Peer()
    peer.complete(peer.start(), Principal(name="guest"))
    peer.frames()
    peer.send(Connection.TuneOk(**tune))
    closed_with(peer, 530)


def test_zero_leaves_the_limits_to_us():
    peer = Peer()
    peer.complete(peer.start(), Principal(name="guest"))
    peer.send(Connection.TuneOk(), Connection.Open())
    assert peer.conn.payload_max == 131072 - 8
    assert peer.conn.deadline_ms() is None


def opening(vhost):
    """Returns a connection that has asked for a virtual host, and what it asks the gateway."""
    peer = Peer()
    peer.complete(peer.start(), Principal(name="guest"))
    peer.frames()
    handshake = encoded(0, Connection.TuneOk(), Connection.Open(virtual_host=vhost))
    (asked,) = peer.feed(handshake + encoded(1, Channel.Open()))
    assert asked.request == OpenVhost(name=vhost)
    assert peer.methods() == []  # neither is answered before the gateway says that there is one
    return peer, asked


@pytest.mark.parametrize("cause", [Cause.NOT_FOUND, Cause.FORBIDDEN])
def test_a_vhost_that_nobody_may_open_is_not_allowed(cause):
    peer, asked = opening("other")
    peer.refuse(asked, Refusal(cause, "vhost other not found"))
    assert "vhost other not found" in closed_with(peer, 530).reply_text


def test_a_vhost_is_opened_once_the_gateway_says_so():
    peer, asked = opening("shop")
    peer.complete(asked)
    assert [type(one) for one in peer.methods()] == [Connection.OpenOk, Channel.OpenOk]


def test_names_of_a_vhost_are_its_own():
    peer, asked = opening("a/b")
    peer.complete(asked)
    peer.methods()
    (asked,) = peer.send(Queue.Declare(queue="q"), channel=1)
    assert asked.request.name == "amq.vhost/a%2Fb/q"
    peer.complete(asked, QueueInfo(name="amq.vhost/a%2Fb/q", messages=0, consumers=0))
    assert peer.one(Queue.DeclareOk).queue == "q"
    (asked,) = peer.send(Queue.Bind(queue="", exchange="amq.topic", routing_key="k.#"), channel=1)
    assert (asked.request.queue, asked.request.exchange) == ("amq.vhost/a%2Fb/q", "amq.vhost/a%2Fb/amq.topic")
    peer.complete(asked)
    peer.one(Queue.BindOk)
    peer.publish("amq.topic", "k.l", b"1")
    peer.publish("", "q", b"2")
    roots = "$vhost/a%2Fb/amqp/amq.topic/k/l", "$vhost/a%2Fb/amqp//q"
    assert tuple(one.address for one in peer.published()) == roots


def test_what_one_vhost_publishes_to_is_not_remembered_for_another():
    first, asked = opening("one")
    first.complete(asked)
    second = Peer().open()
    for peer in (first, second, first, second):
        peer.publish("orders", "new", b"1")
    assert {one.address for one in first.published()} == {"$vhost/one/amqp/orders/new"}
    assert {one.address for one in second.published()} == {"$amqp/orders/new"}


def test_no_name_of_the_default_vhost_reaches_into_another():
    peer = Peer().open()
    inside = in_vhost("shop", "q")
    (asked,) = peer.send(Queue.Declare(queue=inside, passive=True), channel=1)
    assert asked.request.name != inside
    assert split_name(asked.request.name) == ("/", inside)
    assert not address_of(asked.request.name, "k").startswith("$vhost/")


def test_a_handshake_takes_no_longer_than_it_may():
    peer = Peer(handshake_timeout_s=5)
    assert peer.conn.deadline_ms() == 0
    assert not peer.tick(0)
    assert peer.conn.deadline_ms() == peer.now_ms + 5_000
    peer.feed(HEADER)
    assert not closes(peer.tick(4_999))
    assert closes(peer.tick(1))
    assert peer.conn.deadline_ms() is None


def test_heartbeats_go_both_ways():
    peer = Peer().open(heartbeat_s=10)
    assert peer.conn.deadline_ms() == peer.now_ms + 5_000
    peer.tick(5_000)
    peer.one(heartbeat.Heartbeat)
    peer.send(heartbeat.Heartbeat())
    assert not closes(peer.tick(5_000))
    peer.one(heartbeat.Heartbeat)
    assert not closes(peer.tick(14_999))
    peer.one(heartbeat.Heartbeat)
    assert closes(peer.tick(1))


def test_heartbeats_are_sent_though_the_clock_was_set_back():
    """None was for as long as the step, so that clients gave the connection up."""
    peer = Peer().open(heartbeat_s=10)
    peer.now_ms -= 3_600_000
    peer.feed(b"")  # as the shell tells of it
    assert peer.conn.deadline_ms() == peer.now_ms + 5_000
    peer.tick(5_000)
    peer.one(heartbeat.Heartbeat)


def test_whoever_we_do_not_listen_to_is_not_missed():
    peer = Peer().open(heartbeat_s=10)
    peer.send(Queue.Declare(queue="q"), Queue.Declare(queue="r"), channel=1)
    assert not peer.conn.wants_data
    assert not closes(peer.tick(60_000))


def test_close_is_answered_and_waits_for_what_was_published():
    peer = Peer().open()
    (effect,) = peer.feed(publish(1, "amq.topic", "a", b"x") + encoded(0, GOOD_BYE))
    assert isinstance(effect, Publish)
    assert peer.frames() == []
    assert not peer.conn.wants_data
    assert closes(peer.complete(effect))
    peer.one(Connection.CloseOk)


@pytest.mark.parametrize(("dismissed", "why"), [(False, "shutting down"), (True, "its user")])
def test_a_shutdown_says_good_bye(dismissed, why):
    peer = Peer().open()
    effects = peer.conn.shutdown(now_ms=peer.now_ms, dismissed=dismissed)
    assert closes(effects)
    close = peer.one(Connection.Close)
    assert close.reply_code == 320
    assert why in close.reply_text
    assert peer.conn.lost(now_ms=peer.now_ms) == ()


def test_a_peer_that_does_not_answer_close_is_cut_off():
    peer = Peer().open()
    peer.send(Basic.Recover(requeue=False), channel=1)
    assert peer.one(Connection.Close).reply_code == 540
    assert not closes(peer.tick(4_999))
    assert closes(peer.tick(1))


def test_after_an_error_nothing_but_its_end_is_heard():
    peer = Peer().open(channels=2)
    peer.send(Basic.Recover(requeue=False), channel=1)
    peer.frames()
    peer.publish("amq.topic", "a", b"x", channel=2)
    assert peer.feed(publish(2, "amq.topic", "a", b"x")) == []
    assert peer.frames() == []
    assert closes(peer.send(Connection.CloseOk()))


def test_both_sides_may_close_at_once():
    peer = Peer().open()
    peer.send(Basic.Recover(requeue=False), channel=1)
    peer.frames()
    assert closes(peer.send(GOOD_BYE))
    peer.one(Connection.CloseOk)


# ---- errors of the connection


FRAME = encoded(1, Queue.Declare(queue="q"))


@pytest.mark.parametrize(
    "named",
    [
        Queue.Declare(queue="qqq"),
        Queue.Bind(queue="q", exchange="x", routing_key="qqq"),
        Exchange.Declare(exchange="qqq"),
        Basic.Consume(queue="q", consumer_tag="qqq"),
        Basic.Cancel(consumer_tag="qqq"),
        Basic.Publish(exchange="qqq", routing_key="k"),
        Basic.Publish(exchange="x", routing_key="qqq"),
    ],
)
def test_names_that_are_not_utf8_end_the_connection_as_in_rabbitmq(named):
    peer = Peer().open()
    peer.feed(encoded(1, Basic.Qos()))
    peer.frames()
    peer.feed(encoded(1, named).replace(b"qqq", b"q\xffq"))
    told = peer.one(Connection.Close)
    assert (told.reply_code, told.reply_text) == (501, "FRAME_ERROR - Malformed UTF-8 in shortstr")
    assert (told.class_id, told.method_id) == (0, 0)
    assert closes(peer.send(Connection.CloseOk()))


def test_properties_that_are_not_utf8_end_the_connection():
    peer = Peer().open()
    peer.feed(publish(1, "amq.topic", "a", b"x", content_type="text/q").replace(b"text/q", b"text/\xff"))
    told = peer.one(Connection.Close)
    assert (told.reply_code, told.reply_text) == (501, "FRAME_ERROR - Malformed UTF-8 in shortstr")


def test_a_method_cut_short_is_named_in_the_error():
    peer = Peer().open()
    peer.feed(encoded(1, Basic.Qos()))
    peer.frames()
    peer.feed(b"\x01\x00\x01\x00\x00\x00\x04\x00\x32\x00\x0a\xce")
    told = peer.one(Connection.Close)
    assert (told.reply_code, told.class_id, told.method_id) == (501, 50, 10)


@pytest.mark.parametrize("channel", [0, 1, 9])
def test_a_frame_too_short_for_a_method_names_none(channel):
    peer = Peer().open()
    peer.frames()
    peer.feed(b"\x01\x00%c\x00\x00\x00\x02\x00\x3c\xce" % channel)
    told = peer.one(Connection.Close)
    assert (told.reply_code, told.class_id, told.method_id) == (501, 0, 0)


def test_a_method_on_a_channel_that_is_not_open_is_named_in_the_error():
    peer = Peer().open()
    peer.frames()
    peer.send(Queue.Declare(queue="q"), channel=2)
    told = peer.one(Connection.Close)
    assert (told.reply_code, told.class_id, told.method_id) == (504, 50, 10)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (FRAME[:-1] + b"\xcd", 501),
        (b"\x01\x00\x01\x00\x01\x00\x00x", 501),
        (b"\x09\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x01\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x32\x00\x0a\xce", 501),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x32\x00\x63\xce", 540),
        (b"\x02\x00\x00\x00\x00\x00\x00\xce", 505),
        (b"\x03\x00\x01\x00\x00\x00\x01x\xce", 505),
        (encoded(1, Queue.DeclareOk(queue="q", message_count=0, consumer_count=0)), 503),
        (encoded(0, Connection.OpenOk()), 504),
        (encoded(0, Connection.StartOk(response="x", locale="x")), 504),
        (encoded(1, Connection.Open()), 503),
        (encoded(2, Queue.Declare(queue="q")), 504),
        (encoded(1, Channel.Open()), 504),
        (encoded(101, Channel.Open()), 530),
        (encoded(1, Exchange.Declare(exchange="x", exchange_type="odd")), 503),
        (encoded(1, Basic.Qos(prefetch_size=1)), 540),
        (encoded(1, Basic.Recover(requeue=False)), 540),
        (encoded(1, Basic.Publish(immediate=True)), 540),
        (encoded(1, Basic.Publish(), Basic.Publish()), 505),
    ],
)
def test_an_error_names_its_code_and_closes(data, code):
    peer = Peer().open()
    peer.feed(data)
    closed_with(peer, code)


def test_a_lost_frame_boundary_still_hears_close_ok():
    peer = Peer().open()
    peer.feed(FRAME[:-1] + b"\xcd" + b"garbage")
    peer.one(Connection.Close)
    ok = encoded(0, Connection.CloseOk())
    peer.feed(b"more garbage" + ok[:5])
    assert closes(peer.feed(ok[5:]))


# ---- channels


def test_channels_open_and_close():
    peer = Peer().open()
    peer.send(Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), channel=1)
    peer.one(Channel.CloseOk)
    peer.send(Channel.Open(), channel=1)
    peer.one(Channel.OpenOk)


def test_an_error_of_a_channel_leaves_the_others_alone():
    peer = Peer().open(channels=2)
    peer.send(Basic.Ack(delivery_tag=9), channel=1)
    close = channel_closed_with(peer, 406)
    assert (close.class_id, close.method_id) == (60, 80)
    peer.publish("amq.topic", "a", b"unheard", channel=1)
    peer.publish("amq.topic", "a", b"heard", channel=2)
    assert [message.body for message in peer.published()] == [b"heard"]
    peer.send(Channel.CloseOk(), channel=1)
    peer.send(Channel.Open(), channel=1)
    peer.one(Channel.OpenOk)


def test_both_sides_may_close_a_channel_at_once():
    peer = Peer().open()
    peer.send(Basic.Ack(delivery_tag=9), channel=1)
    channel_closed_with(peer, 406)
    peer.send(Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), channel=1)
    peer.one(Channel.CloseOk)
    peer.send(Channel.CloseOk(), channel=1)
    peer.send(Channel.Open(), channel=1)
    peer.one(Channel.OpenOk)


def test_every_option_says_what_it_is():
    for field in msgspec.inspect.type_info(AmqpOptions).fields:
        assert field.type.extra_json_schema["description"], field.name


def test_a_peer_that_is_not_read_from_because_it_does_not_read_is_not_silent():
    peer = Peer().open(heartbeat_s=10)
    for _ in range(8):  # a heartbeat of ours waits to be written all the time
        assert not closes(peer.tick(5_000))
    peer.conn.take_output()
    for _ in range(4):
        peer.tick(5_000)
        peer.conn.take_output()
    assert closes(peer.effects)
