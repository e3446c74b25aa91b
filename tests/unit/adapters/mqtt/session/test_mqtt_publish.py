"""PUBLISH from a client: batches, acknowledgements, QoS 2, aliases, properties, refusals, limits."""

import pytest

from adapters.mqtt.codec import Properties, ReasonCode, encode
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
    SubscriptionRequest,
    Will,
)
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.session_state import NO_EXCHANGES, load
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from gateway.port.sessions import SaveSession
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of


def connected(version=5, options=None, **connect) -> Driver:
    driver = Driver(version, options)
    driver.connect(**connect)
    return driver


def publish(body: bytes, packet_id: int = 1, *, qos: int = 1, topic: str = "t/a", **fields) -> Publish:
    return Publish(topic=topic, payload=body, qos=qos, packet_id=packet_id if qos else None, **fields)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_read_is_one_effect_and_its_pubacks_follow_the_store(version):
    driver = connected(version)
    packets = [publish(b"%d" % i, i + 1, qos=i % 2) for i in range(20)]
    assert driver.send(*packets, Pingreq(), publish(b"20", 50)) == [Pingresp()]
    (effect,) = driver.take(port.Publish)
    assert [m.body for m in effect.messages] == [b"%d" % i for i in range(21)]
    assert effect.messages[1] == Message("t/a", b"1", NOW_MS, "mqtt", "c1", 1, principal="")
    assert effect.messages[2] == Message("t/a", b"2", NOW_MS, "mqtt", "c1", 0, principal="")
    acks = driver.complete(effect)
    assert acks == [Puback(packet_id=i + 1) for i in range(1, 20, 2)] + [Puback(packet_id=50)]


def test_acknowledgements_keep_the_order_of_the_reads():
    driver = connected(4)
    driver.send(publish(b"1", 1))
    driver.send(publish(b"2", 2))
    assert driver.store() == [Puback(packet_id=1), Puback(packet_id=2)]


def test_retain_and_dup():
    driver = connected(4)
    driver.send(publish(b"1", retain=True, dup=True), Publish(topic="t", payload=b"", retain=True))
    first, second = driver.published()
    assert (first.retain, first.qos, second.retain, second.qos) == (True, 1, True, 0)


