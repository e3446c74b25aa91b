"""Telemetry tables with the schemas of the job, made without Spark: of a few devices, up to now."""

import math
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from spark.tables.files import Location
from spark.tables.manifest import JobProgress, Manifest
from spark.tables.schemas import SPECS, WINDOW_TABLES, presented
from spark.telemetry.liveness import COUNTS
from spark.telemetry.windows import INSTANT, LATEST, SAMPLES, STATES, latest_of, partials_of

MINUTE_MS = 60_000
UNITS = {"temperature": "Cel", "humidity": "%RH", "battery": "V"}


def instants(ms: list[int]) -> pa.Array:
    return pa.array([one * 1000 for one in ms], INSTANT)


def samples(now_ms: int, devices: int, minutes: int, seed: int = 7) -> pa.Table:
    """Returns two samples a minute of each metric; the last device has a gap, and fell silent an hour ago."""
    chance = random.Random(seed)
    rows: list[tuple] = []
    for number in range(devices):
        name = f"sensor-{number:03d}"
        for step in range(2 * minutes):
            ms = now_ms - (2 * minutes - step) * MINUTE_MS // 2
            if number == devices - 1 and (ms > now_ms - 60 * MINUTE_MS or 30 < step < 60):
                continue
            wave = math.sin(step / 90 + number)
            values = {"temperature": 21 + 4 * wave, "humidity": 45 - 8 * wave, "battery": 3.9 - step / 20_000}
            for metric, value in values.items():
                noisy = value + chance.gauss(0, 0.02 if metric == "battery" else 0.6)
                rows.append((name, metric, noisy, UNITS[metric], ms))
    device, metric, value, unit, ms = (list(column) for column in zip(*rows, strict=True))
    count = len(rows)
    made = {
        "device": device,
        "metric": metric,
        "value": value,
        "unit": unit,
        "time": instants(ms),
        "stored_at": instants([one + 40 for one in ms]),
        "offset": list(range(count)),
        "queue": pa.array([16] * count, pa.int32()),
        "position": [f"0:{n}" for n in range(count)],
        "address": [f"telemetry/site{len(name) % 3}/{name}/{one}" for name, one in zip(device, metric, strict=True)],
    }
    return pa.table([made[name] for name in SAMPLES.names], schema=SAMPLES)


def make_tables(where: Path, now_ms: int, *, devices: int = 12, minutes: int = 240) -> Manifest:
    """Writes all tables and the manifest, as after one pass of the job."""
    some = samples(now_ms, devices, minutes)
    tables = {name: presented(partials_of(some, width_ms), settled=True) for name, width_ms in WINDOW_TABLES.items()}
    states = some.append_column("text", pa.nulls(len(some), pa.string())).select(STATES.names).cast(STATES)
    tables["latest"] = latest_of(LATEST.empty_table(), states.select(LATEST.names).cast(LATEST))
    tables["traffic"] = _traffic(now_ms, minutes)
    tables["quarantine"] = _quarantine(now_ms)
    tables["anomalies"] = _anomalies(now_ms)
    tables["devices"] = _devices(some, now_ms)
    tables["quality"] = _quality(tables["devices"])
    tables["samples"] = _samples(some, now_ms)
    tables["sessions"] = _sessions(now_ms)
    versions = {}
    for name, rows in tables.items():
        spec = SPECS[name]
        if spec.by_day:
            days = [one.as_py().date() for one in rows[spec.time]]
            rows = rows.append_column("day", pa.array(days, pa.date32()))  # noqa: PLW2901
        write_deltalake(str(where / name), rows.select(spec.schema.names), partition_by=spec.partition_by or None)
        versions[name] = DeltaTable(str(where / name)).version()
    counts = {"mqtt": {"ok": 900, "late": 20}, "http": {"ok": 300, "bad_json": 7}}
    progress = JobProgress(
        batch=41, records=1_227, stored_at_ms=now_ms - 2_000, committed_at_ms=now_ms - 800, corrected=3, batch_ms=400
    )
    manifest = Manifest(job="sample", buckets=1, pass_=1, progress=progress, counts=counts, versions=versions)
    manifest.save(Location.of(where))
    return manifest


def _anomalies(now_ms: int) -> pa.Table:
    """Returns a spike of the first device ten minutes ago, and the silence of the last."""
    plain = {"address": "telemetry/site1/sensor-000", "metric": "temperature", "value": 48.25, "expected": 21.0}
    spike = {**plain, "device": "sensor-000", "kind": "spike", "score": 31.4, "time": instant(now_ms - 10 * MINUTE_MS)}
    silent = {"device": "sensor-001", "kind": "silent", "score": 3.0, "time": instant(now_ms - 20 * MINUTE_MS)}
    spike["sentence"] = "48.25 is 31.4 sigmas from its level of 21"
    silent["sentence"] = "nothing was heard for 90 s; it is usually heard every 30.0 s"
    return pa.Table.from_pylist([spike, silent], schema=SPECS["anomalies"].columns)


