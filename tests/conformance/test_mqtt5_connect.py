"""MQTT 5.0, 3.1 and 3.2: CONNECT and CONNACK."""

import pytest

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
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
from tests.conformance.mqtt5_kit import (
    CONNACK,
    Lasting,
    again,
    code_of_the_end,
    connected,
    delivered,
    durable,
    framed,
    message,
    not_let_in,
    request,
    subscribed,
)
from tests.support.mqtt.mqtt_driver import Driver, batch_of

HEAD = b"\0\4MQTT\5"
SHORT = Properties(maximum_packet_bytes=30)


def test_the_first_packet_is_a_connect():
    """MQTT-3.1.0-1."""
    for packet in (Pingreq(), Publish(topic="t"), Disconnect(), Subscribe(packet_id=1, requests=(request(),))):
        driver = Driver(5)
        assert driver.send(packet) == []
        assert driver.closed
        assert driver.published() == []


def test_a_second_connect_is_a_protocol_error():
    """MQTT-3.1.0-2. MQTT-3.2.0-2."""
    assert code_of_the_end(connected(5), encode(Connect(version=5, client_id="c1"), 5)) == 0x82


@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"MQTTT", b""])
def test_another_protocols_name(name):
    """MQTT-3.1.2-1."""
    head = len(name).to_bytes(2, "big") + name + b"\5"
    assert not_let_in(framed(0x10, head + b"\2\0\0\0\0\1c")) == -1


@pytest.mark.parametrize("version", [6, 7, 0x85, 255])
def test_another_version(version):
    """MQTT-3.1.2-2. MQTT-3.2.2-7."""
    assert not_let_in(framed(0x10, b"\0\4MQTT" + bytes((version,)) + b"\2\0\0\0\0\1c")) == 0x84


def test_the_reserved_flag_is_0():
    """MQTT-3.1.2-3."""
    assert not_let_in(framed(0x10, HEAD + b"\3\0\0\0\0\1c")) == 0x81


# ---- sessions


def test_a_clean_start_begins_a_new_session():
    """MQTT-3.1.2-4. MQTT-3.1.4-4. MQTT-3.2.2-2."""
    driver = durable(5)
    driver.deliver(batch_of(message()))
    driver.lose()
    other = Driver(5)
    connack = other.connect(clean=True)
    assert (connack.code, connack.session_present) == (0, False)
    assert other.asked is not None
    assert other.asked.clean
    assert other.deliver(batch_of(message())) == 1
    assert other.out() == [], "nothing is subscribed to"


def test_a_session_that_is_there_goes_on():
    """MQTT-3.1.2-5. MQTT-3.2.2-3."""
    driver = durable(5)
    (sent,) = delivered(driver, message(b"1"))
    driver.lose()
    other, out = again(driver)
    assert out == []
    (repeated,) = delivered(other, message(b"1"))
    assert (repeated.payload, repeated.packet_id, repeated.dup) == (b"1", sent.packet_id, True)


def test_a_session_that_is_not_there_is_begun():
    """MQTT-3.1.2-6. MQTT-3.2.2-3. MQTT-3.1.4-5."""
    driver = Driver(5)
    connack = driver.connect(clean=False, properties=Properties(session_expiry_s=60))
    assert (connack.code, connack.session_present) == (0, False)
    assert driver.send(Subscribe(packet_id=1, requests=(request(),))) == [Suback(packet_id=1, codes=(2,))]
    assert driver.saved[-1].expiry_s == 60


def test_what_was_subscribed_to_is_stored_when_a_session_lasts():
    """MQTT-3.1.2-23."""
    driver = durable(5)
    first, second = delivered(driver, message(b"1"), message(b"2"))
    driver.send(Puback(packet_id=first.packet_id))
    driver.lose()
    other, _ = again(driver)
    assert [one.payload for one in delivered(other, message(b"1"), message(b"2"))] == [b"2"]
    assert second.packet_id == 2


def test_what_was_subscribed_to_is_stored_though_the_client_does_not_wait():
    """MQTT-3.1.2-23."""
    driver = Lasting(5)
    driver.connect(clean=False, properties=Properties(session_expiry_s=600))
    driver.send(Subscribe(packet_id=1, requests=(request("t/#"),)), Disconnect())
    driver.lose()
    other, _ = again(driver)
    assert [one.pattern for one in other.take(port.Subscribe)] == ["t/#"]