def test_what_came_before_a_subscribe_is_published_before_it():
    driver = connected(4)
    request = Subscribe(packet_id=9, requests=(SubscriptionRequest(pattern="#"),))
    assert driver.send(publish(b"1", 1), request, publish(b"2", 2)) == [Suback(packet_id=9, codes=(0,))]
    kinds = [type(e).__name__ for e in driver.effects]
    assert kinds == ["Publish", "Subscribe", "Publish"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_any_cut(size):
    driver = connected(5)
    packets = [publish(b"x" * n, 1 + n, qos=n % 3) for n in (0, 1, 50, 126, 127, 128, 200, 20_000)]
    data = b"".join(encode(packet, 5) for packet in packets)
    for at in range(0, len(data), size):
        driver.feed(data[at : at + size])
    assert [m.body for m in driver.published()] == [packet.payload for packet in packets]


def test_a_large_packet_in_small_pieces_is_joined_once():
    driver = connected(4)
    data = encode(publish(bytes(1_000_000)), 4)
    parsed = 0
    parse = driver.adapter.session.intake.read

    class Counting:
        def __init__(self, intake):
            self.intake = intake

        def __getattr__(self, name):
            return getattr(self.intake, name)

        def read(self, data, now_ms):
            nonlocal parsed
            parsed += 1
            return parse(data, now_ms)

    driver.adapter.session.intake = Counting(driver.adapter.session.intake)
    for at in range(0, len(data), 1_000):
        driver.feed(data[at : at + 1_000])
    assert parsed <= 3
    assert [len(m.body) for m in driver.published()] == [1_000_000]


@pytest.mark.parametrize("version", [4, 5])
def test_a_packet_that_is_too_large_is_refused_by_its_header(version):
    driver = connected(version, Options(max_packet_bytes=1_000))
    largest = encode(publish(b"x" * (1_000 - len(encode(publish(b""), version)) - 1)), version)
    assert len(largest) == 1_000
    driver.feed(largest)
    assert len(driver.published()) == 1
    driver.feed(encode(publish(b"x" * 1_000), version)[:5])
    assert [p.code for p in driver.out()] == ([ReasonCode.PACKET_TOO_LARGE] if version == 5 else [])
    assert driver.closed


def test_what_came_before_a_malformed_packet_is_published():
    driver = connected(5)
    driver.feed(encode(publish(b"ok"), 5) + b"\x36\x00")
    assert [m.body for m in driver.published()] == [b"ok"]
    assert [p.code for p in driver.out()] == [ReasonCode.MALFORMED_PACKET]


@pytest.mark.parametrize(
    "data",
    [
        "3200",  # no topic
        "320100",  # half the topic's length
        "3203000161",  # no packet identifier
        "32050001610000",  # packet identifier 0
        "30020005",  # a topic behind the packet's end
        "3000",
        "3002000061",
        "3006000361232f00",  # a wildcard
    ],
)
@pytest.mark.parametrize("version", [4, 5])
def test_malformed_publishes_publish_nothing(data, version):
    for ahead in (b"", encode(publish(b"ok"), version)):
        driver = connected(version)
        driver.feed(ahead + bytes.fromhex(data) + b"\xc0\x00" * 4)
        assert [m.body for m in driver.published()] == ([b"ok"] if ahead else [])
        assert driver.closed


def test_topics_are_remembered_only_when_they_are_good():
    driver = connected(4)
    driver.feed(b"\x30\x04\x00\x02a+" + b"\x30\x04\x00\x02a+")
    assert driver.published() == []
    assert driver.closed


# ---- QoS 2


@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_is_published_once(version):
    driver = connected(version)
    assert driver.send(publish(b"x", 7, qos=2)) == []
    assert driver.send(publish(b"x", 7, qos=2, dup=True)) == []  # not stored yet: the PUBREC is still to come
    assert driver.store() == [Pubrec(packet_id=7)]
    assert driver.send(publish(b"x", 7, qos=2, dup=True)) == [Pubrec(packet_id=7)]
    assert driver.published() == []
    assert driver.send(Pubrel(packet_id=7)) == [Pubcomp(packet_id=7)]
    assert driver.send(publish(b"y", 7, qos=2)) == []
    assert [m.body for m in driver.published()] == [b"y"]


def test_an_unknown_pubrel():
    assert connected(5).send(Pubrel(packet_id=7)) == [Pubcomp(packet_id=7, code=0x92)]
    assert connected(4).send(Pubrel(packet_id=7)) == [Pubcomp(packet_id=7)]


def test_in_a_durable_session_the_release_is_saved_before_the_pubcomp():
    driver = connected(4, clean=False)
    driver.saves = False
    driver.send(publish(b"x", 7, qos=2), publish(b"y", 8, qos=2), publish(b"z", 9, qos=2))
    assert driver.store() == [Pubrec(packet_id=7), Pubrec(packet_id=8), Pubrec(packet_id=9)]
    assert driver.send(Pubrel(packet_id=7)) == []
    (save,) = driver.calls(SaveSession)
    assert load(save.request.exchanges, NO_EXCHANGES).received == (8, 9)
    assert driver.send(Pubrel(packet_id=9)) == []
    assert driver.calls(SaveSession) == []  # one at a time
    assert driver.complete(save) == [Pubcomp(packet_id=7)]
    (save,) = driver.calls(SaveSession)
    assert load(save.request.exchanges, NO_EXCHANGES).received == (8,)
    assert driver.complete(save) == [Pubcomp(packet_id=9)]


def test_a_session_that_cannot_be_saved_ends_the_connection():
    driver = connected(5, properties=Properties(session_expiry_s=9))
    driver.saves = False
    driver.send(publish(b"x", 7, qos=2))
    driver.store()
    driver.send(Pubrel(packet_id=7))
    (save,) = driver.calls(SaveSession)
    (bye,) = driver.complete(save, Outcome(error=Refusal(Cause.UNAVAILABLE)))
    assert bye.code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert driver.closed


# ---- refusals


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.FORBIDDEN, 0x87),
        (Cause.TOO_LARGE, 0x97),
        (Cause.QUOTA, 0x97),
        (Cause.RATE, 0x97),
        (Cause.OVERLOAD, 0x97),
        (Cause.MALFORMED, 0x90),
        (Cause.NOT_FOUND, 0x90),
    ],
)
def test_single_refusals_have_their_reason_code(cause, code):
    driver = connected(5)
    driver.send(*(publish(b"x", i, qos=qos) for i, qos in enumerate((0, 1, 2, 1, 2))))
    (effect,) = driver.take(port.Publish)
    refused = (1, 2) if cause is Cause.TOO_LARGE else (0, 1, 2)
    answer = driver.complete(effect, Outcome(refused=dict.fromkeys(refused, Refusal(cause))))
    assert answer == [
        Puback(packet_id=1, code=code),
        Pubrec(packet_id=2, code=code),
        Puback(packet_id=3),
        Pubrec(packet_id=4),
    ]
    assert driver.closed is None
    driver.send(publish(b"2", 2, qos=2))
    assert len(driver.published()) == 1  # the identifier is free again


