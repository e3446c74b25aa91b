"""Filters over messages in a subset of SQL92: what may stand behind WHERE, compiled once and asked of every message.

    or      = and { OR and }
    and     = not { AND not }
    not     = NOT not | test
    test    = sum [ ( = | <> | < | <= | > | >= ) sum | [NOT] BETWEEN sum AND sum | [NOT] IN ( sum {, sum} )
                  | [NOT] LIKE text [ESCAPE text] | IS [NOT] NULL ]
    sum     = product { ( + | - ) product }
    product = sign { ( * | / ) sign }
    sign    = ( + | - ) sign | number | 'text' | TRUE | FALSE | name | ( or )

Names are the fields of a message (`FIELDS`) and its properties; a property that has a field's name is written
`properties.NAME`, and a name that is no plain word in double quotes. What a message does not have is NULL, and logic
is three-valued (SQL92, 8.12): a message passes where the answer is true, not where it is unknown. Properties are
texts: beside a number one is read as a number, beside TRUE or FALSE as one of them, and is NULL where it is neither.
Dividing whole numbers gives a whole number, by zero NULL. Texts are compared by code points; LIKE minds case.

The cost of one message is bounded: by `EXPRESSION_CHARS_MAX`, `NODES_MAX`, `DEPTH_MAX`, and for LIKE by
`PATTERN_CHARS_MAX` and `LIKE_TEXT_CHARS_MAX`, beyond which its answer is unknown.
"""

import operator
import re
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

from gateway.errors import Cause, Refusal
from gateway.message import Message

__all__ = ["EXPRESSION_CHARS_MAX", "FIELDS", "Where", "WhereError", "compile_where", "quoted"]

EXPRESSION_CHARS_MAX = 4_096
NODES_MAX = 512  # names, literals and operators
DEPTH_MAX = 24  # of parentheses, NOT and signs within each other
PATTERN_CHARS_MAX = 256
LIKE_TEXT_CHARS_MAX = 16_384  # a longer text is like nothing and unlike nothing
COMPILED_MAX = 256  # expressions kept
_NUMBER_CHARS_MAX = 64  # a longer text is no number

Value: TypeAlias = int | float | str | bool | None
Eval: TypeAlias = Callable[[Message], Any]


class Kind(Enum):
    """What a node's value is; a property may be read as any of the others."""

    NUMBER = "a number"
    TEXT = "a text"
    BOOLEAN = "a condition"
    ANY = "a property"


class WhereError(Refusal):
    """An expression that is none; `line` and `column` count from 1."""

    def __init__(self, text: str, at: int, why: str) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        super().__init__(Cause.MALFORMED, f"line {self.line}, column {self.column}: {why}")


# ---- the fields of a message


def _said(name: str) -> Eval:
    """A field where an empty text means that nothing was said."""
    get = operator.attrgetter(name)
    return lambda message: get(message) or None


FIELDS: dict[str, tuple[Kind, Eval]] = {
    "address": (Kind.TEXT, operator.attrgetter("address")),
    "type": (Kind.TEXT, operator.attrgetter("type")),
    "key": (Kind.TEXT, operator.attrgetter("key")),
    "id": (Kind.TEXT, _said("id")),
    "content_type": (Kind.TEXT, operator.attrgetter("content_type")),
    "content_encoding": (Kind.TEXT, operator.attrgetter("content_encoding")),
    "protocol": (Kind.TEXT, _said("protocol")),
    "device": (Kind.TEXT, _said("device")),
    "principal": (Kind.TEXT, operator.attrgetter("principal")),
    "reply_to": (Kind.TEXT, operator.attrgetter("reply_to")),
    "traceparent": (Kind.TEXT, operator.attrgetter("traceparent")),
    "qos": (Kind.NUMBER, operator.attrgetter("qos")),
    "retain": (Kind.BOOLEAN, operator.attrgetter("retain")),
    "time_ms": (Kind.NUMBER, operator.attrgetter("time_ms")),
    "expires_at_ms": (Kind.NUMBER, operator.attrgetter("expires_at_ms")),
    "deliver_at_ms": (Kind.NUMBER, operator.attrgetter("deliver_at_ms")),
    "size_bytes": (Kind.NUMBER, lambda message: len(message.body)),
}
_PROPERTIES = "properties."