def test_a_session_is_known_by_its_clients_identifier():
    """MQTT-3.1.3-2. MQTT-3.1.3-3."""
    driver = connected(5, client_id="who")
    assert driver.asked is not None
    assert driver.asked.session_id == "who"
    assert not_let_in(framed(0x10, HEAD + b"\2\0\0\0")) == 0x81


def test_session_present_is_only_said_of_success():
    """MQTT-3.2.2-6. MQTT-3.2.2-7."""
    driver = Driver(5)
    driver.principal = Outcome(error=Refusal(Cause.UNAUTHENTICATED))
    driver.opened = Outcome(value=OpenedSession(present=True))
    connack = driver.connect(clean=False)
    assert (connack.code >= 0x80, connack.session_present) == (True, False)
    assert driver.closed is not None


# ---- wills


def test_a_will_is_given_with_its_session():
    """MQTT-3.1.2-7. MQTT-3.1.2-14. MQTT-3.1.2-15."""
    for retain in (False, True):
        driver = connected(5, will=Will(topic="w", payload=b"bye", qos=1, retain=retain))
        assert driver.asked is not None
        will = driver.asked.will
        assert will is not None
        assert (will.message.address, will.message.body, will.message.retain) == ("w", b"bye", retain)


@pytest.mark.parametrize(
    "rest",
    [b"\0\1c", b"\0\1c\0", b"\0\1c\0\0\1w", b"\0\1c\0\0\1w\0", b"\0\1c\0\0\1w\0\2x"],
    ids=["nothing", "properties", "topic", "half a length", "half a payload"],
)
def test_a_will_is_there_when_its_flag_says_so(rest):
    """MQTT-3.1.2-9."""
    assert not_let_in(framed(0x10, HEAD + b"\6\0\0\0" + rest)) == 0x81


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_wills_qos(qos):
    """MQTT-3.1.2-12."""
    driver = connected(5, will=Will(topic="w", payload=b"", qos=qos))
    assert driver.asked is not None
    assert driver.asked.will is not None
    assert driver.asked.will.message.qos == qos


@pytest.mark.parametrize("flags", [0x1E, 0x3E])
def test_a_will_of_qos_3(flags):
    """MQTT-3.1.2-12."""
    assert not_let_in(framed(0x10, HEAD + bytes((flags,)) + b"\0\0\0\0\1c\0\0\1w\0\0")) == 0x81


@pytest.mark.parametrize("flags", [0x0A, 0x12, 0x1A])
def test_without_a_will_there_is_no_will_qos(flags):
    """MQTT-3.1.2-11."""
    assert not_let_in(framed(0x10, HEAD + bytes((flags,)) + b"\0\0\0\0\1c")) == 0x81


def test_without_a_will_it_is_not_retained():
    """MQTT-3.1.2-13."""
    assert not_let_in(framed(0x10, HEAD + b"\x22\0\0\0\0\1c")) == 0x81


def test_a_normal_disconnect_takes_the_will_back():
    """MQTT-3.1.2-10. MQTT-3.14.4-3."""
    driver = connected(5, will=Will(topic="w", payload=b""))
    driver.send(Disconnect())
    assert len(driver.calls(DropWill)) == 1
    driver = connected(5, will=Will(topic="w", payload=b""))
    driver.send(Disconnect(code=0x04))
    assert driver.calls(DropWill) == []


# ---- names, passwords and the order of fields


def fields(flags: int, *parts: bytes) -> bytes:
    body = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    return framed(0x10, HEAD + bytes((flags,)) + b"\0\0\0" + body)


def test_user_name_and_password_are_there_when_their_flags_say_so():
    """MQTT-3.1.2-16. MQTT-3.1.2-17. MQTT-3.1.2-18. MQTT-3.1.2-19."""
    for flags, parts in ((0x02, (b"c",)), (0x82, (b"c", b"u")), (0x42, (b"c", b"p")), (0xC2, (b"c", b"u", b"p"))):
        driver = Driver(5)
        driver.feed(fields(flags, *parts))
        assert [one.code for one in driver.out()] == [0]
        assert not_let_in(fields(flags, *parts, b"more")) == 0x81
        if len(parts) > 1:
            assert not_let_in(fields(flags, *parts[:-1])) == 0x81


