"""Collects the figures of the store and of a cluster: for each row, every quantity over all rounds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.bench.machine import Machine
from tests.bench.result import RESULTS, Spread, number

STORE_RESULTS = RESULTS / "store"
CLUSTER_RESULTS = RESULTS / "cluster"


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. `columns` are the quantities that are shown, with their headings; `failed` says why runs failed."""

    figure: str
    title: str
    about: str
    columns: Mapping[str, str]
    version: str
    date: str
    machine: Machine
    rows: Mapping[str, Mapping[str, Spread]]
    failed: Mapping[str, str] = {}
    note: str = ""  # written by hand: what has to be known of this run


def save_kept(kept: Kept, directory: Path) -> Path:
    """Writes the figure to `{figure}.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{kept.figure}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
    return path


def load_kept(directory: Path) -> list[Kept]:
    """Returns every such figure that is kept in a directory, by name."""
    return [msgspec.json.decode(path.read_bytes(), type=Kept) for path in sorted(directory.glob("*.json"))]


def lines(kept: Kept) -> Sequence[Sequence[str]]:
    """Returns the cells of its table, the headings first; with the spread of the first quantity, where there is one."""
    first = next(iter(kept.columns))
    shown = [["", *kept.columns.values(), f"{kept.columns[first]}: all rounds"]]
    for name, quantities in kept.rows.items():
        cells = [number(quantities[key].median) if key in quantities else "" for key in kept.columns]
        spread = quantities.get(first)
        several = spread is not None and len(spread.runs) > 1
        shown.append([name, *cells, f"{number(spread.min)} to {number(spread.max)}" if several else ""])
    return shown
