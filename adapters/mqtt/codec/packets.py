"""Control packets (MQTT 5.0, 3), as values. Fields that 3.1.1 lacks have their default."""

from typing import TypeAlias

import msgspec

from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties

Version: TypeAlias = int  # the protocol level: 3 is MQTT 3.1, 4 is 3.1.1, 5 is 5.0


class _Packet(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen, keyword-only value."""


class Will(_Packet, frozen=True, kw_only=True):
    """The will message of a CONNECT (3.1.3.2 to 3.1.3.4)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(_Packet, frozen=True, kw_only=True):
    """CONNECT (3.1). `clean` is Clean Session of 3.1.1, Clean Start of 5.0."""

    version: Version
    client_id: str
    clean: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES


class Connack(_Packet, frozen=True, kw_only=True):
    """CONNACK (3.2). `code` is a reason code of 5.0 or a return code of 3.1.1."""

    code: int = 0
    session_present: bool = False
    properties: Properties = NO_PROPERTIES


class Publish(_Packet, frozen=True, kw_only=True):
    """PUBLISH (3.3). `packet_id` is None at QoS 0 only; the topic is empty when a topic alias stands for it."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    properties: Properties = NO_PROPERTIES


class _Ack(_Packet, frozen=True, kw_only=True):
    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class Puback(_Ack, frozen=True, kw_only=True):
    """PUBACK (3.4)."""


class Pubrec(_Ack, frozen=True, kw_only=True):
    """PUBREC (3.5)."""


class Pubrel(_Ack, frozen=True, kw_only=True):
    """PUBREL (3.6)."""


class Pubcomp(_Ack, frozen=True, kw_only=True):
    """PUBCOMP (3.7)."""


class SubscriptionRequest(_Packet, frozen=True, kw_only=True):
    """One topic filter of a SUBSCRIBE and its options (3.8.3.1)."""

    pattern: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(_Packet, frozen=True, kw_only=True):
    """SUBSCRIBE (3.8)."""

    packet_id: int
    requests: tuple[SubscriptionRequest, ...]
    properties: Properties = NO_PROPERTIES


class Suback(_Packet, frozen=True, kw_only=True):
    """SUBACK (3.9): one code a filter, in their order."""

    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(_Packet, frozen=True, kw_only=True):
    """UNSUBSCRIBE (3.10)."""

    packet_id: int
    patterns: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class Unsuback(_Packet, frozen=True, kw_only=True):
    """UNSUBACK (3.11). 3.1.1 has no codes."""

    packet_id: int
    codes: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


class Pingreq(_Packet, frozen=True, kw_only=True):
    """PINGREQ (3.12)."""


class Pingresp(_Packet, frozen=True, kw_only=True):
    """PINGRESP (3.13)."""


class Disconnect(_Packet, frozen=True, kw_only=True):
    """DISCONNECT (3.14)."""

    code: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(_Packet, frozen=True, kw_only=True):
    """AUTH (3.15), of 5.0 only."""

    code: int = 0
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
