"""CONNECT and everything before its CONNACK; keep alive; the ways a connection ends."""

import pytest

from adapters.mqtt import FACTORY
from adapters.mqtt.codec import Properties, ReasonCode, encode
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port import adapter as port
from gateway.port import sessions as port_sessions
from gateway.port.adapter import Authenticate, Call, Close, Outcome
from gateway.port.datagram import DatagramFactory
from gateway.port.sessions import DropWill, EndSession, OpenedSession, OpenSession, SaveSession
from tests.support.mqtt.mqtt_driver import INFO, NOW_MS, Driver, packets_in


def plain(**kwargs) -> Driver:
    """Returns a driver that answers nothing by itself."""
    driver = Driver(**kwargs)
    driver.answer_effect = lambda effect: None  # type: ignore[method-assign]
    return driver


def test_the_order_of_the_questions():
    driver = plain(version=4)
    packet = Connect(version=4, client_id="c", clean=False, username="u", password=b"p")
    assert driver.send(packet) == []
    (who,) = driver.calls(Authenticate)
    assert who.request == Authenticate(mechanism="password", username="u", password=b"p", client_id="c")
    assert not driver.adapter.wants_data
    assert driver.complete(who, Outcome(value=Principal(name="u"))) == []
    (session,) = driver.calls(OpenSession)
    assert session.request == OpenSession(session_id="c", clean=False, expiry_s=604_800)
    opened = Outcome(value=OpenedSession(present=True))
    assert driver.complete(session, opened) == [Connack(session_present=True)]
    assert driver.adapter.wants_data


def test_input_behind_the_connect_waits_for_the_connack():
    driver = plain(version=4)
    driver.feed(encode(Connect(version=4, client_id="c"), 4) + encode(Publish(topic="a", payload=b"1"), 4))
    driver.feed(encode(Publish(topic="a", payload=b"2"), 4) + encode(Pingreq(), 4)[:1])
    (who,) = driver.calls(Authenticate)
    driver.feed(encode(Pingreq(), 4)[1:])
    driver.complete(who, Outcome(value=Principal(name="")))
    assert driver.published() == []
    (session,) = driver.calls(OpenSession)
    assert driver.complete(session, driver.opened) == [Connack(), Pingresp()]
    assert [m.body for m in driver.published()] == [b"1", b"2"]


def test_nothing_is_published_before_the_connect():
    for version in (4, 5):
        driver = Driver(version)
        driver.feed(encode(Publish(topic="a", payload=b"1"), version))
        assert driver.published() == []
        assert driver.closed == "the first packet is no CONNECT"
        assert driver.out() == []


def test_the_mqtt_5_connack_says_what_there_is():
    driver = Driver(
        5, Options(keep_alive_max_s=60, session_expiry_max_s=100, receive_maximum=50, topic_alias_maximum=7)
    )
    connack = driver.connect(client_id="", properties=Properties(session_expiry_s=1_000))
    properties = connack.properties
    assert properties.assigned_client_id == driver.adapter.context.client_id
    assert len(properties.assigned_client_id) > 30
    assert properties.session_expiry_s == 100
    assert properties.receive_maximum == 50
    assert properties.server_keep_alive_s == 60
    assert properties.topic_alias_maximum == 7
    assert properties.maximum_packet_bytes == 1_048_576 + 131_072
    assert properties.shared_subscription_available is None  # they are
    assert (properties.maximum_qos, properties.retain_available, properties.wildcard_subscription_available) == (
        None,
    ) * 3


@pytest.mark.parametrize(
    ("version", "connect", "expected"),
    [
        (4, {"client_id": "", "clean": False}, [Connack(code=2)]),
        (3, {"client_id": ""}, [Connack(code=2)]),
        (4, {"client_id": "x" * 300}, [Connack(code=2)]),
        (4, {"client_id": "", "clean": True}, [Connack()]),
        (3, {"client_id": "x"}, [Connack()]),
    ],
)
def test_client_identifiers(version, connect, expected):
    driver = Driver(version)
    assert driver.send(Connect(version=version, **connect)) == expected


@pytest.mark.parametrize(
    ("cause", "credentials", "code", "return_code"),
    [
        (Cause.UNAUTHENTICATED, True, 0x86, 4),
        (Cause.UNAUTHENTICATED, False, 0x87, 5),
        (Cause.FORBIDDEN, True, 0x87, 5),
        (Cause.QUOTA, True, 0x97, 3),
        (Cause.RATE, True, 0x9F, 3),
        (Cause.UNAVAILABLE, True, 0x88, 3),
    ],
)
def test_a_refused_client_is_told_why(cause, credentials, code, return_code):
    username = "u" if credentials else None
    for version, expected in ((5, code), (4, return_code)):
        driver = Driver(version)
        driver.principal = Outcome(error=Refusal(cause, "no\0"))
        (connack,) = driver.send(Connect(version=version, client_id="c", username=username))
        assert connack.code == expected
        assert connack.properties.reason == ("no\ufffd" if version == 5 else None)
        assert driver.closed is not None


