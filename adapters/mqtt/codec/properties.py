"""Properties of MQTT 5.0 (2.2.2): one table of their names, their encodings and the packets that may have them."""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.primitives import (
    PacketReader,
    encode_binary,
    encode_text,
    encode_varint,
    malformed,
)
from adapters.mqtt.codec.reason import ReasonCode
from gateway.domain.errors import ProtocolError

REPEATS_COUNT_MAX = 16_384  # of one property in one packet: some 3 us each, and as little as 5 bytes


class Properties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every property there is; None, or empty, where a packet has none of it. Times in seconds."""

    payload_format: int | None = None
    message_expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    session_expiry_s: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_s: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user: tuple[tuple[str, str], ...] = ()
    maximum_packet_bytes: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_ids_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES = Properties()


class _WillScope(Enum):
    """The place of will properties: in a CONNECT, but not among its own."""

    WILL = "will"


WILL = _WillScope.WILL
Scope = PacketType | _WillScope


def _read_flag(reader: PacketReader) -> int:
    flag = reader.u8()
    if flag > 1:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a property that must be 0 or 1 has another value")
    return flag


def _positive(read: Callable[[PacketReader], int]) -> Callable[[PacketReader], int]:
    def checked(reader: PacketReader) -> int:
        number = read(reader)
        if not number:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a property that must not be 0 is 0")
        return number

    return checked


def _read_pair(reader: PacketReader) -> tuple[str, str]:
    return reader.text(), reader.text()


def _write_pair(pair: tuple[str, str]) -> bytes:
    return encode_text(pair[0]) + encode_text(pair[1])


class _Kind(NamedTuple):
    read: Callable[[PacketReader], Any]
    write: Callable[[Any], bytes]


def _write_integer(size_bytes: int) -> Callable[[int], bytes]:
    return lambda number: number.to_bytes(size_bytes, "big")


_FLAG = _Kind(_read_flag, _write_integer(1))
_U16 = _Kind(PacketReader.u16, _write_integer(2))
_U16_POSITIVE = _Kind(_positive(PacketReader.u16), _write_integer(2))
_U32 = _Kind(PacketReader.u32, _write_integer(4))
_U32_POSITIVE = _Kind(_positive(PacketReader.u32), _write_integer(4))
_VARINT_POSITIVE = _Kind(_positive(PacketReader.varint), encode_varint)
_TEXT = _Kind(PacketReader.text, encode_text)
_BINARY = _Kind(PacketReader.binary, encode_binary)
_PAIR = _Kind(_read_pair, _write_pair)


class _Property(NamedTuple):
    identifier: int
    field: str
    kind: _Kind
    scopes: frozenset[Scope]
    repeats: bool = False


def _in(*scopes: Scope) -> frozenset[Scope]:
    return frozenset(scopes)


_T = PacketType
_ACKS = (_T.PUBACK, _T.PUBREC, _T.PUBREL, _T.PUBCOMP, _T.SUBACK, _T.UNSUBACK)
_EVERYWHERE: tuple[Scope, ...] = (
    _T.CONNECT, _T.CONNACK, _T.PUBLISH, WILL, *_ACKS, _T.SUBSCRIBE, _T.UNSUBSCRIBE, _T.DISCONNECT, _T.AUTH,
)  # fmt: skip

# MQTT 5.0, table 2-4, in the order of its identifiers. A user property may repeat anywhere; a subscription
# identifier repeats only in a PUBLISH to a client.
_TABLE: tuple[_Property, ...] = (
    _Property(0x01, "payload_format", _FLAG, _in(_T.PUBLISH, WILL)),
    _Property(0x02, "message_expiry_s", _U32, _in(_T.PUBLISH, WILL)),
    _Property(0x03, "content_type", _TEXT, _in(_T.PUBLISH, WILL)),
    _Property(0x08, "response_topic", _TEXT, _in(_T.PUBLISH, WILL)),
    _Property(0x09, "correlation", _BINARY, _in(_T.PUBLISH, WILL)),
    _Property(0x0B, "subscription_ids", _VARINT_POSITIVE, _in(_T.PUBLISH, _T.SUBSCRIBE), repeats=True),
    _Property(0x11, "session_expiry_s", _U32, _in(_T.CONNECT, _T.CONNACK, _T.DISCONNECT)),
    _Property(0x12, "assigned_client_id", _TEXT, _in(_T.CONNACK)),
    _Property(0x13, "server_keep_alive_s", _U16, _in(_T.CONNACK)),
    _Property(0x15, "authentication_method", _TEXT, _in(_T.CONNECT, _T.CONNACK, _T.AUTH)),
    _Property(0x16, "authentication_data", _BINARY, _in(_T.CONNECT, _T.CONNACK, _T.AUTH)),
    _Property(0x17, "request_problem_information", _FLAG, _in(_T.CONNECT)),
    _Property(0x18, "will_delay_s", _U32, _in(WILL)),
    _Property(0x19, "request_response_information", _FLAG, _in(_T.CONNECT)),
    _Property(0x1A, "response_information", _TEXT, _in(_T.CONNACK)),
    _Property(0x1C, "server_reference", _TEXT, _in(_T.CONNACK, _T.DISCONNECT)),
    _Property(0x1F, "reason", _TEXT, _in(_T.CONNACK, *_ACKS, _T.DISCONNECT, _T.AUTH)),
    _Property(0x21, "receive_maximum", _U16_POSITIVE, _in(_T.CONNECT, _T.CONNACK)),
    _Property(0x22, "topic_alias_maximum", _U16, _in(_T.CONNECT, _T.CONNACK)),
    _Property(0x23, "topic_alias", _U16, _in(_T.PUBLISH)),
    _Property(0x24, "maximum_qos", _FLAG, _in(_T.CONNACK)),
    _Property(0x25, "retain_available", _FLAG, _in(_T.CONNACK)),
    _Property(0x26, "user", _PAIR, _in(*_EVERYWHERE), repeats=True),
    _Property(0x27, "maximum_packet_bytes", _U32_POSITIVE, _in(_T.CONNECT, _T.CONNACK)),
    _Property(0x28, "wildcard_subscription_available", _FLAG, _in(_T.CONNACK)),
    _Property(0x29, "subscription_ids_available", _FLAG, _in(_T.CONNACK)),
    _Property(0x2A, "shared_subscription_available", _FLAG, _in(_T.CONNACK)),
)
_BY_ID = {row.identifier: row for row in _TABLE}
assert {row.field for row in _TABLE} == set(Properties.__struct_fields__)


def decode_properties(reader: PacketReader, scope: Scope) -> Properties:
    """Decodes property length and properties, of a packet or (`WILL`) of a will message.

    Raises `ProtocolError`: 0x81 for a property that cannot be read or has no place in this packet, 0x82 for one that
    may not repeat or has a forbidden value, 0x97 for too many properties.
    """
    length = reader.varint()
    if not length:
        return NO_PROPERTIES
    end = reader.at + length
    if end > reader.end:
        raise malformed("the properties are longer than the packet")
    fields: dict[str, Any] = {}
    inside = PacketReader(reader.data, reader.at, end)
    reader.at = end
    while inside.at < end:
        identifier = inside.varint()
        row = _BY_ID.get(identifier)
        if row is None or scope not in row.scopes:
            raise malformed(f"property 0x{identifier:02X} is not allowed in this packet")
        value = row.kind.read(inside)
        if row.repeats:
            values = fields.setdefault(row.field, [])
            values.append(value)
            if len(values) > REPEATS_COUNT_MAX:
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"more than {REPEATS_COUNT_MAX} properties of one kind")
        elif row.field in fields:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"property 0x{identifier:02X} is given twice")
        else:
            fields[row.field] = value
    for name in ("user", "subscription_ids"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return Properties(**fields)


def encode_properties(properties: Properties, scope: Scope) -> bytes:
    """Encodes property length and properties; every one of them has its place in `scope`."""
    if properties == NO_PROPERTIES:
        return b"\0"
    out = bytearray()
    for row in _TABLE:
        value = getattr(properties, row.field)
        if value is None:
            continue
        assert not value or scope in row.scopes, f"{row.field} has no place in {scope}"
        for one in value if row.repeats else (value,):
            out += encode_varint(row.identifier)
            out += row.kind.write(one)
    return encode_varint(len(out)) + bytes(out)
