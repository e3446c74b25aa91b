"""A disk that cannot read some sectors: what they hold is damage like any other, and the rest is read and served."""

import asyncio
import errno
import os
import shutil

import pytest

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.integrity.sectors import PAGE_BYTES, pieces, read_around
from store.local.local import LocalStore
from tests.support.process.waiting import until
from tests.support.store.replica_kit import log_bytes, open_replica
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

SEGMENT_BYTES = 20_000
COUNT = 300


class BadFile:
    def __init__(self, inner, path, disk):
        self._inner, self._path, self._disk = inner, path, disk

    def pread(self, size, offset):
        for name, at in self._disk.bad:
            if self._path.name == name and offset < at + PAGE_BYTES and at < offset + size:
                self._disk.refused += 1
                if self._disk.transient:
                    self._disk.bad.remove((name, at))
                raise OSError(self._disk.error, os.strerror(self._disk.error))
        return self._inner.pread(size, offset)

    def pwritev(self, parts, offset):
        """Makes each sector readable again that is written, as a disk does that puts another one in its place."""
        done = self._inner.pwritev(parts, offset)
        gone = [(n, at) for n, at in self._disk.bad if self._path.name == n and offset <= at + 1 < offset + done]
        self._disk.bad = [one for one in self._disk.bad if one not in gone]
        return done

    def __getattr__(self, name):
        return getattr(self._inner, name)


class BadDisk(OsFiles):
    """`bad` are pages, by the name of their file and where they begin."""

    def __init__(self, *, error=errno.EIO, transient=False):
        self.bad, self.error, self.transient, self.refused = [], error, transient, 0

    def open(self, path, *, create=False):
        return BadFile(super().open(path, create=create), path, self)


@pytest.fixture
async def written(tmp_path):
    """Returns a closed store's directory, and the names of its segments."""
    async with await LocalStore.open(tmp_path / "one", segment_size_bytes=SEGMENT_BYTES) as store:
        for n in range(COUNT):
            await append(store, frame((16, b"%05d" % n + b"x" * 80)))
    return tmp_path / "one", sorted(path.name for path in (tmp_path / "one" / "log").iterdir())


def opened(directory, disk, **options):
    return LocalStore.open(directory, files=disk, segment_size_bytes=SEGMENT_BYTES, **options)


async def readable(store, queue=16):
    """Returns the bodies of all records that can be read, those behind each damage too."""
    found, offset = [], 0
    while offset < COUNT:
        try:
            fetched = await store.queues.fetch(queue, offset, max_bytes=1 << 20)
        except CorruptFrame as error:
            offset = error.next
            continue
        for one, rows in zip(fetched.frames, fetched.rows, strict=True):
            found += [one.record(row) for row in rows]
        offset = fetched.next
    return found


@pytest.mark.slow
async def test_an_unreadable_sector_is_damage_and_the_rest_is_served(written):
    directory, names = written
    disk = BadDisk()
    async with await opened(directory, disk) as store:
        disk.bad.append((names[1], PAGE_BYTES))
        await until(lambda: not store.verifying)
        (damage,) = store.damages
        start = int(names[1].removesuffix(".log")) + PAGE_BYTES
        assert damage.start <= start
        assert start + PAGE_BYTES <= damage.end <= start + PAGE_BYTES + 300
        with pytest.raises(CorruptFrame, match="cannot be read"):
            await bodies(store, 16)
        found = await readable(store)
        assert COUNT - 30 < len(found) < COUNT
        assert found[-1][:5] == b"%05d" % (COUNT - 1)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, -1])
async def test_a_store_with_an_unreadable_sector_opens(written, which):
    directory, names = written
    disk = BadDisk()
    disk.bad.append((names[which], 0))
    async with await opened(directory, disk) as store:
        await until(lambda: not store.verifying)
        assert len(store.damages) == 1
        assert COUNT - 30 < len(await readable(store)) < COUNT
        await append(store, frame((17, b"new")))
    assert disk.bad, "what could not be read was written over"


@pytest.mark.slow
async def test_a_read_that_fails_once_costs_nothing(written):
    directory, names = written
    disk = BadDisk(transient=True)
    async with await opened(directory, disk) as store:
        await until(lambda: not store.verifying)
        store.core.engine.log._open_files._segments.clear()
        disk.bad += [(name, 0) for name in names]
        assert len(await readable(store)) == COUNT
        assert disk.refused == len(names)
        assert not store.is_damaged


@pytest.mark.slow
async def test_a_replicas_unreadable_sector_is_repaired_in_place(written, tmp_path):
    directory, names = written
    directory.rename(tmp_path / "replica")
    before = log_bytes(tmp_path / "replica")
    disk = BadDisk()
    replica = await open_replica(tmp_path / "replica", files=disk, segment_size_bytes=SEGMENT_BYTES)
    disk.bad.append((names[1], PAGE_BYTES))
    await until(lambda: not replica.verifying)
    (damage,) = replica.damages
    await replica.replication.mend(damage.start, before[damage.start : damage.end])
    assert not replica.is_damaged
    assert not disk.bad
    assert await asyncio.to_thread(log_bytes, tmp_path / "replica") == before
    await replica.close()


def test_what_cannot_be_read_is_zeros_or_left_out_page_by_page(tmp_path):
    data = bytes(range(1, 251)) * 100
    (tmp_path / "a.log").write_bytes(data)
    disk = BadDisk(error=errno.EUCLEAN)
    file = disk.open(tmp_path / "a.log")
    disk.bad += [("a.log", PAGE_BYTES), ("a.log", 4 * PAGE_BYTES)]
    holes = bytearray(data)
    for _, at in disk.bad:
        holes[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
    assert read_around(file, len(data), 0) == holes
    assert read_around(file, 2 * len(data), 7) == holes[7:]
    assert read_around(file, 10, PAGE_BYTES + 5) == bytes(10)
    found = list(pieces(file, len(data), 0))
    assert sum(len(some) for _, some in found) == len(data) - 2 * PAGE_BYTES
    assert all(data[at : at + len(some)] == some for at, some in found)
    disk.error = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        read_around(file, len(data), 0)


async def test_views_never_pass_over_what_the_disk_may_read_tomorrow(written):
    """Frames not yet followed have no offsets: the store does not open, and with another disk all is there."""
    directory, names = written
    shutil.rmtree(directory / "views")
    disk = BadDisk()
    disk.bad.append((names[1], PAGE_BYTES))
    with pytest.raises(OSError, match="Input/output error"):
        await opened(directory, disk)
    disk.bad.clear()
    async with await opened(directory, disk) as store:
        assert len(await bodies(store, 16)) == COUNT