def _property(name: str) -> Eval:
    """The first property of a name."""

    def get(message: Message) -> str | None:
        for found, value in message.properties:
            if found == name:
                return value
        return None

    return get


# ---- the compiled filter


class Where:
    """A compiled expression. Equal texts are one object while `COMPILED_MAX` others have not come between."""

    __slots__ = ("_eval", "text")

    def __init__(self, text: str, evaluate: Eval) -> None:
        self.text = text
        self._eval = evaluate

    def matches(self, message: Message) -> bool:
        """Whether the expression is true of a message."""
        return self._eval(message) is True

    def picks(self, messages: Sequence[Message], indexes: Sequence[int]) -> list[int]:
        """Those of some indexes whose message it is true of."""
        evaluate = self._eval
        return [index for index in indexes if evaluate(messages[index]) is True]


@lru_cache(COMPILED_MAX)
def compile_where(text: str) -> Where:
    """The filter that an expression describes. Raises `WhereError`."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise WhereError(text, EXPRESSION_CHARS_MAX, f"an expression has at most {EXPRESSION_CHARS_MAX} characters")
    return Where(text, _Parser(text).whole())


def quoted(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


# ---- the lexer


class _Token(NamedTuple):
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


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while True:
        space = _SPACE.match(text, at)
        assert space is not None
        at = space.end()
        if at == len(text):
            found.append(_Token("end", None, at))
            return found
        token, at = _token(text, at)
        found.append(token)
        if len(found) > 2 * NODES_MAX:
            raise WhereError(text, token.at, f"an expression has at most {NODES_MAX} operands and operators")


def _token(text: str, at: int) -> tuple[_Token, int]:
    if (match := _NAME.match(text, at)) is not None:
        word = match[0].upper()
        return _Token(word if word in _KEYWORDS else "name", match[0], at), match.end()
    if (match := _NUMBER.match(text, at)) is not None:
        return _Token("number", _literal(match), at), match.end()
    if (match := _TEXT.match(text, at)) is not None:
        return _Token("text", match[1].replace("''", "'"), at), match.end()
    if (match := _QUOTED_NAME.match(text, at)) is not None:
        return _Token("name", match[1].replace('""', '"'), at), match.end()
    if text.startswith(("--", "/*"), at):
        raise WhereError(text, at, "there are no comments; put a space between two signs")
    for sign in _SIGNS:
        if text.startswith(sign, at):
            return _Token(sign, sign, at), at + len(sign)
    if text[at] in "'\"":
        raise WhereError(text, at, f"the {'text' if text[at] == chr(39) else 'name'} that begins here has no end")
    raise WhereError(text, at, f"{text[at]!r} means nothing here")


def _literal(match: re.Match[str]) -> int | float:
    whole = match[1] is None and match[2] is None and match[3] is None
    return float(match[0]) if not whole or len(match[0]) > _NUMBER_CHARS_MAX else _fit_whole(int(match[0]))


# ---- the parser


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


class _Parser:
    """Recursive descent over the grammar above; each method leaves the parser behind what it has read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        self._nodes = 0

    def whole(self) -> Eval:
        """The expression, which has to be a condition."""
        node = self._or()
        if self._peek.kind != "end":
            self._fail(self._peek.at, f"{self._shown(self._peek)} is not expected here")
        return self._as(Kind.BOOLEAN, node).eval

    # ---- tokens

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *kinds: str) -> _Token | None:
        token = self._tokens[self._next]
        if token.kind not in kinds:
            return None
        self._next += 1
        if token.kind not in {"(", ")", ","}:
            self._nodes += 1
            if self._nodes > NODES_MAX:
                self._fail(token.at, f"an expression has at most {NODES_MAX} operands and operators")
        return token

    def _expect(self, kind: str) -> _Token:
        token = self._take(kind)
        if token is None:
            self._fail(self._peek.at, f"{kind} is expected here, not {self._shown(self._peek)}")
        return token

    def _fail(self, at: int, why: str) -> NoReturn:
        raise WhereError(self._text, at, why)

    @staticmethod
    def _shown(token: _Token) -> str:
        return "the end" if token.kind == "end" else f"{str(token.value)[:64]!r}"

    def _deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(at, f"an expression is at most {DEPTH_MAX} levels deep")

    # ---- logic

    def _or(self) -> _Node:
        return self._logic("OR", self._and, _any_of)

    def _and(self) -> _Node:
        return self._logic("AND", self._not, _all_of)

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
        self._deeper(word.at)
        inner = self._as(Kind.BOOLEAN, self._not()).eval
        self._depth -= 1
        return _Node(Kind.BOOLEAN, _negated(inner), word.at)

    # ---- tests

    def _test(self) -> _Node:
        left = self._sum()
        sign = self._take(*_COMPARE)
        if sign is not None:
            node = _Node(Kind.BOOLEAN, self._compared(sign.kind, left, self._sum(), sign.at), left.at)
        elif self._take("IS") is not None:
            negated = self._take("NOT") is not None
            self._expect("NULL")
            node = _Node(Kind.BOOLEAN, _is_null(left.eval, negated=negated), left.at)
        else:
            negation = self._take("NOT")
            word = self._take("BETWEEN", "IN", "LIKE")
            if word is None:
                if negation is not None:
                    self._fail(self._peek.at, "NOT is followed by BETWEEN, IN or LIKE here")
                return left
            test = {"BETWEEN": self._between, "IN": self._in, "LIKE": self._like}[word.kind](left, word.at)
            node = _Node(Kind.BOOLEAN, test if negation is None else _negated(test), left.at)
        if (again := self._peek).kind in _COMPARE:
            self._fail(again.at, "comparisons do not follow each other; join them by AND")
        return node

    def _compared(self, sign: str, left: _Node, right: _Node, at: int) -> Eval:
        """Two values compared, as what the one that is no property is."""
        kind = left.kind if left.kind is not Kind.ANY else right.kind
        if kind is Kind.ANY:
            kind = Kind.TEXT
        if kind is Kind.BOOLEAN and sign not in {"=", "<>"}:
            self._fail(at, "conditions have no order; only = and <> compare them")
        if Kind.ANY not in {left.kind, right.kind} and left.kind is not right.kind:
            self._fail(at, f"{left.kind.value} is not compared with {right.kind.value}")
        return _comparison(_COMPARE[sign], self._as(kind, left), self._as(kind, right))

    def _between(self, left: _Node, at: int) -> Eval:
        low = self._sum()
        self._expect("AND")
        high = self._sum()
        return _all_of((self._compared(">=", left, low, at), self._compared("<=", left, high, at)))

    def _in(self, left: _Node, at: int) -> Eval:
        self._expect("(")
        members = [self._sum()]
        while self._take(",") is not None:
            members.append(self._sum())
        self._expect(")")
        if left.kind in {Kind.TEXT, Kind.ANY} and all(isinstance(member.value, str) for member in members):
            return _in_set(left.eval, frozenset(member.value for member in members))
        return _any_of(tuple(self._compared("=", left, member, at) for member in members))

    def _like(self, left: _Node, at: int) -> Eval:
        pattern = self._expect("text")
        escape = None
        if self._take("ESCAPE") is not None:
            given = self._expect("text")
            escape = given.value
            if len(escape) != 1:
                self._fail(given.at, "ESCAPE names one character")
        if len(pattern.value) > PATTERN_CHARS_MAX:
            self._fail(pattern.at, f"a pattern has at most {PATTERN_CHARS_MAX} characters")
        if left.kind not in {Kind.TEXT, Kind.ANY}:
            self._fail(at, f"{left.kind.value} is like no pattern; texts are")
        try:
            return _likeness(left.eval, _like_pattern(pattern.value, escape))
        except ValueError as error:
            self._fail(pattern.at, str(error))

    # ---- arithmetic

    def _sum(self) -> _Node:
        return self._chain(self._product, {"+": operator.add, "-": operator.sub})

    def _product(self) -> _Node:
        return self._chain(self._sign, {"*": operator.mul, "/": _divide})

    def _chain(self, part: Callable[[], _Node], by_sign: dict[str, Callable[[Any, Any], Any]]) -> _Node:
        first = part()
        if self._peek.kind not in by_sign:
            return first
        steps = []
        while (sign := self._take(*by_sign)) is not None:
            steps.append((by_sign[sign.kind], self._number(part(), sign)))
            first = self._number(first, sign) if len(steps) == 1 else first
        return _Node(Kind.NUMBER, _calculation(first.eval, tuple((step, node.eval) for step, node in steps)), first.at)

    def _number(self, node: _Node, sign: _Token) -> _Node:
        if node.kind not in {Kind.NUMBER, Kind.ANY}:
            self._fail(sign.at, f"{sign.kind} takes numbers, not {node.kind.value}")
        return self._as(Kind.NUMBER, node)

    def _sign(self) -> _Node:
        sign = self._take("+", "-")
        if sign is None:
            return self._value()
        self._deeper(sign.at)
        inner = self._number(self._sign(), sign)
        self._depth -= 1
        return inner if sign.kind == "+" else _Node(Kind.NUMBER, _minus(inner.eval), sign.at)

    def _value(self) -> _Node:
        token = self._take("number", "text", "TRUE", "FALSE", "name", "(")
        if token is None:
            self._fail(self._peek.at, f"a value is expected here, not {self._shown(self._peek)}")
        if token.kind == "(":
            self._deeper(token.at)
            inner = self._or()
            self._expect(")")
            self._depth -= 1
            return inner
        if token.kind == "name":
            return self._named(token)
        kind = {"number": Kind.NUMBER, "text": Kind.TEXT}.get(token.kind, Kind.BOOLEAN)
        value = token.kind == "TRUE" if kind is Kind.BOOLEAN else token.value
        return _Node(kind, lambda _: value, token.at, value)

    @staticmethod
    def _named(token: _Token) -> _Node:
        name: str = token.value
        found = FIELDS.get(name)
        if found is not None:
            return _Node(*found, token.at)
        return _Node(Kind.ANY, _property(name.removeprefix(_PROPERTIES)), token.at)

    def _as(self, kind: Kind, node: _Node) -> _Node:
        """A node as what it has to be: a property is read so, anything else has to be so already."""
        if node.kind is kind or kind is Kind.ANY:
            return node
        if node.kind is Kind.ANY:
            read = {Kind.TEXT: node.eval, Kind.NUMBER: _as_number(node.eval), Kind.BOOLEAN: _as_boolean(node.eval)}
            return node._replace(kind=kind, eval=read[kind])
        return self._fail(node.at, f"{node.kind.value} stands where {kind.value} is expected")