def test_the_order_of_the_fields():
    """MQTT-3.1.3-1."""
    will = b"\0" + b"\0\2wt" + b"\0\2wp"
    data = framed(0x10, HEAD + b"\xc6\0\0\0" + b"\0\2id" + will + b"\0\2un" + b"\0\2pw")
    driver = Driver(5)
    asked = []
    answer = driver.answer_effect
    driver.answer_effect = lambda effect: asked.append(effect) or answer(effect)  # type: ignore[method-assign]
    driver.feed(data)
    assert driver.asked is not None
    assert driver.asked.will is not None
    who = asked[0].request
    assert (who.client_id, who.username, who.password) == ("id", "un", b"pw")
    assert (driver.asked.will.message.address, driver.asked.will.message.body) == ("wt", b"wp")


def test_client_identifiers_that_have_to_be_allowed():
    """MQTT-3.1.3-5."""
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for size in range(1, 24):
        for start in range(0, len(alphabet), 20):
            name = (alphabet * 2)[start : start + size]
            assert connected(5, client_id=name).asked.session_id == name


def test_an_empty_client_identifier_is_given_a_new_one():
    """MQTT-3.1.3-6. MQTT-3.1.3-7. MQTT-3.2.2-16."""
    names = set()
    for seed in range(50):
        driver = Driver(5, seed=seed)
        connack = driver.connect(client_id="", clean=False)
        assert driver.asked is not None
        assert connack.properties.assigned_client_id == driver.asked.session_id
        names.add(driver.asked.session_id)
        driver.send(Publish(topic="t"))
        assert [one.device for one in driver.published()] == [driver.asked.session_id]
    assert len(names) == 50
    assert "" not in names
    assert Driver(5).connect(client_id="mine").properties.assigned_client_id is None


def test_a_client_identifier_that_is_not_taken():
    """MQTT-3.1.3-8."""
    assert not_let_in(encode(Connect(version=5, client_id="x" * 2_000), 5)) == 0x85


# ---- refusals


@pytest.mark.parametrize(
    "body",
    [
        HEAD,
        HEAD + b"\2\0",
        HEAD + b"\2\0\0",
        HEAD + b"\2\0\0\0\0\5c",
        HEAD + b"\2\0\0\0\0\1cX",
        HEAD + b"\2\0\0\2\x11\0\0\1c",
        HEAD + b"\2\0\0\2\x01\1\0\1c",
        HEAD + b"\2\0\0\5\x7f\0\0\0\0\0\1c",
        b"\0\4MQ",
    ],
)
def test_a_connect_that_is_not_in_the_format_closes(body):
    """MQTT-3.1.4-1. MQTT-4.13.1-1."""
    assert not_let_in(framed(0x10, body)) in {0x81, 0x82, -1}


@pytest.mark.parametrize("cause", Cause)
def test_who_is_not_let_in_is_told_with_a_code_of_connack(cause):
    """MQTT-3.1.4-2. MQTT-3.2.2-7. MQTT-3.2.2-8. MQTT-4.13.2-1."""
    for at in ("principal", "opened"):
        driver = Driver(5)
        setattr(driver, at, Outcome(error=Refusal(cause, "why")))
        connack = driver.connect()
        assert connack.code in CONNACK - {0}
        assert driver.closed is not None


def test_behind_a_connect_that_is_refused_nothing_is_processed():
    """MQTT-3.1.4-6."""
    for pipelined in (True, False):
        driver = Driver(5)
        driver.principal = Outcome(error=Refusal(Cause.FORBIDDEN))
        data = [Connect(version=5, client_id="c1"), Publish(topic="t", qos=1, packet_id=1), Pingreq()]
        out = driver.send(*data) if pipelined else driver.send(data[0]) + driver.send(*data[1:])
        assert [type(one) for one in out] == [Connack]
        assert driver.published() == []


def test_a_session_taken_over_is_told_and_closed():
    """MQTT-3.1.4-3."""
    driver = connected(5)
    driver.act(driver.adapter.superseded(now_ms=driver.now_ms))
    (bye,) = driver.out()
    assert (type(bye), bye.code) == (Disconnect, 0x8E)
    assert driver.closed is not None


