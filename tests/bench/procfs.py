"""Reads memory and processor time of a whole session from Linux (/proc)."""

import os
from collections.abc import Iterator
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def _stats(session: int) -> Iterator[list[str]]:
    """Yields the fields of /proc/PID/stat from the third on (proc(5)), of every process of a session."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session:
            yield fields


def rss_kib(session: int) -> int:
    """Returns the resident memory of a session's processes, in KiB."""
    return sum(int(fields[21]) for fields in _stats(session)) * PAGE_KIB


def cpu_s(session: int) -> float:
    """Returns the processor time that a session's processes have used so far."""
    return sum(int(fields[11]) + int(fields[12]) for fields in _stats(session)) / TICKS_PER_S


def descendants_cpu_s(pid: int) -> float:
    """Returns the processor time of a process's descendants, with that of those that have ended."""
    spent: dict[int, tuple[int, int]] = {}  # by process: its parent, its ticks
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            spent[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, parents = 0, {pid}
    while parents:
        parents = {one for one, (parent, _) in spent.items() if parent in parents}
        found += sum(spent[one][1] for one in parents)
    return found / TICKS_PER_S


def switches(pid: int) -> int:
    """Returns how often the threads of a process have gone to sleep so far (proc(5), voluntary_ctxt_switches)."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (thread / "status").read_text("utf-8", "replace").splitlines()
        except OSError:  # it has ended meanwhile
            continue
        found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return found


def memory_mb(name: str, pid: int | str = "self") -> float:
    """Returns a process's memory as /proc/PID/status names it (proc(5)): VmHWM, VmRSS, RssAnon and the like."""
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024 / 1e6
    raise KeyError(name)


def forget_peak() -> None:
    """Makes VmHWM of this process the peak from now on (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")


def descendants_pss_kib(pid: int) -> int:
    """Returns the resident memory of a process's descendants, pages that several of them share counted once."""
    total, parents = 0, [pid]
    while parents:
        parent = parents.pop()
        try:
            begun = [one.read_text() for one in Path(f"/proc/{parent}/task").glob("*/children")]  # by each thread
            children = [int(one) for one in " ".join(begun).split()]
            parents += children
            for child in children:
                lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
                total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
        except OSError:  # it has ended meanwhile
            continue
    return total
