"""MQTT 5.0, 3.3 to 3.7, 4.3, 4.4, 4.6 and 4.9: messages and their acknowledgements, both ways."""

import pytest

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import (
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
    Will,
)
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from tests.conformance.mqtt5_kit import (
    DISCONNECT,
    PUBACK,
    PUBREC,
    again,
    code_of_the_end,
    connected,
    delivered,
    durable,
    framed,
    message,
    refused,
    request,
    subscribed,
)
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of

# ---- the fixed header


def test_dup_is_set_on_what_is_sent_again():
    """MQTT-3.3.1-1. MQTT-4.4.0-1. MQTT-4.3.2-3. MQTT-4.3.3-3. MQTT-4.1.0-1."""
    driver = durable(5)
    sent = delivered(driver, message(b"1", 1), message(b"2", 2))
    assert [one.dup for one in sent] == [False, False]
    driver.lose()
    other, _ = again(driver)
    out = delivered(other, message(b"1", 1), message(b"2", 2), message(b"3", 1))
    assert [(one.payload, one.packet_id, one.dup) for one in out] == [
        (b"1", sent[0].packet_id, True),
        (b"2", sent[1].packet_id, True),
        (b"3", 3, False),
    ]


def test_nothing_is_sent_again_while_the_connection_lasts():
    """MQTT-4.4.0-1."""
    driver = durable(5)
    delivered(driver, message(b"1", 1), message(b"2", 2))
    for _ in range(10):
        assert driver.tick(60_000) == []
    assert driver.send(Pingreq()) == [Pingresp()]


def test_dup_is_never_set_at_qos_0():
    """MQTT-3.3.1-2. MQTT-4.3.1-1."""
    driver = durable(5, request(qos=0))
    assert [(one.qos, one.dup) for one in delivered(driver, message(b"1", 2))] == [(0, False)]
    driver.lose()
    other, _ = again(driver)
    assert [(one.qos, one.dup) for one in delivered(other, message(b"1", 2))] == [(0, False)]
    assert refused(framed(0x38, b"\0\1t\0")) == 0x81


def test_dup_of_what_came_in_says_nothing_of_what_goes_out():
    """MQTT-3.3.1-3. MQTT-4.3.2-2. MQTT-4.3.3-2."""
    publisher, subscriber = connected(5), subscribed(5)
    publisher.send(
        Publish(topic="t/a", qos=1, packet_id=1, dup=True), Publish(topic="t/a", qos=2, packet_id=2, dup=True)
    )
    assert [(one.qos, one.dup) for one in delivered(subscriber, *publisher.published())] == [(1, False), (2, False)]


@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_qos_3_is_malformed(first):
    """MQTT-3.3.1-4."""
    assert refused(framed(first, b"\0\1t\0\1\0")) == 0x81


def test_retain_as_published():
    """MQTT-3.3.1-12. MQTT-3.3.1-13."""
    for kept in (False, True):
        driver = subscribed(5, request(retain_as_published=kept))
        out = delivered(driver, message(retain=True), message(retain=False))
        assert [one.retain for one in out] == [kept, False]


def test_the_retain_flag_is_given_to_the_gateway_as_it_came():
    """MQTT-3.3.1-5. MQTT-3.3.1-6. MQTT-3.3.1-8."""
    driver = connected(5)
    driver.send(Publish(topic="t", retain=True), Publish(topic="t", payload=b"x", retain=False))
    assert [(one.body, one.retain) for one in driver.published()] == [(b"", True), (b"x", False)]


# ---- topics and properties


@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a+b", "#/a"])
def test_a_topic_name_with_a_wildcard(topic):
    """MQTT-3.3.2-2. MQTT-4.7.0-1."""
    for qos in (0, 1, 2):
        assert refused(encode(Publish(topic=topic, qos=qos, packet_id=qos or None), 5)) == 0x90


def test_a_response_topic_has_no_wildcard():
    """MQTT-3.3.2-14."""
    for topic in ("+", "a/#"):
        said = Properties(response_topic=topic)
        assert refused(encode(Publish(topic="t", qos=1, packet_id=1, properties=said), 5)) == 0x90


def test_a_topic_name_is_there():
    """MQTT-3.3.2-1. MQTT-4.7.3-1."""
    assert refused(framed(0x30, b"\0\0\0")) == 0x82
    assert refused(framed(0x30, b"\0")) == 0x81
    assert refused(framed(0x30, b"")) == 0x81


