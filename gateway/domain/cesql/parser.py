"""Tokens to one closure over an event."""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from gateway.domain.cesql import evaluate
from gateway.domain.cesql.functions import find_function
from gateway.domain.cesql.lexer import LEXER
from gateway.domain.cesql.values import INTEGER_MAX, INTEGER_MIN, Eval, Value, ValueType
from gateway.domain.expressions import DEPTH_MAX, TokenParser
from gateway.domain.expressions.lexer import Token

_DIGITS_MAX: Final = 64  # of a literal: more are never an integer of 32 bits
_EQUALITIES: Final = {"=": True, "!=": False, "<>": False}


class TypedNode(NamedTuple):
    """A part of an expression: the type of its value, its closure, and its place in the text."""

    kind: ValueType
    eval: Eval
    at: int


class Parser(TokenParser):
    """Recursive descent over the grammar of `gateway.domain.cesql`."""

    def __init__(self, text: str) -> None:
        super().__init__(text, LEXER.tokens(text))
        self.missing = ""  # a function that is called and that there is not

    def whole(self) -> TypedNode:
        """Returns the expression. Raises `ExpressionSyntaxError`."""
        node = self._logic()
        self._expect_end()
        return node

    # ---- operators, from the loosest to the tightest

    def _logic(self) -> TypedNode:
        return self._chain(self._comparison, evaluate.LOGIC, ValueType.BOOLEAN, evaluate.logic)

    def _comparison(self) -> TypedNode:
        node, links = self._sum(), 0
        while (sign := self._take(*_EQUALITIES, *evaluate.ORDER)) is not None:
            right = self._sum()
            if sign.kind in _EQUALITIES:
                compared = evaluate.equality(node.eval, right.eval, same=_EQUALITIES[sign.kind])
            else:
                compared = evaluate.order(sign.kind, *(_as(ValueType.INTEGER, one) for one in (node, right)))
            node = TypedNode(ValueType.BOOLEAN, compared, sign.at)
            links = self._linked(links, sign.at)
        return node

    def _sum(self) -> TypedNode:
        return self._chain(self._product, ("+", "-"), ValueType.INTEGER, evaluate.arithmetic)

    def _product(self) -> TypedNode:
        return self._chain(self._test, ("*", "/", "%"), ValueType.INTEGER, evaluate.arithmetic)

    def _chain(
        self,
        part: Callable[[], TypedNode],
        signs: Collection[str],
        kind: ValueType,
        join: Callable[[Eval, Sequence[tuple[str, Eval]]], Eval],
    ) -> TypedNode:
        """Parses operators of one rank, which take and give values of one type."""
        first = part()
        if self._peek.kind not in signs:
            return first
        steps: list[tuple[str, Eval]] = []
        while (sign := self._take(*signs)) is not None:
            steps.append((sign.kind, _as(kind, part())))
        return TypedNode(kind, join(_as(kind, first), steps), first.at)

    def _test(self) -> TypedNode:
        node, links = self._unary(), 0
        while self._peek.kind in {"NOT", "LIKE", "IN"}:
            same = self._take("NOT") is None
            word = self._take("LIKE", "IN")
            if word is None:
                self._fail(self._peek.at, "NOT is followed by LIKE or IN here")
            test = self._like(node, same) if word.kind == "LIKE" else self._in(node, same)
            node = TypedNode(ValueType.BOOLEAN, test, word.at)
            links = self._linked(links, word.at)
        return node

    def _linked(self, links: int, at: int) -> int:
        """Counts tests that follow each other, each nested in the next."""
        if links >= DEPTH_MAX:
            self._fail(at, f"at most {DEPTH_MAX} comparisons follow each other; join them by AND")
        return links + 1

    def _like(self, node: TypedNode, same: bool) -> Eval:
        return evaluate.like(_as(ValueType.STRING, node), self._expect_pattern().value, same=same)

    def _in(self, node: TypedNode, same: bool) -> Eval:
        at = self._expect("(").at
        members = self._deeper_list(at)
        if not members:
            self._fail(at, "IN is followed by at least one value")
        return evaluate.one_of(node.eval, [one.eval for one in members], same=same)

    def _deeper_list(self, at: int) -> list[TypedNode]:
        """Reads expressions divided by commas, up to the closing parenthesis."""
        if self._take(")") is not None:
            return []
        found = [self._deeper(at, self._logic)]
        while self._take(",") is not None:
            found.append(self._deeper(at, self._logic))
        self._expect(")")
        return found

    # ---- operands

    def _unary(self) -> TypedNode:
        if (word := self._take("NOT")) is not None:
            inner = self._deeper(word.at, self._unary)
            return TypedNode(ValueType.BOOLEAN, evaluate.negated(_as(ValueType.BOOLEAN, inner)), word.at)
        if (sign := self._take("-", "+")) is not None:
            if self._peek.kind == "number" and self._peek.at == sign.at + 1:
                return self._number(sign.kind)
            if sign.kind == "+":
                self._fail(sign.at, "a plus sign stands in front of a number, or between two values")
            inner = self._deeper(sign.at, self._unary)
            return TypedNode(ValueType.INTEGER, evaluate.minus(_as(ValueType.INTEGER, inner)), sign.at)
        if (word := self._take("EXISTS")) is not None:
            return TypedNode(ValueType.BOOLEAN, evaluate.presence(self._expect("name").value), word.at)
        return self._atom()

    def _atom(self) -> TypedNode:
        if self._peek.kind == "number":
            return self._number("")
        token = self._expect_value("text", "TRUE", "FALSE", "name", "function", "(")
        if token.kind == "(":
            inner = self._deeper(token.at, self._logic)
            self._expect(")")
            return inner
        if token.kind == "name":
            return TypedNode(ValueType.ANY, evaluate.attribute(token.value), token.at)
        if token.kind == "function":
            return self._function(token)
        if token.kind == "text":
            return _constant(ValueType.STRING, token.value, token.at)
        return _constant(ValueType.BOOLEAN, token.kind == "TRUE", token.at)

    def _number(self, sign: str) -> TypedNode:
        token = self._expect("number")
        value = int(f"{sign}{token.value[:_DIGITS_MAX]}")
        if len(token.value) > _DIGITS_MAX or not INTEGER_MIN <= value <= INTEGER_MAX:
            self._fail(token.at, f"{token.value[:64]} is no integer of 32 bits")
        return _constant(ValueType.INTEGER, value, token.at)

    def _function(self, name: Token) -> TypedNode:
        self._expect("(")
        given = self._deeper_list(name.at)
        function = find_function(name.value, len(given))
        if function is None:
            self.missing = self.missing or f"{name.value} of {len(given)} arguments"
            return TypedNode(ValueType.ANY, evaluate.missing_function(name.value, len(given)), name.at)
        kinds = list(function.takes)
        if function.rest is not None:
            kinds += [function.rest] * (len(given) - len(kinds))
        arguments = [_as(kind, node) for kind, node in zip(kinds, given, strict=True)]
        return TypedNode(function.gives, evaluate.call(function, arguments, name.at), name.at)


def _as(kind: ValueType, node: TypedNode) -> Eval:
    return evaluate.cast(kind, node.eval, node.kind)


def _constant(kind: ValueType, value: Value, at: int) -> TypedNode:
    return TypedNode(kind, lambda _: value, at)
