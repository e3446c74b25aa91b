"""The balance: what was published is in the log, and what is in the log has been counted by Spark and read back."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from deploy.demo.findings_heard import Finding


class Row(NamedTuple):
    """One fleet. `counted` is None when Spark does not run."""

    fleet: str
    acked: int
    unknown: int
    refused: int
    logged: int  # distinct messages
    counted: int | None

    @property
    def balanced(self) -> bool:
        """Returns whether the log has all acknowledged messages and no others, and Spark counted just those."""
        return self.acked <= self.logged <= self.acked + self.unknown and self.counted in {None, self.logged}


def findings_faults(in_table: Mapping[Finding, int], heard: Mapping[Finding, int], *, due: bool) -> list[str]:
    """Returns what does not balance between the findings in the table and those heard over MQTT, a line each.

    `due`: faulty readings were published, so at least one anomaly must be among them.
    """
    lines = []
    if twice := sum(count > 1 for count in in_table.values()):
        lines.append(f"findings: {twice} are in the table twice")
    if missing := len(in_table.keys() - heard.keys()):
        lines.append(f"findings: {missing} of {len(in_table)} in the table were not heard over MQTT")
    if unknown := len(heard.keys() - in_table.keys()):
        lines.append(f"findings: {unknown} heard over MQTT are not in the table")
    if repeated := sum(count > 1 for count in heard.values()):
        lines.append(f"findings: {repeated} were heard twice")
    if due and not any(one.kind == "spike" for one in heard):
        lines.append("findings: no spike was found, and faulty readings were published")
    return lines


def rows(
    reports: Mapping[str, Mapping[str, int]], logged: Mapping[str, int], counted: Mapping[str, int] | None
) -> list[Row]:
    """Returns a row for each fleet, from its last report, the log and Spark's counts by fleet."""
    return [
        Row(
            fleet,
            report.get("acked", 0),
            report.get("unknown", 0),
            report.get("refused", 0),
            logged.get(fleet, 0),
            None if counted is None else counted.get(fleet, 0),
        )
        for fleet, report in reports.items()
    ]


def faults(
    found: Sequence[Row],
    readers: Mapping[str, Mapping[str, int]],
    repeats: int,
    missed: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> list[str]:
    """Returns what does not balance, a line each; none means that it does.

    `missed` counts, by reader and fleet, messages of QoS 0 that were sent to a connection which the reader had just
    left: MQTT promises a session none of these, so their subscriber need not get them.
    """
    lines: list[str] = []
    for row in found:
        if row.logged < row.acked:
            lines.append(f"{row.fleet}: {row.acked - row.logged} acknowledged messages are not in the log")
        elif row.logged > row.acked + row.unknown:
            lines.append(f"{row.fleet}: {row.logged - row.acked - row.unknown} messages are in the log unasked")
        if row.counted is not None and row.counted != row.logged:
            lines.append(f"{row.fleet}: Spark has counted {row.counted} of {row.logged} messages")
        if row.acked == 0:
            lines.append(f"{row.fleet}: nothing was acknowledged")
    if repeats:
        lines.append(f"{repeats} messages are in the log twice")
    lines += [
        f"{reader}: read {seen} of {owed} messages of {row.fleet}"
        for reader, read in readers.items()
        for row in found
        if (seen := read.get(row.fleet, 0)) != (owed := row.logged - missed.get(reader, {}).get(row.fleet, 0))
    ]
    return lines
