"""Recovery goes on where it was, reads no more than it has to, and shows how far it is; cold reads leave no trace."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from threading import current_thread

import pytest

from store.disk.cold import ColdReads
from store.disk.files import OsFile, OsFiles
from store.engine import recovery
from store.local.local import LocalStore
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio

COUNT, SIZE = 300, 1_000


class CountingFile(OsFile):
    __slots__ = ("files",)

    def pread(self, size, offset):
        if current_thread().name == "store-keep":  # seals what is closed, whenever its turn comes
            return super().pread(size, offset)
        self.files.read.append((offset, size))
        if self.files.allowed is not None:
            self.files.allowed -= size
            if self.files.allowed < 0:
                raise OSError(5, "the process ends here")
        return super().pread(size, offset)


class CountingFiles(OsFiles):
    """Remembers what was read of the log; after `allowed` bytes reading fails."""

    def __init__(self, allowed=None):
        self.read, self.allowed = [], allowed

    def open(self, path, *, create=False):
        if path.suffix != ".log":
            return super().open(path, create=create)
        file = CountingFile(os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o640))
        file.files = self
        return file


@pytest.fixture
async def log(tmp_path):
    """Returns a log of 300 KB whose views are gone."""
    async with await LocalStore.open(tmp_path, segment_size_bytes=50_000) as store:
        for n in range(COUNT):
            await append(store, frame((16 + n % 3, b"%03d" % n + bytes(SIZE), n % 7 + 1)))
    for path in (tmp_path / "views").iterdir():
        path.unlink()
    return tmp_path


def size_of(directory):
    return sum(path.stat().st_size for path in (directory / "log").iterdir())


async def test_progress_is_told(log, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(recovery, "RUN_BYTES", 30_000)
    monkeypatch.setattr(recovery, "PROGRESS_BYTES", 100_000)
    seen = []
    async with await LocalStore.open(log, on_recovering=lambda at, to: seen.append((at, to))) as store:
        assert seen[-1] == (store.replication.end, store.replication.end)
    assert len(seen) >= 9
    assert seen == sorted(seen)
    percents = [record.percent for record in caplog.records if record.message == "recovering"]
    assert len(percents) >= 2
    assert percents == sorted(percents)


async def test_one_that_is_interrupted_goes_on_where_it_was(log, monkeypatch):
    monkeypatch.setattr(recovery, "RUN_BYTES", 30_000)
    whole = size_of(log)
    reached = []
    with pytest.raises(OSError, match="the process ends here"):
        await LocalStore.open(
            log, files=CountingFiles(whole * 2 // 3), on_recovering=lambda at, _to: reached.append(at)
        )
    assert whole // 3 < reached[-1] < whole
    files = CountingFiles()
    seen = []
    async with await LocalStore.open(log, files=files, on_recovering=lambda at, _to: seen.append(at)) as store:
        assert seen[0] > reached[-1]
        assert sum(size for _, size in files.read) <= whole - reached[-1] + 55_000  # the last segment twice
        assert (await store.queues.bounds(16)).next + (await store.queues.bounds(17)).next + (
            await store.queues.bounds(18)
        ).next == COUNT


async def test_views_that_are_up_leave_nothing_to_read(log):
    async with await LocalStore.open(log):
        pass
    files = CountingFiles()
    async with await LocalStore.open(log, files=files, scrub_bytes_per_s=0):
        assert not files.read


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from store.engine import recovery
from store.disk.cold import ColdReads
from store.local.local import LocalStore
recovery.RUN_BYTES = 30_000
def reached(at, to):
    print(at, flush=True)
    if at > to // 2:
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(LocalStore.open(Path(sys.argv[1]), on_recovering=reached))
"""


async def test_one_that_is_killed_goes_on_where_it_was(log):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(log)], capture_output=True, timeout=60, check=False, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    reached = int(killed.stdout.split()[-1])
    files = CountingFiles()
    async with await LocalStore.open(log, files=files, scrub_bytes_per_s=0):
        read = sum(size for _, size in files.read)
        # The last segment twice, and a transaction that a kill took back.
        assert 0 < read <= size_of(log) - reached + 90_000
    async with await LocalStore.open(log) as store:
        assert (await store.queues.bounds(16)).next == COUNT // 3


