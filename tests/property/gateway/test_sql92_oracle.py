"""Filters in SQL92 against SQLite, an engine that nobody here wrote; and noise, which is refused or compiles."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.expressions import ExpressionSyntaxError
from gateway.domain.sql92 import compile_where, quoted
from store.api.message import Message
from tests.support.process.examples import examples

TEXTS = st.text("ab%_'é\\", max_size=4)
PROPERTY_TEXTS = st.one_of(
    TEXTS, st.integers(-50, 50).map(str), st.sampled_from(["0.5", "-1.25", "true", "FALSE", "1e1"])
)
NUMBER_OF = {"0.5": 0.5, "-1.25": -1.25, "1e1": 10.0}

MESSAGES = st.builds(
    lambda address, kind, key, device, qos, retain, time_ms, expires, p, q: Message(
        address="x" + address,
        type=kind,
        key=key,
        device=device,
        qos=qos,
        retain=retain,
        time_ms=time_ms,
        expires_at_ms=expires,
        properties=tuple((n, v) for n, v in (("p", p), ("q", q)) if v is not None),
    ),
    TEXTS,
    st.none() | TEXTS,
    st.none() | TEXTS,
    TEXTS,
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 50),
    st.none() | st.integers(0, 50),
    st.none() | PROPERTY_TEXTS,
    st.none() | PROPERTY_TEXTS,
)


def number_of(text):
    if text is None or text in NUMBER_OF:
        return NUMBER_OF.get(text)
    try:
        return int(text) if text.isascii() else None
    except ValueError:
        return None


def row(message):
    properties = dict(message.properties)
    p, q = properties.get("p"), properties.get("q")
    boolean = {"true": 1, "FALSE": 0}
    return (
        *(message.address, message.type, message.key, message.device or None),
        *(message.qos, int(message.retain), message.time_ms, message.expires_at_ms),
        *(p, number_of(p), boolean.get(p), q, number_of(q), boolean.get(q)),
    )


COLUMNS = ["address", "type", "key", "device", "qos", "retain", "time_ms", "expires_at_ms"]
COLUMNS += ["p", "p_n", "p_b", "q", "q_n", "q_b"]

# An expression is (precedence, ours, SQLite's). OR 1, AND 2, NOT 3, tests 4, sums 5, products 6, signs 7, values 8.


def paren(level, expression, always=False):
    mine, ours, theirs = expression
    return (ours, theirs) if mine >= level and not always else (f"({ours})", f"({theirs})")


def joined(level, right, *parts):
    """Joins parts, which are expressions between texts; the last expression binds as `right` does."""
    expressions = [i for i, part in enumerate(parts) if not isinstance(part, str)]
    ours, theirs = "", ""
    for i, part in enumerate(parts):
        if isinstance(part, str):
            ours, theirs = ours + part, theirs + part
        else:
            least = right if i == expressions[-1] and len(expressions) > 1 else level
            a, b = paren(least, part)
            ours, theirs = ours + a, theirs + b
    return ours, theirs


def value(text, other=None):
    return (8, text, text if other is None else other)


def text_literal(text):
    return value(quoted(text))


TEXT = st.one_of(TEXTS.map(text_literal), st.sampled_from(["address", "type", "key", "device", "p", "q"]).map(value))
PROPERTY_NUMBER = st.sampled_from(["p", "q"]).map(lambda name: value(name, f"{name}_n"))
NUMBER_LITERAL = st.one_of(st.integers(0, 50).map(str), st.sampled_from(["0.5", "1.25", ".5", "2e0"])).map(value)
NUMBER_FIELD = st.sampled_from(["qos", "time_ms", "expires_at_ms"]).map(value)


def numbers(inner):
    def chain(drawn):
        level, first, rest = drawn
        result = first
        for sign, part in rest:
            result = (level, *joined(level, level + 1, result, f" {sign} ", part))
        return result

    return st.one_of(
        st.tuples(st.just(5), inner, st.lists(st.tuples(st.sampled_from("+-"), inner), min_size=1, max_size=3)).map(
            chain
        ),
        st.tuples(st.just(6), inner, st.lists(st.tuples(st.sampled_from("*/"), inner), min_size=1, max_size=2)).map(
            chain
        ),
        inner.map(lambda e: (7, *joined(7, 7, "- ", e))),
    )


# At least one side of a calculation or comparison is no bare property, so that both engines read it as a number.
NUMBER = st.recursive(NUMBER_LITERAL | NUMBER_FIELD, numbers, max_leaves=4)
ANY_NUMBER = NUMBER | PROPERTY_NUMBER
PATTERNS = st.lists(st.sampled_from(["a", "b", "%", "_", "é", "'", "\\%", "\\_", "\\\\"]), max_size=5).map("".join)
COMPARE = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
NEGATED = st.sampled_from(["", "NOT "])
NULLNESS = st.sampled_from([" IS NULL", " IS NOT NULL"])


def asked(*parts):
    return (4, *joined(5, 5, *parts))


TESTS = st.one_of(
    st.tuples(NUMBER, COMPARE, ANY_NUMBER).map(lambda t: asked(t[0], f" {t[1]} ", t[2])),
    st.tuples(PROPERTY_NUMBER, COMPARE, NUMBER).map(lambda t: asked(t[0], f" {t[1]} ", t[2])),
    st.tuples(TEXT, COMPARE, TEXT).map(lambda t: asked(t[0], f" {t[1]} ", t[2])),
    st.tuples(TEXT, NULLNESS).map(lambda t: asked(t[0], t[1])),
    st.tuples(NUMBER, NULLNESS).map(lambda t: asked(t[0], t[1])),
    st.tuples(NUMBER, NEGATED, ANY_NUMBER, ANY_NUMBER).map(
        lambda t: asked(t[0], f" {t[1]}BETWEEN ", t[2], " AND ", t[3])
    ),
    st.tuples(TEXT, NEGATED, TEXT, TEXT).map(lambda t: asked(t[0], f" {t[1]}BETWEEN ", t[2], " AND ", t[3])),
    st.tuples(TEXT, NEGATED, st.lists(TEXT, min_size=1, max_size=3)).map(
        lambda t: asked(t[0], f" {t[1]}IN (", *[x for e in t[2] for x in (e, ", ")][:-1], ")")
    ),
    st.tuples(NUMBER, NEGATED, st.lists(NUMBER, min_size=1, max_size=3)).map(
        lambda t: asked(t[0], f" {t[1]}IN (", *[x for e in t[2] for x in (e, ", ")][:-1], ")")
    ),
    st.tuples(TEXT, NEGATED, PATTERNS).map(lambda t: asked(t[0], f" {t[1]}LIKE {quoted(t[2])} ESCAPE '\\'")),
    st.sampled_from(["retain", "TRUE", "FALSE"]).map(value),
    st.sampled_from([("p = TRUE", "p_b = TRUE"), ("q <> FALSE", "q_b <> FALSE")]).map(lambda t: (4, *t)),
)


def conditions(inner):
    def chain(drawn):
        level, word, parts = drawn
        result = parts[0]
        for part in parts[1:]:
            result = (level, *joined(level, level + 1, result, f" {word} ", part))
        return result

    some = st.lists(inner, min_size=2, max_size=4)
    return st.one_of(
        st.tuples(st.just(1), st.just("OR"), some).map(chain),
        st.tuples(st.just(2), st.just("and"), some).map(chain),
        inner.map(lambda e: (3, *joined(3, 3, "NOT ", e))),
        inner.map(lambda e: (8, *paren(1, e, always=True))),
        st.tuples(inner, st.sampled_from(["TRUE", "FALSE"])).map(lambda t: asked(t[0], f" = {t[1]}")),
    )


CONDITIONS = st.recursive(TESTS, conditions, max_leaves=8)


@pytest.fixture(scope="module")
def oracle():
    with sqlite3.connect(":memory:") as db:
        db.execute("PRAGMA case_sensitive_like = ON")
        db.execute(f"CREATE TABLE m ({', '.join(COLUMNS)})")
        yield db
    db.close()


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=12), CONDITIONS)
def test_the_same_rows_as_sqlite(oracle, messages, condition):
    _, ours, theirs = condition
    oracle.execute("DELETE FROM m")
    oracle.executemany(
        f"INSERT INTO m (rowid, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)})",
        [(n, *row(message)) for n, message in enumerate(messages)],
    )
    expected = [n for (n,) in oracle.execute(f"SELECT rowid FROM m WHERE {theirs} ORDER BY rowid")]
    unknown = [n for (n,) in oracle.execute(f"SELECT rowid FROM m WHERE ({theirs}) IS NULL ORDER BY rowid")]
    where, negated = compile_where(ours), compile_where(f"NOT ({ours})")
    assert where.picks(messages, range(len(messages))) == expected
    both = {*expected, *unknown}
    assert negated.picks(messages, range(len(messages))) == [n for n in range(len(messages)) if n not in both]


WORDS = ["qos", "type", "p", "1", "2.5", "'a'", "TRUE", "AND", "OR", "NOT", "(", ")", ",", "=", "<>", "<", "+", "-"]
WORDS += ["*", "/", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "\n"]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=30))
def test_noise_is_refused_in_its_place_or_compiles(text):
    refused = None
    try:
        compile_where(text).matches(Message("a", properties=(("p", "1"),)))
    except ExpressionSyntaxError as error:
        refused = error
    if refused is not None:
        lines = text.split("\n")
        assert 1 <= refused.line <= len(lines)
        assert 1 <= refused.column <= len(lines[refused.line - 1]) + 1
