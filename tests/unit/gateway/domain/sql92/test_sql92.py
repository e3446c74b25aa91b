"""Filters in SQL92: what they say of a message, what is refused and where, and that their cost is bounded."""

import time

import pytest

from gateway.domain.errors import Cause
from gateway.domain.expressions import (
    DEPTH_MAX,
    EXPRESSION_CHARS_MAX,
    LIKE_TEXT_CHARS_MAX,
    NODES_MAX,
    PATTERN_CHARS_MAX,
    ExpressionSyntaxError,
)
from gateway.domain.sql92 import FIELDS, compile_where, quoted
from store.api.message import Message

MESSAGE = Message(
    address="plant/1/temp",
    body=b"12345",
    time_ms=1_700_000_000_000,
    protocol="mqtt",
    device="dev42",
    qos=1,
    type="reading",
    content_type="application/json",
    properties=(
        ("unit", "C"),
        ("value", "21.5"),
        ("count", "7"),
        ("unit", "second"),
        ("ok", "True"),
        ("x-zone", "a'b"),
        ("type", "shadowed"),
        ("site.name", "north"),
        ("word", "ten"),
    ),
)

TRUE = [
    "type = 'reading'",
    "type='reading'AND qos=1",
    "unit = 'C'",
    "value > 21 AND value < 22",
    "value = 21.5",
    "count = 7.0",
    "count + 1 = 8 and -count = -7",
    "count / 2 = 3",
    "-count / 2 = -3",
    "count / 2.0 = 3.5",
    "(count + 1) * 2 = 16",
    "count - 1 - 2 = 4",
    "20 / 2 / 5 = 2",
    "2 + 3 * 4 = 14",
    "- -count = 7",
    "ok",
    "ok = TRUE",
    "NOT ok = FALSE",
    "retain = false",
    "NOT retain",
    "\"x-zone\" = 'a''b'",
    "properties.type = 'shadowed'",
    "site.name = 'north'",
    "key IS NULL",
    "key is not null or device IS NOT NULL",
    "missing IS NULL",
    "NOT (type IS NULL)",
    "type IN ('a', 'reading')",
    "type NOT IN ('a', 'b')",
    "count IN (1, 3 + 4)",
    "qos BETWEEN 0 AND 1 AND qos <> 0",
    "value NOT BETWEEN 22 AND 30",
    "address LIKE 'plant/%/temp'",
    "address LIKE 'plant/_/temp'",
    "address NOT LIKE '%TEMP'",
    "content_type LIKE '%json'",
    "type LIKE 'reading'",
    "type LIKE '%'",
    "type LIKE 'r%e%d%g'",
    "type LIKE 'r\\_%' ESCAPE '\\' OR type LIKE 're%'",
    "'50%' LIKE '50!%' ESCAPE '!'",
    "size_bytes = 5",
    "time_ms >= 1.7e12",
    "time_ms > 1699999999999",
    "word > 'tem' AND word < 'tenn'",
    "unit = unit",
    "(qos = 1) = TRUE",
    "TRUE OR missing = 1",
    "NOT (FALSE AND missing = 1)",
    ".5 < 1. AND 1e0 = 1",
    "1 = 1 OR 1 = 2 AND 1 = 3",
    "count * 9223372036854775807 > 0",
]
NOT_TRUE = [
    "type = 'Reading'",
    "key = 'a'",
    "key <> 'a'",
    "NOT key = 'a'",
    "missing = missing",
    "word > 1",
    "NOT word > 1",
    "word = TRUE",
    "count / 0 = 1",
    "NOT count / 0 = 1",
    "key IN ('a')",
    "key NOT IN ('a')",
    "key NOT LIKE '%'",
    "FALSE",
    "missing",
    "NOT missing",
    "TRUE AND missing = 1",
    "qos BETWEEN 2 AND missing",
    "qos BETWEEN 1 AND missing",
    "id = ''",
    "type LIKE 'r_'",
    "type LIKE 'reading_'",
    "type LIKE 'ing%rea'",
    "1e999 - 1e999 = 0",
    "NOT 1e999 - 1e999 = 0",
]


@pytest.mark.parametrize("text", TRUE)
def test_true(text):
    assert compile_where(text).matches(MESSAGE)


