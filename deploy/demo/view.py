"""The demonstration's display: a live table on a terminal, a line every few seconds elsewhere, and the summary."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from deploy.demo.balance import Row
from gateway.ops.status import Status

AGGREGATES_SHOWN = 8


class Aggregate(NamedTuple):
    """One of Spark's newest windows."""

    device: str
    metric: str
    samples: int
    mean: float
    last: float


class Scene(NamedTuple):
    """The state of the show at one moment."""

    elapsed_s: float
    rows: Sequence[Row]
    rates: Mapping[str, float]  # acknowledged messages a second, by fleet
    readers: Mapping[str, int]  # distinct messages read
    status: Status | None
    spark: str  # how far Spark is, in words
    aggregates: Sequence[Aggregate]
    heard: tuple[int, str] = (0, "")  # findings that were heard over MQTT, and the newest of them


def live(scene: Scene) -> RenderableType:
    """Returns the live picture."""
    status = scene.status
    log = (
        ""
        if status is None
        else f"log at {status.log.confirmed:,} bytes, {sum(status.connections.values())} connections"
    )
    parts: list[RenderableType] = [
        Text(f"Headgate, {scene.elapsed_s:.0f} s: {log}", style="bold"),
        _fleets(scene.rows, scene.rates),
        Text(f"read back: {_readers(scene.readers)}"),
        Text(f"Spark: {scene.spark}"),
    ]
    if scene.heard[0]:
        parts.append(Text(f"findings heard over MQTT: {_heard(scene)}"))
    if scene.aggregates:
        parts.append(_aggregates(scene.aggregates[:AGGREGATES_SHOWN]))
    return Group(*parts)


def line(scene: Scene) -> str:
    """Returns the same in one line."""
    rate = sum(scene.rates.values())
    acked = sum(row.acked for row in scene.rows)
    logged = sum(row.logged for row in scene.rows)
    position = scene.status.log.confirmed if scene.status is not None else 0
    return (
        f"{scene.elapsed_s:.0f} s: {rate:,.0f} messages/s, {acked:,} acknowledged, {logged:,} in the log "
        f"(at byte {position:,}), read back: {_readers(scene.readers)}; Spark: {scene.spark}"
        + (f"; findings heard over MQTT: {_heard(scene)}" if scene.heard[0] else "")
    )


def summary(
    console: Console,
    rows: Sequence[Row],
    readers: Mapping[str, int],
    faults: Sequence[str],
    *,
    held: bool,
    missed: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Prints the balance at the end; without `held` it was stopped in the middle, and only figures are shown."""
    table = Table(title="The balance", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("fleet", "acknowledged", "unanswered", "refused", "in the log", "counted by Spark", ""):
        table.add_column(heading, justify="left" if heading in {"fleet", ""} else "right")
    for row in rows:
        counted = "-" if row.counted is None else f"{row.counted:,}"
        table.add_row(*_numbers(row), counted, _verdict(row) if held else "")
    console.print(table)
    console.print(f"read back: {_readers(readers)}", highlight=False)
    for reader, count in missed.items():
        if count:
            console.print(
                f"{reader}: {count:,} more of QoS 0 were sent to a connection it had just left", highlight=False
            )
    for fault in faults:
        console.print(f"does not balance: {fault}", style="red", highlight=False, markup=False)
    total = sum(row.logged for row in rows)
    if held and not faults:
        spark = "; Spark did not run" if any(row.counted is None for row in rows) else " = counted by Spark"
        console.print(f"balances: {total:,} messages published = in the log{spark}", style="green", highlight=False)


def _heard(scene: Scene) -> str:
    count, newest = scene.heard
    return f"{count:,}, the last one {newest}"


def _verdict(row: Row) -> str:
    return "balances" if row.balanced else "DOES NOT BALANCE"


def _fleets(rows: Sequence[Row], rates: Mapping[str, float]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("fleet", "messages/s", "acknowledged", "unanswered", "refused", "in the log", "counted by Spark"):
        table.add_column(heading, justify="left" if heading == "fleet" else "right")
    for row in rows:
        fleet, *numbers = _numbers(row)
        counted = "-" if row.counted is None else f"{row.counted:,}"
        table.add_row(fleet, f"{rates.get(row.fleet, 0.0):,.0f}", *numbers, counted)
    return table


def _numbers(row: Row) -> list[str]:
    return [row.fleet, *(f"{n:,}" for n in (row.acked, row.unknown, row.refused, row.logged))]


def _aggregates(aggregates: Sequence[Aggregate]) -> Table:
    table = Table(title="newest windows", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("device", "metric", "samples", "mean", "last"):
        table.add_column(heading, justify="left" if heading in {"device", "metric"} else "right")
    for one in aggregates:
        table.add_row(one.device, one.metric, f"{one.samples:,}", f"{one.mean:.2f}", f"{one.last:.2f}")
    return table


def _readers(readers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in readers.items()) or "nothing yet"
