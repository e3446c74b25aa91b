"""The rules of a queue: its arguments about expiry, limits and dead letters, and about its consumers."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from gateway.port.queues import Arguments, field_type, invalid_argument

DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
MESSAGE_TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
MAX_LENGTH: Final = "x-max-length"
MAX_BYTES: Final = "x-max-length-bytes"
OVERFLOW: Final = "x-overflow"
DELIVERY_LIMIT: Final = "x-delivery-limit"
SINGLE_ACTIVE: Final = "x-single-active-consumer"
MAX_PRIORITY: Final = "x-max-priority"
DROP_HEAD, REJECT, REJECT_TO_DLX = "drop-head", "reject-publish", "reject-publish-dlx"
TIME_MS_MAX: Final = 10 * 365 * 86_400_000  # that a queue or a message may be given to live: ten years, as in RabbitMQ
PRIORITY_MAX: Final = 255
NO_LIMIT: Final = -1  # as a delivery limit
_COUNT_MAX: Final = (1 << 63) - 1

_OF_STREAMS: Final = frozenset(  # which nothing else has
    {"x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes", "x-initial-cluster-size"}
)


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one queue; None: there is no such limit."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None  # of the queue itself, while it is unused
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None  # None: the key that the message had
    max_length: int | None = None  # of messages that are not leased
    max_bytes: int | None = None  # of their bodies
    overflow: str = DROP_HEAD
    delivery_limit: int | None = None  # how often a message may come back
    single_active: bool = False

    @property
    def limited(self) -> bool:
        """Returns whether the queue has a greatest length."""
        return self.max_length is not None or self.max_bytes is not None

    @property
    def watched(self) -> bool:
        """Returns whether the queue changes by itself, without a request."""
        times = self.message_ttl_ms, self.expires_ms
        kept = self.limited or self.single_active or self.dead_letter_exchange is not None
        return kept or any(one is not None for one in times)


NO_RULES: Final = QueueRules()


# Each returns why a value is refused, None where it is not.
_Check: TypeAlias = Callable[[object], str | None]


def _number(most: int, least: int = 0) -> _Check:
    def check(value: object) -> str | None:
        if type(value) is not int:
            return f"expected integer, got {field_type(value)}"
        return None if least <= value <= most else f"{value} is not a number from {least} to {most}"

    return check


def _text(value: object) -> str | None:
    return None if isinstance(value, str) else f"expected longstr, got {field_type(value)}"


def _boolean(value: object) -> str | None:
    return None if isinstance(value, bool) else f"expected bool, got {field_type(value)}"


def _overflow(value: object) -> str | None:
    if value in (DROP_HEAD, REJECT, REJECT_TO_DLX):
        return None
    return _text(value) or f"it is '{DROP_HEAD}', '{REJECT}' or '{REJECT_TO_DLX}', not '{value}'"


def _queue_type(value: object) -> str | None:
    if value in ("classic", "quorum"):
        return None
    return _text(value) or f"unsupported queue type '{value}'; 'classic', 'quorum' and 'stream' are supported"


_CHECKS: Final[Mapping[str, _Check]] = {
    "x-queue-type": _queue_type,
    MESSAGE_TTL: _number(TIME_MS_MAX),
    EXPIRES: _number(TIME_MS_MAX, least=1),
    DEAD_LETTER_EXCHANGE: _text,
    DEAD_LETTER_KEY: _text,
    MAX_LENGTH: _number(_COUNT_MAX),
    MAX_BYTES: _number(_COUNT_MAX),
    OVERFLOW: _overflow,
    DELIVERY_LIMIT: _number(_COUNT_MAX, least=NO_LIMIT),
    SINGLE_ACTIVE: _boolean,
    MAX_PRIORITY: _number(PRIORITY_MAX),
}
COMPARED: Final = tuple(_CHECKS)  # the arguments that declarations of one queue have to agree in


def check_queue_arguments(arguments: Arguments, what: str = "") -> None:
    """Raises `Refusal` (PRECONDITION) for an argument of `what`, a queue, whose meaning would not be kept.

    Unknown arguments are ignored, as in RabbitMQ: applications have some from its past, as `x-ha-policy`.
    """
    for name, value in arguments.items():
        check = _CHECKS.get(name)
        if check is not None and (why := check(value)) is not None:
            raise invalid_argument(name, what, why)
        if name in _OF_STREAMS:
            raise invalid_argument(name, what, "only a queue of the type stream has it")
    if DEAD_LETTER_KEY in arguments and DEAD_LETTER_EXCHANGE not in arguments:
        raise invalid_argument(DEAD_LETTER_KEY, what, f"there is no '{DEAD_LETTER_EXCHANGE}'")


def max_priority(arguments: Mapping[str, Any]) -> int:
    """Returns the highest priority that a queue knows, 0 for one without priorities."""
    highest: int = arguments.get(MAX_PRIORITY, 0)
    return highest


def rules_of(arguments: Mapping[str, Any]) -> QueueRules:
    """Returns the rules that arguments say, which `check_queue_arguments` has let pass."""
    said = arguments.get
    delivery_limit = said(DELIVERY_LIMIT)
    return QueueRules(
        message_ttl_ms=said(MESSAGE_TTL),
        expires_ms=said(EXPIRES),
        dead_letter_exchange=said(DEAD_LETTER_EXCHANGE),
        dead_letter_key=said(DEAD_LETTER_KEY),
        max_length=said(MAX_LENGTH),
        max_bytes=said(MAX_BYTES),
        overflow=said(OVERFLOW, DROP_HEAD),
        delivery_limit=None if delivery_limit == NO_LIMIT else delivery_limit,
        single_active=said(SINGLE_ACTIVE, False),
    )