def test_a_session_that_cannot_be_opened():
    driver = Driver(5)
    driver.opened = Outcome(error=Refusal(Cause.UNAVAILABLE))
    assert driver.connect().code == ReasonCode.SERVER_UNAVAILABLE
    assert driver.take(Close)


@pytest.mark.parametrize(
    ("data", "version", "answer"),
    [
        (b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00", 5, [0x84]),
        (b"\x10\x0c\x00\x04MQTT\x03\x02\x00\x00\x00\x00", 4, [1]),
        (b"\x10\x0c\x00\x04MQTT\x05\x03\x00\x00\x00\x00", 5, [0x81]),
        (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", 4, []),
        (b"\x10\x0c\x00\x04AMQP\x05\x02\x00\x00\x00\x00", 5, []),
        (b"GET / HTTP/1.1\r\n\r\n", 4, []),
        (b"\x10\xff\xff\xff\xff\xff", 4, []),
        (b"\x10\xff\xff\x7f", 4, []),  # larger than a CONNECT may be
    ],
)
def test_a_connect_that_is_none(data, version, answer):
    driver = Driver(version)
    driver.feed(data)
    assert [packet.code for packet in driver.out()] == answer
    assert driver.closed is not None
    driver.feed(data)
    assert driver.take(port.Publish) == []


def test_an_authentication_method_is_refused_as_we_have_none():
    driver = Driver(5)
    assert driver.connect(properties=Properties(authentication_method="SCRAM-SHA-1")).code == 0x8C


def test_wills_that_could_never_be_published():
    bad = [
        (Properties(response_topic="a/#"), 0x90),
        (Properties(payload_format=1), 0x99),
        (Properties(user=(("specversion", "1.0"),)), 0x99),
    ]
    for properties, code in bad:
        will = Will(topic="w", payload=b"\xff", properties=properties)
        assert Driver(5).connect(will=will).code == code


def test_a_connack_larger_than_the_client_takes_is_not_sent():
    driver = Driver(5)
    assert driver.send(Connect(version=5, client_id="c", properties=Properties(maximum_packet_bytes=4))) == []
    assert driver.closed


def test_no_connect_in_time():
    driver = Driver(4)
    assert driver.adapter.deadline_ms() == 0  # it does not know the time yet
    driver.tick()
    assert driver.adapter.deadline_ms() == NOW_MS + 10_000
    driver.feed(b"\x10")
    assert driver.tick(9_999) == []
    assert driver.closed is None
    driver.tick(1)
    assert driver.closed == "no CONNECT in time"
    assert driver.adapter.deadline_ms() is None


def test_keep_alive_is_one_and_a_half_times_what_was_agreed():
    driver = Driver(5)
    driver.connect(keep_alive_s=10)
    assert driver.adapter.deadline_ms() == NOW_MS + 15_000
    driver.now_ms += 14_000
    assert driver.send(Pingreq()) == [Pingresp()]
    driver.tick(14_999)
    assert driver.closed is None
    (bye,) = driver.tick(1)
    assert bye.code == ReasonCode.KEEP_ALIVE_TIMEOUT
    assert driver.closed


def test_without_keep_alive_there_is_no_deadline():
    driver = Driver(4)
    driver.connect()
    assert driver.adapter.deadline_ms() is None


def test_a_client_we_do_not_listen_to_is_not_silent():
    driver = Driver(4, Options(unstored_bytes_max=65_536))
    driver.connect(keep_alive_s=1)
    driver.send(Publish(topic="a", payload=bytes(70_000)))
    assert not driver.adapter.wants_data
    driver.tick(2_000)
    assert driver.closed is None
    driver.store()
    assert driver.adapter.wants_data


def will_of(driver: Driver) -> port_sessions.Will | None:
    assert driver.asked is not None
    return driver.asked.will


@pytest.mark.parametrize(("code", "dropped"), [(ReasonCode.SUCCESS, 1), (ReasonCode.DISCONNECT_WITH_WILL, 0)])
def test_disconnect_takes_the_will_back_unless_it_says_otherwise(code, dropped):
    driver = Driver(5)
    driver.connect(will=Will(topic="w", payload=b"bye"))
    driver.send(Disconnect(code=code))
    assert driver.closed == ""
    driver.lose()
    assert len(driver.calls(DropWill)) == dropped


@pytest.mark.parametrize("version", [4, 5])
def test_the_will_of_a_connection_is_given_with_its_session(version):
    driver = Driver(version)
    driver.connect(will=Will(topic="w/1", payload=b"bye", qos=1, retain=True))
    will = will_of(driver)
    assert will is not None
    message = will.message
    assert (message.address, message.body, message.qos, message.retain) == ("w/1", b"bye", 1, True)
    assert (message.device, message.time_ms, message.protocol) == ("c1", 0, "mqtt")
    assert (will.delay_ms, will.lives_ms) == (0, None)
    driver.lose()
    assert driver.calls(DropWill) == []
    assert driver.published() == []


def test_a_will_says_how_long_it_waits_and_lives():
    driver = Driver(5)
    properties = Properties(will_delay_s=60, content_type="text/plain", message_expiry_s=9)
    driver.connect(will=Will(topic="w", payload=b"", properties=properties))
    will = will_of(driver)
    assert will is not None
    assert (will.delay_ms, will.lives_ms) == (60_000, 9_000)
    assert (will.message.content_type, will.message.expires_at_ms) == ("text/plain", None)


def test_what_disconnect_asks_of_the_session_is_said_before_the_connection_ends():
    driver = Driver(5)
    driver.connect(will=Will(topic="w", payload=b""), properties=Properties(session_expiry_s=100))
    driver.send(Disconnect(code=ReasonCode.DISCONNECT_WITH_WILL, properties=Properties(session_expiry_s=7)))
    assert driver.saved[-1].expiry_s == 7
    driver.lose()
    assert driver.calls(DropWill) == []


def test_no_will_of_a_client_that_was_not_let_in():
    driver = Driver(4)
    driver.principal = Outcome(error=Refusal(Cause.UNAUTHENTICATED))
    driver.connect(will=Will(topic="w", payload=b""))
    driver.lose()
    assert driver.asked is None


@pytest.mark.parametrize("how", ["lost", "superseded"])
def test_no_will_of_a_client_that_was_not_told_that_it_was_let_in(how):
    driver = plain(version=5)
    driver.send(Connect(version=5, client_id="c", will=Will(topic="w", payload=b"")))
    (who,) = driver.calls(Authenticate)
    driver.complete(who, Outcome(value=Principal(name="")))
    assert len(driver.calls(OpenSession)) == 1
    if how == "superseded":
        driver.act(driver.adapter.superseded(now_ms=driver.now_ms))
    driver.lose()
    assert len(driver.calls(DropWill)) == 1


def test_takeover():
    driver = Driver(5)
    driver.connect(will=Will(topic="w", payload=b""), properties=Properties(session_expiry_s=60))
    driver.act(driver.adapter.superseded(now_ms=driver.now_ms))
    (bye,) = driver.out()
    assert bye.code == ReasonCode.SESSION_TAKEN_OVER
    assert driver.closed
    driver.lose()
    assert driver.calls(SaveSession) == []


def test_shutdown():
    driver = Driver(5)
    driver.connect()
    driver.act(driver.adapter.shutdown(now_ms=driver.now_ms))
    assert [p.code for p in driver.out()] == [ReasonCode.SERVER_SHUTTING_DOWN]
    old = Driver(4)
    old.connect()
    old.act(old.adapter.shutdown(now_ms=old.now_ms))
    assert old.out() == []
    assert old.closed
    gated = plain(version=4)
    gated.send(Connect(version=4, client_id="c"))
    gated.act(gated.adapter.shutdown(now_ms=gated.now_ms))
    assert gated.out() == [Connack(code=3)]


def test_a_client_that_is_dismissed_keeps_its_will():
    driver = Driver(5)
    driver.connect(will=Will(topic="w", payload=b""))
    driver.act(driver.adapter.shutdown(now_ms=driver.now_ms, dismissed=True))
    assert [p.code for p in driver.out()] == [ReasonCode.ADMINISTRATIVE_ACTION]
    assert driver.closed
    assert driver.calls(DropWill) == []
    gated = plain(version=4)
    gated.send(Connect(version=4, client_id="c"))
    gated.act(gated.adapter.shutdown(now_ms=gated.now_ms, dismissed=True))
    assert gated.out() == [Connack(code=5)]


def test_disconnect_may_change_the_sessions_expiry():
    driver = Driver(5)
    driver.connect(properties=Properties(session_expiry_s=60))
    driver.send(Disconnect(properties=Properties(session_expiry_s=5)))
    assert driver.saved[-1].expiry_s == 5
    driver = Driver(5)
    driver.connect(properties=Properties(session_expiry_s=60))
    driver.send(Disconnect(properties=Properties(session_expiry_s=0)))
    assert driver.calls(EndSession)
    driver = Driver(5)
    driver.connect()
    (bye,) = driver.send(Disconnect(properties=Properties(session_expiry_s=5)))
    assert bye.code == ReasonCode.PROTOCOL_ERROR


def test_the_device_is_who_was_authenticated():
    driver = Driver(4)
    driver.principal = Outcome(value=Principal(name="alice"))
    driver.connect(client_id="c9", username="alice", password=b"x")
    driver.send(Publish(topic="a"))
    assert [m.device for m in driver.published()] == ["alice"]


def test_a_memoryview_is_as_good_as_bytes():
    driver = Driver(4)
    driver.feed(memoryview(encode(Connect(version=4, client_id="c"), 4) + b"\xc0"))
    driver.feed(memoryview(b"\x00"))
    assert driver.out() == [Connack(), Pingresp()]


STATES = {
    "awaiting": lambda: Driver(5),
    "gated": lambda: plain(version=5),
    "connected": lambda: Driver(5),
    "closed": lambda: Driver(5),
}
PACKETS = {
    "CONNECT": bytes.fromhex("100d00044d51545405020000000000"),
    "CONNACK": bytes.fromhex("2003000000"),
    "PUBLISH": encode(Publish(topic="a", qos=1, packet_id=1), 5),
    "PUBACK": encode(Puback(packet_id=1), 5),
    "PUBREC": bytes.fromhex("50020001"),
    "PUBREL": bytes.fromhex("62020001"),
    "PUBCOMP": bytes.fromhex("70020001"),
    "SUBSCRIBE": encode(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="a"),)), 5),
    "SUBACK": bytes.fromhex("900400010000"),
    "UNSUBSCRIBE": bytes.fromhex("a20600010000016100")[:8],
    "UNSUBACK": bytes.fromhex("b00400010000"),
    "PINGREQ": bytes.fromhex("c000"),
    "PINGRESP": bytes.fromhex("d000"),
    "DISCONNECT": bytes.fromhex("e000"),
    "AUTH": bytes.fromhex("f000"),
}
SERVER_ONLY = {"CONNACK", "SUBACK", "UNSUBACK", "PINGRESP"}


