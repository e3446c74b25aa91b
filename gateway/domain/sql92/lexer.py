"""Text to tokens, and the error that names a place in the text."""

import re
from typing import Any, NamedTuple

from gateway.domain.errors import Cause, Refusal
from gateway.domain.sql92.evaluate import fit_whole

NODES_MAX = 512  # names, literals and operators
_NUMBER_CHARS_MAX = 64  # a longer literal is an approximate number


class WhereError(Refusal):
    """An expression that is none; `line` and `column` count from 1."""

    def __init__(self, text: str, at: int, why: str) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        super().__init__(Cause.MALFORMED, f"line {self.line}, column {self.column}: {why}")


class Token(NamedTuple):
    """One word, sign or literal, and where it begins."""

    kind: str  # "name", "number", "text", "end", or the keyword or sign itself
    value: Any
    at: int


_KEYWORDS = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
_SIGNS = ("<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "(", ")", ",")
_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*(?:\.[A-Za-z_$][A-Za-z0-9_$]*)*")
_NUMBER = re.compile(r"(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
_TEXT = re.compile(r"'((?:[^']|'')*)'")
_QUOTED_NAME = re.compile(r'"((?:[^"]|"")+)"')


def tokens(text: str) -> list[Token]:
    """The tokens of a text, the last of kind "end". Raises `WhereError`."""
    found: list[Token] = []
    at = 0
    while True:
        space = _SPACE.match(text, at)
        assert space is not None
        at = space.end()
        if at == len(text):
            found.append(Token("end", None, at))
            return found
        token, at = _token(text, at)
        found.append(token)
        if len(found) > 2 * NODES_MAX:
            raise WhereError(text, token.at, f"an expression has at most {NODES_MAX} operands and operators")


def _token(text: str, at: int) -> tuple[Token, int]:
    if (match := _NAME.match(text, at)) is not None:
        word = match[0].upper()
        return Token(word if word in _KEYWORDS else "name", match[0], at), match.end()
    if (match := _NUMBER.match(text, at)) is not None:
        return Token("number", _literal(match), at), match.end()
    if (match := _TEXT.match(text, at)) is not None:
        return Token("text", match[1].replace("''", "'"), at), match.end()
    if (match := _QUOTED_NAME.match(text, at)) is not None:
        return Token("name", match[1].replace('""', '"'), at), match.end()
    if text.startswith(("--", "/*"), at):
        raise WhereError(text, at, "comments are not supported; put a space between two minus signs")
    for sign in _SIGNS:
        if text.startswith(sign, at):
            return Token(sign, sign, at), at + len(sign)
    if text[at] in "'\"":
        raise WhereError(text, at, f"the {'text' if text[at] == chr(39) else 'name'} that begins here has no end")
    raise WhereError(text, at, f"{text[at]!r} means nothing here")


def _literal(match: re.Match[str]) -> int | float:
    whole = match[1] is None and match[2] is None and match[3] is None
    return float(match[0]) if not whole or len(match[0]) > _NUMBER_CHARS_MAX else fit_whole(int(match[0]))
