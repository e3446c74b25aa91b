"""MQTT 5.0, 3.8 to 3.11, 4.7 and 4.8: subscriptions, topics and filters."""

import pytest

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from adapters.mqtt.messages.options import Options
from gateway.domain.address import check_address
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import FilterTrie, check_filter, matches
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from gateway.port.shared import JoinShared, LeaveShared, shared_name
from tests.conformance.mqtt5_kit import (
    SUBACK,
    UNSUBACK,
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
from tests.support.mqtt.mqtt_driver import Driver, batch_of


def retained(name: str) -> object:
    return message(b"kept", 1, address=f"t/{name}", retain=True)


def asked(driver: Driver, *requests, packet_id: int = 1):
    """Sends SUBSCRIBE, and returns the codes and the retained messages that follow."""
    out = driver.send(Subscribe(packet_id=packet_id, requests=requests))
    out += driver.tick()
    suback = next(one for one in out if isinstance(one, Suback))
    return suback.codes, [one.topic for one in out if isinstance(one, Publish)]


# ---- SUBSCRIBE


def test_a_subscribe_names_a_filter():
    """MQTT-3.8.3-2."""
    assert refused(framed(0x82, b"\0\1\0")) == 0x82


def test_an_unsubscribe_names_a_filter():
    """MQTT-3.10.3-2."""
    assert refused(framed(0xA2, b"\0\1\0")) == 0x82


def test_no_local():
    """MQTT-3.8.3-3."""
    driver = subscribed(5, request(no_local=True))
    driver.send(Publish(topic="t/a", payload=b"mine", qos=1, packet_id=1))
    (own,) = driver.published()
    assert [one.payload for one in delivered(driver, own, message(b"theirs"))] == [b"theirs"]
    driver = subscribed(5, request(no_local=False))
    assert [one.payload for one in delivered(driver, own, message(b"theirs"))] == [b"mine", b"theirs"]


def test_no_local_on_a_shared_subscription():
    """MQTT-3.8.3-4."""
    packet = Subscribe(packet_id=1, requests=(request("$share/g/t", no_local=True),))
    assert refused(encode(packet, 5)) == 0x82


@pytest.mark.parametrize("bits", [0x40, 0x80, 0xC0])
def test_reserved_subscription_options(bits):
    """MQTT-3.8.3-5."""
    assert refused(framed(0x82, b"\0\1\0\0\1t" + bytes((bits,)))) == 0x81


def test_a_filter_that_is_there_is_replaced():
    """MQTT-3.8.4-3."""
    driver = subscribed(5, request("t/#", 2), ids=(7,))
    said = Properties(subscription_ids=(9,))
    driver.send(Subscribe(packet_id=1, requests=(request("t/#", 0, retain_as_published=True),), properties=said))
    assert driver.take(port.Subscribe) == [], "no second subscription"
    (out,) = delivered(driver, message(qos=2, retain=True))
    assert (out.qos, out.retain, out.properties.subscription_ids) == (0, True, (9,))
    assert driver.send(Unsubscribe(packet_id=1, patterns=("t/#",)))[0].codes == (0,)
    assert driver.send(Unsubscribe(packet_id=1, patterns=("t/#",)))[0].codes == (0x11,)


@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(handling, first, again):
    """MQTT-3.3.1-9. MQTT-3.3.1-10. MQTT-3.3.1-11. MQTT-3.8.4-4."""
    driver = connected(5)
    driver.retained = [retained("a")]
    for count in (first, again):
        _, topics = asked(driver, request(retain_handling=handling))
        assert topics == ["t/a"] * count
    driver.send(Unsubscribe(packet_id=2, patterns=("t/#",)))
    _, topics = asked(driver, request(retain_handling=handling))
    assert topics == ["t/a"] * first


def test_nothing_is_lost_when_a_subscription_is_replaced():
    """MQTT-3.8.4-4."""
    driver = subscribed(5)
    first = delivered(driver, message(b"1", 2))
    driver.send(Subscribe(packet_id=1, requests=(request(qos=1),)))
    assert driver.take(port.Unsubscribe) == []
    assert [one.payload for one in first + delivered(driver, message(b"2", 2))] == [b"1", b"2"]
    assert driver.send(Pubrec(packet_id=first[0].packet_id)) == [Pubrel(packet_id=first[0].packet_id)]


def test_several_filters_are_as_several_subscribes():
    """MQTT-3.8.4-5. MQTT-3.8.4-6. MQTT-3.8.4-7. MQTT-3.9.3-1. MQTT-3.9.3-2."""
    driver = connected(5)
    requests = (request("a", 1), request("#/a", 2), request("a", 2), request("b/+", 0), request("", 1), request("c", 1))
    (suback,) = driver.send(Subscribe(packet_id=1, requests=requests))
    assert suback.codes == (1, 0x8F, 2, 0, 0x8F, 1)
    one_by_one = connected(5)
    codes = [one_by_one.send(Subscribe(packet_id=1, requests=(one,)))[0].codes[0] for one in requests]
    assert tuple(codes) == suback.codes
    assert driver.take(port.Subscribe) == one_by_one.take(port.Subscribe)


@pytest.mark.parametrize("cause", Cause)
def test_codes_of_a_suback(cause):
    """MQTT-3.9.3-2. MQTT-3.8.4-7."""
    driver = connected(5, options=Options(subscriptions_max=3, filter_bytes_max=20))
    requests = [request("$share/g/t"), *(request(f"t/{n}", n % 3) for n in range(4)), request("x" * 21), request("#/")]
    driver.send(Subscribe(packet_id=1, requests=tuple(requests)))
    (call,) = driver.calls(JoinShared)
    (suback,) = driver.complete(call, Outcome(value=[Refusal(cause)]))
    assert len(suback.codes) == len(requests)
    assert set(suback.codes) <= SUBACK
    assert [code >= 0x80 for code in suback.codes] == [True, False, False, True, True, True, True]


def test_the_lower_of_published_and_granted_qos():
    """MQTT-3.8.4-8. MQTT-4.8.2-3."""
    for granted in (0, 1, 2):
        for published in (0, 1, 2):
            (out,) = delivered(subscribed(5, request(qos=granted)), message(qos=published))
            assert out.qos == min(granted, published)


# ---- UNSUBSCRIBE


def test_filters_are_compared_character_by_character():
    """MQTT-3.10.4-1. MQTT-4.7.3-4."""
    driver = subscribed(5, request("t/+"), request("t/#"), request("t/a"), request("T/A"), request("é"))
    patterns = ("t/", "t/+/", "t/b", "T/a", "e\u0301", "+/a", "t/#")
    (unsuback,) = driver.send(Unsubscribe(packet_id=1, patterns=patterns))
    assert unsuback.codes == (0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x00)
    assert [one.sub for one in driver.take(port.Unsubscribe)] == [2]


def test_nothing_new_is_sent_behind_an_unsubscribe():
    """MQTT-3.10.4-2."""
    driver = subscribed(5)
    driver.send(Unsubscribe(packet_id=1, patterns=("t/#",)))
    assert delivered(driver, message(qos=0), message(qos=1), message(qos=2)) == []


def test_what_was_begun_is_completed_behind_an_unsubscribe():
    """MQTT-3.10.4-3."""
    driver = subscribed(5)
    first, second = delivered(driver, message(qos=1), message(qos=2))
    driver.send(Unsubscribe(packet_id=1, patterns=("t/#",)))
    assert driver.send(Puback(packet_id=first.packet_id)) == []
    assert driver.send(Pubrec(packet_id=second.packet_id)) == [Pubrel(packet_id=second.packet_id)]
    assert driver.send(Pubcomp(packet_id=second.packet_id)) == []
    assert driver.closed is None


def test_several_filters_are_as_several_unsubscribes():
    """MQTT-3.10.4-6. MQTT-3.11.3-1. MQTT-3.11.3-2."""
    driver = subscribed(5, request("a"), request("b"), request("c"))
    (unsuback,) = driver.send(Unsubscribe(packet_id=1, patterns=("c", "x", "a", "a", "#/#")))
    assert unsuback.codes == (0, 0x11, 0, 0x11, 0x11)
    assert [one.sub for one in driver.take(port.Unsubscribe)] == [3, 1]


@pytest.mark.parametrize("cause", Cause)
def test_codes_of_an_unsuback(cause):
    """MQTT-3.11.3-2."""
    driver = connected(5)
    driver.send(Subscribe(packet_id=1, requests=(request("$share/g/t"), request("t"))))
    (call,) = driver.calls(JoinShared)
    driver.complete(call, Outcome(value=["queue"]))
    driver.send(Unsubscribe(packet_id=2, patterns=("$share/g/t", "t", "none")))
    (call,) = driver.calls(LeaveShared)
    (unsuback,) = driver.complete(call, Outcome(error=Refusal(cause)))
    assert set(unsuback.codes) <= UNSUBACK
    assert [code >= 0x80 for code in unsuback.codes] == [True, False, False]


def test_an_unsubscribe_of_nothing_is_answered():
    """MQTT-3.10.4-5."""
    assert connected(5).send(Unsubscribe(packet_id=9, patterns=("none", "x/#"))) == [
        Unsuback(packet_id=9, codes=(0x11, 0x11))
    ]


# ---- filters


@pytest.mark.parametrize("pattern", ["#", "a/#", "/#", "a/b/c/#"])
def test_the_multi_level_wildcard_stands_last(pattern):
    """MQTT-4.7.1-1."""
    assert asked(connected(5), request(pattern, 1))[0] == (1,)
    for behind in ("/a", "/", "#", "a", "+"):
        assert asked(connected(5), request(pattern + behind, 1))[0] == (0x8F,)


@pytest.mark.parametrize("pattern", ["a#", "a/b#", "#a/b", "+#", "a/+#"])
def test_the_multi_level_wildcard_stands_alone(pattern):
    """MQTT-4.7.1-1."""
    assert asked(connected(5), request(pattern, 1))[0] == (0x8F,)


@pytest.mark.parametrize("pattern", ["+", "+/a", "a/+", "a/+/b", "+/+", "/+", "+/#"])
def test_the_single_level_wildcard_is_a_level(pattern):
    """MQTT-4.7.1-2."""
    assert asked(connected(5), request(pattern, 1))[0] == (1,)
    for wrong in (pattern.replace("+", "+b"), pattern.replace("+", "b+"), pattern.replace("+", "++")):
        assert asked(connected(5), request(wrong, 1))[0] == (0x8F,)


@pytest.mark.parametrize("pattern", ["#", "+/a", "+/+", "+/#"])
def test_wildcards_in_front_find_no_topic_that_begins_with_a_dollar(pattern):
    """MQTT-4.7.2-1."""
    trie: FilterTrie[int] = FilterTrie()
    trie.add(pattern, 1)
    for topic in ("$SYS/a", "$x/a", "$/a"):
        assert list(trie.match(topic)) == []
        assert not matches(pattern, topic)
    assert list(trie.match("x/a")) == [1]
    trie.add("$SYS/#", 2)
    trie.add("$SYS/+", 3)
    assert sorted(trie.match("$SYS/a")) == [2, 3]


def test_what_is_sent_matches_what_was_subscribed_to():
    """MQTT-3.3.2-3. MQTT-4.7.3-4."""
    trie: FilterTrie[int] = FilterTrie()
    patterns = [
        "a",
        "A",
        "a/",
        "/a",
        "a//b",
        "a/b",
        "+",
        "a/+",
        "a/+/b",
        "a/#",
        "#",
        "é",
        "e\u0301",
        " a",
        "a ",
        "\uff41",
    ]
    for number, pattern in enumerate(patterns):
        trie.add(pattern, number)
    for topic in ("a", "A", "a/", "/a", "a//b", "a/b", "é", "e\u0301", " a", "a ", "\uff41"):
        found = [patterns[number] for number in sorted(trie.match(topic))]
        assert found == [pattern for pattern in patterns if matches(pattern, topic)]
        assert [pattern for pattern in found if "+" not in pattern and "#" not in pattern] == [topic]
        (out,) = delivered(subscribed(5, request("#")), message(address=topic))
        assert out.topic == topic


@pytest.mark.parametrize("packet", [Publish(topic=""), Publish(topic="", qos=1, packet_id=1)])
def test_a_topic_name_has_a_character(packet):
    """MQTT-4.7.3-1."""
    assert refused(encode(packet, 5)) == 0x82


def test_a_filter_has_a_character():
    """MQTT-4.7.3-1."""
    assert asked(connected(5), request(""))[0] == (0x8F,)


def test_topics_of_65_535_bytes():
    """MQTT-4.7.3-3."""
    driver = subscribed(5, request("#", 1))
    topic = "x" * 65_535
    driver.send(Publish(topic=topic, qos=1, packet_id=1))
    (stored,) = driver.published()
    (out,) = delivered(driver, stored)
    assert out.topic == topic
    with pytest.raises(Refusal):
        check_address("x" * 65_536)  # by whichever protocol it comes


# ---- shared subscriptions


@pytest.mark.parametrize(
    "pattern", ["$share", "$share/", "$share/g", "$share/g/", "$share//t", "$share/+/t", "$share/#"]
)
def test_what_names_no_shared_subscription(pattern):
    """MQTT-4.8.2-1. MQTT-4.8.2-2."""
    assert asked(connected(5), request(pattern))[0] == (0x8F,)


@pytest.mark.parametrize("group", ["g", "x", "ü", "a b", "$share", "1"])
def test_what_names_a_shared_subscription(group):
    """MQTT-4.8.2-1. MQTT-4.8.2-2."""
    for pattern in ("t", "#", "+/a", "/", "a/b/#"):
        name = shared_name(check_filter(f"$share/{group}/{pattern}"))
        assert name is not None
        assert (name.group, name.pattern) == (group, pattern)


def test_the_topic_of_a_leased_message_is_its_own():
    """MQTT-3.3.2-3. MQTT-4.8.2-3."""
    for granted in (0, 1, 2):
        driver = connected(5)
        driver.send(Subscribe(packet_id=1, requests=(request("$share/g/t/#", granted),)))
        (call,) = driver.calls(JoinShared)
        driver.complete(call, Outcome(value=["queue"]))
        (consume,) = driver.take(port.Consume)
        leased = port.Leased(consume.consumer, [message(qos=qos) for qos in (0, 1, 2)], [1, 2, 3], [0, 0, 0], 7)
        assert driver.adapter.deliver(leased, now_ms=driver.now_ms) == 3
        out = driver.tick()
        assert [(one.topic, one.qos) for one in out] == [("t/a", min(qos, granted)) for qos in (0, 1, 2)]


def test_a_subscription_option_without_a_meaning():
    """MQTT-4.13.1-1."""
    driver = durable(5)
    assert code_of_the_end(driver, framed(0x82, b"\0\1\0" + b"\0\1t\3")) == 0x82
    assert driver.deliver(batch_of(message())) == 0