@pytest.mark.parametrize("text", NOT_TRUE)
def test_not_true(text):
    assert not compile_where(text).matches(MESSAGE)


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("", 1, 1, "a value is expected here, not the end"),
        ("type =", 1, 7, "a value is expected"),
        ("type = 'a' extra", 1, 12, "'extra' is not expected here"),
        ("type = 'a", 1, 8, "text that begins here has no end"),
        ('"type = 1', 1, 1, "name that begins here has no end"),
        ("qos =\n  1 AND\n  type = 5", 3, 8, "a text is not compared with a number"),
        ("qos + type > 1", 1, 5, "+ takes numbers, not a text"),
        ("-'a' = 1", 1, 1, "- takes numbers"),
        ("qos", 1, 1, "a number stands where a condition is expected"),
        ("'a' AND TRUE", 1, 1, "a text stands where a condition"),
        ("retain < TRUE", 1, 8, "conditions have no order"),
        ("retain = 1", 1, 8, "a condition is not compared with a number"),
        ("1 < qos < 3", 1, 9, "comparisons do not follow each other"),
        ("qos LIKE 'a'", 1, 5, "a number is like no pattern"),
        ("type LIKE device", 1, 11, "text is expected here, not 'device'"),
        ("type LIKE 'a!b' ESCAPE '!'", 1, 11, "stands in front of"),
        ("type LIKE 'a!' ESCAPE '!'", 1, 11, "stands in front of"),
        ("type LIKE 'a' ESCAPE '!!'", 1, 22, "ESCAPE names one character"),
        ("type IN ()", 1, 10, "a value is expected"),
        ("type IN 'a'", 1, 9, "( is expected here"),
        ("type IN ('a'", 1, 13, ") is expected here, not the end"),
        ("qos BETWEEN 1", 1, 14, "AND is expected"),
        ("qos NOT = 1", 1, 9, "NOT is followed by"),
        ("type IS 'a'", 1, 9, "NULL is expected"),
        ("type = NULL", 1, 8, "a value is expected here, not 'NULL'"),
        ("(qos = 1", 1, 9, ") is expected"),
        ("qos = 1)", 1, 8, "is not expected"),
        ("qos -- 1", 1, 5, "comments are not supported"),
        ("qos /* 1 */", 1, 5, "comments are not supported"),
        ("qos ; 1", 1, 5, "';' means nothing here"),
        ("qos == 1", 1, 6, "a value is expected here, not '='"),
        ("qos != 1", 1, 5, "'!' means nothing"),
    ],
)
def test_refused_with_its_place(text, line, column, why):
    with pytest.raises(ExpressionSyntaxError) as caught:
        compile_where(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert why in str(caught.value)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")
    assert caught.value.cause is Cause.MALFORMED


def test_length_depth_and_nodes_are_bounded():
    for text in (
        "(" * (DEPTH_MAX + 1) + "TRUE" + ")" * (DEPTH_MAX + 1),
        "NOT " * (DEPTH_MAX + 1) + "TRUE",
        "- " * (DEPTH_MAX + 1) + "1 = 1",
        "(" * EXPRESSION_CHARS_MAX,
        "TRUE" + " " * EXPRESSION_CHARS_MAX,
        "1=1" + "+1" * NODES_MAX,
        f"type LIKE '{'a' * (PATTERN_CHARS_MAX + 1)}'",
    ):
        with pytest.raises(ExpressionSyntaxError):
            compile_where(text)


def test_the_longest_chains_are_evaluated_without_depth():
    for text in (
        " OR ".join(["qos=0"] * (NODES_MAX // 4 - 1)) + " OR qos = 1",
        "qos" + "+1" * (NODES_MAX // 2 - 4) + "> 0",
        "(" * DEPTH_MAX + "TRUE" + ")" * DEPTH_MAX,
    ):
        assert compile_where(text).matches(MESSAGE)


def test_like_never_goes_back():
    """A pattern that takes a naive matcher longer than the universe has been there."""
    pattern = "%a" * (PATTERN_CHARS_MAX // 2 - 1) + "%b"
    where = compile_where(f"text LIKE '{pattern}'")
    long = Message("a", properties=(("text", "a" * LIKE_TEXT_CHARS_MAX),))
    started = time.perf_counter()
    assert not where.matches(long)
    assert time.perf_counter() - started < 2


def test_a_text_beyond_the_limit_is_neither_like_nor_unlike():
    long = Message("a", properties=(("text", "a" * (LIKE_TEXT_CHARS_MAX + 1)),))
    assert not compile_where("text LIKE 'a%'").matches(long)
    assert not compile_where("text NOT LIKE 'a%'").matches(long)


def test_picks_and_sharing():
    messages = [Message(f"a/{n}", qos=n % 3) for n in range(9)]
    where = compile_where("qos > 0")
    assert where.picks(messages, range(9)) == [1, 2, 4, 5, 7, 8]
    assert where.picks(messages, [0, 1, 3, 8]) == [1, 8]
    assert compile_where("qos > 0") is where
    assert where.text == "qos > 0"


def test_every_field_is_one_of_a_message():
    for name in FIELDS:
        assert not compile_where(f"{name} IS NULL AND FALSE").matches(MESSAGE)
        compile_where(f"{name} IS NULL").matches(Message("a"))


def test_nobody_is_no_principal():
    assert compile_where("principal IS NULL").picks([Message("a"), Message("a", principal="")], range(2)) == [0, 1]
    assert not compile_where("principal = ''").matches(Message("a", principal=""))


@pytest.mark.parametrize("text", ["", "a", "it's", "''", "a''b'"])
def test_quoted_texts_read_back(text):
    assert compile_where(f"p = {quoted(text)}").matches(Message("a", properties=(("p", text),)))


def test_a_costly_pattern_is_soon_done_with():
    def message(text):
        return Message("t", properties=(("p", text),))

    plain = compile_where(" OR ".join(["p LIKE '%" + "a" * 200 + "b%'"] * 12))
    assert not plain.matches(message("a" * 16_000))
    wild = compile_where("p LIKE '%a_b%'")
    assert wild.matches(message("x" * 400 + "aab"))
    assert not wild.matches(message("x" * 600 + "aab"))  # too long to say
    assert not compile_where("NOT p LIKE '%a_b%'").matches(message("x" * 600))
