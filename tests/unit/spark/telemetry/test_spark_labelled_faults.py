"""Generated devices with labelled faults, through the whole of a pass: each is told of its device, and of no other."""

import math
from collections import Counter

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from spark.generator.fleet import Fleet  # noqa: E402
from spark.generator.scoring import Precision, Recall, findings_of, score  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from tests.support.spark.job_kit import Record, do_batch, do_tick  # noqa: E402

T0 = 1_767_225_600_000
BATCH_S = 75  # the gap is longer than a batch, in which it would not be seen
SETTINGS = CommitSettings(watermark_ms=60_000, late_ms=3_600_000, buckets=1)
FLEET = Fleet(devices=10, duration_s=1_500, seed=11, start_ms=T0)
FOUND = {
    "spike": {"spike": 1},
    "level_shift": {"spike": 1, "level_shift": 1},
    "stuck": {"stuck": 1},
    "gap": {"silent": 1, "back": 1},
    "flood": {"rate_spike": 1},
}


@pytest.mark.slow
def test_every_fault_is_told_of_its_device_alone(tmp_path):
    commits, offset = Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", SETTINGS), 0
    everything = list(FLEET.readings())
    for batch in range(math.ceil(FLEET.duration_s / BATCH_S)):
        low_ms = T0 + batch * BATCH_S * 1_000
        some = [one for one in everything if low_ms <= one.due_ms < low_ms + BATCH_S * 1_000]
        records = [Record(r.device, r.time_ms, offset + n, r.values, r.due_ms) for n, r in enumerate(some)]
        offset += len(records)
        do_batch(commits, batch, records)
        do_tick(commits, low_ms + BATCH_S * 1_000)
    commits.close()
    tables, kinds = Tables(tmp_path / "out"), {FLEET.name(n): FLEET.kind(n) for n in range(FLEET.devices)}
    found: dict[str, Counter] = {device: Counter() for device in kinds}
    for row in tables.table("anomalies").to_pylist():
        found[row["device"]][row["kind"]] += 1
    assert found == {device: Counter(FOUND.get(kind, {})) for device, kind in kinds.items()}
    quality = {row["device"]: row for row in tables.table("quality").to_pylist()}
    assert {kinds[d]: row["ahead"] for d, row in quality.items() if row["ahead"]} == {"ahead": 60}
    assert {kinds[d]: row["duplicates"] for d, row in quality.items() if row["duplicates"]} == {"duplicates": 60}
    sent = Counter(one.device for one in everything)
    assert {device: row["records"] for device, row in quality.items()} == sent

    labels = list(FLEET.labels())
    outcome = score(labels, findings_of(tables, labels))
    assert outcome.recall == {
        kind: Recall(1, int(kind != "drift")) for kind in kinds.values() if kind and kind != "skew"
    }
    assert all(one.share == 1.0 for one in outcome.precision.values())
    assert outcome.untold == {"skew": 1}
    assert outcome.total == (Recall(8, 7), Precision(9, 9))