# ---- CONNACK


def test_nothing_is_sent_ahead_of_the_connack():
    """MQTT-3.2.0-1. MQTT-3.14.0-1."""
    driver = Driver(5)
    held = driver.answer_effect
    driver.answer_effect = lambda effect: None  # type: ignore[method-assign]
    packets = [Connect(version=5, client_id="c1"), Pingreq(), Subscribe(packet_id=1, requests=(request(),))]
    assert driver.send(*packets) == []
    assert driver.deliver(batch_of(message())) == 0
    assert driver.tick(1_000) == []
    driver.answer_effect = held  # type: ignore[method-assign]
    waiting, driver.effects = driver.effects, []
    driver.act(waiting)
    assert [type(one) for one in driver.out()] == [Connack, Pingresp, Suback]


def test_there_is_one_connack():
    """MQTT-3.2.0-2."""
    driver = Driver(5)
    packets = driver.send(Connect(version=5, client_id="c1"), Pingreq(), Connect(version=5, client_id="c1"))
    assert [type(one) for one in packets] == [Connack, Pingresp, Disconnect]


def test_every_connect_that_is_right_is_acknowledged():
    """MQTT-3.1.4-5. MQTT-3.2.2-8."""
    for clean in (True, False):
        for said in (Properties(), Properties(session_expiry_s=5, request_problem_information=0, user=(("a", "b"),))):
            assert Driver(5).connect(clean=clean, properties=said).code == 0


def test_a_subscription_is_granted_every_qos():
    """MQTT-3.2.2-10."""
    assert Driver(5).connect().properties.maximum_qos is None
    driver = connected(5)
    for qos in (0, 1, 2):
        assert driver.send(Subscribe(packet_id=1, requests=(request(qos=qos),))) == [Suback(packet_id=1, codes=(qos,))]


def test_a_packet_larger_than_announced_is_refused():
    """MQTT-3.2.2-15."""
    options = Options(max_packet_bytes=100)
    driver = Driver(5, options)
    assert driver.connect().properties.maximum_packet_bytes == 100
    assert driver.send(Publish(topic="t", payload=bytes(94), qos=0)) == []
    assert code_of_the_end(driver, encode(Publish(topic="t", payload=bytes(95)), 5)) == 0x95


@pytest.mark.parametrize(("maximum", "alias"), [(2, 3), (0, 1), (2, 0), (2, 65_535)])
def test_a_topic_alias_that_was_not_offered(maximum, alias):
    """MQTT-3.2.2-17. MQTT-3.2.2-18. MQTT-3.3.2-8. MQTT-3.3.2-9."""
    driver = Driver(5, Options(topic_alias_maximum=maximum))
    assert (driver.connect().properties.topic_alias_maximum or 0) == maximum
    said = Publish(topic="t", properties=Properties(topic_alias=alias))
    assert code_of_the_end(driver, encode(said, 5)) == 0x94


def test_no_reason_makes_a_connack_too_large():
    """MQTT-3.2.2-19. MQTT-3.2.2-20. MQTT-3.1.2-24."""
    driver = Driver(5)
    driver.principal = Outcome(error=Refusal(Cause.FORBIDDEN, "why " * 50))
    driver.feed(encode(Connect(version=5, client_id="c1", properties=SHORT), 5))
    assert driver.adapter.take_output() == b"\x20\x03\x00\x87\x00"
    assert driver.closed is not None


# ---- what CONNECT asks for


def test_a_silent_client_is_given_up():
    """MQTT-3.1.2-22. MQTT-3.2.2-22."""
    driver = connected(5, keep_alive_s=10)
    assert driver.tick(14_999) == []
    assert driver.closed is None
    (bye,) = driver.tick(1)
    assert bye.code == 0x8D
    assert driver.closed is not None
    assert driver.calls(DropWill) == []
    driver = connected(5, keep_alive_s=10)
    driver.tick(14_000)
    assert driver.send(Pingreq()) == [Pingresp()]
    assert driver.tick(14_000) == []
    assert driver.closed is None


def test_without_keep_alive_nobody_is_given_up():
    """MQTT-3.1.2-22."""
    driver = connected(5, keep_alive_s=0)
    assert driver.adapter.deadline_ms() is None
    driver.tick(10**9)
    assert driver.closed is None