def test_properties_arrive_as_they_were_sent():
    """MQTT-3.3.2-4. MQTT-3.3.2-15. MQTT-3.3.2-16. MQTT-3.3.2-17. MQTT-3.3.2-18. MQTT-3.3.2-20. MQTT-3.1.3-10."""
    said = Properties(
        payload_format=1,
        content_type="text/plain",
        response_topic="answers/ü",
        correlation=b"\x00\xff",
        user=(("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("type", "T"), ("a", "3"), ("time", "x"), ("type", "U")),
    )
    publisher, subscriber = connected(5), subscribed(5)
    for payload_format in (0, 1):
        properties = Properties(
            **{**{f: getattr(said, f) for f in said.__struct_fields__}, "payload_format": payload_format}
        )
        publisher.send(Publish(topic="t/a", payload=b"x", qos=1, packet_id=1, properties=properties))
        (out,) = delivered(subscriber, *publisher.published())
        assert out.properties == properties


def test_a_wills_user_properties_keep_their_order():
    """MQTT-3.1.3-10."""
    user = (("b", "1"), ("a", "2"), ("type", "T"), ("b", "0"))
    dying = connected(5, will=Will(topic="t/w", payload=b"x", properties=Properties(user=user)))
    assert dying.asked is not None
    assert dying.asked.will is not None
    (out,) = delivered(subscribed(5), dying.asked.will.message)
    assert out.properties.user == user


def test_an_expired_message_is_not_sent():
    """MQTT-3.3.2-5."""
    driver = subscribed(5)
    late = [message(b"late", qos, expires_at_ms=NOW_MS) for qos in (0, 1, 2)]
    assert [one.payload for one in delivered(driver, *late, message(b"in time", expires_at_ms=NOW_MS + 1))] == [
        b"in time"
    ]


def test_the_time_a_message_has_waited_is_taken_off():
    """MQTT-3.3.2-6."""
    publisher, subscriber = connected(5), subscribed(5)
    publisher.send(Publish(topic="t/a", qos=1, packet_id=1, properties=Properties(message_expiry_s=100)))
    (stored,) = publisher.published()
    subscriber.now_ms += 40_000
    (out,) = delivered(subscriber, stored)
    assert out.properties.message_expiry_s == 60
    (out,) = delivered(subscriber, message())
    assert out.properties.message_expiry_s is None


def test_a_topic_alias_ends_with_its_connection():
    """MQTT-3.3.2-7."""
    driver = durable(5)
    driver.send(Publish(topic="t/a", properties=Properties(topic_alias=1)))
    driver.send(Publish(topic="", properties=Properties(topic_alias=1)))
    assert [one.address for one in driver.published()] == ["t/a", "t/a"]
    driver.lose()
    other, _ = again(driver)
    assert code_of_the_end(other, encode(Publish(topic="", properties=Properties(topic_alias=1)), 5)) == 0x82


def test_every_topic_alias_that_was_offered_is_taken():
    """MQTT-3.3.2-12."""
    driver = Driver(5, Options(topic_alias_maximum=300))
    assert driver.connect().properties.topic_alias_maximum == 300
    for alias in range(1, 301):
        driver.send(Publish(topic=f"t/{alias}", properties=Properties(topic_alias=alias)))
    driver.published()
    for alias in range(300, 0, -1):
        driver.send(Publish(topic="", properties=Properties(topic_alias=alias)))
    assert [one.address for one in driver.published()] == [f"t/{alias}" for alias in range(300, 0, -1)]


def test_a_subscription_identifier_from_a_client():
    """MQTT-3.3.4-6."""
    assert refused(encode(Publish(topic="t", properties=Properties(subscription_ids=(1,))), 5)) == 0x82


# ---- overlapping subscriptions


def test_of_overlapping_subscriptions_the_highest_qos_counts():
    """MQTT-3.3.4-2. MQTT-3.8.4-8."""
    driver = subscribed(5, request("t/#", 0), request("t/+", 2), request("t/a", 1))
    for qos in (0, 1, 2):
        (out,) = delivered(driver, message(qos=qos), subs=[(1, 2, 3)])
        assert out.qos == qos
    driver = subscribed(5, request("t/#", 0), request("t/+", 1))
    (out,) = delivered(driver, message(qos=2), subs=[(1, 2)])
    assert out.qos == 1


def test_overlapping_subscriptions_are_named_in_one_copy():
    """MQTT-3.3.4-3. MQTT-3.3.4-4. MQTT-3.3.4-5."""
    driver = connected(5)
    for n, pattern in enumerate(("t/#", "t/+", "+/a", "t/a")):
        said = Properties(subscription_ids=(268_435_455 - n,)) if n != 2 else Properties()
        driver.send(Subscribe(packet_id=1, requests=(request(pattern),), properties=said))
    (out,) = delivered(driver, message(), subs=[(1, 2, 3, 4)])
    assert set(out.properties.subscription_ids) == {268_435_455, 268_435_454, 268_435_452}
    (out,) = delivered(driver, message(), subs=[(3,)])
    assert out.properties.subscription_ids == ()
    (out,) = delivered(driver, message(), subs=[(2, 3)])
    assert out.properties.subscription_ids == (268_435_454,)


# ---- windows


def test_more_messages_than_the_server_takes():
    """MQTT-3.3.4-7."""
    driver = Driver(5, Options(receive_maximum=3))
    assert driver.connect().properties.receive_maximum == 3
    driver.send(*(Publish(topic="t", qos=1 + n % 2, packet_id=n + 1) for n in range(3)))
    assert driver.closed is None
    assert code_of_the_end(driver, encode(Publish(topic="t", qos=1, packet_id=9), 5)) == 0x93


@pytest.mark.parametrize("maximum", [1, 3])
def test_no_more_is_sent_than_the_client_takes(maximum):
    """MQTT-3.3.4-9. MQTT-4.9.0-1. MQTT-4.9.0-2."""
    driver = subscribed(5, properties=Properties(receive_maximum=maximum))
    batch = batch_of(*(message(b"%d" % n, 1 + n % 2) for n in range(8)))
    taken = driver.deliver(batch)
    assert taken == maximum
    out = driver.out()
    seen = [one.payload for one in out]
    open_ = {one.packet_id: one.qos for one in out}
    while taken < 8:
        packet_id, qos = next(iter(open_.items()))
        if qos == 1:
            driver.send(Puback(packet_id=packet_id))
        else:
            assert driver.send(Pubrec(packet_id=packet_id)) == [Pubrel(packet_id=packet_id)]
            assert driver.deliver(batch, None, range(taken, 8)) == 0, "a PUBREC gives nothing back"
            driver.send(Pubcomp(packet_id=packet_id))
        del open_[packet_id]
        assert driver.take(port.Settled), "the gateway hears that there is room"
        taken += driver.deliver(batch, None, range(taken, 8))
        for one in driver.out():
            open_[one.packet_id] = one.qos
            seen.append(one.payload)
        assert len(open_) <= maximum
    assert seen == [b"%d" % n for n in range(8)]


def test_a_refusing_pubrec_gives_room():
    """MQTT-3.3.4-9. MQTT-4.4.0-2."""
    driver = subscribed(5, properties=Properties(receive_maximum=1))
    (out,) = delivered(driver, message(qos=2))
    assert driver.deliver(batch_of(message(qos=2))) == 0
    assert driver.send(Pubrec(packet_id=out.packet_id, code=0x80)) == []
    assert len(delivered(driver, message(qos=2))) == 1


def test_a_full_window_holds_up_nothing_but_messages():
    """MQTT-3.3.4-10. MQTT-4.9.0-3."""
    driver = subscribed(5, request(), request("z", 0), properties=Properties(receive_maximum=1))
    delivered(driver, message(qos=2))
    assert driver.deliver(batch_of(message(qos=1))) == 0
    out = driver.send(Pingreq(), Subscribe(packet_id=7, requests=(request("u"),)), Pubrel(packet_id=9))
    assert [type(one) for one in out] == [Pingresp, Suback, Pubcomp]
    driver.send(Publish(topic="t", qos=1, packet_id=5))
    assert driver.store() == [Puback(packet_id=5)]
    assert [one.qos for one in delivered(driver, message(qos=0))] == [0]


# ---- acknowledgements


def test_the_answer_follows_the_qos():
    """MQTT-3.3.4-1. MQTT-4.3.2-4. MQTT-4.3.3-8."""
    driver = connected(5)
    driver.send(*(Publish(topic="t", qos=qos, packet_id=qos or None) for qos in (0, 1, 2)))
    assert driver.store() == [Puback(packet_id=1), Pubrec(packet_id=2)]


def test_nothing_is_acknowledged_that_is_not_owned():
    """MQTT-4.3.2-4. MQTT-4.3.3-8."""
    driver = connected(5)
    assert driver.send(Publish(topic="t", qos=1, packet_id=1), Publish(topic="t", qos=2, packet_id=2)) == []
    assert driver.tick(10_000) == []
    assert driver.send(Pingreq()) == [Pingresp()]


@pytest.mark.parametrize("cause", Cause)
def test_refusals_have_codes_of_their_packets(cause):
    """MQTT-3.4.2-1. MQTT-3.5.2-1. MQTT-3.14.2-1."""
    tables = {Puback: PUBACK, Pubrec: PUBREC, Disconnect: DISCONNECT}
    for qos in (0, 1, 2):
        for whole in (True, False):
            driver = connected(5)
            driver.send(Publish(topic="t", qos=qos, packet_id=1 if qos else None))
            why = Refusal(cause, "why")
            (effect,) = driver.take(port.Publish)
            out = driver.complete(effect, Outcome(error=why) if whole else Outcome(refused={0: why}))
            for packet in out:
                assert packet.code in tables[type(packet)]
            assert qos == 0 or len(out) == 1


def test_what_is_refused_here_has_codes_of_its_packet():
    """MQTT-3.4.2-1. MQTT-3.5.2-1."""
    options = Options(topic_levels_max=2, user_properties_max=1)
    driver = connected(5, options=options)
    for n, (topic, said) in enumerate(
        (
            ("a/b/c", Properties()),
            ("t", Properties(user=(("a", "b"),) * 2)),
            ("t", Properties(payload_format=1)),
        )
    ):
        for qos, table in ((1, PUBACK), (2, PUBREC)):
            packet = Publish(topic=topic, payload=b"\xff", qos=qos, packet_id=1 + n, properties=said)
            (answer,) = driver.send(packet)
            assert answer.code in table - {0}


def test_codes_of_pubrel_and_pubcomp():
    """MQTT-3.6.2-1. MQTT-3.7.2-1."""
    driver = subscribed(5)
    (sent,) = delivered(driver, message(qos=2))
    assert driver.send(Pubrec(packet_id=sent.packet_id)) == [Pubrel(packet_id=sent.packet_id)]
    assert driver.send(Pubrec(packet_id=999)) == [Pubrel(packet_id=999, code=0x92)]
    driver.send(Publish(topic="t", qos=2, packet_id=1))
    driver.store()
    assert driver.send(Pubrel(packet_id=1)) == [Pubcomp(packet_id=1)]
    assert driver.send(Pubrel(packet_id=1)) == [Pubcomp(packet_id=1, code=0x92)]


@pytest.mark.parametrize("size", [5, 20, 60])
def test_nothing_makes_an_acknowledgement_larger_than_the_client_takes(size):
    """MQTT-3.4.2-2. MQTT-3.4.2-3. MQTT-3.5.2-2. MQTT-3.5.2-3. MQTT-3.6.2-2. MQTT-3.6.2-3. MQTT-3.7.2-2. MQTT-3.7.2-3.
    MQTT-3.9.2-1. MQTT-3.9.2-2. MQTT-3.11.2-1. MQTT-3.11.2-2. MQTT-3.1.2-24.
    """
    driver = connected(5, options=Options(max_packet_bytes=64))
    driver.adapter.context.packet_bytes_max = size  # as CONNECT would have it, were its CONNACK not larger
    sent = (
        Publish(topic="a" * 30, payload=b"\xff", qos=1, packet_id=1, properties=Properties(payload_format=1)),
        Publish(topic="a" * 30, payload=b"\xff", qos=2, packet_id=2, properties=Properties(payload_format=1)),
        Pubrel(packet_id=9),
        Pubrec(packet_id=9),
    )
    driver.feed(b"".join(encode(one, 5) for one in sent))
    raw = driver.adapter.take_output()
    sizes = []
    while raw:
        sizes.append(raw[1] + 2)
        raw = raw[sizes[-1] :]
    assert len(sizes) == 4
    assert max(sizes) <= size
    for packet in (
        Subscribe(packet_id=1, requests=(request("#/a"),)),
        Subscribe(packet_id=1, requests=tuple(request(f"#/{n}") for n in range(6))),
    ):
        driver.feed(encode(packet, 5))
        raw = driver.adapter.take_output()
        assert len(raw) <= size


def test_what_was_refused_is_not_sent_again():
    """MQTT-4.4.0-2."""
    driver = durable(5)
    first, second = delivered(driver, message(b"1", 1), message(b"2", 2))
    driver.send(Puback(packet_id=first.packet_id, code=0x80), Pubrec(packet_id=second.packet_id, code=0x83))
    assert driver.take(port.Settled)[-1] == port.Settled(), "the log has nothing to bring again"
    driver.lose()
    other, out = again(driver)
    assert out == []
    other.deliver(batch_of(message(b"3", 1), frame=8192))
    assert [one.payload for one in other.tick() if isinstance(one, Publish)] == [b"3"]


# ---- QoS 1


def test_behind_its_puback_an_identifier_is_of_a_new_message():
    """MQTT-4.3.2-5."""
    driver = connected(5)
    for dup in (False, False, True):
        driver.send(Publish(topic="t", payload=b"x", qos=1, packet_id=1, dup=dup))
        assert [one.body for effect in driver.effects for one in effect.messages] == [b"x"]
        assert driver.store() == [Puback(packet_id=1)]


def test_a_qos_1_delivery_is_open_until_its_puback():
    """MQTT-4.3.2-3."""
    driver = durable(5)
    first, _ = delivered(driver, message(b"1"), message(b"2"))
    driver.send(Puback(packet_id=first.packet_id))
    driver.lose()
    other, _ = again(driver)
    assert [one.payload for one in delivered(other, message(b"1"), message(b"2"))] == [b"2"]


# ---- QoS 2, towards the client


def test_a_pubrel_follows_a_pubrec():
    """MQTT-4.3.3-4."""
    driver = subscribed(5)
    (sent,) = delivered(driver, message(qos=2))
    for code in (0x00, 0x10):
        assert driver.send(Pubrec(packet_id=sent.packet_id, code=code)) == [Pubrel(packet_id=sent.packet_id)]
    (sent,) = delivered(driver, message(qos=2))
    assert driver.send(Pubrec(packet_id=sent.packet_id, code=0x80)) == []


def test_a_pubrel_is_open_until_its_pubcomp():
    """MQTT-4.3.3-5. MQTT-4.3.3-6. MQTT-4.4.0-1."""
    driver = durable(5)
    (sent,) = delivered(driver, message(b"1", 2))
    driver.send(Pubrec(packet_id=sent.packet_id))
    driver.lose()
    for _ in range(2):
        driver, out = again(driver)
        assert out == [Pubrel(packet_id=sent.packet_id)]
        assert [one.payload for one in delivered(driver, message(b"1", 2), message(b"2", 2))][-1:] != [b"1"]
        driver.lose()
    driver, out = again(driver)
    driver.send(Pubcomp(packet_id=sent.packet_id))
    delivered(driver, message(b"1", 2), message(b"2", 2))
    driver.tick(2_000)
    driver.lose()
    driver, out = again(driver)
    assert Pubrel(packet_id=sent.packet_id) not in out


@pytest.mark.parametrize("kind", ["live", "retained"])
def test_a_message_that_has_been_sent_expires_no_more(kind):
    """MQTT-4.3.3-7."""
    fleeting = message(b"1", 2, expires_at_ms=NOW_MS + 5_000, retain=kind == "retained")
    if kind == "live":
        driver = durable(5)
        (sent,) = delivered(driver, fleeting)
    else:
        driver = durable(5, request(retain_handling=2))
        driver.retained = [fleeting]
        out = driver.send(Subscribe(packet_id=2, requests=(request(),)))
        driver.out()
        sent = next(one for one in out if isinstance(one, Publish))
    driver.now_ms += 10_000
    driver.lose()
    other, out = again(driver)
    if kind == "live":
        out += delivered(other, fleeting)
    repeated = [one for one in out if isinstance(one, Publish)]
    assert [(one.payload, one.packet_id, one.dup) for one in repeated] == [(b"1", sent.packet_id, True)]
    assert other.send(Pubrec(packet_id=sent.packet_id)) == [Pubrel(packet_id=sent.packet_id)]


# ---- QoS 2, from the client


def test_behind_a_pubrec_that_refuses_an_identifier_is_of_a_new_message():
    """MQTT-4.3.3-9."""
    driver = connected(5)
    driver.send(Publish(topic="t", qos=2, packet_id=1))
    (effect,) = driver.take(port.Publish)
    (answer,) = driver.complete(effect, Outcome(refused={0: Refusal(Cause.QUOTA)}))
    assert answer == Pubrec(packet_id=1, code=0x97)
    driver.send(Publish(topic="t", payload=b"new", qos=2, packet_id=1, dup=True))
    assert [one.body for effect in driver.effects for one in effect.messages] == [b"new"]
    assert driver.store() == [Pubrec(packet_id=1)]


def test_a_repetition_is_acknowledged_and_not_stored():
    """MQTT-4.3.3-10."""
    driver = durable(5)
    driver.send(Publish(topic="t", payload=b"x", qos=2, packet_id=1))
    assert driver.store() == [Pubrec(packet_id=1)]
    for dup in (True, False):
        assert driver.send(Publish(topic="t", payload=b"x", qos=2, packet_id=1, dup=dup)) == [Pubrec(packet_id=1)]
    assert driver.published() == []
    driver.lose()
    other, _ = again(driver)
    assert other.send(Publish(topic="t", payload=b"x", qos=2, packet_id=1, dup=True)) == [Pubrec(packet_id=1)]
    assert other.published() == []


def test_a_pubrel_is_answered():
    """MQTT-4.3.3-11."""
    driver = connected(5)
    for packet_id in (3, 65_535):
        driver.send(Publish(topic="t", qos=2, packet_id=packet_id))
        driver.store()
        assert driver.send(Pubrel(packet_id=packet_id)) == [Pubcomp(packet_id=packet_id)]
    assert [one.packet_id for one in driver.send(Pubrel(packet_id=7))] == [7]


def test_behind_a_pubcomp_an_identifier_is_of_a_new_message():
    """MQTT-4.3.3-12."""
    driver = connected(5)
    for dup in (False, False, True):
        driver.send(Publish(topic="t", payload=b"x", qos=2, packet_id=1, dup=dup))
        assert [one.body for effect in driver.effects for one in effect.messages] == [b"x"]
        assert driver.store() == [Pubrec(packet_id=1)]
        assert driver.send(Pubrel(packet_id=1)) == [Pubcomp(packet_id=1)]


def test_an_exchange_goes_on_though_its_message_has_expired():
    """MQTT-4.3.3-13."""
    driver = durable(5)
    driver.send(Publish(topic="t", qos=2, packet_id=1, properties=Properties(message_expiry_s=1)))
    driver.now_ms += 5_000
    assert driver.store() == [Pubrec(packet_id=1)]
    driver.now_ms += 5_000
    assert driver.send(Pubrel(packet_id=1)) == [Pubcomp(packet_id=1)]
    (sent,) = delivered(driver, message(qos=2, expires_at_ms=driver.now_ms + 1))
    driver.now_ms += 5_000
    assert driver.send(Pubrec(packet_id=sent.packet_id)) == [Pubrel(packet_id=sent.packet_id)]
    assert driver.send(Pubcomp(packet_id=sent.packet_id)) == []


# ---- order


def test_acknowledgements_keep_the_order_of_the_messages():
    """MQTT-4.6.0-2. MQTT-4.6.0-3."""
    for qos, kind in ((1, Puback), (2, Pubrec)):
        driver = connected(5)
        for n in range(1, 10, 3):
            driver.send(*(Publish(topic="t", qos=qos, packet_id=m) for m in range(n, n + 3)))
        assert driver.store() == [kind(packet_id=n) for n in range(1, 10)]


def test_pubrels_keep_the_order_of_the_pubrecs():
    """MQTT-4.6.0-4."""
    driver = durable(5)
    sent = [one.packet_id for one in delivered(driver, *(message(qos=2) for _ in range(6)))]
    order = [sent[n] for n in (3, 0, 5, 1, 4, 2)]
    assert driver.send(*(Pubrec(packet_id=one) for one in order)) == [Pubrel(packet_id=one) for one in order]


def test_messages_are_sent_again_in_their_order():
    """MQTT-4.6.0-1."""
    for qos in (1, 2):
        driver = durable(5)
        messages = [message(b"%d" % n, qos) for n in range(9)]
        first = [(one.payload, one.packet_id) for one in delivered(driver, *messages)]
        driver.lose()
        other, _ = again(driver)
        assert [(one.payload, one.packet_id) for one in delivered(other, *messages)] == first


def test_messages_leave_in_the_order_they_came():
    """MQTT-4.6.0-5. MQTT-4.6.0-6."""
    publisher, subscriber = connected(5), subscribed(5)
    stored = []
    for n in range(0, 30, 5):
        publisher.send(
            *(
                Publish(topic="t/a", payload=b"%d" % m, qos=m % 3, packet_id=m + 1 if m % 3 else None)
                for m in range(n, n + 5)
            )
        )
        stored += publisher.published()
    out = delivered(subscriber, *stored)
    assert [one.payload for one in out] == [b"%d" % n for n in range(30)]
