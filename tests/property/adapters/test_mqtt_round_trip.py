"""Every packet with every property round trips; any chunking of a stream is the whole stream."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from adapters.mqtt.codec import Properties, decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import (
    Publish,
    Subscribe,
    SubscriptionRequest,
)
from adapters.mqtt.messages.messages import Dialect
from adapters.mqtt.session.encoded import Encoded
from adapters.mqtt.session.subscriptions import DeliveryPlan
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of, packets_in
from tests.support.mqtt.packet_strategies import packets_of_5, publishes


@given(packets_of_5)
def test_every_packet_of_version_5_comes_back(packet):
    encoded = encode(packet, 5)
    frame = read_fixed_header(encoded, minimal=True)
    assert frame is not None
    assert frame.end == len(encoded)
    assert decode(frame.first, encoded[frame.start :], 5) == packet


@given(publishes(4))
def test_a_publish_of_version_3_1_1_comes_back(packet):
    encoded = encode(packet, 4)
    assert list(packets_in(encoded, 4)) == [packet]


def plain(packet: Publish) -> Publish:
    """Returns the packet without what would end the connection or refuse the message."""
    kept = Properties(content_type=packet.properties.content_type, correlation=packet.properties.correlation)
    return Publish(
        topic=packet.topic,
        payload=packet.payload,
        qos=packet.qos,
        retain=packet.retain,
        dup=packet.dup,
        packet_id=packet.packet_id,
        properties=kept,
    )


@given(st.lists(publishes(5).map(plain), min_size=1, max_size=12), st.lists(st.integers(0, 5_000), max_size=12))
def test_any_chunking_is_the_whole(packets, cuts):
    data = b"".join(encode(packet, 5) for packet in packets) + b"\xc0\x00"
    whole, cut = Driver(5), Driver(5)
    for driver in (whole, cut):
        driver.connect()
    whole.feed(data)
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    for start, end in pairwise(edges):
        cut.feed(data[start:end])
    expected = [m for effect in whole.effects for m in effect.messages]
    assert [m for effect in cut.effects for m in effect.messages] == expected
    assert whole.out() == cut.out()
    assert sorted(p.packet_id for p in whole.store()) == sorted(p.packet_id for p in cut.store())


@given(st.lists(publishes(5, qos=0), min_size=1, max_size=4))
def test_what_goes_in_comes_out(packets):
    packets = [
        Publish(
            topic=packet.topic,
            payload=packet.payload,
            properties=Properties(
                message_expiry_s=packet.properties.message_expiry_s or None,
                content_type=packet.properties.content_type and f"x/{packet.properties.content_type}",
                response_topic=f"r/{packet.topic}",
                correlation=packet.properties.correlation,
                user=packet.properties.user,
            ),
        )
        for packet in packets
    ]
    publisher, subscriber = Driver(5), Driver(5)
    publisher.connect(client_id="p")
    subscriber.connect()
    subscriber.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="#"),)))
    publisher.send(*packets)
    subscriber.deliver(batch_of(*publisher.published()))
    assert subscriber.out() == packets


domain_messages = st.builds(
    Message,
    address=st.sampled_from(["t", "t/a", "t/" + "x" * 200, "t/ü"]),
    body=st.sampled_from([b"", b"x", b"x" * 127, b"x" * 300]),
    protocol=st.just("mqtt"),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    key=st.none() | st.just("k"),
    content_type=st.none() | st.just("a/b"),
    expires_at_ms=st.none() | st.just(NOW_MS) | st.just(NOW_MS + 5_000),
    native=st.none() | st.just({"mqtt": {"payload_format": 1}}),
    properties=st.just(()) | st.just((("a", "b"),)),
)
plans = st.builds(
    DeliveryPlan,
    qos=st.integers(0, 2),
    retain_as_published=st.booleans(),
    identifiers=st.sampled_from([(), (1,), (200, 3)]),
)


@given(st.lists(domain_messages, min_size=1, max_size=8), plans, st.sampled_from([4, 5]))
def test_a_whole_batch_is_encoded_as_its_messages_are(messages, plan, version):
    together, apart = (Encoded(messages, plan, Dialect(version), NOW_MS) for _ in range(2))
    together.make_all()
    for index in range(len(messages)):
        apart._make(index)
    assert together.pieces == apart.pieces
    assert together.timed == apart.timed
    assert apart.largest <= together.largest <= apart.largest + 5