# ---- what closures are made of. Each costs about 0.1 us a message.


def _all_of(parts: tuple[Eval, ...]) -> Eval:
    def evaluate(message: Message) -> bool | None:
        answer: bool | None = True
        for part in parts:
            found = part(message)
            if found is False:
                return False
            if found is None:
                answer = None
        return answer

    return evaluate


def _any_of(parts: tuple[Eval, ...]) -> Eval:
    def evaluate(message: Message) -> bool | None:
        answer: bool | None = False
        for part in parts:
            found = part(message)
            if found is True:
                return True
            if found is None:
                answer = None
        return answer

    return evaluate


def _negated(part: Eval) -> Eval:
    def evaluate(message: Message) -> bool | None:
        found = part(message)
        return None if found is None else not found

    return evaluate


def _is_null(part: Eval, *, negated: bool) -> Eval:
    return (lambda message: part(message) is not None) if negated else (lambda message: part(message) is None)


def _comparison(compare: Callable[[Any, Any], bool], left: _Node, right: _Node) -> Eval:
    get, other = left.eval, right.eval
    if right.value is not None:
        constant = right.value

        def with_constant(message: Message) -> bool | None:
            found = get(message)
            return None if found is None else compare(found, constant)

        return with_constant

    def evaluate(message: Message) -> bool | None:
        found, its = get(message), other(message)
        return None if found is None or its is None else compare(found, its)

    return evaluate


