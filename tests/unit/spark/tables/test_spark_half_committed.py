"""A pass that is half committed when the job is killed, and options that are other ones at the next start."""

import pytest
from msgspec.structs import replace as replace_struct

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from spark.errors import OutputMismatch
from spark.job import TelemetryOptions, query
from spark.tables.commits import Commits
from spark.tables.files import Location
from spark.tables.manifest import Manifest
from spark.tables.reader import Tables
from spark.tables.settings import CommitSettings
from tests.support.spark.crashes import Crash
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown

T0 = 1_767_225_600_000  # the start of a day
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=7 * 86_400_000, buckets=1)
RECORDS = [Record("d", T0 + n * 1_000, n, {"a": float(n)}) for n in range(50)]
LATE = [Record("d", T0 + 55_000, 50, {"a": -1.0}, stored_ms=T0 + 61 * MINUTE_MS)]  # of a window that is settled


@pytest.fixture
def places(tmp_path):
    return Location.of(tmp_path / "out"), tmp_path / "checkpoint"


@pytest.fixture
def killed(places, monkeypatch):
    """Returns a function that begins an output, and dies behind so many tables of the batch with the late record."""

    def run(tables):
        commits = Commits.open(*places, SETTINGS)
        do_batch(commits, 0, RECORDS)
        for _ in range(2):
            do_tick(commits, T0 + 60 * MINUTE_MS)
        assert all(row["settled"] for row in Tables(places[0].url).table("windows_1m").to_pylist())
        real, left = commits._commit_table, iter(range(tables))

        def dying(*args):
            if next(left, None) is None:
                raise Crash
            return real(*args)

        monkeypatch.setattr(commits, "_commit_table", dying)
        with pytest.raises(Crash):
            do_batch(commits, 1, LATE)
        commits.close()

    return run


OTHERS = [
    (replace_struct(SETTINGS, late_ms=1_800_000), r"--late 604800:"),
    (replace_struct(SETTINGS, watermark_ms=0), r"--watermark 30:"),
    (replace_struct(SETTINGS, samples=True, session_ms=1_000), r"--session-gap 1800, no --samples:"),
    (replace_struct(SETTINGS, rules='{"devices":[]}'), r"other rules \(--config\):"),
]


def test_a_half_committed_batch_is_finished_with_the_options_it_was_begun_with(places, killed):
    """With others a table that is committed would have a correction that the next one has not."""
    killed(1)
    for settings, option in OTHERS:
        with pytest.raises(OutputMismatch, match=f"half committed, and was begun with {option}"):
            Commits.open(*places, settings)
    commits = Commits.open(*places, replace_struct(SETTINGS, history_h=7, findings=True))  # no row depends on these
    do_batch(commits, 1, LATE)
    commits.close()
    tables = Tables(places[0].url)
    assert shown(tables.table("windows_1m")) == naive([*RECORDS, *LATE])
    assert shown(tables.table("windows_15m")) == naive([*RECORDS, *LATE], 15 * MINUTE_MS)
    for settings, _ in OTHERS:
        Commits.open(*places, settings).close()


def test_a_batch_that_no_table_has_is_done_again_with_other_options(places, killed):
    killed(0)
    commits = Commits.open(*places, replace_struct(SETTINGS, late_ms=1_800_000))
    do_batch(commits, 1, LATE)
    commits.close()
    assert Tables(places[0].url).quality() == {"ok": 50, "too_old": 1}


def test_the_options_of_an_older_manifest_are_not_known(places, killed):
    killed(1)
    manifest = Manifest.load(places[0])
    replace_struct(manifest, begun_with=None).save(places[0])
    other = replace_struct(SETTINGS, late_ms=6 * 86_400_000)
    commits = Commits.open(*places, other)
    do_batch(commits, 1, LATE)
    commits.close()
    assert Manifest.load(places[0]).begun_with == other.of_rows


def test_rules_are_settings_of_the_commits(tmp_path):
    rules = tmp_path / "rules.toml"
    plain = query.settings_of(TelemetryOptions(output=tmp_path))
    found = []
    for text in ("", '[[devices]]\nfilter = "site/#"\nsource = "level"\nlevel = 2\n', "[auth]\n"):
        rules.write_text(text)
        found.append(query.settings_of(TelemetryOptions(output=tmp_path, rules=rules)).of_rows["rules"])
    assert plain.of_rows["rules"] == found[0] == found[2] != found[1]
