"""Data files of tables: their names, their statistics, and finding rows in them again.

    day=2026-01-31/settled-0003-41000000-5f3a.parquet   rows for good, of bucket 3; corrected by replacing the file
    day=2026-01-31/open-0003-42000000-77c1.parquet      rows that the next pass may replace
    day=2026-01-31/settled-0003-43000000-9b02-f0.parquet   merged, and full: it is merged no more

Rows are sorted by device, so that the statistics of row groups and pages say where a device is.
"""

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark.tables.files import Location
from spark.tables.reports import NewFile, PassPlan
from spark.tables.schemas import DAY, SPECS
from spark.telemetry.groups import codes, column
from spark.telemetry.windows import INSTANT

OPEN, SETTLED = "open", "settled"
_STATS_TEXT_MAX = 64  # characters of a text in the statistics
_ROW_GROUP_ROWS = 128_000
_MERGED_BYTES = 256 << 20  # of rows in memory, from which a merged file is full, however small it is on disk


def write_rows(plan: PassPlan, table: str, kind: str, bucket: int, rows: pa.Table, *, nth: int = 0) -> list[NewFile]:
    """Writes rows of a table, a file for each day where it is partitioned; `nth` tells those of one pass apart."""
    if not rows.num_rows:
        return []
    spec = SPECS[table]
    name = f"{kind}-{bucket:04d}-{plan.pass_}-{plan.attempt}{f'-s{nth}' if nth else ''}.parquet"
    if not spec.by_day:
        return [_write(plan.place, table, name, None, rows)]
    days = pc.cast(pc.floor_temporal(rows[spec.time], unit="day"), pa.date32())
    found = []
    for day in sorted(pc.unique(days).to_pylist()):
        text = day.isoformat()
        part = rows.filter(pc.equal(days, pa.scalar(day, pa.date32())))
        found.append(_write(plan.place, table, f"{DAY.name}={text}/{name}", text, part))
    return found


def kind_of(path: str) -> str:
    """Returns `open` or `settled`."""
    return path.rpartition("/")[2].partition("-")[0]


def bucket_of(path: str) -> int:
    """Returns the bucket that wrote a file; -1 for a file of another writer."""
    parts = path.rpartition("/")[2].split("-")
    return int(parts[1]) if len(parts) > 1 and parts[0] in (OPEN, SETTLED) and parts[1].isdecimal() else -1


def pass_of(path: str) -> int:
    """Returns the pass whose rows a file was written for; -1 for one merged or rewritten, or of another writer."""
    parts = path.rpartition("/")[2].removesuffix(".parquet").split("-")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdecimal() and bucket_of(path) >= 0 else -1


def is_full(path: str) -> bool:
    """Returns whether a merged file has as many rows as one may have."""
    parts = path.rpartition("/")[2].removesuffix(".parquet").split("-")
    return len(parts) == 5 and parts[4].startswith("f")


def take_settled(
    plan: PassPlan, table: str, bucket: int, wanted: pa.Table
) -> tuple[pa.Table, list[NewFile], list[str]]:
    """Takes the settled rows of some (device, metric, starts) out of their files.

    Returns the rows, the files that hold the other rows of theirs, and the paths of those that give way. The table is
    read as of the version that the plan continues, so that a repeated pass takes the same rows again.
    """
    spec = SPECS[table]
    taken, added, removed = [], [], []
    for path in _candidates(plan, table, bucket, wanted):
        with plan.place.open(f"{table}/{path}") as file:
            rows = pq.read_table(file, schema=spec.columns, partitioning=None)
        hit = _matches(rows, wanted, spec.time)
        if not hit.any():
            continue
        removed.append(path)
        taken.append(rows.filter(pa.array(hit)))
        rest = rows.filter(pa.array(~hit))
        if rest.num_rows:
            day = path.partition("/")[0].partition("=")[2] if spec.by_day else None
            folder = f"{DAY.name}={day}/" if day else ""
            name = f"{folder}{SETTLED}-{bucket:04d}-{plan.pass_}-{plan.attempt}-{len(removed)}.parquet"
            added.append(_write(plan.place, table, name, day, rest))
    return pa.concat_tables(taken) if taken else spec.columns.empty_table(), added, removed


