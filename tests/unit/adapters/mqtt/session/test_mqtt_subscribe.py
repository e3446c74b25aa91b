"""SUBSCRIBE, UNSUBSCRIBE, retained messages, and deliveries at every QoS."""

import json

import msgspec
import pytest

from adapters.cloudevents import from_structured
from adapters.mqtt.codec import Properties, ReasonCode
from adapters.mqtt.codec.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.encoded import Encoded
from adapters.mqtt.session.session_state import NO_STATE, load
from gateway.port import adapter as port
from gateway.port.adapter import Settled
from gateway.port.reads import Retained, RetainedPage
from gateway.port.sessions import SaveSession
from store.api.message import Message
from store.format.frame import LogOffset, Position
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of


def request(pattern="t/#", **options) -> SubscriptionRequest:
    return SubscriptionRequest(pattern=pattern, **options)


def subscribed(version=5, *requests, options=None, identifier=None, **connect) -> Driver:
    driver = Driver(version, options)
    driver.connect(**connect)
    properties = Properties() if identifier is None else Properties(subscription_ids=(identifier,))
    driver.send(Subscribe(packet_id=1, requests=requests or (request(qos=2),), properties=properties))
    driver.effects.clear()
    return driver


def message(body=b"x", qos=0, **fields) -> Message:
    return Message("t/a", body, NOW_MS, "mqtt", "other", qos, **fields)


# ---- SUBSCRIBE and UNSUBSCRIBE


def test_codes_stand_in_the_order_of_the_filters():
    driver = Driver(5, Options(subscriptions_max=3, filter_bytes_max=10, shared_subscriptions=False))
    driver.connect()
    filters = ["a", "a/+/#", "a+", "#/a", "$share/g/a", "x" * 11, "b", "c", "a"]
    answer = driver.send(Subscribe(packet_id=3, requests=tuple(request(one, qos=1) for one in filters)))
    assert answer == [Suback(packet_id=3, codes=(1, 1, 0x8F, 0x8F, 0x9E, 0x97, 1, 0x97, 1))]
    assert [effect.pattern for effect in driver.take(port.Subscribe)] == ["a", "a/+/#", "b"]


def test_version_3_1_1_knows_one_failure():
    driver = Driver(4)
    driver.connect()
    answer = driver.send(Subscribe(packet_id=3, requests=(request("a", qos=2), request("a#"), request("$share/g"))))
    assert answer == [Suback(packet_id=3, codes=(2, 0x80, 0x80))]


def test_unsubscribe():
    driver = subscribed(5, request("a"), request("b"))
    assert driver.send(Unsubscribe(packet_id=2, patterns=("a", "x"))) == [Unsuback(packet_id=2, codes=(0, 0x11))]
    assert [effect.sub for effect in driver.take(port.Unsubscribe)] == [1]
    driver = subscribed(4, request("a"))
    assert driver.send(Unsubscribe(packet_id=2, patterns=("x",))) == [Unsuback(packet_id=2)]


def test_a_repeated_subscription_replaces_the_options():
    driver = subscribed(5, request(qos=0))
    assert driver.send(Subscribe(packet_id=2, requests=(request(qos=1),))) == [Suback(packet_id=2, codes=(1,))]
    assert driver.take(port.Subscribe) == []
    driver.deliver(batch_of(message(qos=1)))
    assert [p.qos for p in driver.out()] == [1]


def test_a_durable_subscription_is_saved_before_the_suback():
    driver = Driver(4)
    driver.connect(clean=False)
    driver.saves = False
    assert driver.send(Subscribe(packet_id=1, requests=(request("a", qos=1),))) == []
    (save,) = driver.calls(SaveSession)
    assert load(save.request.state, NO_STATE).subscriptions[0].pattern == "a"
    assert save.request.expiry_s == 604_800
    assert driver.complete(save) == [Suback(packet_id=1, codes=(1,))]


def test_an_answer_larger_than_the_client_takes():
    driver = Driver(5)
    driver.connect(properties=Properties(maximum_packet_bytes=40))
    (bye,) = driver.send(Subscribe(packet_id=1, requests=tuple(request(f"{i}") for i in range(50))))
    assert bye.code == ReasonCode.PACKET_TOO_LARGE


