"""The tokens of CESQL."""

import re
from typing import Any, Final

from gateway.domain.expressions.lexer import Lexer, refused, signs

_KEYWORDS: Final = frozenset({"AND", "OR", "XOR", "NOT", "LIKE", "EXISTS", "IN", "TRUE", "FALSE"})


def _text(match: re.Match[str]) -> tuple[str, Any]:
    """Returns a text without its escapes. A backslash goes where it keeps the text's quotation mark (CESQL, 2.2)."""
    quote = match[0][0]
    return "text", re.sub(r"\\(.)", lambda found: quote if found[1] == quote else found[0], match[1], flags=re.DOTALL)


def _function(match: re.Match[str]) -> tuple[str, Any]:
    word = match[0].upper()
    return word if word in _KEYWORDS else "function", word


def _word(match: re.Match[str]) -> tuple[str, Any]:
    if match[0].upper() in _KEYWORDS:
        return match[0].upper(), match[0]
    return ("number", match[0]) if match[0].isdigit() else ("name", match[0].lower())


LEXER: Final = Lexer(
    (r"[A-Za-z][A-Za-z_]*(?=[ \t\r\n]*\()", _function),
    (r"[A-Za-z0-9]+", _word),
    signs("<>", "!=", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ","),
    (r"'((?:[^'\\]|\\.)*)'", _text),
    (r'"((?:[^"\\]|\\.)*)"', _text),
    refused("['\"]", "the text that begins here has no end"),
)
