"""Exports: one revision in a file, and a file in a store."""

import asyncio
import io
import random

import pytest

from store.api import kv_export as export
from store.api.keys import Entry
from store.api.kv_export import (
    Exported,
    ExportWriter,
    Imported,
    batches,
    export_to,
    exporting,
    import_from,
    read_export,
)
from store.base.errors import DamagedExport, NamespaceFull
from store.local.local import LocalStore

pytestmark = pytest.mark.anyio
NOW_MS = 5_000


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path / "store", now_ms=lambda: NOW_MS) as store:
        yield store


@pytest.fixture
async def other(tmp_path):
    async with await LocalStore.open(tmp_path / "other", now_ms=lambda: NOW_MS) as store:
        yield store


async def everything(store):
    found = {}
    for space in await store.keys.namespaces():
        page = await store.keys.range(namespace=space.name)
        assert not page.more
        found |= {(one.namespace, one.key): (one.value, one.expires_at_ms) for one in page.entries}
    return found


async def fill(store):
    for name in ("", "n", "é"):
        for n in range(30):
            expires_at_ms = None if n % 3 else NOW_MS + 1 + n
            await store.keys.put(f"k{n}", bytes(n), namespace=name, expires_at_ms=expires_at_ms)


async def test_what_is_exported_can_be_imported(store, other, tmp_path):
    await fill(store)
    path = tmp_path / "copy.kv"
    done = await export_to(store, path, now_ms=NOW_MS)
    assert done.entries == 90
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["copy.kv"]
    await other.keys.put("k1", b"older", namespace="n")
    await other.keys.put("mine", b"stays", namespace="n")
    assert await import_from(other, path, now_ms=NOW_MS) == Imported(90, 0, 0)
    found = await everything(other)
    assert found.pop(("n", "mine")) == (b"stays", None)
    assert found == await everything(store)
    before = other.log.confirmed
    assert await import_from(other, path, now_ms=NOW_MS) == Imported(0, 90, 0)
    assert other.log.confirmed == before
    assert await import_from(other, path, now_ms=NOW_MS + 10) == Imported(0, 78, 12)


async def test_some_namespaces(store, tmp_path):
    await fill(store)
    done = await export_to(store, tmp_path / "copy.kv", now_ms=NOW_MS, namespaces=["n", "nobody"])
    with (tmp_path / "copy.kv").open("rb") as file:
        first, *blocks, last = read_export(file)
    assert first == (done.revision, NOW_MS, 0)
    assert last == (done.revision, NOW_MS, 30)
    assert {one.namespace for block in blocks for one in block} == {"n"}
    assert blocks[0][0] == await store.keys.get("k0", namespace="n")


async def test_an_export_is_one_revision(store, tmp_path, monkeypatch):
    """While every key changes all the time."""
    monkeypatch.setattr(export, "PAGE_COUNT", 3)
    keys = [f"{n:02}" for n in range(30)]
    stop = False

    async def write():
        n = 0
        while not stop:
            n += 1
            await store.keys.put(random.Random(n).choice(keys), b"%d" % n)

    writing = asyncio.ensure_future(write())
    await asyncio.gather(*(store.keys.put(key, b"0") for key in keys))
    for _ in range(5):
        done = await export_to(store, tmp_path / "copy.kv", now_ms=NOW_MS)
        with (tmp_path / "copy.kv").open("rb") as file:
            entries = [one for block in list(read_export(file))[1:-1] for one in block]
        assert [one.key for one in entries] == keys
        newest = max(one.revision for one in entries)
        assert newest <= done.revision
        changes = []
        watching = store.keys.watch(from_revision=0)
        while not changes or changes[-1].revision < newest:
            changes += (await anext(watching)).changes
        await watching.aclose()
        state = {one.key: one.value for one in changes if one.revision <= done.revision}
        assert {one.key: one.value for one in entries} == state
    stop = True
    await writing


