"""Reading from a broker of somebody else's: nothing is acknowledged that is not durable, and only what can be is."""

import pytest

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.messages.messages import has_visible, publisher_of
from gateway.bridges.shared.addresses import BridgedFilter
from gateway.domain.errors import Cause, ProtocolError, Refusal
from tests.support.mqtt.upstream_broker import Broker


@pytest.fixture(params=["5.0", "3.1.1"])
def broker(request):
    broker = Broker(version=request.param)
    broker.connect()
    return broker


def test_it_connects_and_subscribes():
    broker = Broker(username="u", password="p")
    connect, subscribe = broker.connect()
    assert isinstance(connect, Connect)
    assert isinstance(subscribe, Subscribe)
    assert (connect.client_id, connect.clean, connect.keep_alive_s) == ("headgate-up", False, 30)
    assert (connect.username, connect.password) == ("u", b"p")
    assert (connect.properties.session_expiry_s, connect.properties.receive_maximum) == (600, 10)
    (request,) = subscribe.requests
    assert (request.pattern, request.qos, request.retain_as_published, request.retain_handling) == ("a/#", 2, True, 1)
    assert broker.bridge.ready


def test_a_clean_session_ends_with_its_connection():
    connect, _ = Broker(clean=True).connect()
    assert (connect.clean, connect.properties.session_expiry_s) == (True, 0)


def test_a_message_is_acknowledged_when_it_is_durable_and_not_before(broker):
    broker.publish("one", "two")
    broker.publish("three", qos=2, first_id=9)
    assert broker.heard() == []
    messages = broker.bridge.take()
    assert [(one.address, one.body, one.qos) for one in messages] == [
        ("plant/b", b"one", 1),
        ("plant/b", b"two", 1),
        ("plant/b", b"three", 2),
    ]
    assert broker.heard() == []
    assert broker.bridge.unacknowledged == 3
    broker.bridge.settled({})
    assert broker.heard() == [Puback(packet_id=1), Puback(packet_id=2), Pubrec(packet_id=9)]
    assert broker.bridge.unacknowledged == 0
    broker.release(9)
    assert broker.heard() == [Pubcomp(packet_id=9)]


def test_one_batch_is_under_way_at_a_time(broker):
    broker.publish("one")
    assert broker.bridge.take() is not None
    broker.publish("two", first_id=2)
    assert broker.bridge.take() is None
    broker.bridge.settled({})
    assert [one.body for one in broker.store()] == [b"two"]


def test_it_is_full_at_the_receive_maximum_and_at_so_many_bytes():
    broker = Broker(receive_maximum=2)
    broker.connect()
    broker.publish("one")
    assert not broker.bridge.full
    broker.publish("two", first_id=2)
    assert broker.bridge.full
    broker.store()
    assert not broker.bridge.full
    broker = Broker(pending_bytes_max=2_000)
    broker.connect()
    broker.publish("x" * 1_000, qos=0)
    assert not broker.bridge.full
    assert broker.bridge.take() is not None
    broker.publish("x" * 1_000, qos=0)
    assert broker.bridge.full  # with those that are being stored


def test_what_is_never_stored_is_acknowledged_with_its_reason(broker):
    broker.publish("one", "two", "three")
    broker.publish("four", qos=2, first_id=9)
    broker.store({1: Refusal(Cause.FORBIDDEN), 3: Refusal(Cause.TOO_LARGE)})
    five = broker.version == 5
    assert broker.heard() == [
        Puback(packet_id=1),
        Puback(packet_id=2, code=ReasonCode.NOT_AUTHORIZED if five else 0),
        Puback(packet_id=3),
        Pubrec(packet_id=9, code=ReasonCode.QUOTA_EXCEEDED if five else 0),
    ]
    assert broker.bridge.passed_over == {"forbidden": 1, "too_large": 1}


def test_a_topic_that_nothing_asked_for_is_passed_over_in_its_turn(broker):
    broker.publish("one")
    broker.publish("old", first_id=2, topic="left/over")
    broker.publish("three", first_id=3)
    assert [one.body for one in broker.store()] == [b"one", b"three"]
    assert [one.packet_id for one in broker.heard()] == [1, 2, 3]
    assert broker.bridge.passed_over == {"not_found": 1}
    broker.publish("old", first_id=4, topic="left/over")
    assert list(broker.store()) == []  # no message to store, a packet to acknowledge
    assert [one.packet_id for one in broker.heard()] == [4]


@pytest.mark.parametrize("chunk", [1, 7, 1_000, 1 << 20])
def test_a_message_that_is_too_large_is_passed_over_without_being_held(broker, chunk):
    large = Publish(topic="a/" + "t" * 300, payload=bytes(300_000), qos=1, packet_id=2)
    small = Publish(topic="a/b", payload=b"small", qos=1, packet_id=3)
    data = encode(large, broker.version) + encode(small, broker.version)
    for at in range(0, len(data), chunk):
        broker.bridge.receive(data[at : at + chunk], broker.now_ms)
        assert len(broker.bridge._rest) < 1_500
    assert [one.body for one in broker.store()] == [b"small"]
    five = broker.version == 5
    assert broker.heard() == [
        Puback(packet_id=2, code=ReasonCode.QUOTA_EXCEEDED if five else 0),
        Puback(packet_id=3),
    ]
    assert broker.bridge.passed_over == {"too_large": 1}


