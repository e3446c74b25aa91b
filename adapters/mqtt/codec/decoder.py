"""Packets from bytes. A decoder returns a packet or raises `ProtocolError` with a reason code, and nothing else."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from adapters.mqtt.codec.packet_type import FLAGS, PacketType
from adapters.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
    Version,
    Will,
)
from adapters.mqtt.codec.primitives import PacketReader, encode_text, malformed, read_varint
from adapters.mqtt.codec.properties import NO_PROPERTIES, WILL, Properties, Scope, decode_properties
from adapters.mqtt.codec.reason import ReasonCode
from gateway.domain.errors import ProtocolError

PROTOCOL_NAMES: dict[int, str] = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}
# The first bytes of a CONNECT, the commonest first, and its version; 0: the protocol level behind them names it.
_OPENINGS: tuple[tuple[bytes, Version], ...] = ((encode_text("MQTT"), 0), (encode_text("MQIsdp"), 3))


class PacketSpan(NamedTuple):
    """A packet's place in a buffer: its first byte, and where its body begins and ends."""

    first: int
    start: int
    end: int


def read_fixed_header(data: bytes, at: int = 0, *, minimal: bool = False) -> PacketSpan | None:
    """Returns the packet at `at`, whose `end` may lie behind the buffer's; None: the fixed header is not all there.

    Raises `ProtocolError` (0x81) for a Remaining Length that is none (2.1.4); 5.0 wants it `minimal`.
    """
    if len(data) - at < 2:
        return None
    found = read_varint(data, at + 1, len(data), minimal=minimal)
    return None if found is None else PacketSpan(data[at], found[1], found[1] + found[0])


def check_topic_name(topic: str) -> str:
    """Returns the topic name itself. Raises `ProtocolError` (0x90) when it is empty or holds a wildcard (4.7)."""
    if not topic:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "an empty topic name")
    if "+" in topic or "#" in topic:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "a topic name with a wildcard")
    return topic


def peek_version(body: bytes) -> Version | None:
    """Returns the version to refuse a CONNECT in, whatever else is wrong with it; None when it is none of ours."""
    for name, version in _OPENINGS:
        if body.startswith(name) and len(body) > len(name):
            return version or min(max(body[len(name)], 4), 5)
    return None


def _properties(reader: PacketReader, version: Version, scope: Scope) -> Properties:
    return decode_properties(reader, scope) if version == 5 else NO_PROPERTIES


def _connect(_flags: int, reader: PacketReader, _version: Version) -> Connect:
    name, version = reader.text(), reader.u8()
    if name not in PROTOCOL_NAMES.values():
        raise malformed("not the protocol name of MQTT")
    if PROTOCOL_NAMES.get(version) != name:
        raise ProtocolError(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, f"{name} level {version}")
    flags = reader.u8()
    has_will, will_qos, will_retain = bool(flags & 0x04), flags >> 3 & 3, bool(flags & 0x20)
    has_username, has_password = bool(flags & 0x80), bool(flags & 0x40)
    if flags & 1:
        raise malformed("the reserved connect flag is set")
    if will_qos == 3 or (not has_will and flags & 0x38):
        raise malformed("will flags that contradict each other")
    if version < 5 and has_password and not has_username:
        raise malformed("a password without a user name")
    keep_alive_s = reader.u16()
    properties = _properties(reader, version, PacketType.CONNECT)
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "authentication data without a method")
    client_id = reader.text()
    will = None
    if has_will:
        will_properties = _properties(reader, version, WILL)
        topic = check_topic_name(reader.text())
        payload = reader.binary()
        will = Will(topic=topic, payload=payload, qos=will_qos, retain=will_retain, properties=will_properties)
    username = reader.text() if has_username else None
    password = reader.binary() if has_password else None
    return Connect(
        version=version,
        client_id=client_id,
        clean=bool(flags & 0x02),
        keep_alive_s=keep_alive_s,
        will=will,
        username=username,
        password=password,
        properties=properties,
    )


def _connack(_flags: int, reader: PacketReader, version: Version) -> Connack:
    acknowledge = reader.u8()
    if acknowledge > 1:
        raise malformed("reserved connect acknowledge flags are set")
    code = reader.u8()
    return Connack(
        code=code, session_present=bool(acknowledge), properties=_properties(reader, version, PacketType.CONNACK)
    )


def _publish(flags: int, reader: PacketReader, version: Version) -> Publish:
    qos, dup = flags >> 1 & 3, bool(flags & 8)
    if qos == 3:
        raise malformed("QoS 3")
    if dup and not qos:
        raise malformed("DUP at QoS 0")
    topic = reader.text()
    packet_id = reader.packet_id() if qos else None
    properties = _properties(reader, version, PacketType.PUBLISH)
    if topic or properties.topic_alias is None:
        if not topic and version == 5:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "neither a topic name nor a topic alias")
        check_topic_name(topic)
    return Publish(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        retain=bool(flags & 1),
        dup=dup,
        packet_id=packet_id,
        properties=properties,
    )


