"""Filters over messages in a subset of SQL92: the condition of WHERE, compiled once and evaluated for every message.

    or      = and { OR and }
    and     = not { AND not }
    not     = NOT not | test
    test    = sum [ ( = | <> | < | <= | > | >= ) sum | [NOT] BETWEEN sum AND sum | [NOT] IN ( sum {, sum} )
                  | [NOT] LIKE text [ESCAPE text] | IS [NOT] NULL ]
    sum     = product { ( + | - ) product }
    product = sign { ( * | / ) sign }
    sign    = ( + | - ) sign | number | 'text' | TRUE | FALSE | name | ( or )

Names are the fields of a message (`FIELDS`) and its properties; a property that has a field's name is written
`properties.NAME`, and a name that is no plain word in double quotes. A property that a message does not have is NULL,
and logic is three-valued (SQL92, 8.12): a message passes where the answer is true, not where it is unknown. Properties
are texts: beside a number one is read as a number, beside TRUE or FALSE as one of them, and is NULL where it is
neither. Dividing whole numbers gives a whole number, by zero NULL. Texts are compared by code points; LIKE minds case.

The limits of `gateway.domain.expressions` bound the cost of one message; LIKE is unknown of a text that is too long.

Imported by: delivery, adapters.http.
Imports: domain.expressions, store.api.
"""

from collections.abc import Sequence
from functools import lru_cache

from gateway.domain.sql92.fields import FIELDS, Eval
from gateway.domain.sql92.parser import Parser
from store.api.message import Message

__all__ = [
    "FIELDS",
    "Where",
    "compile_where",
    "quoted",
]

COMPILED_MAX = 256  # expressions kept


class Where:
    """A compiled expression. Equal texts are one object while `COMPILED_MAX` others have not come between."""

    __slots__ = ("_eval", "text")

    def __init__(self, text: str, evaluate: Eval) -> None:
        self.text = text
        self._eval = evaluate

    def matches(self, message: Message) -> bool:
        """Returns whether the expression is true of a message."""
        return self._eval(message) is True

    def picks(self, messages: Sequence[Message], indexes: Sequence[int]) -> list[int]:
        """Returns the indexes whose message meets the condition."""
        evaluate = self._eval
        return [index for index in indexes if evaluate(messages[index]) is True]


@lru_cache(COMPILED_MAX)
def compile_where(text: str) -> Where:
    """Compiles an expression into a filter. Raises `ExpressionSyntaxError`."""
    return Where(text, Parser(text).whole())


def quoted(text: str) -> str:
    """Returns a text as a literal."""
    return "'" + text.replace("'", "''") + "'"
