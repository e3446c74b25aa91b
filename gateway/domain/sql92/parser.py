"""Tokens to one closure over a message."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from gateway.domain.expressions import Like, TokenParser
from gateway.domain.expressions.lexer import Token
from gateway.domain.sql92.evaluate import (
    all_of,
    any_of,
    as_boolean,
    as_number,
    calculation,
    comparison,
    divide,
    in_set,
    is_null,
    likeness,
    minus,
    negated,
)
from gateway.domain.sql92.fields import Eval, Kind, Value, field
from gateway.domain.sql92.lexer import LEXER


class _Node(NamedTuple):
    kind: Kind
    eval: Eval
    at: int
    value: Value = None  # a literal's


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Parser(TokenParser):
    """Recursive descent over the grammar of `gateway.domain.sql92`."""

    def __init__(self, text: str) -> None:
        super().__init__(text, LEXER.tokens(text))

    def whole(self) -> Eval:
        """Returns the expression, which has to be a condition. Raises `ExpressionSyntaxError`."""
        node = self._or()
        self._expect_end()
        return self._as(Kind.BOOLEAN, node).eval

    # ---- logic

    def _or(self) -> _Node:
        return self._logic("OR", self._and, any_of)

    def _and(self) -> _Node:
        return self._logic("AND", self._not, all_of)

    def _logic(self, word: str, part: Callable[[], _Node], combine: Callable[[tuple[Eval, ...]], Eval]) -> _Node:
        node = part()
        if self._peek.kind != word:
            return node
        parts = [self._as(Kind.BOOLEAN, node).eval]
        while self._take(word) is not None:
            parts.append(self._as(Kind.BOOLEAN, part()).eval)
        return _Node(Kind.BOOLEAN, combine(tuple(parts)), node.at)

    def _not(self) -> _Node:
        word = self._take("NOT")
        if word is None:
            return self._test()
        inner = self._as(Kind.BOOLEAN, self._deeper(word.at, self._not))
        return _Node(Kind.BOOLEAN, negated(inner.eval), word.at)

    # ---- tests

    def _test(self) -> _Node:
        left = self._sum()
        sign = self._take(*_COMPARE)
        if sign is not None:
            node = _Node(Kind.BOOLEAN, self._compared(sign.kind, left, self._sum(), sign.at), left.at)
        elif self._take("IS") is not None:
            present = self._take("NOT") is not None
            self._expect("NULL")
            node = _Node(Kind.BOOLEAN, is_null(left.eval, negated=present), left.at)
        else:
            negation = self._take("NOT")
            word = self._take("BETWEEN", "IN", "LIKE")
            if word is None:
                if negation is not None:
                    self._fail(self._peek.at, "NOT is followed by BETWEEN, IN or LIKE here")
                return left
            test = {"BETWEEN": self._between, "IN": self._in, "LIKE": self._like}[word.kind](left, word.at)
            node = _Node(Kind.BOOLEAN, test if negation is None else negated(test), left.at)
        if (again := self._peek).kind in _COMPARE:
            self._fail(again.at, "comparisons do not follow each other; join them by AND")
        return node

    def _compared(self, sign: str, left: _Node, right: _Node, at: int) -> Eval:
        """Returns the comparison of two values, in the type of the one that is no property."""
        kind = left.kind if left.kind is not Kind.ANY else right.kind
        if kind is Kind.ANY:
            kind = Kind.TEXT
        if kind is Kind.BOOLEAN and sign not in {"=", "<>"}:
            self._fail(at, "conditions have no order; only = and <> compare them")
        if Kind.ANY not in {left.kind, right.kind} and left.kind is not right.kind:
            self._fail(at, f"{left.kind.value} is not compared with {right.kind.value}")
        return comparison(_COMPARE[sign], self._as(kind, left).eval, self._as(kind, right).eval, right.value)

    def _between(self, left: _Node, at: int) -> Eval:
        low = self._sum()
        self._expect("AND")
        high = self._sum()
        return all_of((self._compared(">=", left, low, at), self._compared("<=", left, high, at)))

    def _in(self, left: _Node, at: int) -> Eval:
        self._expect("(")
        members = [self._sum()]
        while self._take(",") is not None:
            members.append(self._sum())
        self._expect(")")
        if left.kind in {Kind.TEXT, Kind.ANY} and all(isinstance(member.value, str) for member in members):
            return in_set(left.eval, frozenset(member.value for member in members))
        return any_of(tuple(self._compared("=", left, member, at) for member in members))

    def _like(self, left: _Node, at: int) -> Eval:
        pattern = self._expect_pattern()
        escape = None
        if self._take("ESCAPE") is not None:
            given = self._expect("text")
            escape = given.value
            if len(escape) != 1:
                self._fail(given.at, "ESCAPE names one character")
        if left.kind not in {Kind.TEXT, Kind.ANY}:
            self._fail(at, f"{left.kind.value} is like no pattern; texts are")
        try:
            return likeness(left.eval, Like(pattern.value, escape))
        except ValueError as error:
            self._fail(pattern.at, str(error))

    # ---- arithmetic

    def _sum(self) -> _Node:
        return self._chain(self._product, {"+": operator.add, "-": operator.sub})

    def _product(self) -> _Node:
        return self._chain(self._sign, {"*": operator.mul, "/": divide})

    def _chain(self, part: Callable[[], _Node], by_sign: dict[str, Callable[[Any, Any], Any]]) -> _Node:
        first = part()
        if self._peek.kind not in by_sign:
            return first
        steps = []
        while (sign := self._take(*by_sign)) is not None:
            steps.append((by_sign[sign.kind], self._number(part(), sign)))
            first = self._number(first, sign) if len(steps) == 1 else first
        return _Node(Kind.NUMBER, calculation(first.eval, tuple((step, node.eval) for step, node in steps)), first.at)

    def _number(self, node: _Node, sign: Token) -> _Node:
        if node.kind not in {Kind.NUMBER, Kind.ANY}:
            self._fail(sign.at, f"{sign.kind} takes numbers, not {node.kind.value}")
        return self._as(Kind.NUMBER, node)

    def _sign(self) -> _Node:
        sign = self._take("+", "-")
        if sign is None:
            return self._value()
        inner = self._number(self._deeper(sign.at, self._sign), sign)
        return inner if sign.kind == "+" else _Node(Kind.NUMBER, minus(inner.eval), sign.at)

    def _value(self) -> _Node:
        token = self._expect_value("number", "text", "TRUE", "FALSE", "name", "(")
        if token.kind == "(":
            inner = self._deeper(token.at, self._or)
            self._expect(")")
            return inner
        if token.kind == "name":
            return self._named(token)
        kind = {"number": Kind.NUMBER, "text": Kind.TEXT}.get(token.kind, Kind.BOOLEAN)
        value = token.kind == "TRUE" if kind is Kind.BOOLEAN else token.value
        return _Node(kind, lambda _: value, token.at, value)

    @staticmethod
    def _named(token: Token) -> _Node:
        return _Node(*field(token.value), token.at)

    def _as(self, kind: Kind, node: _Node) -> _Node:
        """Returns a node as the type that it has to be: a property is read so, anything else has to be so already."""
        if node.kind is kind or kind is Kind.ANY:
            return node
        if node.kind is Kind.ANY:
            read = {Kind.TEXT: node.eval, Kind.NUMBER: as_number(node.eval), Kind.BOOLEAN: as_boolean(node.eval)}
            return node._replace(kind=kind, eval=read[kind])
        return self._fail(node.at, f"{node.kind.value} stands where {kind.value} is expected")
