"""Limits on a request that both versions of HTTP keep, and the refusals of larger ones."""

from typing import Final

from adapters.http.wire.options import HttpOptions
from adapters.http.wire.response import Response, problem

FIELDS_COUNT_MAX: Final = 1_000  # headers and trailers of one request
HEADS_PASSED: Final = 2  # times `max_header_bytes` that are read of a head that is refused


def head_refusal(options: HttpOptions, *, target_bytes: int, size_bytes: int, fields_count: int) -> Response | None:
    """Returns the refusal of a head of these sizes, or None (RFC 9112, 3: 414; RFC 6585, 5: 431)."""
    bytes_max = options.max_header_bytes
    if target_bytes > bytes_max:
        return problem(414, f"the request target is longer than {bytes_max} bytes")
    if size_bytes > bytes_max:
        return problem(431, f"the head is larger than {bytes_max} bytes")
    if fields_count > FIELDS_COUNT_MAX:
        return problem(431, f"the request has more than {FIELDS_COUNT_MAX} fields")
    return None


def body_refusal(options: HttpOptions) -> Response:
    """Returns the refusal of a body that is too large (RFC 9110, 15.5.14)."""
    return problem(413, f"the body is larger than {options.max_body_bytes} bytes")
