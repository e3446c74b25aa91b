"""The parts of compiled expressions: closures over a message, each some 0.1 us. None is NULL, and unknown."""

import re
from collections.abc import Callable
from typing import Any

from gateway.domain.expressions import Like
from gateway.domain.sql92.fields import Eval, Value
from store.api.message import Message

_NUMBER_CHARS_MAX = 64  # a longer text is no number

# ---- logic and comparison


def all_of(parts: tuple[Eval, ...]) -> Eval:
    """Returns AND: false where one is, else unknown where one is."""

    def evaluate(message: Message) -> bool | None:
        answer: bool | None = True
        for part in parts:
            found = part(message)
            if found is False:
                return False
            if found is None:
                answer = None
        return answer

    return evaluate


def any_of(parts: tuple[Eval, ...]) -> Eval:
    """Returns OR: true where one is, else unknown where one is."""

    def evaluate(message: Message) -> bool | None:
        answer: bool | None = False
        for part in parts:
            found = part(message)
            if found is True:
                return True
            if found is None:
                answer = None
        return answer

    return evaluate


def negated(part: Eval) -> Eval:
    """Returns NOT."""

    def evaluate(message: Message) -> bool | None:
        found = part(message)
        return None if found is None else not found

    return evaluate


def is_null(part: Eval, *, negated: bool) -> Eval:
    """Returns IS NULL, or with `negated` IS NOT NULL."""
    return (lambda message: part(message) is not None) if negated else (lambda message: part(message) is None)


def comparison(compare: Callable[[Any, Any], bool], left: Eval, right: Eval, constant: Value) -> Eval:
    """Returns the comparison of two values; `constant` is the right one's fixed value, if that is known."""
    if constant is not None:

        def with_constant(message: Message) -> bool | None:
            found = left(message)
            return None if found is None else compare(found, constant)

        return with_constant

    def evaluate(message: Message) -> bool | None:
        found, its = left(message), right(message)
        return None if found is None or its is None else compare(found, its)

    return evaluate


def in_set(get: Eval, members: frozenset[Value]) -> Eval:
    """Returns IN, where all members are literals."""

    def evaluate(message: Message) -> bool | None:
        found = get(message)
        return None if found is None else found in members

    return evaluate


def calculation(first: Eval, steps: tuple[tuple[Callable[[Any, Any], Any], Eval], ...]) -> Eval:
    """Returns a chain of operators of one rank, from the left."""

    def evaluate(message: Message) -> int | float | None:
        total = first(message)
        for step, part in steps:
            value = part(message)
            if total is None or value is None:
                return None
            total = _fit(step(total, value))
        return total  # type: ignore[no-any-return]

    return evaluate


def minus(part: Eval) -> Eval:
    """Returns a number with its sign turned."""

    def evaluate(message: Message) -> int | float | None:
        found = part(message)
        return None if found is None else _fit(-found)

    return evaluate


def divide(left: float, right: float) -> float | None:
    """Divides: whole numbers towards zero; by zero it is NULL."""
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        whole = abs(left) // abs(right)
        return whole if (left < 0) == (right < 0) else -whole
    return left / right


def _fit(value: float | None) -> int | float | None:
    """Returns a result in 64 bits: a whole number beyond them is an approximate one, NaN is NULL."""
    if isinstance(value, int):
        return fit_whole(value)
    return None if value is None or value != value else value  # noqa: PLR0124 - NaN alone is not itself


def fit_whole(value: int) -> int | float:
    """Returns a whole number, approximate beyond 64 bits."""
    return value if -(1 << 63) <= value < 1 << 63 else float(value)


_WHOLE_TEXT = re.compile(r"[+-]?[0-9]+")
_NUMBER_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def as_number(get: Eval) -> Eval:
    """Returns a text read as a number."""

    def evaluate(message: Message) -> int | float | None:
        text = get(message)
        if text is None or len(text) > _NUMBER_CHARS_MAX:
            return None
        if _WHOLE_TEXT.fullmatch(text) is not None:
            return fit_whole(int(text))
        return float(text) if _NUMBER_TEXT.fullmatch(text) is not None else None

    return evaluate


_BOOLEANS = {"true": True, "false": False}


def as_boolean(get: Eval) -> Eval:
    """Returns a text read as TRUE or FALSE."""

    def evaluate(message: Message) -> bool | None:
        text = get(message)
        return None if text is None or len(text) > 5 else _BOOLEANS.get(text.lower())

    return evaluate


# ---- LIKE


def likeness(get: Eval, like: Like) -> Eval:
    """Returns LIKE."""
    matches = like.matches

    def evaluate(message: Message) -> bool | None:
        text = get(message)
        return None if text is None else matches(text)

    return evaluate
