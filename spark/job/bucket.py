"""The work on one bucket in one pass: its records into its state, and its files of every table.

It runs where the bucket's records are, in an executor. Files and counters are all it tells the driver. The same
records on the same state give the same rows, so a repeated pass repeats its rows; only the files' names differ.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.job.limits import KeptState, drop_stale, make_room
from spark.job.slices import log_order, slices, with_short_texts
from spark.tables.data_files import OPEN, SETTLED, merge_files, take_settled, write_rows
from spark.tables.manifest import TrafficRow
from spark.tables.reports import BucketReport, NewFile, PassPlan, QueueCount
from spark.tables.schemas import SPECS, WINDOW_TABLES, partials_from, presented, rated, timed
from spark.tables.state import BucketState, load_state, save_state
from spark.telemetry import aliases, anomalies, lateness, liveness, marks, repeats, sessions
from spark.telemetry.events import EVENTS, finding_at
from spark.telemetry.forgetting import refused_devices, refused_samples
from spark.telemetry.groups import codes, column, group, rows_at
from spark.telemetry.lateness import (
    AHEAD,
    FINDING,
    IN_LATEST,
    IN_WINDOWS,
    LATE,
    OK,
    TOO_MANY_DEVICES,
    TOO_MANY_METRICS,
    TOO_OLD,
    LatenessLimits,
)
from spark.telemetry.reported import unreported
from spark.telemetry.windows import (
    LATEST,
    SAMPLES,
    STATES,
    WINDOW_MS,
    absorb,
    coarser,
    latest_of,
    partials_of,
    settled_before,
)

RECORD_COLUMNS = (
    *("topic", "queue", "offset", "position", "address", "device", "time", "stored_at", "protocol"),
    *("samples", "aliases", "quality", "reason", "rejected", "content_type"),
)
_OF_RECORDS = ["topic", "queue", "offset", "address", "device", "time", "stored_at", "protocol", "quality"]


class _Tables(NamedTuple):
    """The changes of a pass, gathered while it goes."""

    files: list[NewFile]
    replaced: list[str]
    removed: dict[str, list[str]]


def work(plan: PassPlan, bucket: int, records: pa.Table | None) -> BucketReport:
    """Does a bucket's part of a pass. `records` has `RECORD_COLUMNS`; None: no record came, times alone went on."""
    state = load_state(plan, bucket)
    found = _Tables([], [], {})
    queues: list[QueueCount] = []
    traffic: list[TrafficRow] = []
    after, events, room, mine, minutes = state, EVENTS.empty_table(), KeptState(state), None, None
    if records is not None and records.num_rows:
        records = with_short_texts(records)
        order = log_order(records)
        told = records.select(_OF_RECORDS).take(pa.array(order))
        quality = _judged(plan, told)
        room = make_room(plan, state, told["device"].filter(pa.array(quality != FINDING)))
        after = room.state
        _refuse(plan, after, told["device"], quality)
        counted = ~np.isin(quality, (FINDING, TOO_MANY_DEVICES))
        if counted.any():
            mine = told if counted.all() else told.filter(pa.array(counted))
            absorbed = _absorbed(plan, bucket, after, _Some(records, order[counted], mine, quality[counted]), found)
            after, minutes, events = absorbed.state, absorbed.minutes, absorbed.events
            quality[counted] = absorbed.quality
        queues, traffic = _queues(told), _traffic(told, quality)
    devices, silent = liveness.silence(after.devices, plan.read_to_ms)
    found.files.extend(write_rows(plan, "anomalies", SETTLED, bucket, pa.concat_tables([events, silent])))
    windows, all_marks, corrected = _windows(plan, bucket, state, minutes, found)
    still_open = _sessions(plan, bucket, state.sessions, mine, found)
    merge(plan, bucket, found.files, found.removed)
    after = after._replace(windows=windows, marks=all_marks, devices=devices, sessions=still_open)
    kept = drop_stale(plan, after)
    after = kept.state
    _replace(plan, bucket, state, after, found)
    changed = any(new is not old for new, old in zip(after[2:], state[2:], strict=True)) or any(
        windows[name] is not state.windows[name] for name in windows
    )
    return BucketReport(
        bucket=bucket,
        state=save_state(plan, bucket, after) if changed else None,
        files=found.files,
        replaced=found.replaced,
        removed=found.removed,
        queues=queues,
        traffic=traffic,
        corrected=corrected,
        forgotten=(room.devices + kept.devices, room.series + kept.series),
        restless=any(table.num_rows for table in windows.values()) or liveness.any_may_fall_silent(devices),
    )


