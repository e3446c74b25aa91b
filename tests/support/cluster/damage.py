"""Damage to what processes keep on disk, while they are stopped or running, and a look whether it was repaired."""

import contextlib
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.process.local_cluster import LocalCluster
from store.replication.epoch_file import EPOCH_FILES
from tests.support.cluster.masters import status
from tests.support.process.waiting import wait_until
from tests.support.store.lmdb_pages import key_places

FLIPS = 3  # bytes that are flipped at once
READS_MAX = 10  # of views that are written meanwhile
NEWEST_BYTES = 4_000  # at the end of a log: frames that may not be confirmed yet
METADATA = (
    *("epochs", "epochs.copy", "floor", "seals", "damages", "group", "controllers", "metadata", "views.watch"),
    *("replica", "replica.copy"),
)
REFUSED = "This controller takes no part"


class DiskDamage:
    """Damage by chance to a process's data directory."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    # ---- a replica

    def flip_log(self, directory: Path) -> None:
        """Flips bits anywhere in the log."""
        for path in self._chance.choices(segments(directory), k=FLIPS):
            self._flip(path)

    def flip_newest(self, directory: Path) -> None:
        """Flips a bit in the newest segment of the log, as often as not in its last frames."""
        path = segments(directory)[-1]
        size = path.stat().st_size
        self._flip(path, first=max(size - NEWEST_BYTES, 0) if self._chance.random() < 0.5 else 0)

    def flip_views(self, directory: Path) -> None:
        """Flips bits of the views."""
        for _ in range(FLIPS):
            self._flip(directory / "views" / "data.mdb")

    def cut_views(self, directory: Path) -> None:
        """Cuts the file of the views somewhere."""
        self.shorten_closed(directory / "views" / "data.mdb")

    def flip_views_key(self, directory: Path) -> None:
        """Flips a bit of a key of the views, which a process may have open, as often as not one of a branch page.

        The process may write meanwhile: then the pages that were read may not fit together, and are read again.
        """
        file = directory / "views" / "data.mdb"
        for _ in range(READS_MAX):
            with contextlib.suppress(struct.error, IndexError, UnicodeDecodeError, RecursionError):
                if places := key_places(file):
                    branches = [one for one in places if one.branch]
                    place = self._chance.choice(branches if branches and self._chance.random() < 0.5 else places)
                    self._flip(file, first=place.at, end=place.at + len(place.key))
                    return
        self.flip_views(directory)

    def flip_metadata(self, directory: Path) -> None:
        """Flips a bit of a small file, or of both files of the epochs."""
        for path in self._small_files(directory):
            self._flip(path)

    def cut_metadata(self, directory: Path) -> None:
        """Cuts a small file somewhere, or both files of the epochs."""
        for path in self._small_files(directory):
            self.shorten_closed(path)

    def _small_files(self, directory: Path) -> list[Path]:
        path = self._chance.choice([path for name in METADATA if (path := directory / name).exists()])
        if path.name != "epochs" or self._chance.random() < 0.5:
            return [path]
        return [path for name in EPOCH_FILES if (path := directory / name).exists()]

    def shorten(self, directory: Path) -> None:
        """Cuts a file of the log somewhere."""
        self.shorten_closed(self._chance.choice(segments(directory)))

    def remove(self, directory: Path) -> None:
        """Removes a file of the log."""
        self._chance.choice(segments(directory)).unlink()

    def flip_closed(self, path: Path) -> None:
        """Flips bits of a file."""
        for _ in range(FLIPS):
            self._flip(path)

    def shorten_closed(self, path: Path) -> None:
        """Cuts a file somewhere."""
        os.truncate(path, self._chance.randrange(path.stat().st_size))

    def remove_closed(self, path: Path) -> None:
        """Removes a file."""
        path.unlink()

    # ---- a controller

    def flip_raft(self, directory: Path) -> None:
        """Flips bits of a controller's log."""
        for _ in range(FLIPS):
            self._flip(directory / "raft" / "data.mdb")

    def cut_raft(self, directory: Path) -> None:
        """Cuts a controller's log somewhere."""
        self.shorten_closed(directory / "raft" / "data.mdb")

    def _flip(self, path: Path, *, first: int = 0, end: int | None = None) -> None:
        at = self._chance.randrange(first, path.stat().st_size if end is None else end)
        with path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << self._chance.randrange(8)]))


