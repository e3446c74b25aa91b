"""MQTT 3.1.1, and 3.1: the statements that are kept in another way than those of 5.0."""

import pytest

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
    Will,
)
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from gateway.port.sessions import DropWill, OpenedSession
from tests.conformance.mqtt5_kit import again, connected, delivered, durable, framed, message, request, subscribed
from tests.support.mqtt.mqtt_driver import Driver, batch_of

BOTH = pytest.mark.parametrize("version", [3, 4])


def silent_end(driver: Driver, data: bytes) -> None:
    """Sends bytes, and checks that the connection ends without a word."""
    driver.feed(data)
    assert driver.closed is not None
    assert driver.adapter.take_output() == b""
    driver.feed(b"\xc0\x00")
    assert driver.adapter.take_output() == b""


def not_let_in(data: bytes, version: int = 4) -> int | None:
    """Returns the return code of a CONNECT that is refused; returns None where none is sent."""
    driver = Driver(version)
    driver.feed(data)
    raw = driver.adapter.take_output()
    assert driver.closed is not None
    assert driver.asked is None
    if not raw:
        return None
    assert raw[:3] == b"\x20\x02\x00"
    return raw[3]


@BOTH
@pytest.mark.parametrize("raw", [b"\xed\xa0\x80", b"\xff", b"a\0"])
def test_strings_that_are_none_close(version, raw):
    """MQTT-1.5.3-1. MQTT-1.5.3-2."""
    silent_end(connected(version), framed(0x30, len(raw).to_bytes(2, "big") + raw))


@BOTH
@pytest.mark.parametrize(
    "data", [b"\xc1\x00", b"\x80\x06\0\1\0\1t\0", b"\x60\x02\0\1", b"\x36\x05\0\1t\0\1", b"\xe1\x00"]
)
def test_flags_that_are_none_close(version, data):
    """MQTT-2.2.2-2. MQTT-3.3.1-4. MQTT-3.6.1-1. MQTT-3.8.1-1. MQTT-3.14.1-1."""
    silent_end(connected(version), data)


@BOTH
def test_a_second_connect_closes(version):
    """MQTT-3.1.0-2."""
    silent_end(connected(version), encode(Connect(version=version, client_id="c1"), version))


@pytest.mark.parametrize(("name", "level"), [(b"MQIsdp", 4), (b"MQIsdp", 5), (b"MQTT", 3), (b"MQTT", 0)])
def test_a_level_that_is_not_spoken(name, level):
    """MQTT-3.1.2-2."""
    head = len(name).to_bytes(2, "big") + name + bytes((level,))
    assert not_let_in(framed(0x10, head + b"\2\0\0\0\1c")) == 1


def test_the_reserved_connect_flag_closes():
    """MQTT-3.1.2-3."""
    assert not_let_in(framed(0x10, b"\0\4MQTT\4\3\0\0\0\1c")) is None


@BOTH
def test_a_session_that_is_not_clean_has_no_end_of_its_own(version):
    """MQTT-3.1.2-4. MQTT-3.1.2-5."""
    driver = Driver(version, Options(session_expiry_max_s=None))
    driver.connect(clean=False)
    assert driver.asked is not None
    assert driver.asked.expiry_s is None
    assert connected(version, clean=False).asked.expiry_s == Options().session_expiry_max_s


@BOTH
def test_a_clean_session_ends_with_its_connection(version):
    """MQTT-3.1.2-6."""
    driver = connected(version, clean=True)
    assert driver.asked is not None
    assert (driver.asked.clean, driver.asked.expiry_s) == (True, 0)


@BOTH
def test_a_password_needs_a_user_name(version):
    """MQTT-3.1.2-22."""
    name = b"\0\6MQIsdp\3" if version == 3 else b"\0\4MQTT\4"
    assert not_let_in(framed(0x10, name + b"\x42\0\0\0\1c\0\1p"), version) is None


@BOTH
def test_a_silent_client_is_closed(version):
    """MQTT-3.1.2-24."""
    driver = connected(version, keep_alive_s=10)
    assert driver.tick(14_999) == []
    assert driver.closed is None
    assert driver.tick(1) == []
    assert driver.closed is not None
    assert driver.calls(DropWill) == []


