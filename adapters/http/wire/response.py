"""One HTTP response, the same for both versions."""

from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

from adapters.http.wire.request import HttpError
from gateway.domain.errors import Cause, Refusal
from gateway.port.kv import Compacted

EMPTY_STATUSES = frozenset({204, 304})  # they have no body, nor say how long it is (RFC 9112, 6.3)

STATUS_OF = {
    Cause.UNAUTHENTICATED: 401,
    Cause.FORBIDDEN: 403,
    Cause.MALFORMED: 400,
    Cause.TOO_LARGE: 413,
    Cause.NOT_FOUND: 404,
    Cause.CONFLICT: 409,
    Cause.PRECONDITION: 412,
    Cause.QUOTA: 429,
    Cause.RATE: 429,
    Cause.OVERLOAD: 503,
    Cause.UNAVAILABLE: 503,
    Cause.DAMAGED: 500,
    Cause.UNKNOWN: 504,  # it may have been stored: a 503 would say that it has not
}
RETRY_AFTER_S = 1  # where a refusal may pass and does not say when
CHALLENGE = (b"www-authenticate", b'Basic realm="headgate", charset="UTF-8"')  # RFC 7617, 2.1
_RETRIABLE = frozenset({429, 503})
_PHRASES = {413: "Content Too Large", 414: "URI Too Long", 422: "Unprocessable Content"}  # newer than Python's
# Of a refusal that has them: extension members (RFC 9457, 3.2).
_MEMBERS = ("attribute", "key", "revision", "earliest", "queues")

encode_json = msgspec.json.Encoder().encode


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response; header names are in lower case, and its length and date are the transport's to add."""

    status: int
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""


def reason_phrase(status: int) -> str:
    """Returns the phrase of RFC 9110 for a status."""
    return _PHRASES.get(status) or HTTPStatus(status).phrase


@lru_cache(maxsize=4)
def date_header(now_s: int) -> bytes:
    """Returns the value of the Date header (RFC 9110, 6.6.1); the same for everybody in one second."""
    return formatdate(now_s, usegmt=True).encode()


def json_response(status: int, value: Any, *headers: tuple[bytes, bytes]) -> Response:
    """Returns a response with a JSON body."""
    return Response(status=status, headers=((b"content-type", b"application/json"), *headers), body=encode_json(value))


def problem(status: int, detail: str, *headers: tuple[bytes, bytes], **members: Any) -> Response:
    """Returns a problem document (RFC 9457); `members` are extension members such as `attribute`."""
    document = {"type": "about:blank", "title": reason_phrase(status), "status": status, "detail": detail, **members}
    kind = (b"content-type", b"application/problem+json")
    return Response(status=status, headers=(kind, *headers), body=encode_json(document))


def refused(error: Refusal | HttpError, **members: Any) -> Response:
    """Returns the problem document of an error, with the headers that its status asks for."""
    if isinstance(error, HttpError):
        return problem(error.code, error.detail, *error.headers, **{**error.members, **members})
    status = 410 if isinstance(error, Compacted) else STATUS_OF[error.cause]
    headers: list[tuple[bytes, bytes]] = []
    if status == 401:
        headers.append(CHALLENGE)
    elif status in _RETRIABLE and not error.timeless:
        after_s = -(-error.retry_after_ms // 1000) or RETRY_AFTER_S
        headers.append((b"retry-after", b"%d" % after_s))
    said = {name: value for name in _MEMBERS if (value := getattr(error, name, None)) is not None}
    members = {**said, **members}
    return problem(status, error.detail, *headers, **members)
