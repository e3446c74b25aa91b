"""The values of CESQL, their casts, and the errors of an evaluation (CESQL 1.0, 3.1, 3.3 and 3.7)."""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, TypeAlias

Value: TypeAlias = int | str | bool
Event: TypeAlias = Mapping[str, Value]  # the attributes of an event, by name
Eval: TypeAlias = Callable[[Event], Value]

INTEGER_MIN: Final = -(1 << 31)
INTEGER_MAX: Final = (1 << 31) - 1  # of the type Integer
_INTEGER: Final = re.compile("[+-]?[0-9]{1,64}")


class ValueType(Enum):
    """The type of an expression's value; that of an attribute is known only when there is an event."""

    INTEGER = "Integer"
    STRING = "String"
    BOOLEAN = "Boolean"
    ANY = "attribute"


class ErrorKind(Enum):
    """The kinds of errors (CESQL 1.0, 3.3)."""

    PARSE = "parse"
    MATH = "math"
    CAST = "cast"
    MISSING_ATTRIBUTE = "missingAttribute"
    MISSING_FUNCTION = "missingFunction"
    FUNCTION_EVALUATION = "functionEvaluation"
    GENERIC = "generic"


class EvaluationError(Exception):
    """Raised where a part of an expression has failed.

    `value` is the answer of that part where it is not the zero value of its type; `at` is its place in the text.
    """

    def __init__(self, kind: ErrorKind, why: str, *, value: Value | None = None, at: int = -1) -> None:
        super().__init__(why)
        self.kind = kind
        self.value = value
        self.at = at


ZEROS: Final[Mapping[ValueType, Value]] = {
    ValueType.INTEGER: 0,
    ValueType.STRING: "",
    ValueType.BOOLEAN: False,
    ValueType.ANY: False,  # the type is not known: Boolean is assumed (CESQL 1.0, 3.2)
}


def type_of(value: Value) -> ValueType:
    """Returns the type of a value."""
    if isinstance(value, bool):
        return ValueType.BOOLEAN
    return ValueType.INTEGER if isinstance(value, int) else ValueType.STRING


def checked_integer(value: int) -> int:
    """Returns a result of arithmetic. Raises `EvaluationError` for one that is no integer of 32 bits."""
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    raise EvaluationError(ErrorKind.MATH, f"{value} is no integer of 32 bits")


def _to_integer(value: Value) -> int:
    if not isinstance(value, str):
        return int(value)
    if _INTEGER.fullmatch(value) is None or not INTEGER_MIN <= int(value) <= INTEGER_MAX:
        raise EvaluationError(ErrorKind.CAST, f"{value[:64]!r} is no integer of 32 bits")
    return int(value)


def _to_string(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _to_boolean(value: Value) -> bool:
    if not isinstance(value, str):
        return bool(value)
    lower = value.lower() if len(value) <= len("false") else ""
    if lower not in {"true", "false"}:
        raise EvaluationError(ErrorKind.CAST, f"{value[:64]!r} is neither true nor false")
    return lower == "true"


CASTS: Final[Mapping[ValueType, Callable[[Value], Value]]] = {
    ValueType.INTEGER: _to_integer,
    ValueType.STRING: _to_string,
    ValueType.BOOLEAN: _to_boolean,
}
