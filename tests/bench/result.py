"""A figure's result: the runs of every server, as they are shown and kept."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from tests.bench.load.base import Measured
from tests.bench.machine import Machine

OURS = "headgate"
RESULTS = Path(__file__).with_name("results")


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over all runs that went well."""

    median: float
    min: float
    max: float
    runs: Sequence[float]


class ServerResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server. `value` is missing when no run went well; `failed` counts what was lost in the runs that did."""

    version: str
    keeps: str  # the state of the disk after its acknowledgement
    value: Spread | None = None
    also: dict[str, Spread] = {}
    done: Sequence[int] = ()
    failed: Sequence[int] = ()
    errors: Sequence[str] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. `headgate_times`: how many times better Headgate's median is than another server's."""

    figure: str
    title: str
    unit: str
    better: str
    date: str
    load: dict[str, Any]
    machine: Machine
    servers: dict[str, ServerResult]
    headgate_times: dict[str, float]
    skipped: dict[str, str] = {}


def spread(values: Sequence[float]) -> Spread:
    """Returns the median, the least and the most of several runs."""
    return Spread(
        median=_rounded(statistics.median(values)),
        min=_rounded(min(values)),
        max=_rounded(max(values)),
        runs=[_rounded(value) for value in values],
    )


def _rounded(value: float) -> float:
    """Returns the value in whole units where there are many, else with three places."""
    return float(round(value)) if abs(value) >= 1_000 else round(value, 3)


def summarise(*, version: str, keeps: str, runs: Sequence[Measured], errors: Sequence[str]) -> ServerResult:
    """Returns the summary of a server's runs."""
    if not runs:
        return ServerResult(version=version, keeps=keeps, errors=errors)
    names = [name for name in runs[0].also if all(name in run.also for run in runs)]
    return ServerResult(
        version=version,
        keeps=keeps,
        value=spread([run.value for run in runs]),
        also={name: spread([run.also[name] for run in runs]) for name in names},
        done=[run.done for run in runs],
        failed=[run.failed for run in runs],
        errors=errors,
    )


def against(servers: dict[str, ServerResult], better: str) -> dict[str, float]:
    """Returns the quotient of Headgate's median and every other server's."""
    ours = servers.get(OURS)
    if ours is None or ours.value is None:
        return {}
    return {
        name: round(
            ours.value.median / one.value.median if better == "higher" else one.value.median / ours.value.median, 2
        )
        for name, one in servers.items()
        if name != OURS and one.value is not None and one.value.median and ours.value.median
    }


def save(result: Result, directory: Path) -> Path:
    """Writes the result to `{figure}.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result.figure}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return path


def load_all(directory: Path) -> list[Result]:
    """Returns every result kept in a directory, by name."""
    return [msgspec.json.decode(path.read_bytes(), type=Result) for path in sorted(directory.glob("*.json"))]


def number(value: float) -> str:
    """Returns a quantity with as many digits as a reader needs."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def remarks(one: ServerResult) -> str:
    """Returns the remarks below the table: other quantities, and everything that went wrong."""
    parts = [
        f"{name} {number(found.median)}"
        for name, found in one.also.items()
        if not name.startswith(("code_", "status_"))
    ]
    if any(one.failed):
        parts.append(f"not done: {sum(one.failed):,} of {sum(one.done) + sum(one.failed):,}")
    parts += [f"failed: {error}" for error in one.errors]
    return "; ".join(parts)


def table(result: Result) -> Table:
    """Returns the table for the terminal."""
    shown = Table(title=f"{result.title} ({result.unit})", title_justify="left", box=None, header_style="bold")
    shown.add_column("server")
    for heading in ("median", "min", "max", "Headgate is"):
        shown.add_column(heading, justify="right")
    shown.add_column("remarks")
    for name, one in result.servers.items():
        found = one.value
        figures = [number(v) for v in (found.median, found.min, found.max)] if found else ["-"] * 3
        times = result.headgate_times.get(name)
        shown.add_row(name, *figures, f"{times:.2f} x" if times else "", remarks(one))
    for name, why in result.skipped.items():
        shown.add_row(name, *["-"] * 3, "", f"skipped: {why}", style="dim")
    return shown