# ---- retained messages


@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(handling, first, again):
    driver = Driver(5)
    driver.connect()
    driver.retained = [message(b"r", 1, retain=True)]
    for count in (first, again):
        out = driver.send(Subscribe(packet_id=1, requests=(request(qos=1, retain_handling=handling),)))
        assert [p.retain for p in out if isinstance(p, Publish)] == [True] * count


def asking(version=4, options=None) -> Driver:
    """Returns a client whose calls are left for the test to answer."""
    driver = Driver(version, options)
    driver.connect()
    driver.answer_effect = lambda effect: None  # type: ignore[method-assign]
    return driver


def page(*bodies, qos=1, after=None) -> port.Outcome:
    found = [message(body, qos, retain=True) for body in bodies]
    return port.Outcome(value=RetainedPage(messages=found, after=after))


def test_retained_messages_wait_for_room_and_filters_for_each_other():
    driver = asking(4, Options(inflight_max=2))
    driver.send(Subscribe(packet_id=1, requests=(request("a", qos=1), request("b", qos=1))))
    (call,) = driver.calls(Retained)
    assert call.request == Retained(pattern="a")
    out = driver.complete(call, page(b"0", b"1", b"2"))
    assert [(p.payload, p.packet_id) for p in out] == [(b"0", 1), (b"1", 2)]
    assert driver.calls(Retained) == []
    (third,) = driver.send(Puback(packet_id=1))
    assert third.payload == b"2"
    assert driver.adapter.deadline_ms() == 0
    driver.tick()
    (call,) = driver.calls(Retained)
    assert call.request.pattern == "b"
    driver.send(Unsubscribe(packet_id=2, patterns=("b",)))
    assert driver.complete(call, page(b"0")) == []


def test_a_page_of_retained_messages_is_asked_for_when_the_last_one_is_taken():
    driver = asking()
    driver.send(Subscribe(packet_id=1, requests=(request("#"),)))
    (call,) = driver.calls(Retained)
    driver.act(driver.adapter.completed(call.token, page(b"0", b"1", qos=0, after="k"), now_ms=NOW_MS))
    driver.act(driver.adapter.tick(now_ms=NOW_MS))
    driver.feed(b"\xc0\x00")
    assert driver.calls(Retained) == []  # the shell has not taken a byte yet
    assert driver.adapter.deadline_ms() != 0
    assert [p.payload for p in driver.out() if isinstance(p, Publish)] == [b"0", b"1"]
    assert driver.adapter.deadline_ms() == 0
    driver.tick()
    (call,) = driver.calls(Retained)
    assert call.request == Retained(pattern="#", after="k")
    assert driver.adapter.deadline_ms() != 0
    assert [p.payload for p in driver.complete(call, page(b"2", qos=0))] == [b"2"]
    driver.tick()
    assert driver.calls(Retained) == []


def test_a_filter_brings_no_more_retained_messages_than_it_may():
    driver = asking(4, Options(retained_max=3))
    driver.send(Subscribe(packet_id=1, requests=(request("#"),)))
    (call,) = driver.calls(Retained)
    assert call.request.limit == 3
    driver.complete(call, page(b"0", b"1", qos=0, after="k"))
    driver.tick()
    (call,) = driver.calls(Retained)
    assert call.request.limit == 1
    driver.complete(call, page(b"2", qos=0, after="l"))
    driver.tick()
    assert driver.calls(Retained) == []


def test_repeated_subscribes_wait_as_one():
    driver = asking()
    for _ in range(5):
        driver.send(Subscribe(packet_id=1, requests=(request("#"),)))
    for _ in range(2):  # the one under way, and one for all that came meanwhile
        (call,) = driver.calls(Retained)
        driver.complete(call, page(b"0", qos=0))
        driver.tick()
    assert driver.calls(Retained) == []


