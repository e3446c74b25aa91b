"""Samples with times of their own: their records count as late and ahead, and repeated passes count the same."""

import pytest

pytest.importorskip("deltalake")

from spark.job.idle import Unread
from spark.job.progress import progress_line
from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location
from spark.tables.reader import Tables
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, shown, worked

T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2)


@pytest.fixture
def opened(tmp_path):
    commits = Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", SETTINGS)
    yield commits
    commits.close()


def test_records_are_late_and_ahead_by_the_times_of_their_samples(opened):
    """As those of SenML are: what no window has is counted as what it is, in every place that counts."""
    do_batch(opened, 0, [Record("d", T0 + n * 1_000, n, {"a": 1.0}) for n in range(5)])
    now, late_ms = T0 + 24 * 3_600_000, SETTINGS.late_ms
    odd = [
        {"b": now},
        {"a": now - 10 * MINUTE_MS},  # late
        {"a": now - late_ms - 2 * MINUTE_MS, "b": now - 10 * MINUTE_MS},  # too old, and late
        {"a": now + SETTINGS.watermark_ms + 60_000, "b": now - late_ms - 2 * MINUTE_MS},  # ahead, and too old
    ]
    records = [Record("d", now + n, 10 + n, {"a": 2.0, "b": 3.0}, times_ms=times) for n, times in enumerate(odd)]
    do_batch(opened, 1, records)
    tables = Tables(opened.place.url)
    expected = {"ok": 6, "late": 1, "too_old": 1, "ahead": 1}
    assert tables.quality() == expected
    traffic: dict[str, int] = {}
    for row in tables.table("traffic").to_pylist():
        traffic[row["quality"]] = traffic.get(row["quality"], 0) + row["records"]
    assert traffic == expected
    (row,) = tables.table("quality").to_pylist()
    assert (row["records"], row["late"], row["ahead"]) == (9, 2, 1)
    assert row["late_rate"] == pytest.approx(2 / 9)
    assert "2 late" in progress_line(opened.manifest, Unread(0, ""), 1.0)
    counts = {(metric, start): row[0] for (_, metric, start), row in shown(tables.windows()).items()}
    minute = now // MINUTE_MS * MINUTE_MS
    late = (now - 10 * MINUTE_MS) // MINUTE_MS * MINUTE_MS
    assert counts == {("a", T0): 5, ("a", minute): 1, ("a", late): 1, ("b", minute): 2, ("b", late): 1}


def test_a_pass_that_is_repeated_counts_the_same(opened):
    do_batch(opened, 0, [Record("d", T0, 0, {"a": 1.0})])
    late = Record("d", T0 + 10**7, 1, {"a": 1.0, "b": 2.0}, times_ms={"b": T0 + 10**7 - 20 * MINUTE_MS})
    plan = opened.begin(1)
    counted = [[report.traffic for report in worked(plan, 2, [late])] for _ in range(2)]
    assert counted[0] == counted[1]
    assert [row.quality for traffic in counted[0] for row in traffic] == ["late"]


def test_the_worst_of_a_records_times_counts(opened):
    """Its own is among them: an event may be late though its samples are not."""
    do_batch(opened, 0, [Record("d", T0, 0, {"a": 1.0})])
    now = T0 + 10**7
    old, ahead = now - 20 * MINUTE_MS, now + 5 * MINUTE_MS
    records = [
        Record("d", old, 1, {"a": 1.0}, now, times_ms={"a": now}),
        Record("d", old, 2, {"a": 1.0}, now, times_ms={"a": ahead}),
        Record("d", ahead, 3, {"a": 1.0}, now, times_ms={"a": old}),
        Record("d", now, 4, {"a": 1.0}, now, times_ms={"a": now}),
    ]
    plan = opened.begin(1)
    counted = {row.quality: row.records for report in worked(plan, 2, records) for row in report.traffic}
    assert counted == {"late": 1, "ahead": 2, "ok": 1}


@pytest.mark.parametrize("old", [False, True])
def test_a_device_that_tells_its_history_again_has_bursts(opened, old):
    """Its records are late by their samples, which says nothing of when they were sent."""
    records = []
    for minute in range(21):
        count = 2 if minute < 20 else 50
        for n in range(count):
            at = T0 + minute * MINUTE_MS + n * MINUTE_MS // count
            times = {"b": at - 10 * MINUTE_MS} if old else {}
            records.append(Record("d", at, len(records), {"a": n % 3 * 1.0, "b": 2.0}, times_ms=times))
    do_batch(opened, 0, records)
    tables = Tables(opened.place.url)
    (row,) = tables.table("quality").to_pylist()
    assert row["late"] == old * len(records)
    found = [event["time"] for event in tables.table("anomalies").to_pylist() if event["kind"] == "rate_spike"]
    assert [round(time.timestamp() * 1000) for time in found] == [T0 + 20 * MINUTE_MS]
