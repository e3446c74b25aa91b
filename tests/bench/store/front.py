"""Figures that have no peer beside them, the store's own and a cluster's.

`python -m tests.bench store [NAME ...]`, kept in `results/store/`; `... cluster [NAME ...]`, in `results/cluster/`.

A round runs every case of a study once, each in a process and a directory of its own; the medians of the rounds count.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import machine
from tests.bench.catalogue import SERVERS
from tests.bench.cluster.studies import CLUSTER_STUDIES
from tests.bench.options import made_directory
from tests.bench.result import spread
from tests.bench.store.kept import CLUSTER_RESULTS, STORE_RESULTS, Kept, lines, save_kept
from tests.bench.store.studies import STUDIES, Rows, Study

OF = {"store": (STUDIES, STORE_RESULTS), "cluster": (CLUSTER_STUDIES, CLUSTER_RESULTS)}

CASE_S = 1_800.0  # a case that takes longer has failed
WIDTH = 180  # of the tables, on a terminal that has less too


class CaseFailed(Exception):
    """A case ended without rows."""


def add_options(parser: argparse.ArgumentParser, of: str) -> None:
    """Adds the words behind `store` and `cluster`."""
    studies, results = OF[of]
    names = "\n".join(f"  {study.name:14} {study.title}" for study in studies.values())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{__doc__}\n{names}"
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; default all")
    parser.add_argument("--rounds", type=int, default=3, help="every case once in each; default 3")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="in every case: mb=100")
    parser.add_argument("--smoke", action="store_true", help="as small as can be: does it all still work?")
    parser.add_argument("--results", type=Path, default=results, help="where the figures are kept")
    parser.add_argument("--dir", type=made_directory, help="where the data lies while it runs; decides the disk")
    parser.set_defaults(work=measure_all, of=of)


def measure_all(arguments: argparse.Namespace) -> int:
    """Measures all that is asked for, and returns the exit status: 1 when a case failed, 2 for wrong usage."""
    of, studies = arguments.of, OF[arguments.of][0]
    unknown = set(arguments.names) - set(studies)
    if unknown:
        print(f"{of}: no figure {', '.join(sorted(unknown))}; known: {', '.join(studies)}", file=sys.stderr)
        return 2
    try:
        changed = {key: json.loads(value) for key, _, value in (one.partition("=") for one in arguments.set)}
    except ValueError as error:
        print(f"{of}: --set KEY=JSON: {error}", file=sys.stderr)
        return 2
    console, status = Console(), 0
    console.width = max(console.width, WIDTH)
    if machine.busy():
        console.print("others are using this machine: these figures are not worth keeping", style="yellow")
    for name in arguments.names or studies:
        study = studies[name]
        with console.status(study.title):
            kept = _measure(study, changed, arguments)
        console.print(_shown(kept))
        for case, why in kept.failed.items():
            console.print(f"{case} failed: {why}", style="red", highlight=False)
        console.print(f"kept in {save_kept(kept, arguments.results)}\n", style="dim", highlight=False)
        status |= bool(kept.failed)
    return status


def _measure(study: Study, changed: Mapping[str, Any], arguments: argparse.Namespace) -> Kept:
    found: dict[str, dict[str, list[float]]] = {}
    failed: dict[str, str] = {}
    described = None
    for _ in range(1 if arguments.smoke else min(arguments.rounds, study.rounds_max)):
        for standard in study.cases:
            case = {**standard, **changed, **(study.smoke if arguments.smoke else {})}
            with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.dir, ignore_cleanup_errors=True) as home:
                described = described or machine.describe(Path(home))
                try:
                    rows = _run(arguments.of, study, case, home)
                except CaseFailed as error:
                    failed[json.dumps(case)] = str(error)
                    continue
            for row, quantities in rows:
                for key, value in quantities.items():
                    found.setdefault(row, {}).setdefault(key, []).append(value)
    assert described is not None
    return Kept(
        figure=study.name,
        title=study.title,
        about=study.about,
        columns=study.columns,
        version=SERVERS["store"].version(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=described,
        rows={row: {key: spread(values) for key, values in quantities.items()} for row, quantities in found.items()},
        failed=failed,
    )


def _run(of: str, study: Study, case: Mapping[str, Any], home: str) -> Rows:
    """Runs one case in its process. Raises `CaseFailed`."""
    command = (sys.executable, "-m", "tests.bench.store.one", of, study.name, json.dumps(case), home)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CASE_S, check=False)
    except subprocess.TimeoutExpired:
        raise CaseFailed(f"not done in {CASE_S:.0f} s") from None
    if done.returncode:
        said: Sequence[str] = done.stderr.strip().splitlines()
        raise CaseFailed(said[-1] if said else f"exit status {done.returncode}")
    rows: Rows = json.loads(done.stdout.splitlines()[-1])
    return rows


def _shown(kept: Kept) -> Table:
    head, *body = lines(kept)
    shown = Table(title=kept.title, title_justify="left", box=None, header_style="bold")
    for i, heading in enumerate(head):
        shown.add_column(heading, justify="right" if i else "left")
    for cells in body:
        shown.add_row(*cells)
    return shown