def test_an_ended_subscription_gets_no_more_retained_messages():
    driver = asking(4, Options(inflight_max=1))
    driver.send(Subscribe(packet_id=1, requests=(request("a", qos=1), request("b", qos=1))))
    (call,) = driver.calls(Retained)
    driver.complete(call, page(b"0", b"1", after="k"))
    assert [type(p) for p in driver.send(Unsubscribe(packet_id=2, patterns=("a",)))] == [Unsuback]
    (call,) = driver.calls(Retained)
    assert call.request.pattern == "b"
    assert driver.send(Puback(packet_id=1)) == []


def test_retained_messages_that_may_not_be_sent():
    driver = Driver(5)
    driver.connect(properties=Properties(maximum_packet_bytes=200))
    own = Message("t/a", b"own", NOW_MS, "mqtt", "c1", 1)
    driver.retained = [message(b"x" * 300), message(b"old", expires_at_ms=NOW_MS), own, message(b"ok", 2)]
    out = driver.send(Subscribe(packet_id=1, requests=(request(no_local=True, qos=2),)))
    assert [(p.payload, p.qos) for p in out if isinstance(p, Publish)] == [(b"ok", 2)]


# ---- deliveries


@pytest.mark.parametrize("version", [3, 4, 5])
def test_qos_0_is_encoded_once_for_all(version):
    batch = batch_of(message(b"1"), message(b"2", 1), message(b"3", 2))
    drivers = [subscribed(version, request()) for _ in range(3)]
    outputs = []
    for driver in drivers:
        assert driver.deliver(batch) == 3
        outputs.append(driver.adapter.take_output())
    assert outputs[0] is outputs[1] is outputs[2]
    assert len(batch.memo) == 1
    drivers[0].deliver(batch, picks=[0, 2])
    assert [(p.payload, p.qos, p.retain) for p in drivers[0].out()] == [(b"1", 0, False), (b"3", 0, False)]


@pytest.mark.parametrize("version", [4, 5])
def test_the_lower_of_both_qos_counts(version):
    batch = batch_of(*(message(b"%d" % qos, qos) for qos in range(3)))
    for granted in range(3):
        driver = subscribed(version, request(qos=granted))
        driver.deliver(batch)
        assert [(p.qos, p.packet_id) for p in driver.out()] == [
            (min(qos, granted), None if not min(qos, granted) else 1 + (qos == 2)) for qos in range(3)
        ]


def test_the_window_and_how_it_opens_again():
    driver = subscribed(5, request(qos=1), properties=Properties(receive_maximum=3))
    batch = batch_of(*(message(b"%d" % i, 1) for i in range(6)))
    assert driver.deliver(batch) == 3
    assert [p.packet_id for p in driver.out()] == [1, 2, 3]
    assert driver.deliver(batch, picks=[3, 4, 5]) == 0
    driver.send(Puback(packet_id=2), Puback(packet_id=77))
    assert driver.take(Settled) == [Settled(oldest=(Position(LogOffset(4096), 0),))]
    assert driver.deliver(batch, picks=[3, 4, 5]) == 1
    assert [p.packet_id for p in driver.out()] == [4]
    driver.send(Puback(packet_id=1), Puback(packet_id=3), Puback(packet_id=4))
    assert driver.take(Settled) == [Settled()]
    assert driver.deliver(batch, picks=[4, 5]) == 2
    assert [p.packet_id for p in driver.out()] == [5, 6]
    driver.send(Puback(packet_id=5))
    assert driver.take(Settled) == []  # it took all that was offered, and its session is nobody's but its own


def test_qos_0_needs_no_room():
    driver = subscribed(5, request(qos=1), properties=Properties(receive_maximum=1))
    assert driver.deliver(batch_of(message(qos=1), message(qos=0), message(qos=1))) == 2


def test_packet_identifiers_go_round():
    driver = subscribed(4, request(qos=1))
    driver.deliver(batch_of(message(qos=1)))
    driver.adapter.session.inflight.next_packet_id = 65_535
    driver.deliver(batch_of(message(qos=1), message(qos=1)))
    assert [p.packet_id for p in driver.out()] == [1, 65_535, 2]