def test_qos_2_is_known_again_until_it_is_released_however_many_connections_that_takes(broker):
    broker.publish("once", qos=2, first_id=7)
    broker.store()
    assert broker.heard() == [Pubrec(packet_id=7)]
    broker.bridge.lost()  # the PUBREC has not arrived
    broker.connect(present=True)
    broker.publish("once", qos=2, first_id=7, dup=True)
    assert list(broker.store()) == []
    assert broker.heard() == [Pubrec(packet_id=7)]
    broker.release(7)
    assert broker.heard() == [Pubcomp(packet_id=7)]
    broker.publish("another", qos=2, first_id=7)
    assert [one.body for one in broker.store()] == [b"another"]


def test_a_new_session_knows_no_identifiers(broker):
    broker.publish("once", qos=2, first_id=7)
    broker.store()
    broker.bridge.lost()
    broker.connect(present=False)
    broker.publish("another", qos=2, first_id=7)
    assert [one.body for one in broker.store()] == [b"another"]


def test_what_was_not_durable_when_the_connection_went_is_not_acknowledged(broker):
    broker.publish("one")
    broker.publish("two", qos=2, first_id=2)
    assert broker.bridge.take() is not None
    broker.publish("three", first_id=3)
    broker.bridge.lost()
    broker.connect(present=True)
    assert broker.heard() == []
    assert broker.bridge.take() is None
    broker.publish("one", dup=True)
    broker.publish("two", qos=2, first_id=2, dup=True)
    assert [one.body for one in broker.store()] == [b"one", b"two"]


def test_what_became_durable_while_the_connection_went_is_known_again(broker):
    broker.publish("two", qos=2, first_id=2)
    assert broker.bridge.take() is not None
    broker.bridge.settled({})
    broker.bridge.lost()
    broker.connect(present=True)
    broker.publish("two", qos=2, first_id=2, dup=True)
    assert list(broker.store()) == []
    assert broker.heard() == [Pubrec(packet_id=2)]


def test_a_release_of_something_forgotten_is_answered(broker):
    broker.release(5)
    assert broker.heard() == [Pubcomp(packet_id=5)]


def test_it_pings_and_notices_silence(broker):
    assert broker.bridge.deadline_ms() == broker.now_ms + 30_000
    broker.now_ms += 30_000
    broker.bridge.tick(broker.now_ms, reading=True)
    assert broker.heard() == [Pingreq()]
    broker.say(Pingresp())
    broker.now_ms += 45_000
    with pytest.raises(ProtocolError, match="no packet within the keep alive"):
        broker.bridge.tick(broker.now_ms, reading=True)


def test_it_asks_at_once_when_the_clock_is_set_back(broker):
    broker.now_ms += 10_000 - 3_600_000
    broker.bridge.tick(broker.now_ms, reading=True)
    assert broker.heard() == [Pingreq()]
    assert broker.bridge.deadline_ms() == broker.now_ms + 30_000
    broker.now_ms += 45_000
    with pytest.raises(ProtocolError, match="no packet within the keep alive"):
        broker.bridge.tick(broker.now_ms, reading=True)


def test_an_upstream_that_does_not_answer_is_left_when_the_clock_is_set_back():
    broker = Broker()
    broker.bridge.connected(broker.now_ms)
    broker.now_ms -= 3_600_000
    broker.bridge.tick(broker.now_ms, reading=True)
    assert broker.bridge.deadline_ms() == broker.now_ms + 5_000
    with pytest.raises(ProtocolError, match="no answer"):
        broker.bridge.tick(broker.now_ms + 5_000, reading=True)


def test_silence_while_nothing_is_read_is_none(broker):
    broker.now_ms += 60_000
    broker.bridge.tick(broker.now_ms, reading=False)
    assert broker.heard() == [Pingreq()]
    broker.now_ms += 10_000
    broker.bridge.tick(broker.now_ms, reading=True)


def test_the_upstream_can_ask_for_another_keep_alive():
    broker = Broker()
    broker.connect(properties=Properties(server_keep_alive_s=5))
    assert broker.bridge.deadline_ms() == broker.now_ms + 5_000


def test_an_upstream_that_does_not_answer_is_left():
    broker = Broker()
    broker.bridge.connected(broker.now_ms)
    assert broker.bridge.deadline_ms() == broker.now_ms + 5_000
    with pytest.raises(ProtocolError, match="no answer"):
        broker.bridge.tick(broker.now_ms + 5_000, reading=True)


@pytest.mark.parametrize(
    ("version", "code", "text"),
    [("5.0", 0x86, "bad user name or password"), ("3.1.1", 4, "bad user name or password"), ("3.1.1", 1, "version")],
)
def test_not_let_in(version, code, text):
    broker = Broker(version=version)
    broker.bridge.connected(broker.now_ms)
    with pytest.raises(ProtocolError, match=text):
        broker.say(Connack(code=code))


