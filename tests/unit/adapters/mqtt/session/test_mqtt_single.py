"""The short way of one message does what the general way would do, for any read; or it does nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import Publish, Pubrel
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import DONE, Outcome
from gateway.port.adapter import Publish as PublishEffect
from tests.support.mqtt.mqtt_driver import Driver

TOPICS = ("t", "a/b", "a/" + "b" * 200, "spBv1.0/g/DDATA/n/d", "$delayed/5/t", "ä", "$SYS/x", "unknown")
KNOWN = TOPICS[:-1]
DENIED = Outcome(error=Refusal(Cause.QUOTA, "no"))


def publishes(version):
    """Draws PUBLISH packets, most of them plain."""
    properties = st.just(Properties())
    if version == 5:
        some = (Properties(content_type="a"), Properties(topic_alias=1), Properties(message_expiry_s=1))
        properties = st.sampled_from((Properties(),) * 4 + some)
    qos = st.sampled_from((1, 1, 1, 1, 0, 2))
    return st.builds(
        lambda topic, qos, packet_id, payload, retain, properties: encode(
            Publish(
                topic=topic,
                qos=qos,
                packet_id=packet_id if qos else None,
                payload=payload,
                retain=retain,
                properties=properties,
            ),
            version,
        ),
        st.sampled_from(TOPICS),
        qos,
        st.integers(1, 65_535),
        st.one_of(st.binary(max_size=20), st.integers(100, 20_000).map(bytes)),
        st.sampled_from((False, False, False, True)),
        properties,
    )


def plain(version):
    """Draws PUBLISH packets that may take the short way."""
    return st.builds(
        lambda topic, packet_id, payload: encode(
            Publish(topic=topic, qos=1, packet_id=packet_id, payload=payload), version
        ),
        st.sampled_from(("t", "a/b", "ä")),
        st.integers(1, 65_535),
        st.one_of(st.binary(max_size=20), st.integers(100, 9_000).map(bytes)),
    )


@st.composite
def reads(draw, version):
    """Draws a read: a packet, several, a cut or a changed one, or bytes that are no packet."""
    if draw(st.integers(0, 2)):
        return draw(plain(version))
    data = bytearray(draw(publishes(version)))
    match draw(st.sampled_from(("whole", "whole", "cut", "changed", "longer", "inserted", "several"))):
        case "cut":
            del data[draw(st.integers(0, len(data))) :]
        case "changed":
            for _ in range(draw(st.integers(1, 3))):
                data[draw(st.integers(0, min(len(data), 12) - 1))] = draw(st.integers(0, 255))
        case "longer":
            data += draw(st.binary(min_size=1, max_size=5))
        case "inserted":
            data.insert(draw(st.integers(0, min(len(data), 12))), draw(st.integers(0, 255)))
        case "several":
            data += draw(publishes(version))
    return bytes(data)


def connected(version, *, named=False):
    """Returns a connection that knows its topics, and has no message in flight."""
    driver = Driver(version, Options(max_packet_bytes=10_000))
    driver.short = False
    if named:  # its client is named differently from its device
        driver.principal = Outcome(value=Principal(name="ada"))
    driver.connect()
    for topic in KNOWN:
        driver.send(Publish(topic=topic, qos=1, packet_id=1))
        driver.store()
    return driver


def fed(driver, data):
    """Returns the result of a read: effects, what is written, and whether more is wanted."""
    driver.feed(data)
    effects, driver.effects = driver.effects, []
    return effects, driver.adapter.take_output(), driver.adapter.wants_data, driver.adapter.deadline_ms()


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("outcome", [DONE, DENIED])
@given(data=st.data())
def test_a_single_message_is_what_the_way_of_all_makes_of_it(version, named, outcome, data):
    read = data.draw(reads(version))
    ours, twin = (connected(version, named=named) for _ in range(2))
    ours.now_ms = twin.now_ms = ours.now_ms + 5_000
    single = ours.single(read)
    if single is None:
        assert fed(ours, read) == fed(twin, read)
        return
    assert ours.adapter.take_output() == b""
    effects, out, wants_data, due_ms = fed(twin, read)
    (general,) = effects
    assert isinstance(general, PublishEffect)
    assert (list(general.messages), out, wants_data) == ([single.message], b"", True)
    assert ours.adapter.deadline_ms() == due_ms
    twin.act(twin.adapter.completed(general.token, DONE, now_ms=twin.now_ms))
    assert twin.adapter.take_output() == single.acknowledgement
    if outcome is DENIED:  # it takes the general way, and comes to the same there
        twin = connected(version, named=named)
        twin.now_ms = ours.now_ms
        ((general,), *_) = fed(twin, read)
        effect = ours.adapter.publish_of(single)
        assert (list(effect.messages), effect.token, effect.marks) == (list(general.messages), general.token, None)
        for driver in (ours, twin):
            driver.act(driver.adapter.completed(general.token, outcome, now_ms=driver.now_ms))
        assert ours.adapter.take_output() == twin.adapter.take_output()
        assert ours.closed == twin.closed
    more = data.draw(reads(version))
    ours.effects, twin.effects = [], []
    mine, others = fed(ours, more), fed(twin, more)
    assert [type(effect) for effect in mine[0]] == [type(effect) for effect in others[0]]
    assert mine[1:3] == others[1:3]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("size", [0, 1, 100, 121, 122, 123, 124, 125, 126, 127, 128, 9_000])
def test_plain_messages_of_any_size_are_single_ones(version, size):
    driver = connected(version)
    data = encode(Publish(topic="t", qos=1, packet_id=0x1234, payload=bytes(size)), version)
    single = driver.single(data)
    assert single is not None
    assert (len(single.message.body), single.acknowledgement) == (size, b"\x40\x02\x12\x34")


def test_exchanges_at_qos_2_may_use_up_the_quota():
    driver = Driver(5, Options(receive_maximum=1))
    driver.connect()
    driver.send(Publish(topic="t", qos=2, packet_id=1))
    driver.store()
    data = encode(Publish(topic="t", qos=1, packet_id=2), 5)
    assert driver.single(data) is None
    driver.send(Pubrel(packet_id=1))
    assert driver.single(data) is not None


@pytest.mark.parametrize("state", ["new", "under way", "held", "closed"])
def test_a_connection_that_is_at_something_else_has_no_single_message(state):
    driver = Driver(5) if state == "new" else connected(5)
    data = encode(Publish(topic="t", qos=1, packet_id=2), 5)
    if state == "under way":
        driver.feed(data)
    elif state == "held":
        driver.feed(data[:3])
    elif state == "closed":
        driver.feed(b"\xe0\x00")
    assert driver.single(data) is None
