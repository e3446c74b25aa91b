"""The message format, byte by byte."""

import pytest

from adapters.coap.codec.registry import CON, GET, NON
from adapters.coap.codec.wire import (
    MessageFormatError,
    Packet,
    decode,
    encode,
    encode_options,
    encode_uint,
    read_options,
    read_uint,
)
from adapters.coap.messages.request import Block


def test_the_example_of_the_specification() -> None:
    # RFC 7252, figure 16
    data = bytes.fromhex("40017d34bb74656d7065726174757265")
    packet = decode(data)
    assert packet == Packet(type=CON, code=GET, mid=0x7D34, options=((11, b"temperature"),))
    assert encode(packet) == data


def test_a_token_and_a_payload() -> None:
    data = bytes.fromhex("51 02 00 05 20 b1 74 ff 32 32".replace(" ", ""))
    packet = decode(data)
    assert packet == Packet(type=NON, code=2, mid=5, token=b" ", options=((11, b"t"),), payload=b"22")
    assert encode(packet) == data


@pytest.mark.parametrize(
    ("number", "length", "header"),
    [
        (12, 12, "cc"),
        (13, 13, "dd 00 00"),
        (268, 268, "dd ff ff"),
        (269, 269, "ee 0000 0000"),
        (65_535, 0, "e0 fef2"),
    ],
)
def test_extended_deltas_and_lengths(number: int, length: int, header: str) -> None:
    data = encode_options([(number, b"x" * length)])
    assert data[: len(data) - length] == bytes.fromhex(header)
    assert read_options(data, 0) == ([(number, b"x" * length)], len(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "header"),
        ("400100", "header"),
        ("00010001", "version 0"),
        ("80010001", "version 2"),
        ("49010001" + "00" * 9, "a token of 9"),
        ("4f010001" + "00" * 15, "a token of 15"),
        ("4201000161", "a token of 2"),
        ("4000000161", "Empty"),
        ("4100000161", "Empty"),
        ("40010001ff", "no payload"),
        ("40010001b174ff", "no payload"),
        ("40010001b5617262", "beyond"),
        ("40010001f0", "reserved"),
        ("400100010f", "reserved"),
        ("40010001d0", "cut short"),
        ("40010001e000", "cut short"),
        ("400100010d", "cut short"),
        ("400100010e00", "cut short"),
        ("40010001ed00", "cut short"),
        ("40010001e0ffffe0ffff", "beyond"),
    ],
)
def test_what_is_no_message(data: str, why: str) -> None:
    with pytest.raises(MessageFormatError, match=why):
        decode(bytes.fromhex(data))


def test_options_are_put_in_order_and_repeats_keep_theirs() -> None:
    data = encode_options([(15, b"q"), (11, b"a"), (11, b"b")])
    assert read_options(data, 0)[0] == [(11, b"a"), (11, b"b"), (15, b"q")]


def test_uint_values() -> None:
    assert [encode_uint(value) for value in (0, 1, 256)] == [b"", b"\x01", b"\x01\x00"]
    assert read_uint(b"\x00\x00\x05") == 5


def test_block_values() -> None:
    block = Block.decode(bytes.fromhex("2e"), "Block2")  # RFC 7959, 2.2
    assert block == Block(2, True, 6)
    assert (block.size, block.offset) == (1024, 2048)
    assert block.encode() == bytes.fromhex("2e")
    assert Block(0, False, 0).encode() == b""
    assert Block.of_size(16).exponent == 0
    assert Block.of_size(1024).exponent == 6
