"""Protected messages and their inner messages: which option goes where (RFC 8613, 4.1)."""

from typing import NamedTuple

from adapters.coap.codec.registry import (
    ACCEPT,
    CHANGED,
    CONTENT,
    IF_MATCH,
    IF_NONE_MATCH,
    OBSERVE,
    PROXY_SCHEME,
    PROXY_URI,
    URI_HOST,
    URI_PATH,
    URI_PORT,
    URI_QUERY,
    is_critical,
)
from adapters.coap.codec.wire import (
    HEADER_BYTES,
    MessageFormatError,
    Option,
    Packet,
    encode_options,
    read_options,
    read_uint,
)
from adapters.coap.oscore.option import OSCORE, CoseError, Fields, decode_option

# Options of class U that this server takes outside: other outer options are discarded, or refused.
_OUTER = frozenset({URI_HOST, URI_PORT, OBSERVE, OSCORE})
# Options that must not be inside (RFC 8613, 4.1.2), besides the OSCORE option: a proxy's, and the host's.
_NEVER_INNER = frozenset({URI_HOST, URI_PORT, PROXY_URI, PROXY_SCHEME, OSCORE})
# Critical options of class E alone: discarded where they are outside (RFC 8613, 8.2).
_ENCRYPTED = frozenset({IF_MATCH, IF_NONE_MATCH, URI_PATH, URI_QUERY, ACCEPT})
REGISTER = b""


class ProtectedRequest(NamedTuple):
    """The parts of a request with the OSCORE option."""

    fields: Fields
    ciphertext: bytes
    observe: bytes | None


class OuterOptionError(Exception):
    """Raised for a critical option outside that is not understood."""


def read_protected(packet: Packet) -> ProtectedRequest:
    """Reads a protected request. Raises `CoseError`, `OuterOptionError`.

    Options that the plaintext has too are discarded outside; blocks there are a proxy's, and are not put together.
    """
    observe = value = None
    for number, one in packet.options:
        if number == OSCORE:
            if value is not None:
                raise OuterOptionError("the OSCORE option is repeated")
            value = one
        elif number == OBSERVE:
            observe = one
        elif is_critical(number) and number not in _OUTER and number not in _ENCRYPTED:
            raise OuterOptionError(f"option {number} is not understood")
    if value is None:
        raise CoseError("there is no OSCORE option")
    fields = decode_option(value)
    if fields.kid is None or fields.piv is None:
        raise CoseError("a request needs a kid and a Partial IV")
    if not packet.payload:
        raise CoseError("there is no ciphertext")
    return ProtectedRequest(fields, packet.payload, observe)


def inner_datagram(outer: bytes, plaintext: bytes, *, observe: bytes | None) -> bytes | None:
    """Returns the datagram that a plaintext stands for; None for one that is no request.

    It has the outer one's type, Message ID and Token. It observes if the outer one does, too (RFC 8613, 4.1.3.5).
    """
    code = plaintext[0]
    try:
        options, end = read_options(plaintext, 1)
    except MessageFormatError:
        return None
    if not code or code >> 5:
        return None
    registers = observe is not None and not read_uint(observe)
    kept = [
        (number, value)
        for number, value in options
        if number not in _NEVER_INNER and (number != OBSERVE or registers or read_uint(value))
    ]
    body = plaintext[end:]
    head = outer[:1] + plaintext[:1] + outer[2 : HEADER_BYTES + (outer[0] & 15)]
    return head + encode_options(kept) + body


def options_of(data: bytes) -> tuple[list[Option], int]:
    """Returns the options of a datagram of ours, and where they end."""
    return read_options(data, HEADER_BYTES + (data[0] & 15))


def plaintext_of(data: bytes, options: list[Option], end: int) -> bytes:
    """Returns the plaintext of a response: its code, its options with an empty Observe, and its payload."""
    inner = [(number, REGISTER if number == OBSERVE else value) for number, value in options]
    return data[1:2] + encode_options(inner) + data[end:]


def protected_datagram(
    data: bytes, *, observe: bytes | None, fetched: bool, fields: Fields, ciphertext: bytes
) -> bytes:
    """Returns the datagram of a response of ours, protected: a 2.05 where FETCH asked for it, else a 2.04 (4.2)."""
    options = [(OSCORE, fields.encode())]
    if observe is not None:
        options.append((OBSERVE, observe))
    code = CONTENT if fetched else CHANGED
    head = data[:1] + bytes((code,)) + data[2 : HEADER_BYTES + (data[0] & 15)]
    return head + encode_options(options) + b"\xff" + ciphertext
