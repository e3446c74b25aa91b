"""The telemetry job without Spark: records as executors get them, and passes over all buckets in this process."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark.job.bucket import RECORD_COLUMNS, work
from spark.tables.commits import Commits
from spark.tables.files import now_ms
from spark.tables.reports import BucketReport, PassPlan
from spark.telemetry.windows import INSTANT

MINUTE_MS = 60_000
KNOWN_COUNT = 8  # records of a device that a repeat may repeat in another pass (docs/spark.md)
SAMPLES = pa.list_(
    pa.struct(
        [
            *(("metric", pa.string()), ("value", pa.float64()), ("text", pa.string()), ("unit", pa.string())),
            *(("time", INSTANT), ("alias", pa.int64())),
        ]
    )
)
NAMES = pa.list_(pa.struct([("alias", pa.int64()), ("metric", pa.string())]))
RECORDS = pa.schema(
    {
        "topic": pa.string(),
        "queue": pa.int32(),
        "offset": pa.int64(),
        "position": pa.string(),
        "address": pa.string(),
        "device": pa.string(),
        "time": INSTANT,
        "stored_at": INSTANT,
        "protocol": pa.string(),
        "samples": SAMPLES,
        "aliases": NAMES,
        "quality": pa.string(),
        "reason": pa.string(),
        "rejected": pa.binary(),
        "content_type": pa.string(),
    }
)
assert tuple(RECORDS.names) == RECORD_COLUMNS


@dataclass
class Record:
    device: str
    time_ms: int
    offset: int
    values: dict[str, float] = field(default_factory=dict)
    stored_ms: int | None = None  # None: at its time
    queue: int = 16
    protocol: str = "mqtt"
    quality: str = "ok"
    rejected: bytes | None = None
    address: str = ""
    times_ms: dict[str, int] = field(default_factory=dict)  # of samples that have a time of their own, by metric

    @property
    def stored_at_ms(self) -> int:
        return self.time_ms if self.stored_ms is None else self.stored_ms


def sample(name: str, value: object, time_ms: int | None) -> dict:
    """Returns a row of the column `samples`; a tuple is (value, alias)."""
    value, alias = value if isinstance(value, tuple) else (value, None)
    number = value if isinstance(value, float) else None
    text = value if isinstance(value, str) else None
    time = None if time_ms is None else time_ms * 1000
    return {"metric": name, "value": number, "text": text, "unit": None, "time": time, "alias": alias}


def alias_of(value: object) -> int | None:
    """Returns the alias that a metric has with its value; of a value None, without a sample, in a BIRTH alone."""
    return value[1] if isinstance(value, tuple) else None


def table(records: Iterable[Record]) -> pa.Table:
    rows = [
        {
            "topic": "telemetry",
            "queue": r.queue,
            "offset": r.offset,
            "position": f"{r.offset:x}.0",
            "address": r.address or f"telemetry/{r.device}",
            "device": r.device,
            "time": r.time_ms * 1000,
            "stored_at": r.stored_at_ms * 1000,
            "protocol": r.protocol,
            "samples": [
                sample(name, value, r.times_ms.get(name))
                for name, value in r.values.items()
                if value != (None, alias_of(value))
            ],
            "aliases": [
                {"alias": alias, "metric": name}
                for name, value in r.values.items()
                if (alias := alias_of(value)) is not None and not name.startswith("alias/")
            ],
            "quality": r.quality,
            "reason": None if r.rejected is None else "no JSON",
            "rejected": r.rejected,
            "content_type": None,
        }
        for r in records
    ]
    return pa.table({n: pa.array([row[n] for row in rows], RECORDS.field(n).type) for n in RECORDS.names})


def worked(plan: PassPlan, buckets: int, records: Sequence[Record] | None) -> list[BucketReport]:
    """Returns every bucket's report, as Spark's tasks would give it."""
    found = []
    for bucket in range(buckets):
        mine = [r for r in records or () if sum(r.device.encode()) % buckets == bucket]
        report = work(plan, bucket, table(mine) if records is not None else None)
        found.append(BucketReport.decode(report.encode()))
    return found


def do_batch(commits: Commits, batch: int, records: Sequence[Record]) -> None:
    plan = commits.begin(batch)
    if plan is not None:
        commits.commit(plan, worked(plan, commits.manifest.buckets, records), batch=batch, began_ms=now_ms())


def do_tick(commits: Commits, clock_ms: int = 0) -> None:
    plan = commits.begin_tick(clock_ms)
    if plan is not None:
        commits.commit(plan, worked(plan, commits.manifest.buckets, None), batch=None, began_ms=now_ms())


def naive(records: Iterable[Record], width_ms: int = MINUTE_MS) -> dict:
    """Returns the windows, computed record by record: count, min, max, mean, first, last."""
    groups = defaultdict(list)
    for r in records:
        for metric, value in r.values.items():
            groups[r.device, metric, r.time_ms // width_ms * width_ms].append(((r.time_ms, r.offset, r.queue), value))
    found = {}
    for key, group in groups.items():
        values = [value for _, value in group]
        found[key] = (
            *(len(values), min(values), max(values), sum(values) / len(values)),
            *(min(group)[1], max(group)[1]),
        )
    return found


def duplicates(records: Iterable[Record]) -> dict[str, int]:
    """Returns how many records of each device repeat an earlier one, computed record by record, in the log's order.

    Each must repeat one of the last few, which is one however the log was cut into passes: of older ones it depends on
    the pass.
    """
    found: Counter[str] = Counter()
    recent: dict[str, deque] = defaultdict(lambda: deque(maxlen=KNOWN_COUNT))
    ever = set()
    for r in sorted(records, key=lambda one: (one.stored_at_ms, one.queue, one.offset)):
        said = (r.device, r.address, r.time_ms, frozenset(r.values.items()))
        repeats = said in recent[r.device]
        assert repeats or said not in ever, f"whether {said} counts as repeated depends on the pass"
        found[r.device] += repeats
        if not repeats:
            recent[r.device].append(said)
            ever.add(said)
    return dict(found)


def shown(windows: pa.Table) -> dict:
    rows = windows.to_pylist()
    found = {
        (r["device"], r["metric"], round(r["start"].timestamp() * 1000)): tuple(
            r[name] for name in ("count", "min", "max", "mean", "first", "last")
        )
        for r in rows
    }
    assert len(found) == len(rows), "a window is there twice"
    return found


def total(table: pa.Table, column: str) -> int:
    return pc.sum(table[column]).as_py() or 0
