"""Every packet with every property round trips; any chunking of a stream is the whole stream."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from adapters.mqtt.codec import Properties, decode, encode, read_fixed_header
from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
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
    Unsuback,
    Unsubscribe,
    Will,
)
from adapters.mqtt.codec.properties import _TABLE, WILL
from adapters.mqtt.messages.messages import Dialect
from adapters.mqtt.session.encoded import Encoded
from adapters.mqtt.session.subscriptions import DeliveryPlan
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of, packets_in

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
topics = texts.filter(lambda text: text and not {"+", "#"} & set(text))
binaries = st.binary(max_size=20)
packet_ids = st.integers(1, 65_535)
codes = st.integers(0, 255)
u16, u32 = st.integers(0, 65_535), st.integers(0, 0xFFFF_FFFF)
flags = st.integers(0, 1)

VALUES = {
    "payload_format": flags,
    "message_expiry_s": u32,
    "content_type": texts,
    "response_topic": texts,
    "correlation": binaries,
    "subscription_ids": st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple),
    "session_expiry_s": u32,
    "assigned_client_id": texts,
    "server_keep_alive_s": u16,
    "authentication_method": texts,
    "authentication_data": binaries,
    "request_problem_information": flags,
    "will_delay_s": u32,
    "request_response_information": flags,
    "response_information": texts,
    "server_reference": texts,
    "reason": texts,
    "receive_maximum": st.integers(1, 65_535),
    "topic_alias_maximum": u16,
    "topic_alias": u16,
    "maximum_qos": flags,
    "retain_available": flags,
    "user": st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    "maximum_packet_bytes": st.integers(1, 0xFFFF_FFFF),
    "wildcard_subscription_available": flags,
    "subscription_ids_available": flags,
    "shared_subscription_available": flags,
}


def properties(scope) -> st.SearchStrategy[Properties]:
    names = [row.field for row in _TABLE if scope in row.scopes]
    strategy = st.fixed_dictionaries({}, optional={name: VALUES[name] for name in names})
    if scope is PacketType.SUBSCRIBE:
        strategy = strategy.filter(lambda fields: len(fields.get("subscription_ids", ())) < 2)
    if scope is PacketType.CONNECT:
        strategy = strategy.filter(lambda f: "authentication_data" not in f or "authentication_method" in f)
    return strategy.map(lambda fields: Properties(**fields))


@st.composite
def publishes(draw, version, qos=None):
    qos = draw(st.integers(0, 2)) if qos is None else qos
    return Publish(
        topic=draw(topics),
        payload=draw(st.binary(max_size=300)),
        qos=qos,
        retain=draw(st.booleans()),
        dup=bool(qos) and draw(st.booleans()),
        packet_id=draw(packet_ids) if qos else None,
        properties=draw(properties(PacketType.PUBLISH)) if version == 5 else Properties(),
    )


wills = st.builds(
    Will,
    topic=topics,
    payload=binaries,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=properties(WILL),
)
requests = st.builds(
    SubscriptionRequest,
    pattern=texts,
    qos=st.integers(0, 2),
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    retain_handling=st.integers(0, 2),
)


def acks(kind, scope):
    return st.builds(kind, packet_id=packet_ids, code=codes, properties=properties(scope))


packets_of_5 = st.one_of(
    st.builds(
        Connect,
        version=st.just(5),
        client_id=texts,
        clean=st.booleans(),
        keep_alive_s=u16,
        will=st.none() | wills,
        username=st.none() | texts,
        password=st.none() | binaries,
        properties=properties(PacketType.CONNECT),
    ),
    st.builds(Connack, code=codes, session_present=st.booleans(), properties=properties(PacketType.CONNACK)),
    publishes(5),
    acks(Puback, PacketType.PUBACK),
    acks(Pubrec, PacketType.PUBREC),
    acks(Pubrel, PacketType.PUBREL),
    acks(Pubcomp, PacketType.PUBCOMP),
    st.builds(
        Subscribe,
        packet_id=packet_ids,
        requests=st.lists(requests, min_size=1, max_size=3).map(tuple),
        properties=properties(PacketType.SUBSCRIBE),
    ),
    st.builds(Suback, packet_id=packet_ids, codes=st.lists(codes).map(tuple), properties=properties(PacketType.SUBACK)),
    st.builds(
        Unsubscribe,
        packet_id=packet_ids,
        patterns=st.lists(texts, min_size=1, max_size=3).map(tuple),
        properties=properties(PacketType.UNSUBSCRIBE),
    ),
    st.builds(
        Unsuback, packet_id=packet_ids, codes=st.lists(codes).map(tuple), properties=properties(PacketType.UNSUBACK)
    ),
    st.builds(Pingreq),
    st.builds(Pingresp),
    st.builds(Disconnect, code=codes, properties=properties(PacketType.DISCONNECT)),
    st.builds(Auth, code=codes, properties=properties(PacketType.AUTH)),
)


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
        apart.make(index)
    assert together.pieces == apart.pieces
    assert together.timed == apart.timed
    assert apart.largest <= together.largest <= apart.largest + 5