def _in_set(get: Eval, members: frozenset[Value]) -> Eval:
    def evaluate(message: Message) -> bool | None:
        found = get(message)
        return None if found is None else found in members

    return evaluate


def _calculation(first: Eval, steps: tuple[tuple[Callable[[Any, Any], Any], Eval], ...]) -> Eval:
    def evaluate(message: Message) -> int | float | None:
        total = first(message)
        for step, part in steps:
            value = part(message)
            if total is None or value is None:
                return None
            total = _fit(step(total, value))
        return total  # type: ignore[no-any-return]

    return evaluate


def _minus(part: Eval) -> Eval:
    def evaluate(message: Message) -> int | float | None:
        found = part(message)
        return None if found is None else _fit(-found)

    return evaluate


def _divide(left: float, right: float) -> float | None:
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        whole = abs(left) // abs(right)
        return whole if (left < 0) == (right < 0) else -whole
    return left / right


def _fit(value: float | None) -> int | float | None:
    """A result in 64 bits: a whole number beyond them is an approximate one, what is no number NULL."""
    if isinstance(value, int):
        return _fit_whole(value)
    return None if value is None or value != value else value  # noqa: PLR0124 - NaN alone is not itself


def _fit_whole(value: int) -> int | float:
    return value if -(1 << 63) <= value < 1 << 63 else float(value)


