"""The options of a request, each held to its rule (RFC 7252, 5.4; RFC 7959, 2)."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from adapters.coap.codec.registry import (
    ACCEPT,
    BAD_OPTION,
    BAD_REQUEST,
    BLOCK1,
    BLOCK2,
    CONTENT_FORMAT,
    ECHO,
    ETAG,
    HOP_LIMIT,
    IF_MATCH,
    IF_NONE_MATCH,
    NO_RESPONSE,
    NOT_FOUND,
    OBSERVE,
    OPTIONS,
    PROXY_SCHEME,
    PROXY_URI,
    PROXYING_NOT_SUPPORTED,
    SIZE1,
    SIZE2,
    URI_HOST,
    URI_PATH,
    URI_QUERY,
    is_critical,
    is_in_cache_key,
)
from adapters.coap.codec.wire import Option, encode_uint, read_uint
from gateway.domain.address import escape_level
from gateway.domain.errors import ProtocolError

SIZE_EXPONENT_BERT = 7
WELL_KNOWN, CORE = ".well-known", "core"
ROOTS = ("t", "ps")  # the first segments of paths to addresses; "ps" as the CoAP publish-subscribe draft has it
SAFE = "-._~!$'()*@:&="  # in a segment, unescaped: RFC 3986's pchar without the separators of links and their parts

HOP_LIMIT_MAX = 255  # RFC 8768, 3

_METHOD = 0  # no option has this number

# Transfers of one peer differ by their method, and by all options but these and those that are in no cache key, like
# Echo (RFC 7959, 2.5; RFC 9175, 1.1 and 3.3). Request-Tag counts, its absence too.
_NOT_IN_KEY = frozenset({BLOCK1, BLOCK2, SIZE1, SIZE2, OBSERVE, ETAG})


class Block(NamedTuple):
    """A Block1 or Block2 option: NUM 4-20 bits, M 1 bit, SZX 3 bits; a block is 2 ** (SZX + 4) bytes.

    Over TCP an SZX of 7 is a row of blocks of 1024 bytes in one message (RFC 8323, 6: BERT).
    """

    number: int
    more: bool
    exponent: int

    @property
    def size(self) -> int:
        """Bytes of a block."""
        return 16 << min(self.exponent, SIZE_EXPONENT_BERT - 1)

    @property
    def bert(self) -> bool:
        """Returns whether a message holds several blocks."""
        return self.exponent == SIZE_EXPONENT_BERT

    def fits(self, length: int) -> bool:
        """Returns whether a payload of `length` bytes can be this block."""
        if self.bert:
            return not self.more or (length > 0 and length % self.size == 0)
        return length == self.size if self.more else length <= self.size

    @property
    def offset(self) -> int:
        """Returns where the block begins in the body."""
        return self.number * self.size

    def encode(self) -> bytes:
        """Returns the option's value."""
        return encode_uint(self.number << 4 | self.more << 3 | self.exponent)

    @classmethod
    def of_size(cls, size: int) -> "Block":
        """Returns the first block of a body in blocks of `size` bytes, a power of two from 16 to 1024."""
        return cls(0, False, size.bit_length() - 5)

    @classmethod
    def decode(cls, value: bytes, name: str, *, bert: bool = False) -> "Block":
        """Reads an option's value; raises `ProtocolError` (4.00) for the size reserved to TCP (RFC 7959, 2.2)."""
        word = read_uint(value)
        if word & 7 == SIZE_EXPONENT_BERT and not bert:
            raise ProtocolError(BAD_REQUEST, f"{name}: the block size 7 is reserved")
        return cls(word >> 4, bool(word & 8), word & 7)


class Condition(NamedTuple):
    """If-Match and If-None-Match of one request (RFC 7252, 5.10.8)."""

    etags: tuple[bytes, ...] | None = None  # If-Match: any of these, b"" for any representation; None: not given
    absent: bool = False  # If-None-Match: there is no representation

    def holds(self, etags: Collection[bytes]) -> bool:
        """Returns whether the request's conditions hold, given the current ETags; none where nothing is."""
        if self.absent and etags:
            return False
        return self.etags is None or bool(etags and (b"" in self.etags or not set(etags).isdisjoint(self.etags)))


class CoapRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one request."""

    path: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    content_format: int | None = None
    accept: int | None = None
    etags: tuple[bytes, ...] = ()
    observe: int | None = None
    block1: Block | None = None
    block2: Block | None = None
    size1: int | None = None
    sized: bool = False  # Size2 asks for the size of the body (RFC 7959, 4)
    condition: Condition | None = None
    echo: bytes = b""
    silence: int = 0  # No-Response: bit n - 1 is set where responses of class n are not wanted (RFC 7967, 2.1)
    key: tuple[Option, ...] = ()  # names the transfer that a block of it belongs to


def read_request(options: Sequence[Option], code: int, *, reliable: bool = False) -> CoapRequest:
    """Checks the options of a request of a method and reads them; `reliable` transports have larger blocks.

    Raises `ProtocolError`: 4.02 for a critical option that is unknown, repeated against its rule, of a wrong length or
    not UTF-8; 5.05 for a proxy's options; 4.00 for a Hop-Limit out of its range (RFC 8768, 3). Elective options are
    skipped instead.
    """
    found: dict[int, list[bytes]] = {}
    for number, value in options:
        rule = OPTIONS.get(number)
        if rule is None or not rule.shortest <= len(value) <= rule.longest:
            if is_critical(number):
                raise ProtocolError(BAD_OPTION, f"option {number} is not understood")
        elif number not in found:
            found[number] = [value]
        elif rule.repeatable:
            found[number].append(value)
        elif is_critical(number):
            raise ProtocolError(BAD_OPTION, f"option {number} is repeated")
    if PROXY_URI in found or PROXY_SCHEME in found:
        raise ProtocolError(PROXYING_NOT_SUPPORTED, "this server is not a proxy")
    if HOP_LIMIT in found and not 0 < read_uint(found[HOP_LIMIT][0]) <= HOP_LIMIT_MAX:
        raise ProtocolError(BAD_REQUEST, f"Hop-Limit: must be 1 to {HOP_LIMIT_MAX}")
    _texts(found, URI_HOST)  # every host is this one, but none is anything else than text
    block1, block2 = found.get(BLOCK1), found.get(BLOCK2)
    return CoapRequest(
        path=_texts(found, URI_PATH),
        query=_texts(found, URI_QUERY),
        content_format=_uint(found, CONTENT_FORMAT),
        accept=_uint(found, ACCEPT),
        etags=tuple(found.get(ETAG, ())),
        observe=_uint(found, OBSERVE),
        block1=Block.decode(block1[0], "Block1", bert=reliable) if block1 is not None else None,
        block2=Block.decode(block2[0], "Block2", bert=reliable) if block2 is not None else None,
        size1=_uint(found, SIZE1),
        sized=SIZE2 in found,
        condition=_condition(found),
        echo=found.get(ECHO, (b"",))[0],
        silence=_uint(found, NO_RESPONSE) or 0,
        key=(
            (_METHOD, bytes((code,))),
            *(option for option in options if option[0] not in _NOT_IN_KEY and is_in_cache_key(option[0])),
        ),
    )


def _condition(found: dict[int, list[bytes]]) -> Condition | None:
    etags = found.get(IF_MATCH)
    if etags is None and IF_NONE_MATCH not in found:
        return None
    return Condition(None if etags is None else tuple(etags), IF_NONE_MATCH in found)


def _texts(found: dict[int, list[bytes]], number: int) -> tuple[str, ...]:
    try:
        return tuple([value.decode() for value in found.get(number, ())])
    except UnicodeDecodeError:
        raise ProtocolError(BAD_OPTION, f"option {number} is not UTF-8") from None


def _uint(found: dict[int, list[bytes]], number: int) -> int | None:
    values = found.get(number)
    return None if values is None else read_uint(values[0])


class Target(NamedTuple):
    """The address that a path names; where `address` is None, the links to all below a root ("" for every root)."""

    address: str | None
    root: str = ""


def resolve(path: tuple[str, ...], *, bare_paths: bool) -> Target:
    """Returns the target of a Uri-Path; raises `ProtocolError` (4.04, 4.02).

    Addresses stand below /t/ and /ps/, and with `bare_paths` anywhere else but below /.well-known/. A segment is any
    text (RFC 7252, 5.10.1), and one level of the address: characters that a level may not hold are escaped.
    """
    if not path:
        raise ProtocolError(NOT_FOUND, "addresses stand below /t/")
    first = path[0]
    if first in ROOTS:
        levels = path[1:]
        if not levels:
            return Target(None, first)
    elif path == (WELL_KNOWN, CORE):
        return Target(None)
    elif bare_paths and first != WELL_KNOWN:
        levels = path
    else:
        raise ProtocolError(NOT_FOUND, "addresses stand below /t/")
    if "." in levels or ".." in levels:
        raise ProtocolError(BAD_OPTION, "Uri-Path: '.' and '..' are no segments (RFC 7252, 5.10.1)")
    return Target("/".join(map(escape_level, levels)))
