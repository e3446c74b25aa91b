"""Chunks of the log in parts that fit into memory."""

import random

import pytest
from msgspec.structs import replace

pytest.importorskip("pyspark")

from spark.source import parts as parts_module
from spark.source.columns import schema_of
from spark.source.options import SourceOptions
from spark.source.parts import parts
from spark.source.readers import BatchReader, QueueRange
from store.api.message import Message, decode
from store.api.queues import Fetched
from store.format.frame import Frame
from tests.support.store.fake_store import serving, unplaced


def frame(messages: list[tuple[int, Message]], at: int, compress_bytes_min: int) -> Frame:
    built = unplaced(messages)
    packed = built.build(bytes(built.rows), bytes(built.payload), compress_bytes_min=compress_bytes_min)
    data = packed.header(log_offset=at, epoch=1, stored_at_ms=1) + bytes(packed.rows) + bytes(packed.payload)
    return Frame.parse(data, log_offset=at)


def chunk_of(sizes: list[list[int]], compress_bytes_min: int = 0) -> Fetched:
    """Returns a chunk whose frames have records of these sizes, every third one of another queue."""
    frames, rows, at, count = [], [], 640, 0
    for some in sizes:
        messages = [(17 if n % 3 == 2 else 16, Message(address="a", body=bytes(size))) for n, size in enumerate(some)]
        frames.append(frame(messages, at, compress_bytes_min))
        rows.append([n for n in range(len(some)) if n % 3 != 2])
        at, count = at + frames[-1].header.size_bytes, count + len(rows[-1])
    return Fetched(frames, rows, 5, 5 + count)


def bodies(chunk: Fetched) -> list[bytes]:
    return [decode(f.record(row)).body for f, rows in zip(chunk.frames, chunk.rows, strict=True) for row in rows]


@pytest.mark.parametrize("compress_bytes_min", [0, 1])
@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_in_one_part_in_order(monkeypatch, seed, compress_bytes_min):
    monkeypatch.setattr(parts_module, "PART_BYTES", 2_000)
    chance = random.Random(seed)
    sizes = [[chance.choice((0, 90, 700, 3_000)) for _ in range(chance.randint(1, 20))] for _ in range(9)]
    chunk = chunk_of(sizes, compress_bytes_min)
    found = list(parts(chunk))
    assert [body for part in found for body in bodies(part)] == bodies(chunk)
    assert [part.offset for part in found] == [5, *(part.next for part in found[:-1])]
    assert found[-1].next == chunk.next
    assert all(part.next - part.offset == sum(map(len, part.rows)) for part in found)
    assert all(map(len, (rows for part in found for rows in part.rows)))
    for part in found:
        records = [f.rows["len"][row] for f, rows in zip(part.frames, part.rows, strict=True) for row in rows]
        assert sum(records) <= 2_000 or len(records) == 1


def test_a_chunk_that_fits_is_its_own_part():
    chunk = chunk_of([[100] * 9] * 3)
    assert [part is chunk for part in parts(chunk)] == [True]


def test_what_was_decompressed_goes_with_its_part():
    """Half a MiB of compressed zeros was decompressed, and decoded, to gigabytes at once."""
    chunk = chunk_of([[3 << 20, 3 << 20]] * 20, compress_bytes_min=1)
    assert sum(len(one.data) for one in chunk.frames) < 1 << 20
    sizes = []
    for part in parts(chunk):
        sizes.append(len(bodies(part)[0]))
        assert len(part.frames) == 1
    assert sizes == [3 << 20] * 40
    assert all(one._plain is None for one in chunk.frames)


def test_readers_give_spark_a_part_at_a_time():
    options = SourceOptions.parse({"columns": "offset,body"})
    with serving({"telemetry": (16,)}) as served:
        served.store.log.append([(16, Message(address="a", body=bytes(100_000)))] * 40, stored_at_ms=1)
        options = replace(options, target=served.target)
        reader = BatchReader(options, schema_of(options.columns))
        batches = list(reader.read(QueueRange(16, 3, 38, "telemetry")))
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == list(range(3, 38))
    assert {batch.num_rows for batch in batches} == {10, 5}
