"""Devices with one labelled fault each, through the whole of a pass: the tables tell each of its own, and no other."""

from collections import Counter

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from tests.support.spark.faults import FLEET, messages  # noqa: E402
from tests.support.spark.job_kit import Record, do_batch, do_tick  # noqa: E402

T0 = 1_767_225_600_000
SECONDS, BATCH_S = 1_500, 75  # the gap is longer than a batch, in which it would not be seen
SETTINGS = CommitSettings(watermark_ms=60_000, late_ms=3_600_000, buckets=1)
FOUND = {
    "spikes": {"spike": 1},
    "sticks": {"stuck": 1},
    "pauses": {"silent": 1, "back": 1},
    "floods": {"rate_spike": 1},
    "repeats": {},
}


@pytest.mark.slow
def test_every_fault_is_told_of_its_device_alone(tmp_path):
    commits, offset = Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", SETTINGS), 0
    everything = list(messages(11, T0, SECONDS))
    for batch, low_ms in enumerate(range(T0, T0 + SECONDS * 1_000, BATCH_S * 1_000)):
        some = [m for m in everything if low_ms <= m[2] < low_ms + BATCH_S * 1_000]
        records = [Record(d, at, offset + n, {"a": value}, stored) for n, (d, at, stored, value) in enumerate(some)]
        offset += len(records)
        do_batch(commits, batch, records)
        do_tick(commits, low_ms + BATCH_S * 1_000)
    commits.close()
    tables = Tables(tmp_path / "out")
    found: dict[str, Counter] = {device: Counter() for device in FLEET}
    for row in tables.table("anomalies").to_pylist():
        found[row["device"]][row["kind"]] += 1
    assert found == {device: Counter(FOUND.get(device, {})) for device in FLEET}
    quality = {row["device"]: row for row in tables.table("quality").to_pylist()}
    half = SECONDS // 2
    assert {d: row["ahead"] for d, row in quality.items() if row["ahead"]} == {"ahead": half}
    assert {d: row["duplicates"] for d, row in quality.items() if row["duplicates"]} == {"repeats": half}
    skews = {device: row["skew_s"] for device, row in quality.items()}  # means, which follow batch by batch
    assert 20 < skews.pop("skewed") < 46
    assert -3_601 < skews.pop("ahead") < -1_600
    assert all(abs(skew) < 0.5 for skew in skews.values())
    sent = Counter(device for device, *_ in everything)
    assert {device: row["records"] for device, row in quality.items()} == sent