class _Some(NamedTuple):
    """Records that count, in the log's order."""

    records: pa.Table  # all of the bucket, as they came
    order: npt.NDArray[np.int64]  # those that count, among them
    told: pa.Table  # their columns `_OF_RECORDS`
    quality: npt.NDArray[np.object_]


class _Absorbed(NamedTuple):
    """The outcome of some records: all but the windows."""

    state: BucketState
    minutes: pa.Table | None  # windows of the samples
    events: pa.Table  # of devices and series
    quality: npt.NDArray[np.object_]  # of each record


class _Slice(NamedTuple):
    """The outcome of a slice of the records."""

    state: BucketState
    samples: pa.Table  # for windows
    strange: pa.Table  # events of series
    quality: npt.NDArray[np.object_]
    rows: pa.Table | None  # of the table `samples`, where it is kept


def _refuse(plan: PassPlan, state: BucketState, names: pa.ChunkedArray, quality: npt.NDArray[np.object_]) -> None:
    """Marks the records of devices beyond the limit."""
    mine = np.flatnonzero(quality != FINDING)
    refused = refused_devices(state.devices, names.take(pa.array(mine)), plan.capacity)
    quality[mine[refused]] = TOO_MANY_DEVICES


def _absorbed(plan: PassPlan, bucket: int, state: BucketState, some: _Some, found: _Tables) -> _Absorbed:
    """Takes in records: their samples slice by slice, what is of devices at once."""
    quality, minutes = some.quality.copy(), None
    prints, timed = np.empty(len(quality), np.int64), np.empty(len(quality), np.bool_)
    bad, strange = [], []
    for nth, at in enumerate(slices(some.records, some.order)):
        part = rows_at(some.records, some.order[at]).combine_chunks()
        one = _slice(plan, state, part, quality[at])
        state, quality[at] = one.state, one.quality
        prints[at], timed[at] = repeats.fingerprints(part)
        if one.samples.num_rows:
            more = partials_of(one.samples)
            minutes = more if minutes is None else absorb(minutes, more)
        bad.append(_rejected(part))
        strange.append(one.strange)
        if one.rows is not None:
            found.files.extend(write_rows(plan, "samples", SETTLED, bucket, one.rows, nth=nth))
    found.files.extend(write_rows(plan, "quarantine", SETTLED, bucket, pa.concat_tables(bad)))
    own = _verdicts(plan, some.told, np.full(len(quality), OK, object))
    flags = liveness.Flags(
        late=np.isin(quality, (LATE, TOO_OLD)),
        ahead=quality == AHEAD,
        rejected=np.asarray(pc.is_valid(some.records["rejected"]))[some.order],
        strayed=own != OK,
        gathered=np.isin(own, (LATE, TOO_OLD)),
    )
    devices, back = liveness.observe(
        state.devices, some.told, flags, (prints, timed), read_to_ms=plan.read_to_ms, watermark_ms=plan.watermark_ms
    )
    events = strange[0] if len(strange) == 1 else anomalies.in_order(pa.concat_tables(strange))
    events, known = unreported(state.reported, events, plan.settled_ms)
    after = state._replace(devices=devices, reported=known)
    return _Absorbed(after, minutes, pa.concat_tables([back, events]), quality)


def _slice(plan: PassPlan, state: BucketState, records: pa.Table, quality: npt.NDArray[np.object_]) -> _Slice:
    """Takes in the samples of some records."""
    everything, names = _samples(records, state.aliases)
    verdicts = _verdicts(plan, everything, np.full(everything.num_rows, OK, object))
    told, owners = _flat(records, "samples")
    timed = np.flatnonzero(np.asarray(pc.is_valid(told["time"])))
    quality = lateness.worst(quality, verdicts[timed], np.asarray(owners)[timed])
    fits = np.flatnonzero(np.isin(verdicts, IN_LATEST))
    refused = fits[refused_samples(state.latest, everything.take(pa.array(fits)), plan.capacity)]
    if len(refused):
        verdicts[refused] = TOO_MANY_DEVICES  # in no table
        crowded = np.asarray(owners)[refused]
        quality[crowded] = np.where(quality[crowded] == OK, TOO_MANY_METRICS, quality[crowded])
    numbers = np.asarray(pc.is_valid(everything["value"]))
    samples = everything.filter(pa.array(np.isin(verdicts, IN_WINDOWS) & numbers)).select(SAMPLES.names)
    latest = _newest(state.latest, everything.filter(pa.array(np.isin(verdicts, IN_LATEST))))
    rows = None
    if plan.samples:
        rows = _sample_rows(records, everything, np.where(verdicts == TOO_MANY_DEVICES, TOO_MANY_METRICS, verdicts))
    in_time = everything.filter(pa.array((verdicts == OK) & numbers)).select(SAMPLES.names)
    series, strange = anomalies.detect(state.series, in_time)
    return _Slice(state._replace(latest=latest, aliases=names, series=series), samples, strange, quality, rows)


