"""Responses, before they are put into a message, and the codes of refusals (RFC 7252, 5.9)."""

from typing import NamedTuple

from adapters.coap.codec.registry import (
    BAD_REQUEST,
    CONFLICT,
    ECHO,
    FORBIDDEN,
    GATEWAY_TIMEOUT,
    INTERNAL_SERVER_ERROR,
    MAX_AGE,
    MAX_AGE_DEFAULT_S,
    NOT_FOUND,
    PRECONDITION_FAILED,
    REQUEST_ENTITY_TOO_LARGE,
    SERVICE_UNAVAILABLE,
    SIZE1,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED,
)
from adapters.coap.codec.wire import Option, encode_uint
from gateway.domain.errors import Cause, ProtocolError, Refusal

DIAGNOSTIC_BYTES_MAX = 128  # a refusal must not be larger than the request (RFC 7252, 11.3)
RETRY_AFTER_S = 2  # the fallback

_CODES = {
    Cause.UNAUTHENTICATED: UNAUTHORIZED,
    Cause.FORBIDDEN: FORBIDDEN,
    Cause.MALFORMED: BAD_REQUEST,
    Cause.TOO_LARGE: REQUEST_ENTITY_TOO_LARGE,
    Cause.NOT_FOUND: NOT_FOUND,
    Cause.CONFLICT: CONFLICT,
    Cause.PRECONDITION: PRECONDITION_FAILED,
    Cause.QUOTA: TOO_MANY_REQUESTS,
    Cause.RATE: TOO_MANY_REQUESTS,
    Cause.OVERLOAD: SERVICE_UNAVAILABLE,
    Cause.UNAVAILABLE: SERVICE_UNAVAILABLE,
    Cause.DAMAGED: INTERNAL_SERVER_ERROR,
    Cause.UNKNOWN: GATEWAY_TIMEOUT,  # may have been stored, so not simply "try again"
}
_WITH_MAX_AGE = frozenset({TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE})


class Answer(NamedTuple):
    """The code, options and payload of a response."""

    code: int
    options: tuple[Option, ...] = ()
    payload: bytes = b""


class EchoRequired(ProtocolError):
    """A request that has to come again with this Echo (RFC 9175, 2.3)."""

    def __init__(self, echo: bytes, detail: str) -> None:
        super().__init__(UNAUTHORIZED, detail)
        self.echo = echo


def _diagnostic(text: str) -> bytes:
    """Returns a diagnostic payload (RFC 7252, 5.5.2), cut between characters."""
    return text.encode("utf-8", "replace")[:DIAGNOSTIC_BYTES_MAX].decode("utf-8", "ignore").encode()


def wrong(error: ProtocolError, *, max_body_bytes: int) -> Answer:
    """Returns the response to a request that is at fault; 4.13 carries the acceptable size (RFC 7959, 2.9.3)."""
    if isinstance(error, EchoRequired):
        return Answer(error.code, ((ECHO, error.echo),))
    options: tuple[Option, ...] = ()
    if error.code == REQUEST_ENTITY_TOO_LARGE:
        options = ((SIZE1, encode_uint(max_body_bytes)),)
    return Answer(error.code, options, _diagnostic(error.detail))


def refused(refusal: Refusal, *, max_body_bytes: int) -> Answer:
    """Returns the response to a refusal; Max-Age says when to try again (RFC 7252, 5.9.3.4; RFC 8516)."""
    code = _CODES[refusal.cause]
    if code in _WITH_MAX_AGE and not refusal.timeless:
        seconds = -(-refusal.retry_after_ms // 1000) or RETRY_AFTER_S
        options = () if seconds == MAX_AGE_DEFAULT_S else ((MAX_AGE, encode_uint(seconds)),)
        return Answer(code, options, _diagnostic(refusal.detail))
    return wrong(ProtocolError(code, refusal.detail), max_body_bytes=max_body_bytes)


def unwanted(silence: int, code: int) -> bool:
    """Returns whether the No-Response option of a request leaves out a response of this code (RFC 7967, 2.1)."""
    return bool(silence >> (code >> 5) - 1 & 1)


def busy(detail: str) -> Answer:
    """Returns the response when a limit of ours is reached."""
    return refused(Refusal(Cause.OVERLOAD, detail), max_body_bytes=0)
