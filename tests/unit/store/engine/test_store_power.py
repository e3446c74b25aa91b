"""A power failure: what was written and not synced is gone, what was acknowledged is not."""

import random
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

import pytest

from store.api.log import Appended
from store.disk.files import File, OsFiles
from store.engine.engine import Engine
from store.log.log import CommitLog
from tests.support.store.store_kit import frame

FRAMES = 60
WAIT_S = 60


class VolatileFile:
    """A file that remembers what of it is on disk."""

    def __init__(self, inner: File, path: Path, disk: "VolatileFiles") -> None:
        self._inner, self._path, self._disk = inner, path, disk

    def sync(self) -> None:
        data = self._inner.pread(self._inner.size(), 0)
        self._inner.sync()
        with self._disk.lock:
            self._disk.synced[self._path] = data

    def __getattr__(self, name):
        return getattr(self._inner, name)


class VolatileFiles(OsFiles):
    """The file system, and what a power failure would leave of it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.synced: dict[Path, bytes] = {}
        self.named: dict[Path, None] = {}  # files whose names are on disk

    def open(self, path: Path, *, create: bool = False) -> File:
        return VolatileFile(super().open(path, create=create), path, self)

    def sync_directory(self, path: Path) -> None:
        entries = sorted(path.iterdir())
        super().sync_directory(path)
        with self.lock:
            self.named |= dict.fromkeys(entries)

    def fail_power(self, directory: Path, target: Path) -> None:
        """Copies what a loss of power leaves of a directory to another directory."""
        target.mkdir()
        with self.lock:
            for path in self.named:
                if path.parent == directory:
                    (target / path.name).write_bytes(self.synced.get(path, b""))


@pytest.mark.parametrize("segment_size_bytes", [600, 1 << 20])
def test_what_was_acknowledged_survives_a_power_failure(tmp_path, segment_size_bytes):
    files, chance, reported = VolatileFiles(), random.Random(segment_size_bytes), SimpleQueue()
    engine = Engine(
        tmp_path / "data",
        now_ms=lambda: 1000,
        on_committed=reported.put,
        on_dispatched=lambda _: None,
        files=files,
        segment_size_bytes=segment_size_bytes,
        linger_s=0.0,
    )
    acknowledged: set[bytes] = set()
    try:
        for n in range(FRAMES):
            engine.append(frame((16, b"%d" % n)), b"%d" % n)
            while not reported.empty() or len(acknowledged) < n - chance.randrange(8):
                for body, outcome in reported.get(timeout=WAIT_S).outcomes:
                    assert isinstance(outcome, Appended)
                    acknowledged.add(body)
            files.fail_power(tmp_path / "data" / "log", tmp_path / f"after{n}")
            log = CommitLog(OsFiles(), tmp_path / f"after{n}")
            found = {bytes(one.record(row)) for one in log.recover(0) for row in range(len(one.rows))}
            log.close()
            assert acknowledged <= found
    finally:
        engine.close()
    assert len(acknowledged) > FRAMES // 2