def merge_files(plan: PassPlan, table: str, bucket: int, paths: list[str], nth: int) -> tuple[NewFile, list[str]]:
    """Writes one file of the first of several settled ones of one day; returns it, and the paths that give way.

    Those that are left when it is full are for the next pass. Parquet stores equal texts and bodies once: a file's size
    says little of the memory that its rows take.
    """
    spec = SPECS[table]
    rows: list[pa.Table] = []
    size = 0
    for path in paths:
        with plan.place.open(f"{table}/{path}") as file:
            rows.append(pq.read_table(file, schema=spec.columns, partitioning=None))
        if (size := size + rows[-1].nbytes) >= _MERGED_BYTES:
            break
    names = [name for name in ("device", "metric", spec.time) if name in spec.columns.names]
    merged = pa.concat_tables(rows).sort_by([(name, "ascending") for name in names])
    day = paths[0].partition("/")[0].partition("=")[2] if spec.by_day else None
    folder = f"{DAY.name}={day}/" if day else ""
    how = "f" if size >= _MERGED_BYTES else "m"
    name = f"{folder}{SETTLED}-{bucket:04d}-{plan.pass_}-{plan.attempt}-{how}{nth}.parquet"
    return _write(plan.place, table, name, day, merged), paths[: len(rows)]


def _candidates(plan: PassPlan, table: str, bucket: int, wanted: pa.Table) -> list[str]:
    """Returns the bucket's settled files that may hold one of these rows, by their statistics.

    A file counts only where a wanted device has a wanted time within its extremes: the times of two late records are
    often days apart, and the files between them hold the same devices.
    """
    if (version := plan.versions.get(table)) is None:
        return []
    known = DeltaTable(plan.place.child(table), version=version, storage_options=dict(plan.place.options))
    files = pa.table(known.get_add_actions(flatten=True))
    time = SPECS[table].time
    times_us = column(wanted, time)
    order = np.argsort(times_us)
    times_us, device_of = times_us[order], codes(wanted["device"])[0][order]
    devices = sorted(pc.unique(wanted["device"]).to_pylist())
    found = []
    for row in files.to_pylist():
        path = row["path"]
        if kind_of(path) != SETTLED or bucket_of(path) != bucket:
            continue
        within = device_of
        low, high = row.get(f"min.{time}"), row.get(f"max.{time}")
        if low is not None and high is not None:
            start, end = np.searchsorted(times_us, [_us(low) - 999, _us(high) + 1_000])
            within = device_of[start:end]
        least, most = row.get("min.device"), row.get("max.device")
        if least is not None and most is not None:
            within = within[(within >= bisect_left(devices, least)) & (within < bisect_right(devices, most))]
        if len(within):
            found.append(path)
    return sorted(found)


def _matches(rows: pa.Table, wanted: pa.Table, time: str) -> npt.NDArray[np.bool_]:
    """Returns which rows are of a wanted (device, metric, time)."""
    keys = []
    for name in ("device", "metric"):
        both = pa.concat_arrays([*rows[name].chunks, *wanted[name].chunks])
        keys.append(codes(both))
    series = keys[0][0] * keys[1][1] + keys[1][0]
    times = np.concatenate([column(rows, time), column(wanted, time)])
    distinct, index = np.unique(times, return_inverse=True)
    both_keys = series * len(distinct) + index
    return np.isin(both_keys[: rows.num_rows], both_keys[rows.num_rows :])


def _write(place: Location, table: str, path: str, day: str | None, rows: pa.Table) -> NewFile:
    with place.writing(f"{table}/{path}") as file:
        pq.write_table(rows, file, compression="zstd", row_group_size=_ROW_GROUP_ROWS)
        size = file.tell()
    return NewFile(table=table, path=path, day=day, size=size, stats=statistics(rows))


def statistics(rows: pa.Table) -> str:
    """Returns row count, nulls and extremes, as the Delta protocol has them; of all columns but lists.

    Without them a reader that filters by pyarrow's datasets takes the extremes for null, and finds no row. Bytes have
    no extremes: no reader uses them, and two bodies would be larger in the log than in their file.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in rows.schema:
        if pa.types.is_nested(field.type):
            continue
        nulls[field.name] = rows[field.name].null_count
        if pa.types.is_binary(field.type):
            continue
        extremes = pc.min_max(rows[field.name])
        least, most = _shown(extremes["min"], up=False), _shown(extremes["max"], up=True)
        if least is not None and most is not None:
            low[field.name], high[field.name] = least, most
    found = {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _shown(value: pa.Scalar, *, up: bool) -> Any:
    """Returns an extreme as JSON has it, rounded so that it stays one."""
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(value.type):
        us = value.cast(INSTANT).cast(pa.int64()).as_py()
        when = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=-(-us // 1000) if up else us // 1000)
        return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z"
    plain = value.as_py()
    if isinstance(plain, str) and len(plain) > _STATS_TEXT_MAX:
        return plain[:_STATS_TEXT_MAX] + (chr(0x10FFFF) if up else "")
    return plain


def _us(when: dt.datetime) -> int:
    aware = when if when.tzinfo else when.replace(tzinfo=dt.UTC)
    return round(aware.timestamp() * 1e6)


def paths(files: Sequence[NewFile]) -> list[str]:
    """Returns the paths of some files."""
    return [file.path for file in files]
