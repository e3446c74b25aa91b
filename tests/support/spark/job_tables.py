"""Tables that the job's own passes have written without Spark, for readers that nobody here wrote."""

from pathlib import Path

from spark.job import maintenance
from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick

DAY_MS = 86_400_000
T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2, samples=True, findings=True)
RECORDS = [
    [Record(f"d{n % 3}", T0 + day * DAY_MS + n * 1_000, day * 300 + n, {"a": n / 8, "state": "on"}) for n in range(300)]
    for day in range(3)
]


def three_days(where: Path) -> Location:
    """Writes tables of three days, of which a batch and a tick each have replaced files and left removed ones."""
    place = Location.of(where / "out")
    commits = Commits.open(place, where / "checkpoint", SETTINGS)
    for batch, records in enumerate(RECORDS):
        do_batch(commits, batch, records)
        do_tick(commits, records[-1].stored_at_ms + 3 * MINUTE_MS)
    do_batch(commits, 3, [Record("odd", T0, 900, quality="bad_body", rejected=b"\xff{")])
    commits.close()
    maintenance.compact(place)
    return place


def windows_expected() -> list[Record]:
    """Returns the records, with the one metric that is a number."""
    return [
        Record(record.device, record.time_ms, record.offset, {"a": record.values["a"]})
        for records in RECORDS
        for record in records
    ]