def test_an_upstream_of_311_that_is_spoken_to_in_5():
    broker = Broker()
    broker.bridge.connected(broker.now_ms)
    with pytest.raises(ProtocolError, match=r"version = \"3.1.1\""):
        broker.bridge.receive(b"\x20\x02\0\x01", broker.now_ms)


def test_a_filter_that_is_refused_and_one_that_is_lowered():
    broker = Broker(BridgedFilter("a/#", 2, "{topic}", "d"), BridgedFilter("b", 1, "{topic}", "d"))
    broker.bridge.connected(broker.now_ms)
    broker.say(Connack())
    with pytest.raises(ProtocolError, match="refuses 'b'"):
        broker.say(Suback(packet_id=1, codes=(2, 0x87)))
    broker.bridge.lost()
    broker.bridge.connected(broker.now_ms)
    broker.say(Connack(), Suback(packet_id=1, codes=(1, 1)))
    assert broker.bridge.ready
    assert broker.bridge.lowered == {"a/#": 1}


def test_311_does_not_subscribe_again_to_a_session_that_it_has_subscribed_in():
    broker = Broker(version="3.1.1")
    assert len(broker.connect(present=True)) == 2  # the filters may be others since the last process
    broker.bridge.lost()
    assert len(broker.connect(present=True)) == 1
    assert broker.bridge.ready
    broker.bridge.lost()
    assert len(broker.connect(present=False)) == 2


def test_the_upstream_ends_the_connection():
    broker = Broker()
    broker.connect()
    with pytest.raises(ProtocolError, match=r"session taken over \(0x8E\)"):
        broker.say(Disconnect(code=ReasonCode.SESSION_TAKEN_OVER))


@pytest.mark.parametrize(
    "packet",
    [
        Connack(),
        Suback(packet_id=1, codes=(2,)),
        Puback(packet_id=1),
        Pubrec(packet_id=1),
        Pingreq(),
        Pubcomp(packet_id=3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_no_broker_says_ends_the_connection(packet):
    broker = Broker()
    broker.connect()
    with pytest.raises(ProtocolError, match="unexpected"):
        broker.say(packet)


@pytest.mark.parametrize(
    "packet", [Publish(topic="a/b"), Pubrel(packet_id=1), Pingresp()], ids=lambda one: type(one).__name__
)
def test_what_comes_before_the_connack_ends_the_connection(packet):
    broker = Broker()
    broker.bridge.connected(broker.now_ms)
    with pytest.raises(ProtocolError):
        broker.say(packet)


@pytest.mark.parametrize(
    "data", [b"\x36\x07\0\x03a/b\0\x01", b"\x32\x08\0\x03a/b\0\0\0", b"\x32\x02\0\x09", b"\x30\x05\0\x03a/+"]
)
def test_a_malformed_publish_ends_the_connection(data):
    broker = Broker()
    broker.connect()
    with pytest.raises(ProtocolError):
        broker.bridge.receive(data, broker.now_ms)


def test_properties_become_fields_as_they_do_for_our_own_clients():
    broker = Broker()
    broker.connect()
    user = (("k", "1"), ("type", "reading"), ("k", "2"), ("partitionkey", "p"))
    properties = Properties(
        payload_format=1,
        message_expiry_s=60,
        content_type="text/plain",
        response_topic="answers",
        correlation=b"c",
        subscription_ids=(3,),
        user=user,
    )
    broker.publish("21", properties=properties, retain=True)
    (message,) = broker.store()
    assert (message.content_type, message.type, message.key) == ("text/plain", "reading", "p")
    assert (message.reply_to, message.correlation, message.retain) == ("answers", b"c", True)
    assert message.expires_at_ms == broker.now_ms + 60_000
    assert message.properties == (("k", "1"), ("k", "2"))
    assert message.native["mqtt"]["payload_format"] == 1


def test_messages_say_which_bridge_brought_them(broker):
    broker.publish("one")
    (message,) = broker.store()
    assert message.native["mqtt"]["bridge"] == "up"
    assert (message.protocol, message.device) == ("mqtt", "up")
    assert publisher_of(message) == ""  # no client of ours
    assert not has_visible(message.native)


def test_a_text_that_is_none_is_passed_over():
    broker = Broker()
    broker.connect()
    publish = Publish(topic="a/b", payload=b"\xff", qos=1, packet_id=1, properties=Properties(payload_format=1))
    broker.say(publish)
    assert list(broker.store()) == []
    assert broker.bridge.passed_over == {"malformed": 1}


def test_sparkplug_is_recognized_by_the_topic_of_the_upstream():
    broker = Broker(BridgedFilter("spBv1.0/#", 1, "plant/{1}", "{bridge}"))
    broker.connect()
    broker.publish("x", topic="spBv1.0/g/NDATA/edge")
    (message,) = broker.store()
    assert (message.address, message.type) == ("plant/g/NDATA/edge", "sparkplug.NDATA")
