"""The way of a recursive descent through the tokens of an expression, with its limits and errors."""

from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from gateway.domain.expressions.lexer import NODES_MAX, ExpressionSyntaxError, Token, too_many_nodes
from gateway.domain.expressions.like import PATTERN_CHARS_MAX

DEPTH_MAX: Final = 24  # of parentheses, functions, NOT and signs within each other
T = TypeVar("T")


class TokenParser:
    """The base of a language's parser. Each method consumes the tokens that it has parsed."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._nodes = 0

    @property
    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self, *kinds: str) -> Token | None:
        """Takes the next token if it is of one of some kinds."""
        token = self._tokens[self._next]
        if token.kind not in kinds:
            return None
        self._next += 1
        if token.kind not in {"(", ")", ","}:
            self._nodes += 1
            if self._nodes > NODES_MAX:
                raise too_many_nodes(self._text, token.at)
        return token

    def _expect(self, kind: str) -> Token:
        token = self._take(kind)
        if token is None:
            self._fail(self._peek.at, f"{kind} is expected here, not {self._shown(self._peek)}")
        return token

    def _expect_value(self, *kinds: str) -> Token:
        token = self._take(*kinds)
        if token is None:
            self._fail(self._peek.at, f"a value is expected here, not {self._shown(self._peek)}")
        return token

    def _expect_pattern(self) -> Token:
        """Takes a pattern of LIKE."""
        pattern = self._expect("text")
        if len(pattern.value) > PATTERN_CHARS_MAX:
            self._fail(pattern.at, f"a pattern has at most {PATTERN_CHARS_MAX} characters")
        return pattern

    def _expect_end(self) -> None:
        if self._peek.kind != "end":
            self._fail(self._peek.at, f"{self._shown(self._peek)} is not expected here")

    def _deeper(self, at: int, part: Callable[[], T]) -> T:
        """Reads a part one level deeper."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(at, f"an expression is at most {DEPTH_MAX} levels deep")
        node = part()
        self._depth -= 1
        return node

    def _fail(self, at: int, why: str) -> NoReturn:
        raise ExpressionSyntaxError(self._text, at, why)

    @staticmethod
    def _shown(token: Token) -> str:
        return "the end" if token.kind == "end" else f"{str(token.value)[:64]!r}"
