"""Bytes from packets. All packets were built by ourselves, so a value out of range is our bug: an assertion."""

from collections.abc import Callable
from typing import Any

from adapters.mqtt.codec.decoder import PROTOCOL_NAMES
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
    Unsuback,
    Unsubscribe,
    Version,
)
from adapters.mqtt.codec.primitives import encode_binary, encode_text, encode_varint
from adapters.mqtt.codec.properties import NO_PROPERTIES, WILL, Properties, Scope, encode_properties


def frame(first: int, body: bytes) -> bytes:
    """Returns a fixed header (2.1) and the body it announces."""
    return bytes((first,)) + encode_varint(len(body)) + body


def _packet_id(packet_id: int) -> bytes:
    assert 0 < packet_id <= 65_535
    return packet_id.to_bytes(2, "big")


def _properties(properties: Properties, version: Version, scope: Scope) -> bytes:
    if version < 5:
        assert properties == NO_PROPERTIES, "3.1.1 has no properties"
        return b""
    return encode_properties(properties, scope)


def _connect(packet: Connect, _version: Version) -> tuple[int, bytes]:
    version, will = packet.version, packet.will
    flags = packet.clean << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    out = [
        encode_text(PROTOCOL_NAMES[version]),
        bytes((version, flags)),
        packet.keep_alive_s.to_bytes(2, "big"),
        _properties(packet.properties, version, PacketType.CONNECT),
        encode_text(packet.client_id),
    ]
    if will is not None:
        out += [_properties(will.properties, version, WILL), encode_text(will.topic), encode_binary(will.payload)]
    if packet.username is not None:
        out.append(encode_text(packet.username))
    if packet.password is not None:
        out.append(encode_binary(packet.password))
    return 0, b"".join(out)


def _connack(packet: Connack, version: Version) -> tuple[int, bytes]:
    head = bytes((packet.session_present, packet.code))
    return 0, head + _properties(packet.properties, version, PacketType.CONNACK)


def _publish(packet: Publish, version: Version) -> tuple[int, bytes]:
    flags = packet.dup << 3 | packet.qos << 1 | packet.retain
    identifier = b"" if packet.packet_id is None else _packet_id(packet.packet_id)
    assert bool(packet.qos) == bool(identifier)
    properties = _properties(packet.properties, version, PacketType.PUBLISH)
    return flags, encode_text(packet.topic) + identifier + properties + packet.payload


def _ack(kind: PacketType) -> Callable[[Any, Version], tuple[int, bytes]]:
    def encode_ack(packet: Puback | Pubrec | Pubrel | Pubcomp, version: Version) -> tuple[int, bytes]:
        body = _packet_id(packet.packet_id)
        if packet.properties != NO_PROPERTIES:
            body += bytes((packet.code,)) + _properties(packet.properties, version, kind)
        elif packet.code and version == 5:
            body += bytes((packet.code,))
        return FLAGS[kind], body

    return encode_ack


def _subscribe(packet: Subscribe, version: Version) -> tuple[int, bytes]:
    out = [_packet_id(packet.packet_id), _properties(packet.properties, version, PacketType.SUBSCRIBE)]
    for request in packet.requests:
        options = request.qos | request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4
        out += [encode_text(request.pattern), bytes((options,))]
    return FLAGS[PacketType.SUBSCRIBE], b"".join(out)


def _suback(packet: Suback, version: Version) -> tuple[int, bytes]:
    properties = _properties(packet.properties, version, PacketType.SUBACK)
    return 0, _packet_id(packet.packet_id) + properties + bytes(packet.codes)


def _unsubscribe(packet: Unsubscribe, version: Version) -> tuple[int, bytes]:
    properties = _properties(packet.properties, version, PacketType.UNSUBSCRIBE)
    patterns = b"".join(map(encode_text, packet.patterns))
    return FLAGS[PacketType.UNSUBSCRIBE], _packet_id(packet.packet_id) + properties + patterns


def _unsuback(packet: Unsuback, version: Version) -> tuple[int, bytes]:
    if version < 5:
        return 0, _packet_id(packet.packet_id)
    properties = encode_properties(packet.properties, PacketType.UNSUBACK)
    return 0, _packet_id(packet.packet_id) + properties + bytes(packet.codes)


def _empty(_packet: Packet, _version: Version) -> tuple[int, bytes]:
    return 0, b""


def _coded(kind: PacketType) -> Callable[[Any, Version], tuple[int, bytes]]:
    def encode_coded(packet: Disconnect | Auth, version: Version) -> tuple[int, bytes]:
        if version < 5 or (not packet.code and packet.properties == NO_PROPERTIES):
            return 0, b""
        if packet.properties == NO_PROPERTIES:
            return 0, bytes((packet.code,))
        return 0, bytes((packet.code,)) + encode_properties(packet.properties, kind)

    return encode_coded


_ENCODERS: dict[type[Any], tuple[PacketType, Callable[[Any, Version], tuple[int, bytes]]]] = {
    Connect: (PacketType.CONNECT, _connect),
    Connack: (PacketType.CONNACK, _connack),
    Publish: (PacketType.PUBLISH, _publish),
    Puback: (PacketType.PUBACK, _ack(PacketType.PUBACK)),
    Pubrec: (PacketType.PUBREC, _ack(PacketType.PUBREC)),
    Pubrel: (PacketType.PUBREL, _ack(PacketType.PUBREL)),
    Pubcomp: (PacketType.PUBCOMP, _ack(PacketType.PUBCOMP)),
    Subscribe: (PacketType.SUBSCRIBE, _subscribe),
    Suback: (PacketType.SUBACK, _suback),
    Unsubscribe: (PacketType.UNSUBSCRIBE, _unsubscribe),
    Unsuback: (PacketType.UNSUBACK, _unsuback),
    Pingreq: (PacketType.PINGREQ, _empty),
    Pingresp: (PacketType.PINGRESP, _empty),
    Disconnect: (PacketType.DISCONNECT, _coded(PacketType.DISCONNECT)),
    Auth: (PacketType.AUTH, _coded(PacketType.AUTH)),
}


def encode(packet: Packet, version: Version) -> bytes:
    """Returns the bytes of a packet on a connection of `version`, in the shortest form the specification allows."""
    kind, encoder = _ENCODERS[type(packet)]
    flags, body = encoder(packet, version)
    return frame(kind << 4 | flags, body)
