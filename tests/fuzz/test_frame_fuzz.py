"""Random, truncated and altered bytes at the frame's parsers: a frame, None, or CorruptFrame; nothing else."""

import struct

import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from store.base.errors import CorruptFrame
from store.format.frame import FRAME_BYTES_MAX, HEADER, MAGIC, Frame, parse_header
from store.format.records import decode
from tests.support.process.examples import examples
from tests.support.store.store_kit import frame

OFFSETS = st.integers(0, (1 << 64) - 1)
RECORDS = st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.binary(max_size=40)), max_size=5)


def parses_or_raises(data, log_offset):
    try:
        header = parse_header(data, log_offset=log_offset)
        assert header is None or header.log_offset == log_offset
        found = Frame.parse(data, log_offset=log_offset)
    except CorruptFrame:
        return None
    if found is not None:
        assert found.start == log_offset
        for row in range(found.header.row_count):
            found.record(row)
    return found


def sealed(log_offset, row_count, payload_len, body, body_crc):
    """Returns a header whose own checksum is right, whatever it claims."""
    raw = HEADER.pack(MAGIC, 0, log_offset, 1, 0, row_count, payload_len, body_crc, 0, 0, 0, 0)
    return raw[:4] + crc32c(raw[8:]).to_bytes(4, "little") + raw[8:] + body


@given(st.binary(max_size=300), OFFSETS)
def test_random_bytes(data, log_offset):
    assert parses_or_raises(data, log_offset) is None


@given(st.binary(max_size=300), OFFSETS)
def test_random_bytes_behind_the_magic(data, log_offset):
    assert parses_or_raises(MAGIC.to_bytes(4, "little") + data, log_offset) is None


@given(RECORDS, st.integers(0, 1 << 63), st.data())
def test_truncated(records, log_offset, data):
    built = frame(*records)
    whole = built.header(log_offset=log_offset, epoch=1, stored_at_ms=0) + built.rows + built.payload
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert Frame.parse(whole[:cut], log_offset=log_offset) is None
    assert Frame.parse(whole + b"more", log_offset=log_offset).data == whole


@given(RECORDS, st.data())
def test_altered(records, data):
    built = frame(*records)
    whole = bytearray(built.header(log_offset=0, epoch=1, stored_at_ms=0) + built.rows + built.payload)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    assert parses_or_raises(bytes(whole), 0) is None


@settings(max_examples=examples(200))
@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.binary(max_size=200))
def test_sealed_headers_that_claim_anything(row_count, payload_len, body):
    parses_or_raises(sealed(0, row_count, payload_len, body, crc32c(body)), 0)


@given(st.lists(st.tuples(*[st.integers(0, (1 << 32) - 1)] * 2), min_size=1, max_size=3), st.binary(max_size=50))
def test_rows_that_point_anywhere(pointers, payload):
    rows = b"".join(struct.pack("<IIIIQQQQ", 16, pos, size, 0, 0, 0, 0, 0) for pos, size in pointers)
    data = sealed(0, len(pointers), len(payload), rows + payload, crc32c(rows + payload))
    found = parses_or_raises(data, 0)
    assert (found is not None) == all(pos + size <= len(payload) for pos, size in pointers)


def test_a_header_that_claims_too_much():
    with pytest.raises(CorruptFrame, match="bytes"):
        parse_header(sealed(0, 0, FRAME_BYTES_MAX, b"", 0), log_offset=0)


@given(st.binary(max_size=60))
def test_records_of_reserved_queues(data):
    decode(data)
