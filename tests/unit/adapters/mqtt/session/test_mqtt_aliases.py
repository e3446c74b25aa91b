"""Topic aliases towards a client (MQTT 5.0, 3.3.2.3.4)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.mqtt.codec.packets import Disconnect, Puback, Publish, Subscribe, SubscriptionRequest
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.session_state import PacketExchanges, SavedDelivery, SavedSubscription, SessionState, dump
from gateway.port.adapter import Outcome
from gateway.port.sessions import OpenedSession
from store.api.message import Message
from store.format.frame import LogOffset
from tests.support.mqtt.mqtt_driver import Driver, batch_of
from tests.support.process.examples import examples


def connected(maximum, *, qos=2, options=None, version=5, subscribe=True, **fields):
    driver = Driver(version, options)
    properties = Properties(topic_alias_maximum=maximum, **fields) if version == 5 else Properties()
    driver.connect(clean=version == 5, properties=properties)
    if subscribe:
        driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="#", qos=qos),)))
    return driver


def message(address, body=b"x", qos=0, **fields):
    return Message(address, body, 0, "mqtt", qos=qos, **fields)


def shown(packets):
    return [(p.topic, p.properties.topic_alias, p.payload) for p in packets if isinstance(p, Publish)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_first_packet_has_both_and_later_ones_the_alias_alone(qos):
    driver = connected(2)
    driver.deliver(batch_of(message("a/b", b"1", qos), message("a/c", b"2", qos), message("a/b", b"3", qos)))
    assert shown(driver.out()) == [("a/b", 1, b"1"), ("a/c", 2, b"2"), ("", 1, b"3")]
    driver.deliver(batch_of(message("a/d", b"4", qos), message("a/c", b"5", qos), frame=9000))
    out = driver.out()
    assert shown(out) == [("a/d", None, b"4"), ("", 2, b"5")]
    assert [p.qos for p in out] == [qos, qos]


def test_the_properties_of_a_message_stay_what_they_are():
    said = {"content_type": "text/plain", "properties": (("k", "v" * 200),)}
    driver, plain = connected(1, qos=1), connected(0, qos=1)
    driver.deliver(batch_of(*[message("a/b", b"y" * 300, 1, **said)] * 2))
    plain.deliver(batch_of(message("a/b", b"y" * 300, 1, **said)))
    (reference,) = plain.out()
    for packet in driver.out():
        assert (packet.payload, packet.qos) == (reference.payload, 1)
        assert packet.properties.content_type == "text/plain"
        assert packet.properties.user == reference.properties.user


@pytest.mark.parametrize(
    ("maximum", "options", "version"),
    [(0, None, 5), (9, Options(topic_alias_outbound_max=0), 5), (0, None, 4)],
)
def test_none_without_being_asked(maximum, options, version):
    driver = connected(maximum, options=options, version=version)
    driver.deliver(batch_of(message("a"), message("a")))
    assert [topic for topic, *_ in shown(driver.out())] == ["a", "a"]
    assert driver.adapter.session.delivery.aliases is None


def test_no_more_than_the_operator_wants():
    driver = connected(65_535, options=Options(topic_alias_outbound_max=1))
    driver.deliver(batch_of(message("a"), message("b"), message("a")))
    assert shown(driver.out()) == [("a", 1, b"x"), ("b", None, b"x"), ("", 1, b"x")]


def test_an_alias_is_given_by_a_packet_that_is_sent():
    driver = connected(5, receive_maximum=1)
    batch = batch_of(message("a", qos=1), message("b", qos=1))
    assert driver.deliver(batch) == 1
    driver.send(Puback(packet_id=1))
    driver.deliver(batch_of(message("b", b"0")))
    driver.deliver(batch, picks=[1])
    assert shown(driver.out()) == [("b", 2, b"0"), ("", 2, b"x")]


def test_a_packet_too_large_gives_none_and_one_with_an_alias_may_fit():
    topic = "t" * 50
    driver = connected(5, maximum_packet_bytes=64)
    driver.deliver(batch_of(message(topic, b"z" * 9), message(topic, b"y" * 8), message(topic, b"x" * 5)))
    driver.deliver(batch_of(message(topic, b"w" * 40)))
    assert shown(driver.out()) == [
        (topic, None, b"z" * 9),
        (topic, None, b"y" * 8),
        (topic, 1, b"x" * 5),
        ("", 1, b"w" * 40),
    ]


def test_what_waits_for_a_save_gives_no_alias():
    driver = connected(5, session_expiry_s=9)
    driver.saves = False
    driver.deliver(batch_of(message("a", b"1", 2)))
    driver.deliver(batch_of(message("a", b"2", 0), message("a", b"3", 2), frame=9000))
    assert shown(driver.out()) == [("a", 1, b"2")]


def test_what_is_sent_again_has_its_topic():
    place = (LogOffset(4096), 0)
    state = SessionState(subscriptions=(SavedSubscription("#", 1),))
    exchanges = PacketExchanges(sent=(SavedDelivery(7, 1, place=place),), settled=place)
    driver = Driver(5)
    driver.opened = Outcome(value=OpenedSession(present=True, state=dump(state), exchanges=dump(exchanges)))
    driver.connect(clean=False, properties=Properties(topic_alias_maximum=5, session_expiry_s=9))
    driver.deliver(batch_of(message("a", b"1", 1), message("a", b"2", 1)))
    driver.deliver(batch_of(message("a", b"3", 1), message("a", b"4", 1), frame=9000))
    assert [(p.dup, p.topic, p.payload) for p in driver.out() if isinstance(p, Publish)] == [
        (True, "a", b"1"),
        (False, "a", b"2"),
        (False, "a", b"3"),
        (False, "", b"4"),
    ]


def test_aliases_are_of_one_connection():
    batch = batch_of(message("a"), message("a"))
    for _ in range(2):
        driver = connected(5)
        driver.deliver(batch)
        assert shown(driver.out()) == [("a", 1, b"x"), ("", 1, b"x")]


addresses = st.sampled_from(["a", "b/c", "ü" * 40, "x" * 130, "y" * 20_000])
messages = st.builds(
    message,
    addresses,
    st.sampled_from([b"", b"x", b"z" * 127, b"z" * 17_000]),
    st.integers(0, 2),
    content_type=st.sampled_from([None, "c", "d" * 130]),
    expires_at_ms=st.sampled_from([None, 1 << 50]),
)


@settings(max_examples=examples(60), deadline=None)
@pytest.mark.slow
@given(
    st.lists(st.lists(messages, min_size=1, max_size=6), max_size=5),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([None, 200, 18_000]),
    st.booleans(),
)
def test_a_client_that_takes_aliases_gets_what_one_without_gets(batches, maximum, qos, largest, durable):
    fields = {"maximum_packet_bytes": largest, "session_expiry_s": 9 if durable else None}
    aliased, plain = connected(maximum, qos=qos, **fields), connected(0, qos=qos, **fields)
    known: dict[int, str] = {}
    for number, some in enumerate(batches):
        batch = batch_of(*some, frame=4096 * (number + 1))
        assert aliased.deliver(batch) == plain.deliver(batch)
        got = []
        for packet in aliased.tick():
            if not isinstance(packet, Publish):
                continue
            alias = packet.properties.topic_alias
            if packet.topic and alias is not None:
                assert 0 < alias <= maximum
                assert known.setdefault(alias, packet.topic) == packet.topic
            topic = packet.topic or known[alias]
            got.append((topic, packet.payload, packet.qos, packet.packet_id, packet.properties.content_type))
        want = [
            (p.topic, p.payload, p.qos, p.packet_id, p.properties.content_type)
            for p in plain.tick()
            if isinstance(p, Publish)
        ]
        if largest is None:
            assert got == want
        else:  # some fit for the alias alone
            assert {one[:3] for one in want} <= {one[:3] for one in got}
    assert not any(isinstance(packet, Disconnect) for packet in aliased.out())


def test_a_packet_that_is_too_large_with_its_alias_only_is_sent_without():
    properties = Properties(topic_alias_maximum=5, maximum_packet_bytes=60)
    driver = Driver(5)
    driver.connect(properties=properties)
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t"),)))
    driver.deliver(batch_of(message("t")))
    assert shown(driver.out()) == [("t", 1, b"x")]
    for size in range(45, 57):
        driver.deliver(batch_of(message("t", b"x" * size), frame=9000 + 1000 * size))
        assert [len(body) for *_, body in shown(driver.out())] == ([size] if size <= 54 else [])
