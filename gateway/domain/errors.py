"""The error tree of the gateway and its adapters.

`Refusal` says why something was not done, in no protocol's terms; each adapter has one table from `Cause` to its
wire's code. `ProtocolError` is a peer's fault on the wire, already in that protocol's terms.
"""

from enum import Enum

from store.base.process_errors import HeadgateError


class Cause(Enum):
    """The cause of a refusal by the gateway; the value is the word used in metrics and logs."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    PRECONDITION = "precondition"  # the request contradicts the present state (AMQP 406, HTTP 412)
    QUOTA = "quota"
    RATE = "rate"  # too much in too short a time
    OVERLOAD = "overload"
    UNAVAILABLE = "unavailable"  # not stored: trying again is safe
    DAMAGED = "damaged"  # the data is lost: the log is damaged, and no replica has another copy
    UNKNOWN = "unknown"  # may have been stored: only an idempotent retry is safe


_RETRIABLE = frozenset({Cause.QUOTA, Cause.RATE, Cause.OVERLOAD, Cause.UNAVAILABLE, Cause.UNKNOWN})


class Refusal(HeadgateError):
    """The request was refused. `retry_after_ms` is a hint, 0 when there is none.

    A share or count that is used up (`Cause.QUOTA`) comes back when something is given up: without a hint, no protocol
    says when to try again.
    """

    def __init__(self, cause: Cause, detail: str = "", *, retry_after_ms: int = 0) -> None:
        super().__init__(detail or cause.value)
        self.cause = cause
        self.detail = detail or cause.value
        self.retry_after_ms = retry_after_ms

    @property
    def timeless(self) -> bool:
        """Returns whether it is unknown when the same request may succeed."""
        return self.cause is Cause.QUOTA and not self.retry_after_ms

    @property
    def retriable(self) -> bool:
        """Returns whether the same request may succeed later."""
        return self.cause in _RETRIABLE


class ProtocolError(HeadgateError):
    """Malformed or forbidden input from a peer; `code` is the wire's own number for it."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