def test_version_3_1_1_is_closed_when_forbidden_even_at_qos_0():
    driver = connected(4)
    driver.send(publish(b"1", qos=0))
    (effect,) = driver.take(port.Publish)
    assert driver.complete(effect, Outcome(refused={0: Refusal(Cause.FORBIDDEN)})) == []
    assert driver.closed == "forbidden"


@pytest.mark.parametrize(("cause", "code"), [(Cause.UNAVAILABLE, 0x83), (Cause.UNKNOWN, 0x83)])
def test_what_may_be_sent_again_is_not_acknowledged(cause, code):
    driver = connected(5)
    driver.send(publish(b"1", 1), publish(b"2", 2), publish(b"3", 3))
    (effect,) = driver.take(port.Publish)
    acks = driver.complete(effect, Outcome(refused={1: Refusal(cause, "why")}))
    assert acks == [Puback(packet_id=1), Disconnect(code=code, properties=Properties(reason="why"))]
    assert driver.closed == "why"
    assert driver.out() == []


def test_version_3_1_1_is_closed_without_a_word():
    for outcome in (Outcome(refused={1: Refusal(Cause.QUOTA)}), Outcome(error=Refusal(Cause.UNAVAILABLE))):
        driver = connected(4)
        driver.send(publish(b"1", 1), publish(b"2", 2), publish(b"3", 3))
        (effect,) = driver.take(port.Publish)
        answer = driver.complete(effect, outcome)
        assert answer == ([Puback(packet_id=1)] if outcome.refused else [])
        assert driver.closed is not None


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_of_qos_0_that_is_too_large_closes(version):
    driver = connected(version)
    driver.send(publish(b"1", qos=0))
    (effect,) = driver.take(port.Publish)
    answer = driver.complete(effect, Outcome(refused={0: Refusal(Cause.TOO_LARGE)}))
    assert [p.code for p in answer] == ([ReasonCode.PACKET_TOO_LARGE] if version == 5 else [])
    assert driver.closed == "too_large"


def test_a_body_of_a_mebibyte_fits_in_a_packet_beside_long_properties():
    driver = connected(5)
    properties = Properties(user=(("n", "v" * 60_000),))
    driver.send(publish(bytes(1 << 20), topic="t/" + "x" * 60_000, properties=properties))
    assert driver.closed is None
    assert len(driver.published()) == 1


def test_qos_0_goes_by_the_board():
    driver = connected(4)
    driver.send(publish(b"1", qos=0))
    (effect,) = driver.take(port.Publish)
    driver.complete(effect, Outcome(error=Refusal(Cause.OVERLOAD)))
    assert driver.closed is None


def test_outcomes_behind_a_close_are_not_written():
    driver = connected(5)
    driver.send(publish(b"1", 1))
    driver.send(publish(b"2", 2))
    first, second = driver.take(port.Publish)
    driver.complete(first, Outcome(error=Refusal(Cause.UNAVAILABLE)))
    assert driver.complete(second) == []


# ---- MQTT 5


