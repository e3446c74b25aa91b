"""The functions that every engine of CESQL has (CESQL 1.0, 3.5), by name and number of arguments."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.domain.cesql.values import INTEGER_MAX, INTEGER_MIN, ErrorKind, EvaluationError, ValueType, type_of

# Python's own `strip` takes U+001C to U+001F for white space as well, which Unicode does not (White_Space).
_WHITE_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_ANY, _TEXT, _NUMBER, _TRUTH = ValueType.ANY, ValueType.STRING, ValueType.INTEGER, ValueType.BOOLEAN


class Function(NamedTuple):
    """A function: the types of its arguments, and of its value. With `rest` more arguments of that type may follow."""

    call: Callable[..., Any]
    takes: tuple[ValueType, ...]
    gives: ValueType
    rest: ValueType | None = None


def _failed(why: str, value: Any) -> EvaluationError:
    return EvaluationError(ErrorKind.FUNCTION_EVALUATION, why, value=value)


def _left(text: str, count: int) -> str:
    if count < 0:
        raise _failed("LEFT takes no negative number of characters", text)
    return text[:count]


def _right(text: str, count: int) -> str:
    if count < 0:
        raise _failed("RIGHT takes no negative number of characters", text)
    return text[max(len(text) - count, 0) :]


def _substring(text: str, start: int, length: int | None = None) -> str:
    """Returns a part of a text; `start` counts from 1, or from the end where it is negative."""
    if not -len(text) <= start <= len(text):
        raise _failed("SUBSTRING begins outside of the text", "")
    if length is not None and length < 0:
        raise _failed("SUBSTRING takes no negative length", "")
    if start == 0:
        return ""
    first = start - 1 if start > 0 else len(text) + start
    return text[first:] if length is None else text[first : first + length]


def _absolute(number: int) -> int:
    if number == INTEGER_MIN:
        raise EvaluationError(ErrorKind.MATH, "the absolute value is no integer of 32 bits", value=INTEGER_MAX)
    return abs(number)


def _can_be(kind: ValueType) -> Callable[[Any], bool]:
    return lambda value: type_of(value) is kind


FUNCTIONS: Final[Mapping[str, tuple[Function, ...]]] = {
    "ABS": (Function(_absolute, (_NUMBER,), _NUMBER),),
    "BOOL": (Function(bool, (_TRUTH,), _TRUTH),),
    "CONCAT": (Function(lambda *texts: "".join(texts), (), _TEXT, rest=_TEXT),),
    "CONCAT_WS": (Function(lambda between, *texts: between.join(texts), (_TEXT,), _TEXT, rest=_TEXT),),
    "INT": (Function(int, (_NUMBER,), _NUMBER),),
    "IS_BOOL": (Function(_can_be(_TRUTH), (_ANY,), _TRUTH),),
    "IS_INT": (Function(_can_be(_NUMBER), (_ANY,), _TRUTH),),
    "LEFT": (Function(_left, (_TEXT, _NUMBER), _TEXT),),
    "LENGTH": (Function(len, (_TEXT,), _NUMBER),),
    "LOWER": (Function(str.lower, (_TEXT,), _TEXT),),
    "RIGHT": (Function(_right, (_TEXT, _NUMBER), _TEXT),),
    "STRING": (Function(str, (_TEXT,), _TEXT),),
    "SUBSTRING": (
        Function(_substring, (_TEXT, _NUMBER), _TEXT),
        Function(_substring, (_TEXT, _NUMBER, _NUMBER), _TEXT),
    ),
    "TRIM": (Function(lambda text: text.strip(_WHITE_SPACE), (_TEXT,), _TEXT),),
    "UPPER": (Function(str.upper, (_TEXT,), _TEXT),),
}


def find_function(name: str, count: int) -> Function | None:
    """Returns the function of a name that takes so many arguments; None where there is none."""
    for function in FUNCTIONS.get(name, ()):
        if len(function.takes) == count or (function.rest is not None and count > len(function.takes)):
            return function
    return None
