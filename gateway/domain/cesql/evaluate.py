"""The parts of compiled expressions: closures over an event. A part that fails raises `EvaluationError`.

After a failure nothing else is evaluated: the expression has the zero value of its type (CESQL 1.0, 4.1: fail fast).
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.domain.cesql.functions import Function
from gateway.domain.cesql.values import (
    CASTS,
    ErrorKind,
    Eval,
    EvaluationError,
    Event,
    Value,
    ValueType,
    checked_integer,
    type_of,
)
from gateway.domain.expressions import Like

_REQUIRED: Final = frozenset({"id", "source", "specversion", "type"})


def attribute(name: str) -> Eval:
    """Returns the value of an attribute."""

    def evaluate(event: Event) -> Value:
        value = event.get(name)
        if value is None:
            raise EvaluationError(ErrorKind.MISSING_ATTRIBUTE, f"the event has no attribute {name!r}")
        return value

    return evaluate


def presence(name: str) -> Eval:
    """Returns EXISTS; a valid event has the required attributes."""
    return (lambda _: True) if name in _REQUIRED else (lambda event: event.get(name) is not None)


def cast(kind: ValueType, part: Eval, known: ValueType) -> Eval:
    """Returns a part as a value of a type; `known` is the type that it has, if that is known."""
    if known is kind or kind is ValueType.ANY:
        return part
    convert = CASTS[kind]
    return lambda event: convert(part(event))


def negated(part: Eval) -> Eval:
    """Returns NOT."""
    return lambda event: not part(event)


def minus(part: Eval) -> Eval:
    """Returns a number with its sign turned."""
    return lambda event: checked_integer(-part(event))  # type: ignore[operator]


# ---- chains of operators of one rank, from the left

LOGIC: Final = frozenset({"AND", "OR", "XOR"})


def logic(first: Eval, steps: Sequence[tuple[str, Eval]]) -> Eval:
    """Returns AND, OR and XOR; the first two do not evaluate operands that cannot change their answer."""

    def evaluate(event: Event) -> bool:
        answer = bool(first(event))
        for word, part in steps:
            if word == "XOR":
                answer = answer != part(event)
            elif answer is (word == "AND"):
                answer = bool(part(event))
        return answer

    return evaluate


def _divide(left: int, right: int) -> int:
    if not right:
        raise EvaluationError(ErrorKind.MATH, "division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": lambda left, right: left - right * _divide(left, right),
}


def arithmetic(first: Eval, steps: Sequence[tuple[str, Eval]]) -> Eval:
    """Returns the evaluation of sums, differences, products, quotients and remainders of numbers of 32 bits."""
    calls = [(ARITHMETIC[sign], part) for sign, part in steps]

    def evaluate(event: Event) -> Value:
        total = first(event)
        for step, part in calls:
            total = checked_integer(step(total, part(event)))  # type: ignore[arg-type]
        return total

    return evaluate


# ---- comparisons

ORDER: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def order(sign: str, left: Eval, right: Eval) -> Eval:
    """Compares two numbers."""
    compare = ORDER[sign]
    return lambda event: compare(left(event), right(event))  # type: ignore[arg-type]


def _equal(left: Value, right: Value) -> bool:
    """Returns whether two values are equal, the left one cast to the type of the right one (CESQL 1.0, 3.7)."""
    kind = type_of(right)
    return (left if type_of(left) is kind else CASTS[kind](left)) == right


def equality(left: Eval, right: Eval, *, same: bool) -> Eval:
    """Compares two values of any type."""
    return lambda event: _equal(left(event), right(event)) is same


def one_of(left: Eval, members: Sequence[Eval], *, same: bool) -> Eval:
    """Returns IN: the members are cast to the type of the value."""

    def evaluate(event: Event) -> bool:
        value = left(event)
        return any(_equal(member(event), value) for member in members) is same

    return evaluate


def like(part: Eval, pattern: str, *, same: bool) -> Eval:
    """Returns LIKE. A text that is too long to be looked at is an error. Raises ValueError for no pattern."""
    matches = Like(_plain_escapes(pattern), "\\").matches

    def evaluate(event: Event) -> bool:
        found = matches(part(event))  # type: ignore[arg-type]
        if found is None:
            raise EvaluationError(ErrorKind.GENERIC, "the text is too long for LIKE")
        return found is same

    return evaluate


def _plain_escapes(pattern: str) -> str:
    """Returns a pattern in which a backslash that escapes nothing is escaped itself (CESQL 1.0, 3.4.3)."""
    made: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern[at] != "\\":
            made.append(pattern[at])
        elif pattern[at + 1 : at + 2] in {"%", "_"}:
            made.append(pattern[at : at + 2])
            at += 1
        else:
            made.append("\\\\")
        at += 1
    return "".join(made)


# ---- functions


def call(function: Function, arguments: Sequence[Eval], at: int) -> Eval:
    """Calls a function with arguments that have the types it takes."""
    run = function.call

    def evaluate(event: Event) -> Value:
        values = [argument(event) for argument in arguments]
        try:
            return run(*values)  # type: ignore[no-any-return]
        except EvaluationError as error:
            error.at = at
            raise

    return evaluate


def missing_function(name: str, count: int) -> Eval:
    """Fails: there is no such function (CESQL 1.0, 3.5)."""

    def evaluate(_: Event) -> Value:
        why = f"there is no function {name} of {count} arguments"
        raise EvaluationError(ErrorKind.MISSING_FUNCTION, why)

    return evaluate
