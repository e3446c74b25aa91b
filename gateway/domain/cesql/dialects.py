"""The filters of a subscription: exact, prefix, suffix, all, any, not, sql (CloudEvents Subscriptions API, 3.2.4).

A filter is a JSON object with one member, whose name is the dialect:

    {"exact": {"type": "com.example.order", "subject": "42"}}      every attribute named has exactly this value
    {"prefix": {"type": "com.example."}}, {"suffix": {...}}        every attribute named begins, or ends, with it
    {"all": [filter, ...]}, {"any": [filter, ...]}                 every one, or at least one, is true
    {"not": filter}                                                it is not true
    {"sql": "type LIKE 'com.%' AND sequence > 10"}                 a CESQL expression

Attributes are compared as texts: a number by its decimal digits, a boolean as `true` or `false`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from gateway.domain.cesql.expression import compile_expression
from gateway.domain.cesql.values import CASTS, Event, ValueType
from gateway.domain.errors import Cause, Refusal

FILTERS_MAX: Final = 256  # filters of a subscription, those within others included, and attributes compared
FILTER_DEPTH_MAX: Final = 8  # filters within each other
_NAME: Final = re.compile("[a-z0-9]+")  # of an attribute (CloudEvents 1.0.2, 3.1)

EventFilter: TypeAlias = Callable[[Event], bool]
_text_of = CASTS[ValueType.STRING]


class FilterError(Refusal):
    """Raised for a filter that is none; `path` names the place, as `filters[0].all[1].exact`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(Cause.MALFORMED, f"{path}: {why}")
        self.attribute = path


def compile_filters(filters: Sequence[Any], *, path: str = "filters", stored: bool = False) -> EventFilter:
    """Returns a filter that an event passes if it passes each of some filters. Raises `FilterError`.

    `stored` ones may name attributes that there cannot be, as earlier releases took them; none of those has a value.
    """
    return _Compiler(stored=stored).all_of(filters, path, depth=0, least=0)


class _Compiler:
    """Compiles filters, and counts their tests."""

    def __init__(self, *, stored: bool) -> None:
        self._stored = stored
        self._count = 0

    def all_of(self, filters: Any, path: str, *, depth: int, least: int = 1) -> EventFilter:
        parts = self._several(filters, path, depth, least)
        return lambda event: all(part(event) for part in parts)

    def any_of(self, filters: Any, path: str, *, depth: int) -> EventFilter:
        parts = self._several(filters, path, depth, 1)
        return lambda event: any(part(event) for part in parts)

    def _several(self, filters: Any, path: str, depth: int, least: int) -> list[EventFilter]:
        if not isinstance(filters, list | tuple) or len(filters) < least:
            raise FilterError(path, "is not a list of filters" + (" with at least one" if least else ""))
        return [self._one(one, f"{path}[{index}]", depth) for index, one in enumerate(filters)]

    def _one(self, given: Any, path: str, depth: int) -> EventFilter:
        self._counted(path)
        if depth >= FILTER_DEPTH_MAX:
            raise FilterError(path, f"filters stand at most {FILTER_DEPTH_MAX} deep within each other")
        if not isinstance(given, Mapping) or len(given) != 1:
            raise FilterError(path, "is not an object with one member, the dialect")
        [(dialect, said)] = given.items()
        below = f"{path}.{str(dialect)[:64]}"
        match dialect:
            case "exact" | "prefix" | "suffix":
                return self._attributes(dialect, said, below)
            case "all":
                return self.all_of(said, below, depth=depth + 1)
            case "any":
                return self.any_of(said, below, depth=depth + 1)
            case "not":
                inner = self._one(said, below, depth + 1)
                return lambda event: not inner(event)
            case "sql":
                return _sql(said, below)
        raise FilterError(
            path, f"{str(dialect)[:64]!r} is no dialect here; exact, prefix, suffix, all, any, not, sql are"
        )

    def _attributes(self, dialect: str, said: Any, path: str) -> EventFilter:
        if not isinstance(said, Mapping) or not said:
            raise FilterError(path, "is not an object of attributes and their values, with at least one")
        for name, value in said.items():
            self._counted(path)
            if not name or not isinstance(value, str) or not value:
                raise FilterError(path, f"{str(name)[:64]!r}: an attribute and its value are texts, and not empty")
            if not self._stored and _NAME.fullmatch(name) is None:
                raise FilterError(
                    path, f"{name[:64]!r}: names of attributes have only lower-case letters and digits (a-z, 0-9)"
                )
        compare = _COMPARE[dialect]
        wanted = list(said.items())
        return lambda event: all(
            (found := event.get(name)) is not None and compare(_text_of(found), value) for name, value in wanted
        )

    def _counted(self, path: str) -> None:
        self._count += 1
        if self._count > FILTERS_MAX:
            raise FilterError(path, f"a subscription has at most {FILTERS_MAX} filters and attributes compared")


_COMPARE: Final[Mapping[str, Callable[[Any, str], bool]]] = {
    "exact": lambda found, value: found == value,
    "prefix": lambda found, value: found.startswith(value),
    "suffix": lambda found, value: found.endswith(value),
}


def _sql(said: Any, path: str) -> EventFilter:
    if not isinstance(said, str):
        raise FilterError(path, "is not a text with an expression of CESQL")
    try:
        expression = compile_expression(said)
    except Refusal as refusal:
        raise FilterError(path, refusal.detail) from refusal
    if expression.missing:
        raise FilterError(path, f"there is no function {expression.missing}")
    return expression.passes