def _replace(plan: PassPlan, bucket: int, before: BucketState, after: BucketState, found: _Tables) -> None:
    """Writes the tables that show the state as it is, where it changed."""
    if after.latest is not before.latest:
        found.replaced.append("latest")
        found.files.extend(write_rows(plan, "latest", OPEN, bucket, after.latest))
    if after.devices is not before.devices:
        found.replaced.extend(("devices", "quality"))
        shown = after.devices.select(SPECS["devices"].columns.names)
        found.files.extend(write_rows(plan, "devices", OPEN, bucket, shown))
        found.files.extend(write_rows(plan, "quality", OPEN, bucket, rated(after.devices)))


def _sessions(plan: PassPlan, bucket: int, before: pa.Table, records: pa.Table | None, found: _Tables) -> pa.Table:
    """Returns the sessions still open after some records, and after the time up to which every queue has been read."""
    held = before if records is None else sessions.absorb(before, records, plan.session_ms)
    closed, still_open = sessions.closed_before(held, plan.read_to_ms, plan.session_ms)
    if held is before and not closed.num_rows:
        return before
    found.replaced.append("sessions")
    found.files.extend(write_rows(plan, "sessions", SETTLED, bucket, timed(closed, settled=True)))
    found.files.extend(write_rows(plan, "sessions", OPEN, bucket, timed(still_open, settled=False)))
    return still_open


def merge(plan: PassPlan, bucket: int, files: list[NewFile], removed: dict[str, list[str]]) -> None:
    """Merges the bucket's small files that the plan names, except where this pass corrects the table."""
    for table, runs in plan.merges.get(bucket, {}).items():
        if removed.get(table):
            continue
        for nth, paths in enumerate(runs):
            file, merged = merge_files(plan, table, bucket, paths, nth)
            files.append(file)
            removed.setdefault(table, []).extend(merged)


def _windows(
    plan: PassPlan, bucket: int, state: BucketState, minutes: pa.Table | None, found: _Tables
) -> tuple[dict[str, pa.Table], dict[str, pa.Table], int]:
    """Returns the windows still open and the marks, by table, and how many windows were opened again.

    `minutes` are windows of the pass's samples, None: there are none.
    """
    windows, all_marks, corrected = dict(state.windows), dict(state.marks), 0
    for table, width in WINDOW_TABLES.items():
        merged, reopened = windows[table], 0
        if minutes is not None:
            more = minutes if width == WINDOW_MS else coarser(minutes, width)
            merged, reopened = _merge(plan, bucket, table, more, state=state, found=found)
        settled, still_open = settled_before(merged, plan.settled_ms, width)
        corrected += reopened
        if minutes is None and not settled.num_rows:
            continue
        windows[table] = still_open
        all_marks[table] = marks.advance(all_marks[table], settled)
        found.replaced.append(table)
        if settled.num_rows:
            found.files.extend(write_rows(plan, table, SETTLED, bucket, presented(settled, settled=True)))
        if still_open.num_rows:
            found.files.extend(write_rows(plan, table, OPEN, bucket, presented(still_open, settled=False)))
    return windows, all_marks, corrected


def _merge(
    plan: PassPlan, bucket: int, table: str, more: pa.Table, *, state: BucketState, found: _Tables
) -> tuple[pa.Table, int]:
    """Returns the open windows with some more, those that were settled already being opened again."""
    still_open = state.windows[table]
    behind = marks.behind(more, still_open, state.marks[table])
    if not behind.any():
        return absorb(still_open, more), 0
    rows, files, removed = take_settled(plan, table, bucket, more.filter(pa.array(behind)))
    if not rows.num_rows:
        return absorb(still_open, more), 0
    found.files.extend(files)
    found.removed.setdefault(table, []).extend(removed)
    return absorb(pa.concat_tables([still_open, partials_from(rows)]), more), rows.num_rows


def _judged(plan: PassPlan, records: pa.Table) -> npt.NDArray[np.object_]:
    found = _verdicts(plan, records, np.asarray(records["quality"].to_numpy(), dtype=object))
    found[np.asarray(finding_at(records["address"]))] = FINDING
    return found