def test_only_a_clean_session_may_do_without_an_identifier():
    """MQTT-3.1.3-7. MQTT-3.1.3-8."""
    assert not_let_in(encode(Connect(version=4, client_id="", clean=False), 4)) == 2
    driver = Driver(4)
    assert driver.connect(client_id="", clean=True) == Connack()
    assert driver.asked is not None
    assert driver.asked.session_id


def test_a_client_of_3_1_has_an_identifier():
    """MQTT-3.1.3-8."""
    assert not_let_in(encode(Connect(version=3, client_id="", clean=True), 3), 3) == 2


def test_an_identifier_that_is_not_taken():
    """MQTT-3.1.3-9."""
    assert not_let_in(encode(Connect(version=4, client_id="x" * 2_000), 4)) == 2


@BOTH
def test_a_session_taken_over_is_closed_without_a_word(version):
    """MQTT-3.1.4-2."""
    driver = connected(version, will=Will(topic="w", payload=b""))
    driver.act(driver.adapter.superseded(now_ms=driver.now_ms))
    assert driver.out() == []
    assert driver.closed is not None


def test_session_present():
    """MQTT-3.2.2-1. MQTT-3.2.2-2. MQTT-3.2.2-3."""
    for clean, there in ((True, False), (False, True), (False, False)):
        driver = Driver(4)
        driver.opened = Outcome(value=OpenedSession(present=there))
        assert driver.connect(clean=clean) == Connack(session_present=there)
    driver = Driver(3)
    driver.opened = Outcome(value=OpenedSession(present=True))
    assert driver.connect(clean=False) == Connack(), "3.1 has no such flag"


@BOTH
@pytest.mark.parametrize("cause", Cause)
def test_a_refusal_has_one_of_five_codes_or_none(version, cause):
    """MQTT-3.2.2-4. MQTT-3.2.2-5. MQTT-3.2.2-6."""
    for at in ("principal", "opened"):
        driver = Driver(version)
        setattr(driver, at, Outcome(error=Refusal(cause)))
        out = driver.send(Connect(version=version, client_id="c", clean=False))
        assert driver.closed is not None
        assert [(type(one), one.session_present) for one in out] in ([], [(Connack, False)])
        assert {one.code for one in out} <= {1, 2, 3, 4, 5}


@BOTH
def test_retain_is_set_for_new_subscriptions_alone(version):
    """MQTT-3.3.1-8. MQTT-3.3.1-9."""
    driver = connected(version)
    driver.retained = [message(b"kept", retain=True)]
    out = driver.send(Subscribe(packet_id=1, requests=(request(),)))
    assert [one.retain for one in out if isinstance(one, Publish)] == [True]
    assert [one.retain for one in delivered(driver, message(retain=True))] == [False]


@BOTH
@pytest.mark.parametrize("cause", Cause)
def test_who_may_not_publish_is_acknowledged_or_closed(version, cause):
    """MQTT-3.3.5-2."""
    for qos in (1, 2):
        driver = connected(version)
        driver.send(Publish(topic="t", qos=qos, packet_id=1))
        (effect,) = driver.take(port.Publish)
        assert driver.complete(effect, Outcome(refused={0: Refusal(cause)})) == []
        assert driver.closed is not None


@BOTH
def test_options_of_5_0_are_reserved(version):
    """MQTT-3.8.3-4."""
    for options in (3, 4, 8, 0x10, 0x20, 0x40, 0x80):
        silent_end(connected(version), framed(0x82, b"\0\1\0\1t" + bytes((options,))))


@BOTH
def test_a_subscription_again_brings_retained_messages_again(version):
    """MQTT-3.8.4-3."""
    driver = connected(version)
    driver.retained = [message(b"kept", 0, retain=True)]
    for _ in range(2):
        out = driver.send(Subscribe(packet_id=1, requests=(request(),)))
        assert [one.payload for one in out + driver.tick() if isinstance(one, Publish)] == [b"kept"]
    assert len(driver.take(port.Subscribe)) == 1


