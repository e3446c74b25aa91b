"""Precision and recall of the job's findings, by labels.

A label is found when its device has a finding of one of its kinds within its time. A finding is right when a
label says so. Times may differ by the tolerance: silence is noticed after a while, and a burst is told with the start
of its minute. Only devices that the labels name are judged, and only within their `run`, where there is one.

Clocks ahead and duplicates are no findings; the table `quality` counts them by device. Such a label is found when its
device has a count, and a device with a count is right when it has such a label. Faults that leave no trace, as a clock
that is behind, are listed and not counted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from spark.generator.labels import RUN, Label, instant
from spark.tables.reader import Tables

TOLERANCE_S = 60.0
LISTED_MAX = 20  # of missed labels, and of wrong findings, in the text


class Finding(NamedTuple):
    """A row of `anomalies`; `time_ms` is None for a column of `quality`, which is of a device's whole time."""

    device: str
    kind: str
    time_ms: int | None
    metric: str = ""


class Recall(NamedTuple):
    """The labels of one kind, and how many of them were found."""

    labels: int
    found: int

    @property
    def share(self) -> float | None:
        """Returns the recall; None without a label."""
        return self.found / self.labels if self.labels else None


class Precision(NamedTuple):
    """The findings of one kind, and how many of them a label explains."""

    findings: int
    right: int

    @property
    def share(self) -> float | None:
        """Returns the precision; None without a finding."""
        return self.right / self.findings if self.findings else None


class Score(NamedTuple):
    """The outcome, by the kind of the label and of the finding."""

    recall: dict[str, Recall]
    precision: dict[str, Precision]
    wrong: list[Finding]
    missed: list[Label]
    untold: dict[str, int]  # labels that no finding and no column tells, by kind

    @property
    def total(self) -> tuple[Recall, Precision]:
        """Returns the sums over all kinds."""
        labels, findings = self.recall.values(), self.precision.values()
        recall = Recall(sum(one.labels for one in labels), sum(one.found for one in labels))
        return recall, Precision(sum(one.findings for one in findings), sum(one.right for one in findings))


def score(labels: Iterable[Label], findings: Iterable[Finding], tolerance_s: float = TOLERANCE_S) -> Score:
    """Returns precision and recall."""
    slack_ms = round(tolerance_s * 1_000)
    runs, faults = defaultdict[str, list[Label]](list), defaultdict[str, list[Label]](list)
    for label in labels:
        (runs if label.kind == RUN else faults)[label.device].append(label)
    recall, precision = defaultdict[str, list[bool]](list), defaultdict[str, list[bool]](list)
    told, wrong, missed = defaultdict[str, list[Finding]](list), list[Finding](), list[Label]()
    untold = Counter[str]()
    for finding in findings:
        if finding.device not in runs and finding.device not in faults:
            continue
        if not _within(runs[finding.device], finding.time_ms):
            continue
        told[finding.device].append(finding)
        right = any(_tells(finding, label, slack_ms) for label in faults[finding.device])
        precision[finding.kind].append(right)
        wrong += [] if right else [finding]
    for device, some in faults.items():
        for label in some:
            if not label.finds and not label.quality:
                untold[label.kind] += 1
                continue
            found = any(_tells(finding, label, slack_ms) for finding in told[device])
            recall[label.kind].append(found)
            missed += [] if found else [label]
    return Score(
        {kind: Recall(len(some), sum(some)) for kind, some in sorted(recall.items())},
        {kind: Precision(len(some), sum(some)) for kind, some in sorted(precision.items())},
        wrong,
        missed,
        dict(sorted(untold.items())),
    )


def findings_of(tables: Tables, labels: Sequence[Label]) -> list[Finding]:
    """Returns the findings in a job's tables, and the counts of `quality` in the columns that labels name."""
    found = [
        Finding(row["device"], row["kind"], round(row["time"].timestamp() * 1_000), row["metric"] or "")
        for row in tables.table("anomalies").select(["device", "kind", "time", "metric"]).to_pylist()
    ]
    if columns := sorted({label.quality for label in labels} - {""}):
        for row in tables.table("quality").to_pylist():
            found += [Finding(row["device"], name, None) for name in columns if (row.get(name) or 0) > 0]
    return found


def _within(runs: Sequence[Label], time_ms: int | None) -> bool:
    return time_ms is None or not runs or any(run.start_ms <= time_ms <= run.end_ms for run in runs)


def _tells(finding: Finding, label: Label, slack_ms: int) -> bool:
    if finding.time_ms is None:
        return finding.kind == label.quality
    if finding.kind not in label.finds or (label.metric and finding.metric and label.metric != finding.metric):
        return False
    return label.start_ms - slack_ms <= finding.time_ms <= label.end_ms + slack_ms


def text_of(outcome: Score) -> Iterator[str]:
    """Yields the lines of an outcome, for people."""
    recall, precision = outcome.total
    yield f"{'fault':<14}{'labels':>8}{'found':>8}{'recall':>10}"
    for name, one in [*outcome.recall.items(), ("all", recall)]:
        yield f"{name:<14}{one.labels:>8,}{one.found:>8,}{_share(one.share):>10}"
    for name, count in outcome.untold.items():
        yield f"{name:<14}{count:>8,}{'':>8}{'not told':>10}"
    yield ""
    yield f"{'finding':<14}{'told':>8}{'right':>8}{'precision':>10}"
    for name, some in [*outcome.precision.items(), ("all", precision)]:
        yield f"{name:<14}{some.findings:>8,}{some.right:>8,}{_share(some.share):>10}"
    for label in outcome.missed[:LISTED_MAX]:
        yield f"missed: {label.kind} of {label.device}, {instant(label.start_ms)} to {instant(label.end_ms)}"
    for finding in outcome.wrong[:LISTED_MAX]:
        when = "" if finding.time_ms is None else f", {instant(finding.time_ms)}"
        yield f"wrong: {finding.kind} of {finding.device}{when}"
    if more := max(0, len(outcome.missed) - LISTED_MAX) + max(0, len(outcome.wrong) - LISTED_MAX):
        yield f"and {more:,} more"


def as_document(outcome: Score) -> dict[str, Any]:
    """Returns an outcome as an object of JSON."""
    recall, precision = outcome.total
    return {
        "recall": {name: {**one._asdict(), "recall": one.share} for name, one in outcome.recall.items()},
        "precision": {name: {**one._asdict(), "precision": one.share} for name, one in outcome.precision.items()},
        "total": {"recall": recall.share, "precision": precision.share},
        "missed": outcome.missed,
        "wrong": [one._asdict() for one in outcome.wrong],
        "not_told": outcome.untold,
    }


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.4f}"