def _verdicts(plan: PassPlan, rows: pa.Table, quality: npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
    """Returns the verdict on each row's times; a sample that has a time of its own is judged by that."""
    time_ms, stored_ms = (column(rows, name) // 1000 for name in ("time", "stored_at"))
    limits = LatenessLimits(plan.watermark_ms, plan.late_ms)
    found = lateness.judge(quality, time_ms, stored_ms, limits, settled_ms=plan.settled_ms)
    expired = time_ms - time_ms % WINDOW_MS + WINDOW_MS <= plan.expired_ms
    found[expired & np.isin(found, IN_WINDOWS)] = TOO_OLD
    return found


def _samples(records: pa.Table, known: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the samples as rows of `STATES`, and the aliases of Sparkplug's metrics with those of the records."""
    told, owners = _flat(records, "samples")
    plain = [name for name in STATES.names if name in RECORD_COLUMNS]  # lists would be copied for each of their samples
    kept = records.select(plain).take(owners)
    metric, alias = told["metric"], told["alias"]
    births, givers = _flat(records, "aliases")
    if len(givers) or alias.null_count < len(alias):
        named = _named(records.select([name for name in plain if name in aliases.NAMED.names]).take(givers), births)
        metric, known = aliases.resolve(known, named, _named(kept, told))
    made = {
        "metric": metric,
        **{name: told[name] for name in ("value", "text", "unit")},
        "time": pc.coalesce(told["time"], kept["time"].combine_chunks()),
    }
    columns = [made[name] if name in made else kept[name] for name in STATES.names]
    return pa.table(columns, schema=STATES), known


def _flat(records: pa.Table, name: str) -> tuple[dict[str, pa.Array], pa.Array]:
    """Returns the fields of a column of lists of structs back to back, and the record of each."""
    lists = records[name].combine_chunks()
    flat = pc.list_flatten(lists)
    return {field.name: pc.struct_field(flat, field.name) for field in flat.type}, pc.list_parent_indices(lists)


def _named(kept: pa.Table, told: dict[str, pa.Array]) -> pa.Table:
    """Returns metrics and aliases with the places of their records, as `NAMED`."""
    columns = [told[name] if name in ("alias", "metric") else kept[name] for name in aliases.NAMED.names]
    return pa.table(columns, schema=aliases.NAMED)


def _sample_rows(records: pa.Table, samples: pa.Table, quality: npt.NDArray[np.object_]) -> pa.Table:
    """Returns each number and state as a row of `samples`."""
    owners = pc.list_parent_indices(records["samples"].combine_chunks())
    kept = records.select(["topic", "protocol"]).take(owners)
    made = {"topic": kept["topic"], "protocol": kept["protocol"], "quality": pa.array(quality, pa.string())}
    schema = SPECS["samples"].columns
    rows = pa.table([made[name] if name in made else samples[name] for name in schema.names], schema=schema)
    return rows.sort_by([(name, "ascending") for name in ("device", "metric", "time")])


def _rejected(records: pa.Table) -> pa.Table:
    """Returns the records that cannot be decoded, as rows of `quarantine`."""
    bad = records.filter(pc.is_valid(records["rejected"]))
    names = {"body": "rejected"}
    schema = SPECS["quarantine"].columns
    return pa.table([bad[names.get(name, name)] for name in schema.names], schema=schema)


def _newest(latest: pa.Table, samples: pa.Table) -> pa.Table:
    return latest_of(latest, samples.select(LATEST.names)) if samples.num_rows else latest


def _queues(records: pa.Table) -> list[QueueCount]:
    counted = records.group_by("queue").aggregate([("offset", "max"), ("offset", "count"), ("stored_at", "max")])
    stored = column(counted, "stored_at_max") // 1000
    rows = zip(
        *(counted[name].to_pylist() for name in ("queue", "offset_count", "offset_max")), stored.tolist(), strict=True
    )
    return [QueueCount(queue, count, offset + 1, stored_ms) for queue, count, offset, stored_ms in rows]


def _traffic(records: pa.Table, quality: npt.NDArray[np.object_]) -> list[TrafficRow]:
    """Returns records by minute of storage, protocol, topic and quality: a row for each of these, not of devices."""
    minute = column(records, "stored_at") // (WINDOW_MS * 1000) * WINDOW_MS
    verdicts = pa.array(quality, pa.string())
    texts = [codes(records["protocol"]), codes(records["topic"]), codes(verdicts)]
    base = int(minute.min())
    step = (minute - base) // WINDOW_MS
    groups = group([*texts, (step, int(step.max()) + 1)])
    heads = pa.array(groups.heads)
    names = (records["protocol"].take(heads), records["topic"].take(heads), verdicts.take(heads))
    counted: Counter[tuple[int, str, str, str]] = Counter()
    rows = zip(minute[groups.heads].tolist(), *(n.to_pylist() for n in names), groups.sizes.tolist(), strict=True)
    for start, protocol, topic, verdict, size in rows:
        counted[start, protocol or "", topic or "", verdict] += size
    return [TrafficRow(*key, records=count) for key, count in counted.items()]