async def test_an_export_that_fails_leaves_nothing(store, tmp_path):
    path = tmp_path / "copy.kv"
    path.write_bytes(b"older")

    def fail():
        with exporting(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"older"
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["copy.kv"]
    with pytest.raises(OSError, match="directory"):
        await export_to(store, tmp_path / "nowhere" / "copy.kv", now_ms=NOW_MS)
    assert not store.keys.holds._holds


async def test_an_import_that_is_refused_goes_on_later(store, other, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "BATCH_COUNT_MAX", 4)
    await fill(store)
    await export_to(store, tmp_path / "copy.kv", now_ms=NOW_MS, namespaces=["n"])
    await other.keys.limit("n", keys_max=10)
    with pytest.raises(NamespaceFull):
        await import_from(other, tmp_path / "copy.kv", now_ms=NOW_MS)
    assert len(await everything(other)) == 8
    await other.keys.limit("n")
    assert await import_from(other, tmp_path / "copy.kv", now_ms=NOW_MS) == Imported(22, 8, 0)


def written(blocks=3):
    file = io.BytesIO()
    writer = ExportWriter(file, revision=77, now_ms=NOW_MS)
    for n in range(blocks):
        writer.add([Entry(f"{n}.{i}", bytes(i), 5, 4, 3, None, "n") for i in range(3)])
        writer._flush()
    writer.finish()
    return file.getvalue()


def damage(data):
    """Returns where reading finds damage; None when it is whole."""
    try:
        found = list(read_export(io.BytesIO(data)))
    except DamagedExport as damaged:
        return damaged.offset
    assert isinstance(found[-1], Exported)
    return None


def starts(data):
    """Returns the offsets at which the header and the blocks begin."""
    at, found = 32, [0]
    while at < len(data):
        found.append(at)
        at += 16 + int.from_bytes(data[at : at + 4], "little")
    return found


def test_every_flipped_bit_is_found_in_its_place():
    data = written()
    assert damage(data) is None
    places = starts(data)
    for at in range(len(data)):
        for bit in (0, 7):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            assert damage(bytes(flipped)) == max(place for place in places if place <= at)


def test_every_cut_is_found():
    data = written()
    places = starts(data)
    for size in range(len(data)):
        assert damage(data[:size]) == max(place for place in places if place == 0 or (place <= size and size >= 32))


def test_blocks_left_out_repeated_and_exchanged():
    data = written()
    _, a, b, c, end = starts(data)
    head, first, second, third, last = data[:a], data[a:b], data[b:c], data[c:end], data[end:]
    assert damage(head + first + third + last) == b
    assert damage(head + first + first + second + third + last) == b
    assert damage(head + second + first + third + last) == a
    assert damage(head + first + second + last) == c
    assert damage(data + b"x") == len(data)
    assert damage(b"") == damage(b"something else, that is long enough") == 0


def test_a_version_of_another_program():
    data = bytearray(written())
    data[4] = 2
    data[28:32] = export._CRC.pack(export.crc32c(bytes(data[:28])))
    assert damage(bytes(data)) == 4


def test_payloads_that_are_no_entries():
    for payload, count in ((b"\xc1", 1), (b"\x91\x91\xa1a", 1), (b"\x90", 1), (b"\x91\x97\xa1\xff", 1)):
        file = io.BytesIO()
        writer = ExportWriter(file, revision=1, now_ms=1)
        writer._write(count, payload)
        writer.finish()
        assert damage(file.getvalue()) == 32


async def test_nothing_of_a_damaged_file_is_imported(other, tmp_path):
    data = bytearray(written())
    data[-20] ^= 1
    (tmp_path / "copy.kv").write_bytes(data)
    with pytest.raises(DamagedExport):
        await import_from(other, tmp_path / "copy.kv", now_ms=NOW_MS)
    assert await other.keys.namespaces() == []


def test_batches_are_of_one_namespace_and_bounded(monkeypatch):
    monkeypatch.setattr(export, "BATCH_BYTES", 100)
    entries = [Entry(f"{n}", bytes(40), 1, 1, 1, None, "a" if n < 5 else "b") for n in range(8)]
    entries.append(Entry("large", bytes(500), 1, 1, 1, None, "b"))
    assert [len(batch) for batch in batches(entries)] == [2, 2, 1, 2, 1, 1]
    assert [one for batch in batches(entries) for one in batch] == entries
