"""The parts that the two languages of filters share: tokens, the parser's way through them, limits and LIKE.

A language (`gateway.domain.sql92`, `gateway.domain.cesql`) adds the table of its tokens, its grammar and its values.

Imported by: domain.cesql, domain.sql92.
Imports: domain.
"""

from gateway.domain.expressions.lexer import EXPRESSION_CHARS_MAX, NODES_MAX, ExpressionSyntaxError
from gateway.domain.expressions.like import LIKE_TEXT_CHARS_MAX, PATTERN_CHARS_MAX, Like
from gateway.domain.expressions.parser import DEPTH_MAX, TokenParser

__all__ = [
    "DEPTH_MAX",
    "EXPRESSION_CHARS_MAX",
    "LIKE_TEXT_CHARS_MAX",
    "NODES_MAX",
    "PATTERN_CHARS_MAX",
    "ExpressionSyntaxError",
    "Like",
    "TokenParser",
]