_WHOLE_TEXT = re.compile(r"[+-]?[0-9]+")
_NUMBER_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _as_number(get: Eval) -> Eval:
    def evaluate(message: Message) -> int | float | None:
        text = get(message)
        if text is None or len(text) > _NUMBER_CHARS_MAX:
            return None
        if _WHOLE_TEXT.fullmatch(text) is not None:
            return _fit_whole(int(text))
        return float(text) if _NUMBER_TEXT.fullmatch(text) is not None else None

    return evaluate


_BOOLEANS = {"true": True, "false": False}


def _as_boolean(get: Eval) -> Eval:
    def evaluate(message: Message) -> bool | None:
        text = get(message)
        return None if text is None or len(text) > 5 else _BOOLEANS.get(text.lower())

    return evaluate


# ---- LIKE


def _like_pattern(pattern: str, escape: str | None) -> re.Pattern[str]:
    """A pattern as a regular expression that never goes back: what stands between two % is found once, by the left.

    Raises ValueError where the escape character escapes nothing (SQL92, 8.5).
    """
    parts: list[str] = [""]  # between the %
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            following = next(chars, None)
            if following is None or following not in {"%", "_", escape}:
                raise ValueError(f"{escape!r} stands in front of %, _ or itself")
            parts[-1] += re.escape(following)
        elif char == "%":
            parts.append("")
        else:
            parts[-1] += "." if char == "_" else re.escape(char)
    if len(parts) == 1:
        return re.compile(parts[0], re.DOTALL)
    first, *middle, last = parts
    found = "".join(f"(?>.*?{part})" for part in middle if part)
    return re.compile(f"{first}{found}.*{last}", re.DOTALL)


def _likeness(get: Eval, pattern: re.Pattern[str]) -> Eval:
    match = pattern.fullmatch

    def evaluate(message: Message) -> bool | None:
        text = get(message)
        if text is None or len(text) > LIKE_TEXT_CHARS_MAX:
            return None
        return match(text) is not None

    return evaluate
