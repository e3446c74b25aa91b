"""Field tables of every type that brokers and clients agree on: read as they are, and kept as the bytes that came.

The types: https://www.rabbitmq.com/amqp-0-9-1-errata#section_3
"""

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapters.amqp.codec.properties import properties_of, read_properties
from adapters.amqp.codec.wire import field_spans, read_table
from gateway.queues.leaving.deaths import dead_letter
from store.api.message import Message
from store.api.message import decode as decode_message
from store.api.message import encode as encode_message

NOW_MS = 1_700_000_000_000
HEADERS_FLAG = 1 << 13  # of class basic's properties: a table and nothing else follows
Field = tuple[bytes, Any]  # the type and the value as bytes, and as it is read


def long(raw: bytes) -> bytes:
    """Returns bytes behind their size."""
    return struct.pack(">I", len(raw)) + raw


def fixed(tag: str, layout: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Field]:
    return values.map(lambda value: (tag.encode() + struct.pack(">" + layout, value), value))


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    half = 1 << bits - 1
    return st.integers(-half, half - 1) if signed else st.integers(0, 2 * half - 1)


def decimal(scale: int, digits: int) -> Field:
    text = f"{abs(digits):0{scale + 1}}"
    text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
    return b"D" + struct.pack(">Bi", scale, digits), "-" * (digits < 0) + text


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BY_TYPE: dict[str, st.SearchStrategy[Field]] = {
    "t": st.booleans().map(lambda value: (b"t" + bytes([value]), value)),
    "b": fixed("b", "b", integers(8, signed=True)),
    "B": fixed("B", "B", integers(8, signed=False)),
    "s": fixed("s", "h", integers(16, signed=True)),
    "u": fixed("u", "H", integers(16, signed=False)),
    "I": fixed("I", "i", integers(32, signed=True)),
    "i": fixed("i", "I", integers(32, signed=False)),
    "l": fixed("l", "q", integers(64, signed=True)),
    "L": fixed("L", "q", integers(64, signed=True)),
    "f": fixed("f", "f", st.floats(width=32, allow_nan=False)),
    "d": fixed("d", "d", st.floats(allow_nan=False)),
    "D": st.builds(decimal, st.integers(0, 12), integers(32, signed=True)),
    "S": TEXT.map(lambda value: (b"S" + long(value.encode()), value)),
    "T": fixed("T", "Q", integers(64, signed=False)),
    "V": st.just((b"V", None)),
    "x": st.binary(max_size=9).map(lambda value: (b"x" + long(value), value)),
}


def array(fields: list[Field]) -> Field:
    return b"A" + long(b"".join(raw for raw, _ in fields)), [value for _, value in fields]


def table(fields: dict[str, Field]) -> Field:
    packed = b"".join(bytes([len(name.encode())]) + name.encode() + raw for name, (raw, _) in fields.items())
    return b"F" + long(packed), {name: value for name, (_, value) in fields.items()}


NAMES = TEXT.map("n".__add__)  # none that the gateway gives a meaning
FIELDS = st.recursive(
    st.one_of(*BY_TYPE.values()),
    lambda inner: st.lists(inner, max_size=3).map(array) | st.dictionaries(NAMES, inner, max_size=3).map(table),
    max_leaves=8,
)
OF_ALL_TYPES = st.fixed_dictionaries({f"of {tag}": field for tag, field in BY_TYPE.items()}).map(table)
TABLES = st.dictionaries(NAMES, FIELDS, max_size=6).map(table) | OF_ALL_TYPES


def through_the_log(message: Message) -> Message:
    stored = decode_message(encode_message(message))
    assert stored == message
    return stored


def published(headers: bytes) -> Message:
    template = read_properties(struct.pack(">H", HEADERS_FLAG) + headers)
    return template.message("a/b", b"", device="guest", trusted_gateway=False, now_ms=NOW_MS)


@given(TABLES)
def test_a_table_is_read_as_it_is(field):
    raw, value = field
    assert read_table(raw[1:], 0) == (value, len(raw) - 1)


@given(TABLES)
def test_headers_leave_as_the_bytes_that_came(field):
    headers = field[0][1:]
    message = through_the_log(published(headers))
    assert properties_of(message, now_ms=NOW_MS) == struct.pack(">H", HEADERS_FLAG) + headers


@given(TABLES)
def test_a_dead_letter_keeps_its_headers_and_their_types(field):
    headers = field[0][1:]
    letter = dead_letter(published(headers), queue="q", reason="rejected", exchange="", routing_key=None, now_ms=NOW_MS)
    left = properties_of(through_the_log(letter), now_ms=NOW_MS)[2:]
    found = {left[start:end] for start, end in field_spans(left, 0)}
    assert {headers[start:end] for start, end in field_spans(headers, 0)} <= found
