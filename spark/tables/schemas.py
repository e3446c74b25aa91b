"""The tables: names, columns, partitions, and how a row of state becomes a row that is shown."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry import digest
from spark.telemetry.events import EVENTS
from spark.telemetry.groups import column, flatten, lists
from spark.telemetry.liveness import COUNTS, DEVICES
from spark.telemetry.sessions import SESSIONS
from spark.telemetry.windows import CENTROIDS, INSTANT, LATEST, PARTIALS, STATES, WINDOW_MS

DAY = pa.field("day", pa.date32())
FINDINGS = "anomalies"  # the table of the job's findings: anomalies, silence, return
SETTLED_CENTROIDS, SETTLED_COMPRESSION = 16, 30  # a settled window's digest: for rolling windows up, and corrections

_ROW = [name for name in PARTIALS.names if name not in ("m2", "means", "weights")]
WINDOWS = pa.schema(
    [PARTIALS.field(name) for name in _ROW]
    + [(name, pa.float64()) for name in ("mean", "stddev", "p50", "p95", "p99", "rate")]
    + [("settled", pa.bool_()), ("means", CENTROIDS), ("weights", CENTROIDS)]
)
_TRAFFIC = pa.schema(
    [("start", INSTANT)]
    + [(name, pa.string()) for name in ("protocol", "topic", "quality")]
    + [("records", pa.int64()), ("settled", pa.bool_())]
)
_QUARANTINE = pa.schema(
    [("time", INSTANT), ("stored_at", INSTANT)]
    + [(name, pa.string()) for name in ("device", "address", "protocol", "content_type", "quality", "reason")]
    + [("topic", pa.string()), ("queue", pa.int32()), ("offset", pa.int64()), ("position", pa.string())]
    + [("body", pa.binary())]
)
_SAMPLES = pa.schema([*STATES, ("topic", pa.string()), ("protocol", pa.string()), ("quality", pa.string())])
_LIVENESS = (
    *("device", "address", "protocol", "state", "first_seen", "last_seen", "silent_since", "interval_s", "jitter_s"),
    *("flaps", "records"),
)
_RATED = COUNTS
_DEVICES = pa.schema([DEVICES.field(name) for name in _LIVENESS])
_QUALITY = pa.schema(
    [DEVICES.field(name) for name in ("device", "address", "last_seen", "skew_s", "records", *_RATED)]
    + [(f"{name}_rate", pa.float64()) for name in _RATED]
)
_SESSIONS = pa.schema([*SESSIONS, ("duration_s", pa.float64()), ("settled", pa.bool_())])


class Spec(NamedTuple):
    """A table: the columns of its data files, and whether it is partitioned by `day`."""

    columns: pa.Schema
    by_day: bool
    time: str  # the column that says the day, and that readers choose by

    @property
    def schema(self) -> pa.Schema:
        """All columns, the partition's among them."""
        return pa.schema([*self.columns, DAY]) if self.by_day else self.columns

    @property
    def partition_by(self) -> list[str]:
        """The partition columns."""
        return [DAY.name] if self.by_day else []


WINDOW_TABLES: Mapping[str, int] = {"windows_1m": WINDOW_MS, "windows_15m": 15 * WINDOW_MS}  # and the width, in ms

SPECS: Mapping[str, Spec] = {
    **{name: Spec(WINDOWS, True, "start") for name in WINDOW_TABLES},
    FINDINGS: Spec(EVENTS, True, "time"),
    "devices": Spec(_DEVICES, False, "last_seen"),
    "latest": Spec(LATEST, False, "time"),
    "quality": Spec(_QUALITY, False, "last_seen"),
    "quarantine": Spec(_QUARANTINE, True, "stored_at"),
    "samples": Spec(_SAMPLES, True, "stored_at"),  # by the store's clock: devices' clocks name any day
    "sessions": Spec(_SESSIONS, True, "first_seen"),
    "traffic": Spec(_TRAFFIC, True, "start"),
}


def presented(windows: pa.Table, *, settled: bool) -> pa.Table:
    """Returns rows of `PARTIALS` as rows of `WINDOWS`; of settled ones the digest is made smaller."""
    count, total, m2 = (column(windows, name) for name in ("count", "sum", "m2"))
    lengths, means = flatten(windows, "means")
    digests = digest.Digests(lengths, means, flatten(windows, "weights")[1])
    p50, p95, p99 = digest.quantiles(digests, column(windows, "min"), column(windows, "max"), (0.5, 0.95, 0.99))
    if settled:
        digests = digest.compress(digests, exact_max=SETTLED_CENTROIDS, compression=SETTLED_COMPRESSION)
    seconds = (column(windows, "last_time") - column(windows, "first_time")) / 1e6
    change = column(windows, "last") - column(windows, "first")
    rate = np.divide(change, seconds, out=np.full(len(change), np.nan), where=seconds > 0)
    made = {
        "mean": pa.array(total / np.maximum(count, 1)),
        "stddev": pa.array(np.sqrt(m2 / np.maximum(count, 1))),
        "p50": pa.array(p50),
        "p95": pa.array(p95),
        "p99": pa.array(p99),
        "rate": pa.array(rate, mask=np.isnan(rate)),
        "settled": pa.array(np.full(len(count), settled)),
        "means": lists(digests.lengths, digests.means, CENTROIDS),
        "weights": lists(digests.lengths, digests.weights, CENTROIDS),
    }
    columns = [made[name] if name in made else windows[name] for name in WINDOWS.names]
    return pa.table(columns, schema=WINDOWS)


def rated(devices: pa.Table) -> pa.Table:
    """Returns rows of `DEVICES` as rows of the table `quality`: counts of records, and their rates.

    The skew of a clock is null where no record was in time.
    """
    records = np.maximum(column(devices, "records"), 1)
    made = {f"{name}_rate": pa.array(column(devices, name) / records) for name in _RATED}
    made["skew_s"] = pa.array(column(devices, "skew_s"), mask=np.asarray(pc.is_null(devices["last_time"])))
    return pa.table([made[name] if name in made else devices[name] for name in _QUALITY.names], schema=_QUALITY)


def timed(sessions: pa.Table, *, settled: bool) -> pa.Table:
    """Returns rows of `SESSIONS` as rows of the table `sessions`."""
    seconds = (column(sessions, "last_seen") - column(sessions, "first_seen")) / 1e6
    columns = [*sessions.columns, pa.array(seconds), pa.array(np.full(sessions.num_rows, settled))]
    return pa.table(columns, schema=_SESSIONS)


def partials_from(rows: pa.Table) -> pa.Table:
    """Returns rows of `WINDOWS` as rows of `PARTIALS`, to be corrected: each is its next revision."""
    made = {
        "m2": pa.array(column(rows, "stddev") ** 2 * column(rows, "count")),
        "revision": pa.array(column(rows, "revision") + 1, pa.int32()),
    }
    columns = [made[name] if name in made else rows[name] for name in PARTIALS.names]
    return pa.table(columns, schema=PARTIALS)