def test_a_keep_alive_of_ours_is_said_and_used():
    """MQTT-3.1.2-22. MQTT-3.2.2-22."""
    driver = Driver(5, Options(keep_alive_max_s=20))
    assert driver.connect(keep_alive_s=60).properties.server_keep_alive_s == 20
    driver.tick(29_999)
    assert driver.closed is None
    driver.tick(1)
    assert driver.closed is not None
    assert Driver(5, Options(keep_alive_max_s=20)).connect(keep_alive_s=10).properties.server_keep_alive_s is None


def test_nothing_larger_than_the_client_takes_is_sent():
    """MQTT-3.1.2-24. MQTT-3.1.2-25."""
    driver = subscribed(5, request(), properties=Properties(maximum_packet_bytes=200))
    for qos, ids in ((0, [None, None]), (1, [1, 2]), (2, [3, 4])):
        out = delivered(driver, message(b"1", qos=qos), message(bytes(200), qos=qos), message(b"3", qos=qos))
        assert [one.payload for one in out] == [b"1", b"3"]
        assert [one.packet_id for one in out] == ids, "what is discarded uses no identifier"
    (limit,) = delivered(driver, message(bytes(191), qos=0))
    assert len(encode(limit, 5)) == 200


@pytest.mark.parametrize("maximum", [None, 0, 1, 2, 40])
def test_topic_aliases_to_a_client_are_those_it_takes(maximum):
    """MQTT-3.1.2-26. MQTT-3.1.2-27. MQTT-3.3.2-8. MQTT-3.3.2-11. MQTT-3.3.2-7."""
    for _ in range(2):  # each connection from the beginning
        driver = subscribed(5, properties=Properties(topic_alias_maximum=maximum))
        topics: dict[int, str] = {}
        for turn in range(6):
            addresses = [f"t/{'long' * 5}/{(turn * 3 + n) % 7}" for n in range(12)]
            out = delivered(driver, *(message(b"x", qos=n % 3, address=one) for n, one in enumerate(addresses)))
            named = []
            for packet in out:
                alias = packet.properties.topic_alias
                assert alias is None or 0 < alias <= (maximum or 0)
                if alias is not None and packet.topic:
                    topics[alias] = packet.topic
                named.append(packet.topic or topics[alias])
                if packet.qos == 1:
                    driver.send(Puback(packet_id=packet.packet_id))
                if packet.qos == 2:
                    driver.send(Pubrec(packet_id=packet.packet_id))
                    driver.adapter.receive(b"\x70\x02" + packet.packet_id.to_bytes(2, "big"), now_ms=driver.now_ms)
            assert named == addresses


def test_response_information_is_only_for_who_asks():
    """MQTT-3.1.2-28."""
    options = Options(response_topic_prefix="answers/${client_id}/")
    for asked, told in ((None, None), (0, None), (1, "answers/c1/")):
        said = Properties(request_response_information=asked)
        assert Driver(5, options).connect(properties=said).properties.response_information == told


@pytest.mark.parametrize("asked", [0, 1, None])
def test_what_goes_wrong_is_explained_only_where_that_is_wanted(asked):
    """MQTT-3.1.2-29."""
    driver = connected(5, properties=Properties(request_problem_information=asked))
    out = driver.send(
        Publish(topic="t", payload=b"\xff", qos=1, packet_id=1, properties=Properties(payload_format=1)),
        Publish(topic="t", payload=b"\xff", qos=2, packet_id=2, properties=Properties(payload_format=1)),
        Pubrel(packet_id=9),
        Pubrec(packet_id=9),
        Subscribe(packet_id=3, requests=(request("#/a"),)),
        Unsubscribe(packet_id=4, patterns=("none",)),
    )
    assert [type(one).__name__ for one in out] == ["Puback", "Pubrec", "Pubcomp", "Pubrel", "Suback", "Unsuback"]
    if asked == 0:
        assert {one.properties for one in out} == {Properties()}


def test_a_successful_connack_says_only_what_is_so():
    """MQTT-3.2.2-8."""
    said = Driver(5).connect(will=Will(topic="w", payload=b"", qos=2, retain=True))
    assert said.code == 0
    assert (said.properties.maximum_qos, said.properties.retain_available) == (None, None)