def test_qos_2_both_handshakes():
    driver = subscribed(5)
    driver.deliver(batch_of(message(qos=2)))
    assert [p.packet_id for p in driver.out()] == [1]
    assert driver.send(Pubrec(packet_id=1)) == [Pubrel(packet_id=1)]
    assert driver.send(Pubrec(packet_id=1)) == [Pubrel(packet_id=1)]
    assert driver.send(Pubcomp(packet_id=1)) == []
    assert driver.send(Pubrec(packet_id=1)) == [Pubrel(packet_id=1, code=0x92)]
    assert driver.send(Pubcomp(packet_id=1)) == []
    driver.deliver(batch_of(message(qos=2)))
    driver.out()
    assert driver.send(Pubrec(packet_id=2, code=0x97)) == []
    assert driver.adapter.session.inflight.room == 1_024


def test_the_wrong_acknowledgement():
    driver = subscribed(5)
    driver.deliver(batch_of(message(qos=1), message(qos=2)))
    driver.out()
    assert [p.code for p in driver.send(Pubrec(packet_id=1))] == [ReasonCode.PROTOCOL_ERROR]
    driver = subscribed(5)
    driver.deliver(batch_of(message(qos=2)))
    driver.out()
    assert [p.code for p in driver.send(Puback(packet_id=1))] == [ReasonCode.PROTOCOL_ERROR]
    driver = subscribed(5)
    driver.deliver(batch_of(message(qos=2)))
    driver.out()
    assert [p.code for p in driver.send(Puback(packet_id=1, code=0x80))] == [ReasonCode.PROTOCOL_ERROR]


@pytest.mark.parametrize("version", [4, 5])
def test_an_acknowledgement_of_nothing_is_malformed(version):
    driver = subscribed(version)
    driver.feed(b"\x40\x02\x00\x00")
    assert driver.closed is not None


def test_overlapping_subscriptions_deliver_once():
    driver = Driver(5)
    driver.connect()
    for number, (pattern, qos, rap) in enumerate((("t/#", 0, False), ("t/+", 1, True), ("#", 0, False)), 1):
        ids = (number * 10,) if number != 3 else ()
        one = request(pattern, qos=qos, retain_as_published=rap)
        driver.send(Subscribe(packet_id=1, requests=(one,), properties=Properties(subscription_ids=ids)))
    driver.deliver(batch_of(message(b"1", 1, retain=True), message(b"2", 1, retain=True)), subs=[(1, 2, 3), (1, 3)])
    first, second = driver.out()
    assert (first.qos, first.retain, first.properties.subscription_ids) == (1, True, (10, 20))
    assert (second.qos, second.retain, second.properties.subscription_ids) == (0, False, (10,))


def test_deliveries_of_ended_subscriptions_are_taken_and_not_sent():
    driver = subscribed(5, request("a"), request("b"))
    driver.send(Unsubscribe(packet_id=1, patterns=("a",)))
    assert driver.deliver(batch_of(message(), message()), subs=[(1,), (1,)]) == 2
    assert driver.deliver(batch_of(message(), message()), subs=[(1,), (2,)]) == 2
    assert len(driver.out()) == 1


def test_no_local_goes_by_the_client_and_not_by_its_device():
    own = Message("t/a", b"own", NOW_MS, "mqtt", "bridge", 0, native={"mqtt": {"client_id": "c1"}})
    namesake = Message("t/a", b"other", NOW_MS, "mqtt", "c1", 0, native={"mqtt": {"client_id": "c2"}})
    driver = subscribed(5, request("t/#", no_local=True))
    driver.deliver(batch_of(own, namesake, Message("t/a", b"device", NOW_MS, "mqtt", "bridge", 0)))
    assert [p.payload for p in driver.out()] == [b"other", b"device"]


def test_a_publishers_name_costs_its_readers_nothing():
    named = [Message("t/a", b"%d" % i, NOW_MS, "mqtt", "d", 0, native={"mqtt": {"client_id": "c2"}}) for i in (1, 2)]
    driver = subscribed(5, request())
    batch = batch_of(*named)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoded, "_make", lambda self, index: made.append(index))
        driver.deliver(batch)
    assert made == []
    assert [(p.payload, p.properties) for p in driver.out()] == [(b"1", Properties()), (b"2", Properties())]


