"""CoAP's message format: what is encoded is what is decoded, and what is decoded encodes to the same bytes."""

from hypothesis import given
from hypothesis import strategies as st

from adapters.coap.codec.wire import MessageFormatError, Packet, decode, encode, encode_uint, read_uint
from adapters.coap.messages.request import Block

NUMBERS = st.one_of(st.integers(0, 40), st.integers(250, 300), st.integers(0, 65_535))
VALUES = st.one_of(st.binary(max_size=20), st.integers(260, 300).map(bytes))
OPTIONS = st.lists(st.tuples(NUMBERS, VALUES), max_size=12).map(
    lambda options: tuple(sorted(options, key=lambda option: option[0]))
)
PACKETS = st.builds(
    Packet,
    type=st.integers(0, 3),
    code=st.integers(1, 255),
    mid=st.integers(0, 65_535),
    token=st.binary(max_size=8),
    options=OPTIONS,
    payload=st.binary(max_size=64),
)


@given(PACKETS)
def test_a_message_survives_the_wire(packet: Packet) -> None:
    assert decode(encode(packet)) == packet


@given(PACKETS, st.integers(0, 400), st.binary(max_size=3))
def test_a_cut_or_patched_message_is_refused_or_another_message(packet: Packet, at: int, patch: bytes) -> None:
    data = encode(packet)
    for changed in (data[:at], data[:at] + patch + data[at + len(patch) :]):
        try:
            found = decode(changed)
        except MessageFormatError:
            continue
        assert decode(encode(found)) == found


@given(st.integers(0, 2**32))
def test_uint(value: int) -> None:
    assert read_uint(encode_uint(value)) == value
    assert not encode_uint(value).startswith(b"\0")


@given(st.integers(0, 2**20 - 1), st.booleans(), st.integers(0, 6))
def test_block(number: int, more: bool, exponent: int) -> None:
    block = Block(number, more, exponent)
    assert Block.decode(block.encode(), "Block1") == block
    assert len(block.encode()) <= 3