CLOSED: Mapping[str, Callable[[DiskDamage, Path], None]] = {  # damage to one file of a log, by what it is called
    "flipped": DiskDamage.flip_closed,
    "shortened": DiskDamage.shorten_closed,
    "removed": DiskDamage.remove_closed,
}


def empty_if_refused(cluster: LocalCluster, name: str) -> None:
    """Empties the directory of a controller that refuses to start with it, as an operator does."""
    if REFUSED in headgate(cluster, name, "controller", "recover", said="n\n").stderr:
        empty(cluster.plan.directory / "data" / name)


def segments(directory: Path) -> Sequence[Path]:
    """Returns the files of a replica's log that have anything in them, oldest first."""
    return sorted(path for path in (directory / "log").glob("*.log") if path.stat().st_size)


def empty(directory: Path) -> None:
    """Deletes all that a directory has; it may be a file system of its own."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def copy(directory: Path, to: Path) -> None:
    """Keeps a copy of a directory, in the place of an earlier one."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(directory, to)


def put_back(kept: Path, directory: Path, *, in_place: bool) -> None:
    """Makes a directory what its copy is. `in_place`: each file stays the file that it was, as below a file system."""
    if not in_place:
        empty(directory)
        shutil.copytree(kept, directory, dirs_exist_ok=True)
        return
    for path in _files(directory):
        if not (kept / path).exists():
            (directory / path).unlink()
    for path in _files(kept):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("r+b" if target.exists() else "wb") as file:
            file.truncate()
            file.write((kept / path).read_bytes())


def _files(directory: Path) -> Iterator[Path]:
    for path in list(directory.rglob("*")):
        if path.is_file():
            yield path.relative_to(directory)


def headgate(cluster: LocalCluster, name: str, *command: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command with the configuration of a process."""
    config = ("-c", str(cluster.plan.directory / f"{name}.toml"))
    line = (sys.executable, "-m", "gateway.cli", *command, *config)
    return subprocess.run(line, input=said, capture_output=True, text=True, check=False)


def read_log(cluster: LocalCluster, name: str) -> subprocess.Popen[bytes]:
    """Makes a replica read all of its log, and returns the command, which waits for that."""
    found = wait_until(lambda: (said := status(cluster, name)).get("replica") is not None and said, f"{name} is away")
    config = str(cluster.plan.directory / "proxy-1.toml")
    where = str(found["group"]), str(found["replica"])
    line = (sys.executable, "-m", "gateway.cli", "cluster", "replicas", "repair", *where, "-c", config)
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Repaired:
    """A look whether a replica has no damage any more, once it has read all of its log; `why_not` may be asked often.

    `expected` are closed files of its log, as they have to be again.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        name: str,
        status: Callable[[str], Mapping[str, Any]],
        expected: Mapping[Path, bytes] | None = None,
    ) -> None:
        self._cluster, self._name, self._status = cluster, name, status
        self._expected = expected or {}
        self._read = False

    def why_not(self) -> str:
        """Returns what is not repaired yet; empty when all is."""
        found = self._status(self._name)
        if not found or found.get("replica") is None:
            return f"{self._name} does not answer"
        if not self._read:
            where = str(found["group"]), str(found["replica"])
            done = headgate(self._cluster, "proxy-1", "cluster", "replicas", "repair", *where)
            self._read = done.returncode == 0
            found = self._status(self._name)
            if not self._read:
                return f"{self._name} does not read its log: {done.stderr[-300:]}"
        if found.get("damages") != []:
            return f"{self._name} is damaged: {found.get('damages')}"
        wrong = [path.name for path, data in self._expected.items() if _content(path) != data]
        return f"{self._name}: {wrong} are not as they were" if wrong else ""


def _content(path: Path) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None
