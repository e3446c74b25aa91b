"""Many crashes in one history, at any step of a pass: tables equal a plain recount, findings are heard once."""

import random
from collections import defaultdict, deque
from dataclasses import replace

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

import pyarrow.parquet as pq  # noqa: E402

from spark.findings.events import events_of_rows  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from spark.tables.schemas import SPECS  # noqa: E402
from tests.support.spark.crashes import Crash, crashing  # noqa: E402
from tests.support.spark.job_kit import (  # noqa: E402
    MINUTE_MS,
    Record,
    do_batch,
    do_tick,
    duplicates,
    naive,
    shown,
    total,
)

T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2, findings=True, samples=True)
STEPS_MAX = 30  # of a pass, about; some crashes come too late to happen


class FindingsGateway:
    """It takes each id once, however often it is sent; the job may be killed before it is noted."""

    def __init__(self) -> None:
        self.heard: dict[str, int] = {}

    def publish(self, commits: Commits) -> None:
        for path in commits.manifest.unpublished:
            with commits.place.open(f"anomalies/{path}") as file:
                rows = pq.read_table(file, schema=SPECS["anomalies"].columns, partitioning=None)
            for event in events_of_rows(rows):
                self.heard[event.id] = self.heard.get(event.id, 0) + 1
        commits.findings_published()


def history(seed: int, batches: int) -> list[list[Record]]:
    """Batches of a few devices: spikes, late and repeated records, a device that falls silent."""
    chance, found, offset = random.Random(seed), [], 0
    recent: dict[str, deque[Record]] = defaultdict(lambda: deque(maxlen=3))
    for batch in range(batches):
        records = []
        for step in range(60):
            stored = T0 + (batch * 60 + step) * 1_000
            device = f"d{chance.randrange(3)}" if batch < batches // 2 else f"d{chance.randrange(2)}"
            value = round(chance.gauss(20, 1) * 64) / 64 if chance.random() > 0.01 else 900.0  # values with exact sums
            at = stored - (chance.randrange(600_000) if chance.random() < 0.05 else chance.randrange(3_000))
            record = Record(device, max(T0 + offset, at), offset, {"a": value}, stored)
            if recent[device] and chance.random() < 0.2:  # of this batch, or of one before
                record = replace(chance.choice(recent[device]), offset=offset, stored_ms=stored)
            else:
                recent[device].append(record)
            records.append(record)
            offset += 1
        found.append(records)
    return found


def survived(tmp_path, monkeypatch, seed: int, batches: int, crashes: int) -> int:
    """Runs a history with crashes and compares; returns how many came to pass."""
    place, checkpoint, gateway = Location.of(tmp_path / f"out{seed}"), tmp_path / f"checkpoint{seed}", FindingsGateway()
    chance, cuts, happened = random.Random(seed + 1), history(seed, batches), 0
    for batch, cut in enumerate(cuts):
        for attempt in range(crashes // batches + 2):
            commits = Commits.open(place, checkpoint, SETTINGS)
            last = attempt == crashes // batches + 1
            with monkeypatch.context() as patch:
                if not last:
                    done = commits.manifest.progress.batch >= batch
                    crashing(patch, chance.randrange(4 if done else STEPS_MAX), commit="_write")
                try:
                    if commits.manifest.pending_tick is not None:
                        do_tick(commits)
                    gateway.publish(commits)
                    do_batch(commits, batch, cut)
                    gateway.publish(commits)
                    do_tick(commits, cut[-1].stored_at_ms + chance.randrange(2_000))
                    gateway.publish(commits)
                except Crash:
                    happened += 1
            commits.close()
    everything = [record for cut in cuts for record in cut]
    tables = Tables(place.url)
    assert shown(tables.windows()) == naive(everything), f"seed {seed}"
    assert shown(tables.windows(table="windows_15m")) == naive(everything, 15 * MINUTE_MS), f"seed {seed}"
    assert tables.table("samples").num_rows == len(everything)
    assert total(tables.table("traffic"), "records") == len(everything) == sum(tables.counts().values())
    assert total(tables.table("devices"), "records") == len(everything)
    assert total(tables.table("sessions"), "records") == len(everything)
    repeated = {row["device"]: row["duplicates"] for row in tables.table("quality").to_pylist()}
    assert repeated == duplicates(everything), f"seed {seed}"
    assert sum(repeated.values()) > sum(sum(duplicates(cut).values()) for cut in cuts), "none is of an earlier batch"
    ids = [event.id for event in events_of_rows(tables.table("anomalies").select(SPECS["anomalies"].columns.names))]
    assert len(ids) == len(set(ids)) > 0, f"seed {seed}: a finding is in the table twice, or none is"
    assert set(gateway.heard) == set(ids), f"seed {seed}: what was heard is not what is in the table"
    return happened


@pytest.mark.slow
def test_twenty_crashes_in_one_history_neither_lose_nor_double(tmp_path, monkeypatch):
    assert survived(tmp_path, monkeypatch, seed=7, batches=5, crashes=30) >= 20


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_hundreds_of_crashes_neither_lose_nor_double(tmp_path, monkeypatch, seed):
    assert survived(tmp_path, monkeypatch, seed, batches=8, crashes=80) >= 40