@BOTH
def test_codes_of_a_suback(version):
    """MQTT-3.9.3-1. MQTT-3.9.3-2."""
    driver = connected(version, options=Options(subscriptions_max=3))
    requests = (request("a", 1), request("#/a"), request("b", 0), request("c", 2), request("d", 1))
    assert driver.send(Subscribe(packet_id=1, requests=requests)) == [Suback(packet_id=1, codes=(1, 0x80, 0, 2, 0x80))]


@BOTH
def test_an_unsuback_has_no_codes(version):
    """MQTT-3.10.4-5."""
    driver = subscribed(version)
    driver.feed(encode(Unsubscribe(packet_id=7, patterns=("t/#", "none")), version))
    assert driver.adapter.take_output() == b"\xb0\x02\x00\x07"


@BOTH
def test_acknowledgements_have_no_codes(version):
    """MQTT-3.4.1-1."""
    driver = subscribed(version)
    (sent,) = delivered(driver, message(qos=2))
    driver.feed(encode(Publish(topic="t", qos=1, packet_id=1), version))
    driver.feed(encode(Publish(topic="t", qos=2, packet_id=2), version))
    for effect in driver.take(port.Publish):
        driver.act(driver.adapter.completed(effect.token, port.DONE, now_ms=driver.now_ms))
    driver.feed(b"".join(encode(one, version) for one in (Pubrel(packet_id=2), Pubrel(packet_id=9))))
    driver.feed(b"".join(encode(one, version) for one in (Pubrec(packet_id=sent.packet_id), Pubrec(packet_id=99))))
    assert driver.adapter.take_output() == bytes.fromhex(
        "40020001 50020002 70020002 70020009" + f"6202{sent.packet_id:04x}" + "62020063"
    )


@BOTH
def test_a_session_goes_on(version):
    """MQTT-4.4.0-1."""
    if version == 3:
        return  # as 3.1.1, without Session Present
    driver = durable(version)
    sent = delivered(driver, message(b"1", 1), message(b"2", 2), message(b"3", 2))
    driver.send(Pubrec(packet_id=sent[2].packet_id))
    driver.lose()
    other, out = again(driver)
    assert out == [Pubrel(packet_id=sent[2].packet_id)]
    out = delivered(other, message(b"1", 1), message(b"2", 2), message(b"3", 2))
    assert [(one.payload, one.dup) for one in out] == [(b"1", True), (b"2", True)]


@BOTH
def test_every_error_closes_without_a_word(version):
    """MQTT-4.8.0-1. MQTT-4.8.0-2."""
    for data in (
        b"\x00\x00",
        b"\xf0\x00",
        b"\x30\x00",
        b"\x82\x02\0\1",
        b"\x40\x02\0\0",
        b"\x30\x04\0\1+x",
        b"\x30\x03\0\0x",
    ):
        silent_end(connected(version), data)
    good = connected(version, client_id="other")
    assert good.send(Pingreq()) == [Pingresp()]


@BOTH
def test_a_length_may_take_more_bytes_than_it_has_to(version):
    """MQTT-2.2.3: 5.0 alone asks for the fewest."""
    driver = connected(version)
    driver.feed(b"\xc0\x80\x00")
    assert driver.out() == [Pingresp()]
    driver.feed(b"\x30\x84\x80\x00\0\1tx")
    assert [one.body for one in driver.published()] == [b"x"]


@BOTH
def test_there_is_no_receive_maximum(version):
    """MQTT-3.3.5-1: what waits is acknowledged when it is stored, however much it is."""
    driver = connected(version, options=Options(receive_maximum=2))
    driver.send(*(Publish(topic="t", qos=1, packet_id=n) for n in range(1, 50)))
    assert driver.closed is None
    assert driver.store() == [Puback(packet_id=n) for n in range(1, 50)]


@BOTH
def test_nothing_is_said_of_the_end(version):
    """MQTT-3.14: a DISCONNECT is the client's alone."""
    driver = connected(version)
    driver.act(driver.adapter.shutdown(now_ms=driver.now_ms))
    assert driver.out() == []
    assert driver.deliver(batch_of(message())) == 0