def test_topic_aliases():
    driver = connected(5, Options(topic_alias_maximum=2))
    alias = Properties(topic_alias=1)
    driver.send(publish(b"1", topic="a/b", qos=0, properties=alias), publish(b"2", topic="", qos=0, properties=alias))
    driver.send(publish(b"3", topic="c", qos=0, properties=alias), publish(b"4", topic="", properties=alias))
    assert [(m.address, m.body) for m in driver.published()] == [("a/b", b"1"), ("a/b", b"2"), ("c", b"3"), ("c", b"4")]
    for bad, code in ((2, 0x82), (3, 0x94), (0, 0x94)):
        other = connected(5, Options(topic_alias_maximum=2))
        (bye,) = other.send(publish(b"", topic="", qos=0, properties=Properties(topic_alias=bad)))
        assert bye.code == code


def test_properties_find_their_fields():
    driver = connected(5)
    properties = Properties(
        payload_format=1,
        message_expiry_s=10,
        content_type="text/plain",
        response_topic="r/1",
        correlation=b"\x00\xff",
        user=(("a", "1"), ("type", "T"), ("a", "2"), ("partitionkey", "k"), ("type", "again"), ("traceparent", "00-x")),
    )
    driver.send(publish(b"x", properties=properties), publish(b"y", 2, properties=properties))
    first, second = driver.published()
    assert first == Message(
        "t/a",
        b"x",
        NOW_MS,
        "mqtt",
        "c1",
        content_type="text/plain",
        expires_at_ms=NOW_MS + 10_000,
        reply_to="r/1",
        correlation=b"\x00\xff",
        key="k",
        type="T",
        traceparent="00-x",
        principal="",
        properties=(("a", "1"), ("a", "2"), ("type", "again")),
        native={"mqtt": {"payload_format": 1, "user_order": ("a", "type", "a", "partitionkey", "type", "traceparent")}},
    )
    assert second.body == b"y"
    assert second.properties == first.properties


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (Properties(response_topic="a/+"), 0x90),
        (Properties(response_topic=""), 0x90),
        (Properties(subscription_ids=(1,)), 0x82),
    ],
)
def test_properties_no_client_may_send(properties, code):
    for _ in range(2):
        driver = connected(5)
        (bye,) = driver.send(publish(b"", properties=properties))
        assert bye.code == code


def test_a_payload_that_is_not_the_text_it_claims_to_be():
    driver = connected(5)
    text = Properties(payload_format=1)
    bad = [publish(b"\xff", i, qos=i % 3, properties=text) for i in (3, 4, 5)]
    assert driver.send(publish(b"1", 1), *bad, publish(b"6", 6)) == []
    assert [len(e.messages) for e in driver.effects] == [1, 1]
    answer = driver.store()
    assert answer == [
        Puback(packet_id=1),
        Puback(packet_id=4, code=0x99),
        Pubrec(packet_id=5, code=0x99),
        Puback(packet_id=6),
    ]
    assert driver.send(publish(b"\xff", 9, properties=text)) == [Puback(packet_id=9, code=0x99)]


def test_receive_maximum():
    driver = connected(5, Options(receive_maximum=3))
    driver.send(publish(b"1", 1), publish(b"2", 2, qos=2), publish(b"0", qos=0), publish(b"3", 3))
    driver.store()  # the QoS 2 exchange is still open
    (bye,) = driver.send(*(publish(b"x", i) for i in (4, 5, 6)))
    assert bye.code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_what_is_given_back_in_the_same_read_comes_too_late():
    driver = connected(5, Options(receive_maximum=3))
    (bye,) = driver.send(*(publish(b"x", n, qos=2) for n in range(1, 5)), Pubrel(packet_id=1))
    assert bye.code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_version_3_1_1_has_no_receive_maximum():
    driver = connected(4, Options(receive_maximum=3))
    driver.send(*(publish(b"x", i) for i in range(1, 9)))
    assert driver.closed is None


@pytest.mark.parametrize(
    ("user", "time_ms"),
    [
        ((("a", "1"), ("time", "1970-01-01T01:00:02.5+01:00"), ("time", "again")), 2_500),
        ((("time", "1969-12-31T23:59:59Z"),), 0),
        ((("time", "soon"), ("time", "1970-01-01T00:00:01Z")), NOW_MS),  # the first counts, and says nothing
        ((("a", "1"),), NOW_MS),
    ],
)
def test_a_time_is_read_and_comes_back_as_it_was_written(user, time_ms):
    driver = connected(5)
    driver.send(publish(b"x", properties=Properties(user=user)))
    (message,) = driver.published()
    assert message.time_ms == time_ms
    reader = connected(5)
    reader.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="#"),)))
    reader.deliver(batch_of(message))
    assert [packet.properties.user for packet in reader.out()] == [user]


