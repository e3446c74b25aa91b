"""Hypothesis strategies for packets of MQTT."""

from hypothesis import strategies as st

from adapters.mqtt.codec import Properties
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
