"""The tokens of SQL92."""

import re
from typing import Any, Final

from gateway.domain.expressions.lexer import Lexer, refused, signs
from gateway.domain.sql92.evaluate import fit_whole

_NUMBER_CHARS_MAX: Final = 64  # a longer literal is an approximate number
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})


def _word(match: re.Match[str]) -> tuple[str, Any]:
    word = match[0].upper()
    return word if word in _KEYWORDS else "name", match[0]


def _number(match: re.Match[str]) -> tuple[str, Any]:
    whole = match[1] is None and match[2] is None and match[3] is None and len(match[0]) <= _NUMBER_CHARS_MAX
    return "number", fit_whole(int(match[0])) if whole else float(match[0])


LEXER: Final = Lexer(
    (r"[A-Za-z_$][A-Za-z0-9_$]*(?:\.[A-Za-z_$][A-Za-z0-9_$]*)*", _word),
    (r"(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?", _number),
    refused(r"--|/\*", "comments are not supported; put a space between two minus signs"),
    signs("<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "(", ")", ","),
    (r"'((?:[^']|'')*)'", lambda match: ("text", match[1].replace("''", "'"))),
    (r'"((?:[^"]|"")+)"', lambda match: ("name", match[1].replace('""', '"'))),
    refused("'", "the text that begins here has no end"),
    refused('"', "the name that begins here has no end"),
)