# ---- later


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_name_may_ask_for_a_later_delivery(version, qos):
    driver = connected(version)
    topics = ("$delayed/60/t/a", "$delayed/60/t/a", "$delayed/0/t", "$delayed/007//t")
    driver.send(*(publish(b"x", i + 1, qos=qos, topic=topic) for i, topic in enumerate(topics)))
    assert [(m.address, m.deliver_at_ms) for m in driver.published()] == [
        ("t/a", NOW_MS + 60_000),
        ("t/a", NOW_MS + 60_000),
        ("t", None),
        ("/t", NOW_MS + 7_000),
    ]


@pytest.mark.parametrize(
    "topic",
    [
        "$delayed/",
        "$delayed/5",
        "$delayed/5/",
        "$delayed//t",
        "$delayed/-1/t",
        "$delayed/²/t",
        "$delayed/1e9/t",
        "$delayed/1000000001/t",
        "$delayed/" + "9" * 5_000 + "/t",
    ],
)
def test_a_topic_name_that_asks_for_no_delay(topic):
    driver = connected(5)
    (bye,) = driver.send(publish(b"x", topic=topic))
    assert bye.code == ReasonCode.TOPIC_NAME_INVALID


# ---- the publisher's name


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_whose_device_has_another_name_is_named_too(version, qos):
    driver = Driver(version)
    driver.principal = Outcome(value=Principal(name="bridge"))
    driver.connect(will=Will(topic="w", payload=b"gone"))
    packets = [publish(b"%d" % i, i + 1, qos=qos, retain=retain) for i, retain in enumerate((False, False, True))]
    if version == 5:
        packets.append(publish(b"3", 4, qos=qos, properties=Properties(user=(("type", "T"), ("a", "1")))))
        packets.append(publish(b"4", 5, qos=qos, properties=Properties(user=EVENT)))
    driver.send(*packets, *packets[:1])
    driver.lose()
    sent = driver.published()
    assert driver.asked.will is not None
    sent.append(driver.asked.will.message)
    assert len(sent) == len(packets) + 2 - (qos == 2)
    assert {(m.device, m.native["mqtt"]["client_id"]) for m in sent} == {("bridge", "c1")}


def test_a_client_whose_device_has_its_name_is_not_named_twice():
    driver = connected(5)
    driver.send(publish(b"1"), publish(b"2", retain=True))
    assert [m.native for m in driver.published()] == [None, None]


# ---- CloudEvents


EVENT = (
    ("specversion", "1.0"),
    ("id", "e1"),
    ("source", "/s"),
    ("type", "T"),
    ("time", "2024-01-01T00:00:00Z"),
    ("x1", "v"),
)


def test_an_event_in_binary_mode():
    driver = connected(5)
    driver.send(publish(b"{}", properties=Properties(content_type="application/json", user=(*EVENT, ("No-Name", "1")))))
    (message,) = driver.published()
    assert (message.address, message.id, message.type, message.content_type) == ("t/a", "e1", "T", "application/json")
    assert message.time_ms == 1_704_067_200_000
    assert message.properties == (("x1", "v"), ("No-Name", "1"))


def test_an_event_in_structured_mode():
    driver = connected(5)
    body = b'{"specversion":"1.0","id":"e1","source":"/s","type":"T","data":{"a":1}}'
    properties = Properties(content_type="application/cloudevents+json; charset=utf-8", user=(("u", "1"),))
    driver.send(publish(body, properties=properties))
    (message,) = driver.published()
    assert (message.id, message.type, message.body, message.properties) == ("e1", "T", b'{"a":1}', (("u", "1"),))
    assert message.address == "t/a"


def test_a_malformed_event_is_refused_alone():
    driver = connected(5)
    driver.send(publish(b"1", 1), publish(b"2", 2, properties=Properties(user=EVENT[:2])), publish(b"3", 3))
    assert driver.store() == [Puback(packet_id=1), Puback(packet_id=2, code=0x99), Puback(packet_id=3)]
