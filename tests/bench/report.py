"""Writes the kept figures into docs/performance.md, between its two markers."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.result import RESULTS, Result, load_all, number, remarks

__all__ = ["BEGIN", "END", "main", "section", "with_section"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN = "<!-- figures: begin (python -m tests.bench report) -->"
END = "<!-- figures: end -->"
NONE_YET = "No figures are kept yet: `make bench` measures them.\n"


def main() -> int:
    """Rewrite the page; the exit status."""
    text = PAGE.read_text("utf-8")
    try:
        changed = with_section(text, section(load_all(RESULTS)))
    except ValueError as error:
        print(f"{PAGE.name}: {error}", file=sys.stderr)
        return 1
    PAGE.write_text(changed, "utf-8")
    return 0


def with_section(page: str, figures: str) -> str:
    """The page with everything between the markers replaced. Raises ValueError when they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n\n{figures}\n{END}{after}"


def section(results: Sequence[Result]) -> str:
    """All figures as Markdown, those with the same machine below one line that describes it."""
    if not results:
        return NONE_YET
    parts, described = [], ""
    for result in results:
        machine = _machine(result)
        if machine != described:
            described = machine
            parts.append(machine)
        parts.append(_table(result))
    return "\n".join(parts)


def _machine(result: Result) -> str:
    m = result.machine
    disk = f"{m.filesystem}, 4 KiB appended and synced in {number(m.fdatasync_us)} us"
    return f"{m.cores} cores of {m.cpu}, {m.memory_gib:g} GiB, {m.system}, Python {m.python}; {disk}.\n"


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
