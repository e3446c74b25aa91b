"""Writes the kept figures into docs/performance.md, between their markers: the servers', the store's, a cluster's."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.cluster.studies import CLUSTER_STUDIES
from tests.bench.machine import Machine
from tests.bench.result import RESULTS, Result, load_all, number, remarks
from tests.bench.store.kept import CLUSTER_RESULTS, STORE_RESULTS, Kept, lines, load_kept
from tests.bench.store.studies import STUDIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN = "<!-- figures: begin (python -m tests.bench report) -->"
END = "<!-- figures: end -->"
STORE_BEGIN = "<!-- store: begin (python -m tests.bench report) -->"
STORE_END = "<!-- store: end -->"
CLUSTER_BEGIN = "<!-- cluster: begin (python -m tests.bench report) -->"
CLUSTER_END = "<!-- cluster: end -->"
NONE_YET = "No figures are kept yet: `make bench` measures them.\n"


def main() -> int:
    """Writes the page anew, and returns the exit status."""
    text = PAGE.read_text("utf-8")
    try:
        changed = with_section(text, section(load_all(RESULTS)))
        changed = with_section(changed, store_section(load_kept(STORE_RESULTS)), STORE_BEGIN, STORE_END)
        cluster = store_section(load_kept(CLUSTER_RESULTS), "cluster", list(CLUSTER_STUDIES))
        changed = with_section(changed, cluster, CLUSTER_BEGIN, CLUSTER_END)
    except ValueError as error:
        print(f"{PAGE.name}: {error}", file=sys.stderr)
        return 1
    PAGE.write_text(changed, "utf-8")
    return 0


def with_section(page: str, figures: str, begin: str = BEGIN, end: str = END) -> str:
    """Returns the page with everything between the markers replaced. Raises ValueError when they are not there."""
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the markers {begin} and {end} are missing")
    return f"{before}{begin}\n\n{figures}\n{end}{after}"


def section(results: Sequence[Result]) -> str:
    """Returns all figures as Markdown, those with the same machine below one line that describes it."""
    if not results:
        return NONE_YET
    parts, described = [], ""
    for result in results:
        machine = _machine(result.machine)
        if machine != described:
            described = machine
            parts.append(machine)
        parts.append(_table(result))
    return "\n".join(parts)


def store_section(figures: Sequence[Kept], of: str = "store", order: Sequence[str] = tuple(STUDIES)) -> str:
    """Returns the store's figures, or a cluster's, as Markdown, in the order in which they are measured."""
    parts, described = [], ""
    for kept in sorted(figures, key=lambda kept: order.index(kept.figure) if kept.figure in order else len(order)):
        machine = _hardware(kept.machine)
        if machine != described:
            described = machine
            parts.append(f"{machine}.\n")
        disk = f"{kept.machine.filesystem}, a sync of 4 KiB {number(kept.machine.fdatasync_us)} us"
        parts += [f"### {kept.title}\n", f"`{of} {kept.figure}`, {kept.version}, {kept.date[:10]}, {disk}.\n"]
        head, *body = lines(kept)
        rows = [head, ["---", *["---:"] * (len(head) - 1)], *body]
        parts += [f"{kept.about}\n", "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"]
        parts += [f"Failed: {case}: {why}\n" for case, why in kept.failed.items()]
        if kept.note:
            parts.append(f"{kept.note}\n")
    return "\n".join(parts) or NONE_YET


def _hardware(m: Machine) -> str:
    return f"{m.cores} cores of {m.cpu}, {m.memory_gib:g} GiB, {m.system}, Python {m.python}"


def _machine(m: Machine) -> str:
    disk = f"{m.filesystem}, 4 KiB appended and synced in {number(m.fdatasync_us)} us"
    return f"{_hardware(m)}; {disk}.\n"


def _table(result: Result) -> str:
    lines = [
        f"### {result.title}\n",
        f"`{result.figure}`, {result.unit}, {result.better} is better, {result.date[:10]}.\n",
    ]
    lines.append("| server | median | min | max | Headgate is | an acknowledgement means | remarks |")
    lines.append("|---|---:|---:|---:|---:|---|---|")
    for name, one in result.servers.items():
        spread = one.value
        figures = [number(v) for v in (spread.median, spread.min, spread.max)] if spread else ["-"] * 3
        times = result.headgate_times.get(name)
        cells = [f"{name} {one.version}", *figures, f"{times:.2f} x" if times else "", one.keeps, remarks(one)]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    lines += [f"| {name} | - | - | - |  |  | skipped: {why} |" for name, why in result.skipped.items()]
    return "\n".join(lines) + "\n"
