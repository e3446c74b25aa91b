"""Control packet types (MQTT 5.0, 2.1.2)."""

from enum import IntEnum


class PacketType(IntEnum):
    """The upper four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


# The lower four bits, fixed for every type but PUBLISH (2.1.3).
FLAGS: dict[PacketType, int] = {
    kind: 2 if kind in {PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE} else 0
    for kind in PacketType
    if kind is not PacketType.PUBLISH
}
