"""Compiled expressions: a text becomes one object, which is asked of every event."""

from functools import lru_cache
from typing import Final

from gateway.domain.cesql.parser import Parser, TypedNode
from gateway.domain.cesql.values import ZEROS, ErrorKind, EvaluationError, Event, Value

_COMPILED_MAX: Final = 256  # expressions kept


class Expression:
    """A compiled expression. `missing` names a function that it calls and that there is not, or is empty."""

    __slots__ = ("_root", "missing", "text")

    def __init__(self, text: str, root: TypedNode, missing: str) -> None:
        self.text = text
        self.missing = missing
        self._root = root

    def evaluate(self, event: Event) -> tuple[Value, ErrorKind | None]:
        """Returns the value of the expression for an event, and the error if there was one."""
        root = self._root
        try:
            return root.eval(event), None
        except EvaluationError as error:
            whole = error.value is not None and error.at == root.at
            value = error.value if whole else ZEROS[root.kind]
            assert value is not None
            return value, error.kind

    def passes(self, event: Event) -> bool:
        """Returns whether the expression is true of an event, without an error (CESQL 1.0, 1.2)."""
        try:
            return self._root.eval(event) is True
        except EvaluationError:
            return False


@lru_cache(_COMPILED_MAX)
def compile_expression(text: str) -> Expression:
    """Compiles an expression. Raises `ExpressionSyntaxError`."""
    parser = Parser(text)
    return Expression(text, parser.whole(), parser.missing)
