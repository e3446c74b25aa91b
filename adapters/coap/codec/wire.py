"""CoAP's message format, strict: bytes that are not exactly a message are refused.

    |Ver 2|T 2|TKL 4|  Code 8  |  Message ID 16  | Token, TKL bytes | Options | 0xFF | Payload   (RFC 7252, 3)

aiocoap's codec takes over seven times as long for a request, and lets malformed datagrams pass (docs/decisions/0040).
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import TypeAlias

import msgspec

from gateway.domain.errors import ProtocolError

Option: TypeAlias = tuple[int, bytes]

VERSION = 1
HEADER_BYTES = 4
TOKEN_BYTES_MAX = 8
OPTION_NUMBER_MAX = 0xFFFF
PAYLOAD_MARKER = 0xFF


class MessageFormatError(ProtocolError):
    """A datagram that is no CoAP message (RFC 7252, 3). Its answer is a Reset or nothing, so it has no code."""

    def __init__(self, detail: str) -> None:
        super().__init__(0, detail)


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `options` are by ascending number; those of one number are in the order they came in."""

    type: int
    code: int
    mid: int
    token: bytes = b""
    options: tuple[Option, ...] = ()
    payload: bytes = b""


def read_options(data: bytes, at: int) -> tuple[list[Option], int]:
    """Returns the options of a datagram from `at` on, and where they end: at the payload marker, or with the datagram.

    Raises `MessageFormatError` (RFC 7252, 3.1), also for a payload marker with no payload behind it.
    """
    options: list[Option] = []
    number, size = 0, len(data)
    try:
        while at < size and (first := data[at]) != PAYLOAD_MARKER:
            at += 1
            delta, length = first >> 4, first & 15
            if delta > 12:
                delta, at = _extended(data, at, delta)
            if length > 12:
                length, at = _extended(data, at, length)
            number += delta
            end = at + length
            if end > size or number > OPTION_NUMBER_MAX:
                raise MessageFormatError(f"option {number} goes beyond the message")
            options.append((number, data[at:end]))
            at = end
    except IndexError:
        raise MessageFormatError("an option's header is cut short") from None
    if at == size - 1:
        raise MessageFormatError("a payload marker and no payload")
    return options, at


def _extended(data: bytes, at: int, nibble: int) -> tuple[int, int]:
    if nibble == 13:
        return data[at] + 13, at + 1
    if nibble == 14:
        return (data[at] << 8 | data[at + 1]) + 269, at + 2
    raise MessageFormatError("an option's header holds the reserved value 15")


def decode(data: bytes) -> Packet:
    """Reads one datagram; raises `MessageFormatError`."""
    if len(data) < HEADER_BYTES:
        raise MessageFormatError("shorter than a header")
    first, code = data[0], data[1]
    if first >> 6 != VERSION:
        raise MessageFormatError(f"version {first >> 6}")
    body = HEADER_BYTES + (first & 15)
    if (first & 15) > TOKEN_BYTES_MAX or body > len(data):
        raise MessageFormatError(f"a token of {first & 15} bytes")
    if code == 0 and len(data) > HEADER_BYTES:
        raise MessageFormatError("an Empty message with something in it")
    options, end = read_options(data, body)
    return Packet(
        type=first >> 4 & 3,
        code=code,
        mid=data[2] << 8 | data[3],
        token=data[HEADER_BYTES:body],
        options=tuple(options),
        payload=data[end + 1 :],
    )


def encode(packet: Packet) -> bytes:
    """Returns the datagram of a message whose fields are within their limits."""
    assert len(packet.token) <= TOKEN_BYTES_MAX
    first = VERSION << 6 | packet.type << 4 | len(packet.token)
    head = bytes((first, packet.code, packet.mid >> 8, packet.mid & 0xFF))
    end = b"\xff" + packet.payload if packet.payload else b""
    return head + packet.token + encode_options(packet.options) + end


def encode_options(options: Iterable[Option]) -> bytes:
    """Encodes options in their wire form, put in ascending order of their numbers."""
    out = bytearray()
    last = 0
    for number, value in sorted(options, key=itemgetter(0)):
        delta, delta_more = _nibble(number - last)
        length, length_more = _nibble(len(value))
        out.append(delta << 4 | length)
        out += delta_more
        out += length_more
        out += value
        last = number
    return bytes(out)


def _nibble(value: int) -> tuple[int, bytes]:
    if value < 13:
        return value, b""
    if value < 269:
        return 13, bytes((value - 13,))
    return 14, (value - 269).to_bytes(2, "big")


def read_uint(value: bytes) -> int:
    """Returns an option value of format uint; leading zero bytes are allowed (RFC 7252, 3.2)."""
    return int.from_bytes(value, "big")


def encode_uint(value: int) -> bytes:
    """Returns a number as an option value, in as few bytes as it takes."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")
