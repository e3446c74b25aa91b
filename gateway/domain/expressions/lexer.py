"""Text to tokens by a language's table of rules, and the error that names a place in the text."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from gateway.domain.errors import Cause, Refusal

EXPRESSION_CHARS_MAX: Final = 4_096
NODES_MAX: Final = 512  # names, literals and operators
_BLANKS: Final = re.compile(r"[ \t\r\n]*")


class ExpressionSyntaxError(Refusal):
    """Raised for a text that is no expression; `line` and `column` count from 1."""

    def __init__(self, text: str, at: int, why: str) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        super().__init__(Cause.MALFORMED, f"line {self.line}, column {self.column}: {why}")


class Token(NamedTuple):
    """One word, sign or literal, and the place where it begins."""

    kind: str  # "name", "number", "text", "end", a kind of the language's own, or the keyword or sign itself
    value: Any
    at: int


Read: TypeAlias = Callable[[re.Match[str]], tuple[str, Any]]  # returns a token's kind and value, or raises ValueError


class Lexer:
    """The tokens of a language: at each place the first rule whose pattern matches reads the token."""

    def __init__(self, *rules: tuple[str, Read]) -> None:
        self._rules = [(re.compile(pattern, re.DOTALL), read) for pattern, read in rules]

    def tokens(self, text: str) -> list[Token]:
        """Returns the tokens of a text, the last of kind "end". Raises `ExpressionSyntaxError`."""
        if len(text) > EXPRESSION_CHARS_MAX:
            why = f"an expression has at most {EXPRESSION_CHARS_MAX} characters"
            raise ExpressionSyntaxError(text, EXPRESSION_CHARS_MAX, why)
        found: list[Token] = []
        at = _behind_blanks(text, 0)
        while at < len(text):
            if len(found) == 2 * NODES_MAX:
                raise too_many_nodes(text, at)
            token, end = self._token(text, at)
            found.append(token)
            at = _behind_blanks(text, end)
        found.append(Token("end", None, at))
        return found

    def _token(self, text: str, at: int) -> tuple[Token, int]:
        for pattern, read in self._rules:
            if (match := pattern.match(text, at)) is not None:
                try:
                    return Token(*read(match), at), match.end()
                except ValueError as error:
                    raise ExpressionSyntaxError(text, at, str(error)) from error
        raise ExpressionSyntaxError(text, at, f"{text[at]!r} means nothing here")


def too_many_nodes(text: str, at: int) -> ExpressionSyntaxError:
    """Returns the error of an expression of more than `NODES_MAX` nodes."""
    return ExpressionSyntaxError(text, at, f"an expression has at most {NODES_MAX} operands and operators")


def _behind_blanks(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    assert blanks is not None
    return blanks.end()


# ---- rules of both languages


def signs(*of_language: str) -> tuple[str, Read]:
    """Returns the rule of a language's signs; a sign stands behind those that begin with it."""
    return "|".join(re.escape(sign) for sign in of_language), lambda match: (match[0], match[0])


def refused(pattern: str, why: str) -> tuple[str, Read]:
    """Returns a rule that refuses text that matches a pattern."""

    def read(_: re.Match[str]) -> NoReturn:
        raise ValueError(why)

    return pattern, read
