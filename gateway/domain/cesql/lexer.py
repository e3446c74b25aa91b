"""Text to tokens, and the error that names a place in the text."""

import re
from typing import Any, Final, NamedTuple

from gateway.domain.errors import Cause, Refusal

NODES_MAX: Final = 512  # names, literals and operators


class CesqlSyntaxError(Refusal):
    """Raised for a text that is no expression; `line` and `column` count from 1."""

    def __init__(self, text: str, at: int, why: str) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        super().__init__(Cause.MALFORMED, f"line {self.line}, column {self.column}: {why}")


class Token(NamedTuple):
    """One word, sign or literal, and the place where it begins."""

    kind: str  # "name", "function", "number", "text", "end", or the keyword or sign itself
    value: Any
    at: int


_KEYWORDS: Final = frozenset({"AND", "OR", "XOR", "NOT", "LIKE", "EXISTS", "IN", "TRUE", "FALSE"})
_SIGNS: Final = ("<>", "!=", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_FUNCTION: Final = re.compile(r"([A-Za-z][A-Za-z_]*)(?=[ \t\r\n]*\()")
_WORD: Final = re.compile("[A-Za-z0-9]+")
# A backslash keeps what is behind it; it goes where that is the quotation mark that ends the text (CESQL 1.0, 2.2).
_TEXTS: Final = {
    "'": re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL),
    '"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL),
}


def tokens(text: str) -> list[Token]:
    """Returns the tokens of a text, the last of kind "end". Raises `CesqlSyntaxError`."""
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
            raise CesqlSyntaxError(text, token.at, f"an expression has at most {NODES_MAX} operands and operators")


def _token(text: str, at: int) -> tuple[Token, int]:
    quote = text[at]
    if quote in _TEXTS:
        literal = _TEXTS[quote].match(text, at)
        if literal is None:
            raise CesqlSyntaxError(text, at, "the text that begins here has no end")
        return Token("text", _unescaped(literal[1], quote), at), literal.end()
    function = _FUNCTION.match(text, at)
    if function is not None and function[1].upper() not in _KEYWORDS:
        return Token("function", function[1].upper(), at), function.end()
    if (word := _WORD.match(text, at)) is not None:
        return _of_word(word[0], at), word.end()
    for sign in _SIGNS:
        if text.startswith(sign, at):
            return Token(sign, sign, at), at + len(sign)
    raise CesqlSyntaxError(text, at, f"{text[at]!r} means nothing here")


def _of_word(word: str, at: int) -> Token:
    if word.upper() in _KEYWORDS:
        return Token(word.upper(), word, at)
    if word.isdigit():
        return Token("number", word, at)
    return Token("name", word.lower(), at)


def _unescaped(literal: str, quote: str) -> str:
    if "\\" not in literal:
        return literal
    return re.sub(r"\\(.)", lambda found: quote if found[1] == quote else found[0], literal, flags=re.DOTALL)
