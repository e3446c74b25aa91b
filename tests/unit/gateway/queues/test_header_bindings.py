"""Bindings of headers exchanges: values compared by type, and as text where the types are not known."""

import datetime

import pytest
from pamqp import header
from pamqp.commands import Basic

from adapters.amqp.codec.properties import read_properties
from gateway.queues.model.headers import header_predicate
from store.api.message import Message

BEFORE_TYPES = {"amqp": {"properties": b"..."}}  # as older versions have stored messages


def matches(arguments, headers):
    """Returns whether a message that comes by AMQP with some headers matches."""
    raw = header.ContentHeader(properties=Basic.Properties(headers=headers)).marshal()[12:]
    message = read_properties(raw).message("$amqp/x/k", b"", device="d", trusted_gateway=False, now_ms=1)
    return header_predicate(arguments)(message)


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        (5, 5, True),
        (5, 5_000_000_000, False),
        (1 << 40, 1 << 40, True),
        (5, "5", False),
        ("5", 5, False),
        (5, 5.0, True),
        (True, True, True),
        (True, "true", False),
        (True, 1, False),
        (1, True, False),
        (False, 0, False),
        ("a", bytearray(b"a"), True),
        (b"\xff", bytearray(b"\xff"), True),
        ([1, "a"], [1, "a"], True),
        ([1, "a"], ["a", 1], False),
        ([1], [True], False),
        ({"n": {"m": 1}}, {"n": {"m": 1}}, True),
        ({"n": 1}, {"n": "1"}, False),
        ({"n": 1}, [1], False),
        (1_700_000_000, datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC), True),
        *((None, there, True) for there in ("a", 1, True, bytearray(b"\xff"), None, [], {})),
    ],
)
def test_values_of_headers_are_compared_by_type(wanted, found, same):
    for mode in ("all", "any"):
        assert matches({"x-match": mode, "h": wanted}, {"h": found}) is same
        assert matches({"x-match": f"{mode}-with-x", "x-h": wanted}, {"x-h": found}) is same


def test_a_header_that_is_missing_matches_nothing_not_even_no_value():
    assert not matches({"h": None}, {"g": 1})
    assert not matches({"h": None}, {})
    assert not matches({"h": "None"}, {"h": None})


@pytest.mark.parametrize("native", [None, BEFORE_TYPES])
def test_texts_without_types_are_compared_as_text(native):
    message = Message("$amqp/x/k", b"", properties=(("n", "5"), ("t", "true"), ("f", "1.5")), native=native)
    for wanted in ({"n": 5}, {"n": "5"}, {"t": True}, {"t": "true"}, {"f": 1.5}, {"n": None}):
        assert header_predicate(wanted)(message)
    for wanted in ({"n": 6}, {"t": 1}, {"n": b"5"}, {"n": ["5"]}, {"m": None}):
        assert not header_predicate(wanted)(message)


def test_a_dead_letter_has_its_account_and_the_types_of_its_headers():
    deaths = [{"queue": "q", "reason": "rejected"}]
    native = {"amqp": {"properties": b"", "typed": {"n": 5}, "deaths": deaths}}
    message = Message("$amqp/x/k", b"", properties=(("n", "5"), ("x-first-death-queue", "q")), native=native)
    for wanted in ({"n": 5}, {"x-death": None}, {"x-first-death-queue": "q"}):
        assert header_predicate({"x-match": "all-with-x", **wanted})(message)
    assert not header_predicate({"n": "5"})(message)