def _devices(some: pa.Table, now_ms: int) -> pa.Table:
    heard: dict[str, int] = {}
    for name, stored in zip(some["device"].to_pylist(), some["stored_at"].cast(pa.int64()).to_pylist(), strict=True):
        heard[name] = max(stored // 1000, heard.get(name, 0))
    rows = [
        {
            "device": name,
            "address": f"telemetry/site1/{name}",
            "protocol": "mqtt",
            "state": "alive" if ms > now_ms - 5 * MINUTE_MS else "silent",
            "first_seen": instant(now_ms - 3_600_000),
            "last_seen": instant(ms),
            "silent_since": None if ms > now_ms - 5 * MINUTE_MS else instant(ms),
            "interval_s": 30.0,
            "jitter_s": 0.5,
            "flaps": 0,
            "records": 120,
        }
        for name, ms in sorted(heard.items())
    ]
    return pa.Table.from_pylist(rows, schema=SPECS["devices"].columns)


def _quality(devices: pa.Table) -> pa.Table:
    """Returns records in order, but of the first device: it repeats a tenth of them, and its clock is a minute slow."""
    counts = {name: [0] * len(devices) for name in COUNTS}
    counts["duplicates"][0] = 12
    made = {
        "skew_s": [60.0 if n == 0 else 0.04 for n in range(len(devices))],
        **counts,
        **{f"{name}_rate": [count / 120 for count in counts[name]] for name in COUNTS},
    }
    schema = SPECS["quality"].columns
    return pa.table([made[name] if name in made else devices[name] for name in schema.names], schema=schema)


def _sessions(now_ms: int) -> pa.Table:
    """Returns one session of the first device that has ended, and one that goes on."""
    spans = ((90, 60, True), (20, 0, False))  # minutes ago
    rows = [
        {
            "device": "sensor-000",
            "address": "telemetry/site0/sensor-000/temperature",
            "records": 2 * (first - last),
            "duration_s": 60.0 * (first - last),
            "settled": settled,
            **dict.fromkeys(("first_seen", "first_time"), instant(now_ms - first * MINUTE_MS)),
            **dict.fromkeys(("last_seen", "last_time"), instant(now_ms - last * MINUTE_MS)),
        }
        for first, last, settled in spans
    ]
    return pa.Table.from_pylist(rows, schema=SPECS["sessions"].columns)


def _samples(some: pa.Table, now_ms: int) -> pa.Table:
    recent = some.filter(pc.greater(some["time"], pa.scalar((now_ms - 30 * MINUTE_MS) * 1000, INSTANT)))
    made = {
        "text": pa.nulls(len(recent), pa.string()),
        **{name: pa.array([text] * len(recent)) for name, text in (("topic", "telemetry"), ("protocol", "mqtt"))},
        "quality": pa.array(["ok"] * len(recent)),
    }
    schema = SPECS["samples"].columns
    return pa.table([made[name] if name in made else recent[name] for name in schema.names], schema=schema)


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _traffic(now_ms: int, minutes: int) -> pa.Table:
    rows = []
    for step in range(minutes + 1):
        start = (now_ms // MINUTE_MS - step) * MINUTE_MS
        rows += [
            (start, "mqtt", "telemetry", "ok", 120 + step % 17),
            (start, "http", "telemetry", "ok", 60 + step % 11),
            (start, "coap", "telemetry", "ok", 30 + step % 7),
        ]
        if step % 9 == 0:
            rows.append((start, "http", "telemetry", "bad_json", 2))
        if step % 5 == 0:
            rows.append((start, "mqtt", "telemetry", "late", 4))
    start, *texts, records = (list(column) for column in zip(*rows, strict=True))
    columns = [instants(start), *texts, records, [True] * len(rows)]
    return pa.table(columns, names=["start", "protocol", "topic", "quality", "records", "settled"])


def _quarantine(now_ms: int) -> pa.Table:
    schema = SPECS["quarantine"].columns
    time = datetime.fromtimestamp(now_ms / 1000 - 60, UTC)
    rows = [
        {"device": "sensor-001", "reason": "is no JSON", "body": b'{"temperature": 21,', "quality": "bad_json"},
        {"device": "=cmd|' /C calc'!A0", "reason": "has no number", "body": b"\xff\xfe\x00", "quality": "bad_json"},
    ]
    more = {
        "time": time,
        "stored_at": time,
        "address": "telemetry/site1/sensor-001",
        "protocol": "http",
        "content_type": "application/json",
        "topic": "telemetry",
        "queue": 16,
        "position": "0:7",
    }
    return pa.Table.from_pylist([row | more | {"offset": n} for n, row in enumerate(rows)], schema=schema)