def test_all_filters_of_a_session_together_have_a_limit():
    driver = Driver(5, Options(filters_bytes_max=10))
    driver.connect()
    filters = ["a" * 6, "b" * 5, "a" * 6, "c" * 4, "d"]
    (answer,) = driver.send(Subscribe(packet_id=1, requests=tuple(request(one) for one in filters)))
    assert answer.codes == (0, 0x97, 0, 0, 0x97)
    driver.send(Unsubscribe(packet_id=2, patterns=("c" * 4,)))
    (answer,) = driver.send(Subscribe(packet_id=3, requests=(request("d" * 4), request("e"))))
    assert answer.codes == (0, 0x97)


def test_no_local():
    own = Message("t/a", b"own", NOW_MS, "mqtt", "c1", 0)
    by_http = Message("t/a", b"http", NOW_MS, "http", "c1", 0)
    driver = subscribed(5, request("t/#", no_local=True), request("#"))
    driver.deliver(batch_of(own, message(b"other"), by_http))
    assert [p.payload for p in driver.out()] == [b"other", b"http"]
    driver.deliver(batch_of(own), subs=[(1, 2)])
    assert [p.payload for p in driver.out()] == [b"own"]


def test_expired_messages_count_as_taken():
    driver = subscribed(5, request())
    batch = batch_of(message(b"old", expires_at_ms=NOW_MS), message(b"new", expires_at_ms=NOW_MS + 1_001))
    assert driver.deliver(batch) == 2
    assert [(p.payload, p.properties.message_expiry_s) for p in driver.out()] == [(b"new", 2)]
    driver.now_ms += 1_000
    driver.deliver(batch)
    assert [(p.payload, p.properties.message_expiry_s) for p in driver.out()] == [(b"new", 1)]
    driver.now_ms += 1
    assert driver.deliver(batch) == 2
    assert driver.out() == []


def test_packets_larger_than_the_client_takes_are_left_out():
    driver = subscribed(5, request(qos=1), properties=Properties(maximum_packet_bytes=100))
    batch = batch_of(message(b"x" * 200, 1), message(b"ok"), message(b"x" * 200))
    assert driver.deliver(batch) == 3
    assert [p.payload for p in driver.out()] == [b"ok"]
    zero = subscribed(5, request(), properties=Properties(maximum_packet_bytes=100))
    assert zero.deliver(batch) == 3
    assert [p.payload for p in zero.out()] == [b"ok"]


def test_properties_come_back_as_they_went_in():
    publisher = Driver(5)
    publisher.connect(client_id="p")
    event = (("x", "0"), ("specversion", "1.0"), ("id", "e"), ("source", "/s"), ("type", "T"), ("x", "1"), ("Y", "2"))
    sent = [
        Properties(),
        Properties(payload_format=0, content_type="a/b", response_topic="r", correlation=b"c"),
        Properties(user=(("a", "1"), ("type", "T"), ("a", "2"), ("type", "U"), ("content-encoding", "gzip"), ("", ""))),
        Properties(user=event, content_type="text/plain"),
    ]
    publisher.send(*(Publish(topic="t/a", payload=b"x", properties=properties) for properties in sent))
    driver = subscribed(5, request())
    driver.deliver(batch_of(*publisher.published()))
    received = [p.properties for p in driver.out()]
    assert received[:3] == sent[:3]
    assert [pair for pair in received[3].user if pair[0] != "time"] == list(event)
    assert received[3].content_type == "text/plain"


STRUCTURED = b'{"specversion":"1.0","id":"e1","source":"/s","type":"T","data":{"a":1}}'


def test_what_came_structured_leaves_structured():
    publisher = Driver(5)
    publisher.connect(client_id="p")
    sent = Properties(content_type="application/cloudevents+json", user=(("u", "1"), ("content-encoding", "x")))
    publisher.send(Publish(topic="t/a", payload=STRUCTURED, properties=sent))
    batch = batch_of(*publisher.published())
    driver = subscribed(5, request())
    driver.deliver(batch)
    (out,) = driver.out()
    assert out.properties == sent
    assert b'"data":{"a":1}' in out.payload
    assert b'"u"' not in out.payload
    old = subscribed(4, request())
    old.deliver(batch)
    assert [p.payload for p in old.out()] == [out.payload]
    plain = subscribed(4, request(), options=Options(events_as_data=True))
    plain.deliver(batch)
    assert [p.payload for p in plain.out()] == [b'{"a":1}']


