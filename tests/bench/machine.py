"""Describes the machine of the measurements: figures mean nothing without it."""

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

SYNCS = 200
SYNC_BYTES = 4096


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, and the disk that a server's data is on. `fdatasync_us` is the median of appending 4 KiB."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    filesystem: str
    fdatasync_us: float
    load_average: float  # over the last minute, before the first run


def describe(directory: Path) -> Machine:
    """Returns a description of this machine, with the disk under a directory."""
    return Machine(
        cpu=_line("/proc/cpuinfo", "model name"),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        filesystem=_filesystem(directory),
        fdatasync_us=round(_fdatasync_us(directory), 1),
        load_average=round(os.getloadavg()[0], 2),
    )


def busy() -> bool:
    """Returns whether others use this machine so much that figures are not worth keeping."""
    return os.getloadavg()[0] > len(os.sched_getaffinity(0)) / 2


def _line(path: str, name: str) -> str:
    for line in Path(path).read_text("utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    """Returns the type of the file system, because a sync costs nothing on tmpfs."""
    place, best, kind = str(directory.resolve()), "", "unknown"
    for line in Path("/proc/mounts").read_text("utf-8").splitlines():
        _, point, found, *_ = line.split()
        if len(point) >= len(best) and (place + "/").startswith(point.rstrip("/") + "/"):
            best, kind = point, found
    return kind


def _fdatasync_us(directory: Path) -> float:
    taken = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.write(file.fileno(), bytes(SYNC_BYTES))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6
