"""Random, truncated and bit-flipped bytes: parsed, or answered with the protocol's error, and never an exception."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.mqtt.codec import Properties, ReasonCode, decode, encode
from adapters.mqtt.codec.packets import (
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from adapters.mqtt.session.session_state import NO_EXCHANGES, NO_STATE, dump, load
from gateway.domain.errors import ProtocolError
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import Driver, batch_of, packets_in

SEEDS = range(40)

RICH = Properties(
    payload_format=1,
    message_expiry_s=5,
    content_type="a/b",
    response_topic="r",
    correlation=b"c",
    topic_alias=1,
    user=(("type", "t"), ("specversion", "1.0"), ("id", "i"), ("source", "s")),
)
CONNECT = Connect(
    version=5,
    client_id="c",
    will=Will(topic="w", payload=b"x", properties=Properties(will_delay_s=1)),
    username="u",
    password=b"p",
    keep_alive_s=5,
    properties=Properties(session_expiry_s=5, receive_maximum=9),
)


def traffic(version: int) -> list[bytes]:
    rich = RICH if version == 5 else Properties()
    packets = [
        Publish(topic="t/a", payload=b"1"),
        Publish(topic="t/a", payload=b"2", qos=1, packet_id=1, properties=rich),
        Publish(topic="t/b", payload=b"3" * 200, qos=2, packet_id=2),
        Pubrel(packet_id=2),
        Subscribe(packet_id=3, requests=(SubscriptionRequest(pattern="t/#", qos=2), SubscriptionRequest(pattern="+"))),
        Unsubscribe(packet_id=4, patterns=("t/#",)),
        Puback(packet_id=1),
        Pubrec(packet_id=2),
        Pingreq(),
        Disconnect(),
    ]
    return [encode(packet, version) for packet in packets]


def check(driver: Driver, version: int) -> None:
    """Checks that the state is in order after any input, and that everything sent can be parsed."""
    for body in (b"", b"x"):
        driver.deliver(batch_of(Message("t/a", body, qos=2)))
    driver.tick(1)
    driver.store()
    sent = list(packets_in(driver.adapter.take_output(), version))
    if sent and isinstance(sent[-1], Disconnect):
        assert sent[-1].code in set(ReasonCode)
        assert driver.closed is not None
    driver.lose()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_bit_flips_of_good_traffic(seed, version):
    random = Random(seed)
    for _ in range(10):
        driver = Driver(version)
        driver.connect(clean=random.random() < 0.5)
        data = bytearray(b"".join(random.choices(traffic(version), k=6)))
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        while data:
            size = random.randint(1, len(data))
            driver.feed(bytes(data[:size]))
            del data[:size]
        check(driver, version)


@pytest.mark.parametrize("seed", SEEDS)
def test_bit_flips_of_a_connect(seed):
    random = Random(seed)
    for _ in range(20):
        driver = Driver(5)
        data = bytearray(encode(CONNECT, 5))
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        driver.feed(bytes(data))
        driver.version = driver.adapter.context.version or 5
        check(driver, driver.version)


@given(st.binary(max_size=200), st.sampled_from([4, 5]))
def test_random_bytes_of_a_connected_client(data, version):
    driver = Driver(version)
    driver.connect()
    driver.feed(data)
    check(driver, version)


@given(st.binary(max_size=100))
def test_random_first_bytes(data):
    driver = Driver(4)
    driver.feed(data)
    driver.adapter.take_output()
    driver.lose()


@given(st.integers(0, 255), st.binary(max_size=80), st.sampled_from([3, 4, 5]))
def test_the_decoder_parses_or_raises_its_one_error(first, body, version):
    code: int = ReasonCode.SUCCESS
    try:
        decode(first, body, version)
    except ProtocolError as error:
        code = error.code
    assert code in set(ReasonCode)


@pytest.mark.parametrize("version", [4, 5])
def test_every_prefix_of_good_traffic(version):
    for packet in traffic(version):
        for cut in range(len(packet)):
            driver = Driver(version)
            driver.connect()
            driver.feed(packet[:cut])
            assert driver.closed is None
            assert driver.adapter.take_output() == b""


@pytest.mark.parametrize("version", [4, 5])
def test_every_shortened_body_is_told_from_a_short_read(version):
    """A whole frame whose fields do not fit is malformed: it never waits for more."""
    for packet in traffic(version):
        for length in range(packet[1] if packet[1] < 128 else 0):
            driver = Driver(version)
            driver.connect()
            driver.feed(packet[:1] + bytes((length,)) + packet[2 : 2 + length] + b"\xc0\x00")
            answer = driver.adapter.take_output()
            assert answer.endswith(b"\xd0\x00") or driver.closed is not None


@given(st.binary(max_size=60))
def test_a_broken_session_state(raw):
    for nothing in (NO_STATE, NO_EXCHANGES):
        load(raw, nothing)
        load(dump(nothing)[:1] + raw, nothing)