@pytest.mark.parametrize(
    "member",
    [
        b'"subject":"first","sub\\u006aect":"last"',
        b'"subject":"secret/vault","subject":"mine/a"',
        b'"headgateaddress":"admin"',
    ],
    ids=["escaped", "twice", "ours"],
)
def test_an_event_in_structured_mode_is_made_anew(member):
    """Readers might take the first of two members for the address, which has never been checked."""
    publisher = Driver(5)
    publisher.connect(client_id="p")
    body = STRUCTURED.replace(b'"data"', member + b', "data"')
    sent = Properties(content_type="application/cloudevents+json", message_expiry_s=9)
    kind = "application/cloudevents+json; charset=utf-7"  # a reader would go by it
    publisher.send(Publish(topic="t/a", payload=body, properties=msgspec.structs.replace(sent, content_type=kind)))
    driver = subscribed(5, request())
    driver.deliver(batch_of(*publisher.published()))
    (out,) = driver.out()
    assert out.payload.count(b'"subject"') <= 1
    expected = json.loads(body)
    expected.pop("headgateaddress", None)
    assert json.loads(out.payload) == expected
    assert out.properties == sent


@pytest.mark.parametrize("native", [None, {"cloudevents": {"source": "/s"}}], ids=["plain", "event"])
@pytest.mark.parametrize("body", [STRUCTURED, b'{"specversion":"0.3"}'], ids=["another", "none"])
def test_a_body_of_another_protocol_that_says_it_is_an_event_has_no_content_type(body, native):
    """A subscriber would take the body for the message's event, though its subject has never been checked."""
    kind = "application/cloudevents+json; charset=utf-8"
    message = Message(
        "t/a", body, NOW_MS, "amqp", content_type=kind, native=native, properties=(("long", "y" * 5_000), ("p", "1"))
    )
    driver = subscribed(5, request())
    driver.deliver(batch_of(message))
    (out,) = driver.out()
    assert (out.properties.content_type, out.payload) == (None, body)
    assert {("content-type", kind), ("long", "y" * 5_000), ("p", "1")} <= set(out.properties.user)


def test_json_of_an_event_that_says_no_type_has_its_type_in_binary_mode():
    """(CloudEvents 1.0.2, 3.4)"""
    event = from_structured(STRUCTURED, now_ms=NOW_MS, protocol="http", device="d", address="t/a")
    driver = subscribed(5, request())
    driver.deliver(batch_of(event))
    (out,) = driver.out()
    assert (out.properties.content_type, out.payload) == ("application/json", b'{"a":1}')


def test_messages_of_other_protocols_show_what_mqtt_can_carry():
    foreign = Message(
        "t/a",
        b"x",
        time_ms=1_000,
        protocol="http",
        key="k\0",
        type="T",
        traceparent="00-a",
        reply_to="a/+",
        content_type="x" * 70_000,
        properties=(("p", "\ud800"), ("long", "y" * 70_000)),
        correlation=bytes(70_000),
    )
    driver = subscribed(5, request())
    driver.deliver(batch_of(foreign, Message("t/\udfff", b"")))
    first, second = driver.out()
    assert dict(first.properties.user) == {
        "partitionkey": "k\ufffd",
        "type": "T",
        "traceparent": "00-a",
        "time": "1970-01-01T00:00:01Z",
        "p": "\ufffd",
    }
    assert first.properties.response_topic is None
    assert second.topic == "t/?"


def test_nothing_is_taken_before_connack_or_after_close():
    driver = Driver(4)
    assert driver.deliver(batch_of(message())) == 0
    driver = subscribed(4)
    driver.feed(b"\xf0\x00")
    assert driver.deliver(batch_of(message())) == 0
    assert driver.deliver(batch_of()) == 0