@pytest.mark.parametrize("packet", PACKETS)
@pytest.mark.parametrize("state", STATES)
def test_every_packet_in_every_state(state, packet):
    driver = STATES[state]()
    if state in {"connected", "closed", "gated"}:
        driver.feed(encode(Connect(version=5, client_id="c"), 5))
    if state == "closed":
        driver.feed(PACKETS["DISCONNECT"])
    driver.adapter.take_output()
    driver.effects.clear()
    driver.feed(PACKETS[packet])
    answer = [type(p).__name__ + f" {getattr(p, 'code', 0):x}" for p in packets_in(driver.adapter.take_output(), 5)]
    if state in {"closed", "gated"}:
        assert (answer, driver.effects) == ([], [])
    elif state == "awaiting":
        assert answer == (["Connack 0"] if packet == "CONNECT" else [])
        assert (driver.closed is None) == (packet == "CONNECT")
    elif packet in SERVER_ONLY | {"CONNECT", "AUTH"}:
        assert answer == ["Disconnect 82"]
        assert driver.closed
    else:
        expected = {
            "PUBREC": ["Pubrel 92"],
            "PUBREL": ["Pubcomp 92"],
            "SUBSCRIBE": ["Suback 0"],
            "UNSUBSCRIBE": ["Unsuback 0"],
            "PINGREQ": ["Pingresp 0"],
        }
        assert answer == expected.get(packet, [])
        assert driver.closed == ("" if packet == "DISCONNECT" else None)


def test_mqtt_has_no_datagrams():
    assert not isinstance(FACTORY, DatagramFactory)
    assert isinstance(FACTORY.connect(INFO, Options(), random=None).receive(b"", now_ms=1), list | tuple)
    listeners = [(one.name, one.port, one.tls_port) for one in FACTORY.listeners]
    assert listeners == [("mqtt", 1883, 8883), ("mqtt-ws", 8083, 8084)]


def test_outcomes_that_nobody_waits_for():
    driver = Driver(4)
    driver.connect()
    driver.complete(Call(request=EndSession(), token=port.Token(99)))
    assert driver.closed is None
