"""The OSCORE option and the compressed COSE object (RFC 8613, 6.1).

| 0 0 0 h k n n n | Partial IV, n bytes | s (if h) | kid context, s bytes | kid (if k), the rest |
"""

from typing import NamedTuple

from adapters.coap.codec.wire import PAYLOAD_MARKER

OSCORE = 9
PIV_BYTES_MAX = 5
_RESERVED, _H, _K, _N = 0xE0, 0x10, 0x08, 0x07


class CoseError(Exception):
    """Raised for an option that is no compressed COSE object."""


class Fields(NamedTuple):
    """The fields of an option; None for those that are not there."""

    piv: bytes | None = None
    kid_context: bytes | None = None
    kid: bytes | None = None

    def encode(self) -> bytes:
        """Returns the option's value; empty where there is no field (RFC 8613, 6.1)."""
        flags, parts = 0, b""
        if self.piv is not None:
            flags |= len(self.piv)
            parts += self.piv
        if self.kid_context is not None:
            flags |= _H
            parts += bytes((len(self.kid_context),)) + self.kid_context
        if self.kid is not None:
            flags |= _K
            parts += self.kid
        return bytes((flags,)) + parts if flags else b""


def decode_option(value: bytes) -> Fields:
    """Reads an option's value. Raises `CoseError`."""
    if not value:
        return Fields()
    flags, at = value[0], 1
    piv_bytes = flags & _N
    if flags & _RESERVED or piv_bytes > PIV_BYTES_MAX:
        raise CoseError("reserved bits are set")
    piv = value[at : at + piv_bytes] if piv_bytes else None
    at += piv_bytes
    kid_context = None
    if flags & _H:
        if at >= len(value):
            raise CoseError("the kid context is cut short")
        end = at + 1 + value[at]
        kid_context, at = value[at + 1 : end], end
    if at > len(value):
        raise CoseError("a field is cut short")
    if flags & _K:
        return Fields(piv, kid_context, value[at:])
    if at != len(value):
        raise CoseError("there is something behind the last field")
    return Fields(piv, kid_context)


def has_oscore(data: bytes) -> bool:
    """Returns whether a datagram with a whole header may have the OSCORE option; cheap, for every datagram.

    It looks no further than the options before it, which a request seldom has.
    """
    at, number = 4 + (data[0] & 15), 0
    size = len(data)
    while at < size and data[at] != PAYLOAD_MARKER:
        delta, length = data[at] >> 4, data[at] & 15
        if delta > 12 or number + delta > OSCORE:
            return False
        number += delta
        if number == OSCORE:
            return True
        if length == 13:
            at += 1
            length = data[at] + 13 if at < size else 0
        elif length > 13:
            return False
        at += 1 + length
    return False
