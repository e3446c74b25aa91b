"""CoAP's numbers, by the names the specifications give them, and the rules options are held to.

The numbers come from aiocoap's copies of the IANA registries, as plain integers because the hot paths compare them.
"""

from typing import NamedTuple

from aiocoap.numbers.codes import Code
from aiocoap.numbers.optionnumbers import OptionNumber

# Message types (RFC 7252, 3)
CON, NON, ACK, RST = 0, 1, 2, 3

# Method codes (RFC 7252, 12.1.1; RFC 8132), and response codes of this endpoint (12.1.2, RFC 7959, RFC 8516)
EMPTY = int(Code.EMPTY)
GET, POST, PUT, DELETE = int(Code.GET), int(Code.POST), int(Code.PUT), int(Code.DELETE)
FETCH, IPATCH = int(Code.FETCH), int(Code.iPATCH)
CREATED, DELETED = int(Code.CREATED), int(Code.DELETED)
VALID, CHANGED = int(Code.VALID), int(Code.CHANGED)
CONTENT, CONTINUE = int(Code.CONTENT), int(Code.CONTINUE)
BAD_REQUEST, UNAUTHORIZED, BAD_OPTION = int(Code.BAD_REQUEST), int(Code.UNAUTHORIZED), int(Code.BAD_OPTION)
FORBIDDEN, NOT_FOUND = int(Code.FORBIDDEN), int(Code.NOT_FOUND)
METHOD_NOT_ALLOWED, NOT_ACCEPTABLE = int(Code.METHOD_NOT_ALLOWED), int(Code.NOT_ACCEPTABLE)
REQUEST_ENTITY_INCOMPLETE = int(Code.REQUEST_ENTITY_INCOMPLETE)
REQUEST_ENTITY_TOO_LARGE = int(Code.REQUEST_ENTITY_TOO_LARGE)
UNSUPPORTED_CONTENT_FORMAT = int(Code.UNSUPPORTED_CONTENT_FORMAT)
CONFLICT, PRECONDITION_FAILED = int(Code.CONFLICT), int(Code.PRECONDITION_FAILED)
TOO_MANY_REQUESTS = int(Code.TOO_MANY_REQUESTS)
INTERNAL_SERVER_ERROR = int(Code.INTERNAL_SERVER_ERROR)
SERVICE_UNAVAILABLE, GATEWAY_TIMEOUT = int(Code.SERVICE_UNAVAILABLE), int(Code.GATEWAY_TIMEOUT)
PROXYING_NOT_SUPPORTED = int(Code.PROXYING_NOT_SUPPORTED)

MAX_AGE_DEFAULT_S = 60  # of a response without Max-Age (RFC 7252, 5.10.5)

# Option numbers (RFC 7252, 12.2; RFC 7959; RFC 9175 for Echo and Request-Tag; RFC 7967 for No-Response; RFC 8768
# for Hop-Limit)
IF_MATCH, IF_NONE_MATCH = int(OptionNumber.IF_MATCH), int(OptionNumber.IF_NONE_MATCH)
URI_HOST, URI_PORT = int(OptionNumber.URI_HOST), int(OptionNumber.URI_PORT)
URI_PATH, URI_QUERY = int(OptionNumber.URI_PATH), int(OptionNumber.URI_QUERY)
LOCATION_PATH = int(OptionNumber.LOCATION_PATH)
ETAG, MAX_AGE, OBSERVE = int(OptionNumber.ETAG), int(OptionNumber.MAX_AGE), int(OptionNumber.OBSERVE)
CONTENT_FORMAT, ACCEPT = int(OptionNumber.CONTENT_FORMAT), int(OptionNumber.ACCEPT)
BLOCK1, BLOCK2 = int(OptionNumber.BLOCK1), int(OptionNumber.BLOCK2)
SIZE1, SIZE2 = int(OptionNumber.SIZE1), int(OptionNumber.SIZE2)
PROXY_URI, PROXY_SCHEME = int(OptionNumber.PROXY_URI), int(OptionNumber.PROXY_SCHEME)
ECHO, REQUEST_TAG = int(OptionNumber.ECHO), int(OptionNumber.REQUEST_TAG)
HOP_LIMIT = int(OptionNumber.HOP_LIMIT)
NO_RESPONSE = int(OptionNumber.NO_RESPONSE)


class OptionRule(NamedTuple):
    """The length that an option's value may have, in bytes, and whether the option may be repeated."""

    shortest: int
    longest: int
    repeatable: bool = False


OPTIONS: dict[int, OptionRule] = {
    IF_MATCH: OptionRule(0, 8, True),
    URI_HOST: OptionRule(1, 255),
    ETAG: OptionRule(1, 8, True),
    IF_NONE_MATCH: OptionRule(0, 0),
    OBSERVE: OptionRule(0, 3),
    URI_PORT: OptionRule(0, 2),
    URI_PATH: OptionRule(0, 255, True),
    CONTENT_FORMAT: OptionRule(0, 2),
    URI_QUERY: OptionRule(0, 255, True),
    HOP_LIMIT: OptionRule(0, 8),  # longer than its one byte, so that a number too large is refused
    ACCEPT: OptionRule(0, 2),
    BLOCK2: OptionRule(0, 3),
    BLOCK1: OptionRule(0, 3),
    SIZE2: OptionRule(0, 4),
    PROXY_URI: OptionRule(1, 1034),
    PROXY_SCHEME: OptionRule(1, 255),
    SIZE1: OptionRule(0, 4),
    ECHO: OptionRule(1, 40),
    REQUEST_TAG: OptionRule(0, 8, True),
    NO_RESPONSE: OptionRule(0, 1),
}
"""The options this endpoint recognises (RFC 7252, table 4; RFC 7959, table 1; RFC 9175, tables 1 and 2;
RFC 7967, table 1; RFC 8768, table 1)."""


def is_critical(number: int) -> bool:
    """Returns whether a request with this option must be refused where it is not understood (RFC 7252, 5.4.1)."""
    return bool(number & 1)


def is_in_cache_key(number: int) -> bool:
    """Returns whether requests that differ in this option ask for different things (RFC 7252, 5.4.6)."""
    return number & 0x1E != 0x1C
