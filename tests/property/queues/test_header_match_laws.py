"""A headers exchange matches as RabbitMQ's: values are compared as the terms that Erlang makes of them."""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from pamqp import encode

from adapters.amqp.codec.properties import read_properties
from adapters.amqp.codec.wire import read_table
from gateway.queues.model.bindings import Binding
from gateway.queues.model.headers import header_predicate
from store.api.message import decode as decode_message
from store.api.message import encode as encode_message


class Field(NamedTuple):
    """A field's value as it is on the wire, and a term that compares as Erlang's."""

    wire: bytes
    term: Any


class Atom(NamedTuple):
    """A term that is neither number nor binary."""

    name: str


def integer(tag: str, layout: str, value: int) -> Field:
    return Field(tag.encode() + struct.pack(">" + layout, value), value)


def text(tag: str, raw: bytes) -> Field:
    return Field(tag.encode() + len(raw).to_bytes(4, "big") + raw, raw)


def array(fields: list[Field]) -> Field:
    raw = b"".join(field.wire for field in fields)
    return Field(b"A" + len(raw).to_bytes(4, "big") + raw, Atom(repr([field.term for field in fields])))


def table_of(fields: Mapping[str, Field]) -> bytes:
    raw = b"".join(encode.short_string(name) + field.wire for name, field in fields.items())
    return len(raw).to_bytes(4, "big") + raw


def table(fields: Mapping[str, Field]) -> Field:
    return Field(b"F" + table_of(fields), Atom(repr({name: one.term for name, one in fields.items()})))


VOID = Field(b"V", Atom("undefined"))
BOOLEANS = [Field(b"t\x01", Atom("true")), Field(b"t\x00", Atom("false"))]
NUMBERS = [
    integer(tag, layout, value)
    for tag, layout in (("b", "b"), ("s", "h"), ("I", "i"), ("l", "q"), ("B", "B"), ("u", "H"), ("i", "I"), ("T", "Q"))
    for value in (0, 1, 5)
]
FLOATS = [Field(b"d" + struct.pack(">d", value), value) for value in (0.0, 1.0, 1.5)]
FLOATS += [Field(b"f" + struct.pack(">f", value), value) for value in (1.0, 1.5)]
TEXTS = [text(tag, raw) for tag in "Sx" for raw in (b"", b"1", b"5", b"true", b"a", b"\xff")]
PLAIN = st.sampled_from([VOID, *BOOLEANS, *NUMBERS, *FLOATS, *TEXTS])
SAME = st.sampled_from([VOID, *BOOLEANS, integer("I", "i", 1), *TEXTS])  # within others: the same types
VALUES = PLAIN | st.lists(SAME, max_size=2).map(array) | st.dictionaries(st.just("n"), SAME, max_size=1).map(table)
NAMES = st.sampled_from(["a", "b", "x-c", "x-delivery", "ce-id"])
TABLES = st.dictionaries(NAMES, VALUES, max_size=4)
MODES = {"all": (all, False), "any": (any, False), "all-with-x": (all, True), "any-with-x": (any, True)}


def matches(wanted: Mapping[str, Field], found: Mapping[str, Field], mode: str) -> bool:
    """Returns whether a binding matches, as `rabbit_exchange_type_headers` compares: values, and not their types."""
    combine, with_x = MODES[mode]
    return combine(
        name in found and (field is VOID or field.term == found[name].term)
        for name, field in wanted.items()
        if with_x or not name.startswith("x-")
    )


@given(TABLES, TABLES, st.sampled_from([*MODES, None]))
def test_headers_match_as_rabbitmq_compares_them(wanted, found, mode):
    said = {} if mode is None else {"x-match": text("S", mode.encode())}
    arguments, _ = read_table(table_of({**said, **wanted}), 0)
    stored = msgspec.msgpack.encode(Binding(exchange="x", routing_key="", arguments=arguments))
    matching = header_predicate(msgspec.msgpack.decode(stored, type=Binding).arguments)
    raw = b"\x20\x00" + table_of(found)
    message = read_properties(raw).message("$amqp/x/k", b"", device="d", trusted_gateway=False, now_ms=1)
    assert matching(decode_message(encode_message(message))) == matches(wanted, found, mode or "all")