# ---- cold reads


def resident(path: Path) -> int:
    """Returns how many bytes of a file are in the page cache."""
    done = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "-o", "RES", str(path)], capture_output=True, check=True
    )
    return int(done.stdout)


def measured(path: Path, data: bytes) -> tuple[int, int, int] | None:
    """Returns the bytes in the page cache after hot reads, cold ones and small cold ones; None where the system does
    not say.
    """
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    file = OsFile(fd)
    file.sync()
    assert b"".join(file.pread(1 << 18, at) for at in range(0, len(data), 1 << 18)) == data
    hot = resident(path)  # it was written just now, and others may want it
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path) or not ColdReads(fd)._cold(len(data)):
        return None
    assert b"".join(file.pread(1 << 18, at) for at in range(0, len(data), 1 << 18)) == data
    cold = resident(path)
    for at in range(0, len(data), 3_000):
        assert file.pread(3_000, at) == data[at : at + 3_000]
    small = resident(path)
    assert file.pread(100, len(data) - 10) == data[-10:]
    assert file.pread(100, len(data) + 10) == b""
    file.close()
    return hot, cold, small


@pytest.mark.skipif(not Path("/usr/bin/fincore").exists(), reason="util-linux's fincore is not here")
def test_cold_bytes_do_not_stay_in_the_page_cache_and_hot_ones_do(tmp_path):
    """The kernel decides what is cached, and others press on it: one quiet moment of several has to show it."""
    data = random.Random(1).randbytes(8 << 20)
    found = []
    for n in range(8):
        sizes = measured(tmp_path / f"segment-{n}", data)
        if sizes is None:
            pytest.skip("this file system keeps everything, or does not say what it has")
        hot, cold, small = sizes
        if hot == len(data) and cold <= 2 << 20 and small <= 4 << 20:
            return
        found.append(sizes)
    pytest.fail(f"{found}")


def test_only_what_had_to_be_fetched_is_let_go_again(tmp_path, monkeypatch):
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDONLY)
    cold, advised = ColdReads(fd), []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, size, advice: advised.append((start, size, advice)))
    monkeypatch.setattr(ColdReads, "_cold", lambda _, end: end > 1 << 19)
    for at in range(0, 1 << 19, 1 << 16):
        cold.before(1 << 16, at)
    assert advised == []
    for at in range(1 << 19, 1 << 20, 1 << 16):
        cold.before(1 << 16, at)
    let_go = [(start, size) for start, size, advice in advised if advice == os.POSIX_FADV_DONTNEED]
    assert let_go
    assert min(start for start, _ in let_go) == 1 << 19
    os.close(fd)


async def test_readers_of_old_data_make_way_for_writes(tmp_path, monkeypatch):
    async with await LocalStore.open(tmp_path) as store:
        for n in range(50):
            await append(store, frame((16, b"%03d" % n)))
    async with await LocalStore.open(tmp_path, cache_bytes_max=0, scrub_bytes_per_s=0) as store:
        rests, inside = [], []
        read = store.core.reader.log.read

        def watched(at, size=0):
            inside.append(store.core.reader.turn.locked())
            return read(at, size)

        monkeypatch.setattr(store.core.reader.log, "read", watched)
        monkeypatch.setattr("store.local.reader.sleep", rests.append)
        monkeypatch.setattr("store.local.reader.WORK_S", 0.0)
        alone = await store.queues.fetch(16, 0, max_bytes=1 << 20)
        assert (len(inside), any(inside), rests) == (50, False, [])
        monkeypatch.setattr(store.core.reader, "_busy", lambda: True)
        readers = await asyncio.gather(*(store.queues.fetch(16, 0, max_bytes=1 << 20) for _ in range(4)))
        assert all(one.frames == alone.frames for one in readers)
        assert all(inside[50:])
        assert len(rests) > 100
