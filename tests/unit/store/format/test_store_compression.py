"""Frames whose payload is compressed: the same to read, verified as they are stored, bounded when they expand."""

import pytest
from google_crc32c import extend, value
from hypothesis import given
from hypothesis import strategies as st

from store.base.errors import CorruptFrame
from store.format.compression import compress, decompress, plain_size
from store.format.frame import FRAME_BYTES_MAX, FRAME_ZSTD, HEADER, ROW, Frame, UnplacedFrame
from store.format.placed import Placed
from store.format.records import KvPut
from store.local.cache import FrameCache
from store.local.local import LocalStore
from tests.support.store.store_kit import append, bodies, records_frame

pytestmark = pytest.mark.anyio
BODY = b"temperature=21.5;" * 100


def packed(*records, payload=None, **options):
    """Returns a compressed frame of (queue, body); `payload` replaces the right one."""
    rows, plain = b"", b""
    for queue, body in records:
        rows += ROW.pack(queue, len(plain), len(body), 0, 0, 0, 0, 0)
        plain += body
    if payload is None:
        return UnplacedFrame.build(rows, plain, compress_bytes_min=1, **options)
    return UnplacedFrame(
        rows=rows,
        payload=payload,
        row_count=len(records),
        body_crc32c=extend(value(rows), payload),
        flags=FRAME_ZSTD,
    )


def stored(unplaced):
    return unplaced.header(log_offset=0, epoch=1, stored_at_ms=1) + unplaced.rows + unplaced.payload


@given(st.binary(max_size=3000) | st.builds(lambda one, n: one * n, st.binary(max_size=20), st.integers(0, 500)))
def test_what_is_compressed_comes_back(data):
    assert decompress(compress(data), len(data)) == data
    assert plain_size(compress(data)) == len(data)


@pytest.mark.parametrize("bad", [b"", b"xx", compress(BODY)[:-3], compress(BODY) + b"x", compress(BODY)[:6]])
def test_what_is_no_zstd_frame_raises_value_error(bad):
    with pytest.raises(ValueError, match=r".+"):
        decompress(bad, len(BODY))


def test_the_size_expected_is_the_size_announced():
    with pytest.raises(ValueError, match="expected"):
        decompress(compress(BODY), len(BODY) - 1)


def test_a_compressed_frame_reads_as_any_other():
    unplaced = packed((16, BODY), (17, b"other" * 40))
    assert unplaced.flags == FRAME_ZSTD
    assert unplaced.size_bytes < len(BODY) / 2
    assert unplaced.plain_payload == BODY + b"other" * 40
    frame = Frame.parse(stored(unplaced), log_offset=0)
    assert frame.record(0) == BODY
    assert frame.record(1) == b"other" * 40
    assert frame.plain[frame.payload_start :] == unplaced.plain_payload
    assert frame.plain is frame.plain
    assert frame.data == stored(unplaced)
    assert Placed.of(frame).frame == unplaced
    assert Placed.of(frame).frame.plain_payload == unplaced.plain_payload
    assert Placed(0, 1, frame.data[: HEADER.size], unplaced).whole() == frame


def test_what_does_not_shrink_or_is_small_stays_as_it_is():
    assert packed((16, b"x")).flags == 0
    assert UnplacedFrame.build(b"", BODY, compress_bytes_min=len(BODY) + 1).flags == 0
    assert UnplacedFrame.build(b"", BODY).flags == 0


def test_the_checksum_is_of_the_stored_bytes():
    data = bytearray(stored(packed((16, BODY))))
    data[-1] ^= 1
    with pytest.raises(CorruptFrame, match="body checksum"):
        Frame.parse(bytes(data), log_offset=0)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"no zstd", "compressed payload"),
        (b"", "compressed payload"),
        (compress(b"short"), "outside the payload"),
    ],
)
def test_a_payload_that_is_not_what_its_rows_need_is_corrupt(payload, why):
    with pytest.raises(CorruptFrame, match=why):
        Frame.parse(stored(packed((16, BODY), payload=payload)), log_offset=0)


def test_a_payload_that_expands_beyond_the_limit_is_corrupt_and_not_expanded():
    bomb = compress(bytes(FRAME_BYTES_MAX))
    assert len(bomb) < 10_000
    unplaced = packed((16, b""), payload=bomb)
    with pytest.raises(CorruptFrame, match="decompressed"):
        Frame.parse(stored(unplaced), log_offset=0)


def test_a_payload_cut_behind_its_header_is_corrupt_when_it_is_read():
    frame = Frame.parse(stored(packed((16, BODY), payload=compress(BODY)[:-4])), log_offset=0)
    with pytest.raises(CorruptFrame, match="compressed payload"):
        frame.record(0)


def test_memory_is_charged_for_what_a_frame_expands_to():
    cache = FrameCache(bytes_max=5000)
    unplaced = packed((16, BODY))
    for n in range(10):
        header = unplaced.header(log_offset=n * 1000, epoch=1, stored_at_ms=1)
        cache.put(Placed(n * 1000, 1, header, unplaced))
        assert cache.get(n * 1000).record(0) == BODY
        assert cache.size_bytes <= 5000
    assert cache.get(0) is None


async def test_a_store_of_compressed_frames(tmp_path):
    async with await LocalStore.open(tmp_path, cache_bytes_max=0) as store:
        await append(store, packed((16, BODY), (17, b"x")))
        assert await bodies(store, 16) == [BODY]
        plain = records_frame(KvPut("key", b"v" * 500))
        await append(store, UnplacedFrame.build(plain.rows, plain.payload, compress_bytes_min=1))
        assert (await store.keys.get("key")).value == b"v" * 500
    shutil_views = tmp_path / "views"
    for file in shutil_views.iterdir():
        file.unlink()
    async with await LocalStore.open(tmp_path) as store:
        assert (await store.keys.get("key")).value == b"v" * 500
        assert await bodies(store, 16) == [BODY]


async def test_a_record_of_the_stores_own_in_a_broken_payload_has_no_effect(tmp_path, caplog):
    async with await LocalStore.open(tmp_path) as store:
        await append(store, packed((1, BODY), payload=compress(BODY)[:-4]))
        assert await store.keys.put("a", b"1")
    assert "cannot be decompressed" in caplog.text
