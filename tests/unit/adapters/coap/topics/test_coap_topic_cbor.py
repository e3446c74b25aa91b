"""The CBOR of topic properties: what cbor2 writes is read, what is written cbor2 reads, and nothing else is taken."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.coap.topics import cbor

NUMBERS = st.integers(0, (1 << 64) - 1)
VALUES = st.recursive(
    NUMBERS | st.binary(max_size=300) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NUMBERS, inner, max_size=4),
    max_leaves=6,
).filter(lambda value: depth(value) <= cbor.DEPTH_MAX)


def depth(value: object) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1


@given(VALUES)
def test_it_is_read_and_written_as_by_others(value: cbor.Value) -> None:
    assert cbor.decode(cbor2.dumps(value)) == value
    assert cbor2.loads(cbor.encode(value)) == value
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_value_or_none(data: bytes) -> None:
    try:
        value = cbor.decode(data)
    except cbor.CborError:
        return
    assert cbor2.loads(data) == value


@pytest.mark.parametrize("nested", [False, True])
def test_a_value_of_too_many_parts_is_none(nested: bool) -> None:
    """A million of them in one body would hold up all other clients for half a second."""
    inner: cbor.Value = [0] * 15 if nested else 0
    most = (cbor.PARTS_COUNT_MAX - 1) // (16 if nested else 1)
    assert cbor.decode(cbor2.dumps([inner] * most)) == [inner] * most
    with pytest.raises(cbor.CborError, match="parts"):
        cbor.decode(cbor2.dumps([inner] * (most + 1)))


@given(VALUES, st.data())
def test_a_value_that_is_cut_short_is_none(value: cbor.Value, data: st.DataObject) -> None:
    whole = cbor.encode(value)
    with pytest.raises(cbor.CborError):
        cbor.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    "data",
    [
        b"\x20",
        b"\xf5",
        b"\xf6",
        b"\xfb\x3f\xf0\0\0\0\0\0\0",
        b"\x7f\x61a\xff",
        b"\x1c",
        b"\x61\xff",
        b"\x81" * 9 + b"\0",
    ],
)
def test_other_values_are_none(data: bytes) -> None:
    with pytest.raises(cbor.CborError):
        cbor.decode(data)