_AckType = TypeVar("_AckType", Puback, Pubrec, Pubrel, Pubcomp)


def _ack(packet: type[_AckType], kind: PacketType) -> "_Decode":
    def decode_ack(_flags: int, reader: PacketReader, version: Version) -> _AckType:
        packet_id = reader.packet_id()
        if version < 5 or not reader.left:
            return packet(packet_id=packet_id)
        code = reader.u8()
        # 3.4.2.1: the property length may be left out together with the properties.
        properties = decode_properties(reader, kind) if reader.left else NO_PROPERTIES
        return packet(packet_id=packet_id, code=code, properties=properties)

    return decode_ack


def _subscribe(_flags: int, reader: PacketReader, version: Version) -> Subscribe:
    packet_id = reader.packet_id()
    properties = _properties(reader, version, PacketType.SUBSCRIBE)
    if len(properties.subscription_ids) > 1:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "more than one subscription identifier")
    requests: list[SubscriptionRequest] = []
    while reader.left:
        pattern, options = reader.text(), reader.u8()
        if options & (0xC0 if version == 5 else 0xFC):
            raise malformed("reserved subscription options are set")
        if options & 3 == 3 or options >> 4 == 3:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a subscription option that has no meaning")
        requests.append(
            SubscriptionRequest(
                pattern=pattern,
                qos=options & 3,
                no_local=bool(options & 4),
                retain_as_published=bool(options & 8),
                retain_handling=options >> 4,
            )
        )
    if not requests:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a SUBSCRIBE without a topic filter")
    return Subscribe(packet_id=packet_id, requests=tuple(requests), properties=properties)


def _suback(_flags: int, reader: PacketReader, version: Version) -> Suback:
    packet_id = reader.packet_id()
    properties = _properties(reader, version, PacketType.SUBACK)
    return Suback(packet_id=packet_id, codes=tuple(reader.rest()), properties=properties)


def _unsubscribe(_flags: int, reader: PacketReader, version: Version) -> Unsubscribe:
    packet_id = reader.packet_id()
    properties = _properties(reader, version, PacketType.UNSUBSCRIBE)
    patterns: list[str] = []
    while reader.left:
        patterns.append(reader.text())
    if not patterns:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "an UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id=packet_id, patterns=tuple(patterns), properties=properties)


def _unsuback(_flags: int, reader: PacketReader, version: Version) -> Unsuback:
    packet_id = reader.packet_id()
    if version < 5:
        return Unsuback(packet_id=packet_id)
    properties = decode_properties(reader, PacketType.UNSUBACK)
    return Unsuback(packet_id=packet_id, codes=tuple(reader.rest()), properties=properties)


def _pingreq(_flags: int, _reader: PacketReader, _version: Version) -> Pingreq:
    return Pingreq()


def _pingresp(_flags: int, _reader: PacketReader, _version: Version) -> Pingresp:
    return Pingresp()


def _code_and_properties(reader: PacketReader, scope: PacketType) -> tuple[int, Properties]:
    code = reader.u8() if reader.left else 0
    return code, decode_properties(reader, scope) if reader.left else NO_PROPERTIES


def _disconnect(_flags: int, reader: PacketReader, version: Version) -> Disconnect:
    if version < 5:
        return Disconnect()
    code, properties = _code_and_properties(reader, PacketType.DISCONNECT)
    return Disconnect(code=code, properties=properties)


def _auth(_flags: int, reader: PacketReader, version: Version) -> Auth:
    if version < 5:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH is of MQTT 5.0")
    code, properties = _code_and_properties(reader, PacketType.AUTH)
    return Auth(code=code, properties=properties)


_Decode = Callable[[int, PacketReader, Version], Packet]

_DECODERS: dict[int, _Decode] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _ack(Puback, PacketType.PUBACK),
    PacketType.PUBREC: _ack(Pubrec, PacketType.PUBREC),
    PacketType.PUBREL: _ack(Pubrel, PacketType.PUBREL),
    PacketType.PUBCOMP: _ack(Pubcomp, PacketType.PUBCOMP),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: _pingreq,
    PacketType.PINGRESP: _pingresp,
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
_FLAGS: dict[int, int] = {int(kind): flags for kind, flags in FLAGS.items()}


def decode(first: int, body: bytes, version: Version) -> Packet:
    """Returns the packet of a first byte and a body; `version` is the connection's and has no meaning for a CONNECT.

    Raises `ProtocolError`: 0x81 malformed, 0x82 forbidden, 0x84 a protocol level we do not speak, 0x90 a topic name
    that is none.
    """
    kind, flags = first >> 4, first & 15
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise malformed("packet type 0")
    if flags != _FLAGS.get(kind, flags):
        raise malformed(f"reserved flags of {PacketType(kind).name} are set")
    reader = PacketReader(body)
    packet = decoder(flags, reader, version)
    reader.finish()
    return packet
