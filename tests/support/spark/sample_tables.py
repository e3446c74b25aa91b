"""Telemetry tables with the schemas of the job, made without Spark: of a few devices, up to now."""

import math
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from spark.tables.files import Place
from spark.tables.manifest import Manifest, Progress
from spark.tables.schemas import SPECS, WINDOW_TABLES, presented
from spark.telemetry.windows import INSTANT, LATEST, SAMPLES, STATES, latest_of, partials_of

MINUTE_MS = 60_000
UNITS = {"temperature": "Cel", "humidity": "%RH", "battery": "V"}


def instants(ms: list[int]) -> pa.Array:
    return pa.array([one * 1000 for one in ms], INSTANT)


def samples(now_ms: int, devices: int, minutes: int, seed: int = 7) -> pa.Table:
    """Two samples a minute of each metric; the last device has a gap, and fell silent an hour ago."""
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
    """Write all tables and the manifest, as after one pass of the job."""
    some = samples(now_ms, devices, minutes)
    tables = {name: presented(partials_of(some, width_ms), settled=True) for name, width_ms in WINDOW_TABLES.items()}
    states = some.append_column("text", pa.nulls(len(some), pa.string())).select(STATES.names).cast(STATES)
    tables["latest"] = latest_of(LATEST.empty_table(), states.select(LATEST.names).cast(LATEST))
    tables["traffic"] = _traffic(now_ms, minutes)
    tables["quarantine"] = _quarantine(now_ms)
    versions = {}
    for name, rows in tables.items():
        spec = SPECS[name]
        if spec.by_day:
            days = [one.as_py().date() for one in rows[spec.time]]
            rows = rows.append_column("day", pa.array(days, pa.date32()))  # noqa: PLW2901
        write_deltalake(str(where / name), rows.select(spec.schema.names), partition_by=spec.partition_by or None)
        versions[name] = DeltaTable(str(where / name)).version()
    counts = {"mqtt": {"ok": 900, "late": 20}, "http": {"ok": 300, "bad_json": 7}}
    progress = Progress(
        batch=41, records=1_227, stored_at_ms=now_ms - 2_000, committed_at_ms=now_ms - 800, corrected=3, batch_ms=400
    )
    manifest = Manifest(job="sample", buckets=1, pass_=1, progress=progress, counts=counts, versions=versions)
    manifest.save(Place.of(where))
    return manifest


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
