"""Time that goes on without records: windows settle and silence is told, by the store's clock."""

import json

import msgspec
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from spark.errors import SparkError  # noqa: E402
from spark.job import maintenance  # noqa: E402
from spark.job.idle import IdleTime, LogEndCheck  # noqa: E402
from spark.job.position import position_of  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.manifest import MANIFEST, TICKS_MAX, Manifest, sequence  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from store.api.message import Message  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown  # noqa: E402
from tests.support.store.fake_store import serving  # noqa: E402

T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2)


@pytest.fixture
def opened(tmp_path):
    commits = Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", SETTINGS)
    yield commits
    commits.close()


def beats(count: int) -> list[Record]:
    return [Record("d", T0 + n * 1_000, n, {"a": float(n % 7)}) for n in range(count)]


def test_idle_time_goes_on_from_the_newest_record_by_the_time_waited():
    idle = IdleTime()
    assert idle.look(100.0, idle=True, known_ms=5_000) == 5_000
    assert idle.look(102.0, idle=True, known_ms=5_000) == 7_000
    assert idle.look(103.0, idle=False, known_ms=5_000) is None  # there is data to read, or no answer
    assert idle.look(110.0, idle=True, known_ms=5_000) == 7_000  # the time since it was last seen idle does not count
    assert idle.look(111.5, idle=True, known_ms=8_500) == 8_500  # the tables have gone on
    assert idle.look(112.0, idle=True, known_ms=8_500) == 9_000


def test_idle_time_does_not_lose_the_time_between_two_ticks():
    """A tick makes the time of the look before known to the tables, which was taken for a record that had come."""
    idle, known_ms = IdleTime(), 5_000
    for now_s in range(100, 160, 5):
        found = idle.look(float(now_s), idle=True, known_ms=known_ms)
        assert found == 5_000 + (now_s - 100) * 1000
        known_ms = found  # by a tick
    assert idle.look(160.0, idle=True, known_ms=known_ms + 2_000) == known_ms + 2_000  # by a record


def test_the_end_of_the_log_is_seen_from_the_checkpoint(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchWatermarkMs":0}\n{"16": 2, "17": 0}')
    (tmp_path / "offsets" / "4").write_text("junk")
    assert position_of(tmp_path, 3) == {16: 2, 17: 0}
    assert position_of(tmp_path, 7) is None
    with pytest.raises(SparkError, match="no position of the log"):
        position_of(tmp_path, 4)
    message = Message(address="t/d", body=json.dumps({"a": 1}).encode(), device="d", time_ms=T0)
    with serving({"t": (16, 17)}) as served:
        end = LogEndCheck(served.target, ("t",), tmp_path)
        served.store.append([(16, message), (16, message)])
        assert end.reached(3)
        assert not end.reached(7)  # no such batch
        served.store.append([(17, message)])
        assert not end.reached(3)
        served.stop()
        assert not end.reached(3)  # no source has answered
        end.close()


@pytest.mark.slow
def test_windows_settle_and_silence_is_told_without_a_record(opened):
    tables = Tables(opened.place.url)
    do_batch(opened, 0, beats(20))
    last_ms = T0 + 19_000
    assert opened.clock_ms == last_ms
    do_tick(opened, last_ms + 5_000)
    assert tables.windows(settled_only=True).num_rows == 0
    assert opened.restless
    do_tick(opened, last_ms + 12_000)
    assert [row["kind"] for row in tables.table("anomalies").to_pylist()] == ["silent"]
    do_tick(opened, T0 + MINUTE_MS + SETTINGS.watermark_ms)
    do_tick(opened, 0)  # time never goes back
    assert shown(tables.windows(settled_only=True)) == naive(beats(20))
    assert opened.restless  # the window of 15 minutes is open
    do_tick(opened, T0 + 15 * MINUTE_MS + SETTINGS.watermark_ms)
    assert not opened.restless
    more = [Record("d", T0 + 5_000, 20, {"a": 50.0}, T0 + 16 * MINUTE_MS)]  # after all of this: late, and counted
    do_batch(opened, 1, more)
    do_tick(opened, T0 + 30 * MINUTE_MS)
    assert shown(tables.windows()) == naive([*beats(20), *more])
    assert tables.quality() == {"late": 1, "ok": 20}


def reopened(commits: Commits, **settings) -> Commits:
    commits.close()
    return Commits.open(
        commits.place, commits.place.local.parent / "checkpoint", msgspec.structs.replace(SETTINGS, **settings)
    )


@pytest.mark.parametrize("watermark_ms", [0, 20 * MINUTE_MS])
def test_another_watermark_tells_no_device_silent_and_ends_no_session(opened, watermark_ms):
    """The time up to which every queue has been read is the same whatever the watermark of the next run is."""
    do_batch(opened, 0, beats(20))
    do_tick(opened, T0 + 20_000)
    again = reopened(opened, watermark_ms=watermark_ms, session_ms=5 * MINUTE_MS)
    assert again.clock_ms == T0 + 20_000
    do_tick(again)
    more = [Record("d", T0 + n * 1_000, n, {"a": n % 7.0}) for n in range(20, 60)]
    for batch in range(4):
        do_batch(again, batch + 1, more[batch * 10 : batch * 10 + 10])
        do_tick(again)
    tables = Tables(again.place.url)
    assert tables.table("anomalies").num_rows == 0
    (device,) = tables.table("devices").to_pylist()
    assert (device["state"], device["interval_s"]) == ("alive", pytest.approx(1.0))
    (session,) = tables.table("sessions").to_pylist()
    assert (session["records"], session["settled"]) == (60, False)
    do_tick(again, T0 + 80_000)
    do_tick(reopened(again, watermark_ms=60 * MINUTE_MS))
    assert [row["kind"] for row in tables.table("anomalies").to_pylist()] == ["silent"]


def test_a_manifest_of_before_read_to_is_taken_as_read_to_its_watermark(opened):
    """An older version has not said up to when every queue was read; with a longer watermark nobody may fall silent."""
    do_batch(opened, 0, beats(20))
    do_tick(opened, T0 + 25_000)
    found = json.loads(opened.place.read(MANIFEST))
    del found["progress"]["read_to_ms"]
    opened.place.write(MANIFEST, json.dumps(found).encode())
    again = reopened(opened, watermark_ms=20 * MINUTE_MS)
    do_tick(again)
    do_batch(again, 1, [Record("d", T0 + n * 1_000, n, {"a": n % 7.0}) for n in range(20, 60)])
    do_tick(again)
    assert Tables(again.place.url).table("anomalies").num_rows == 0
    assert again.manifest.progress.read_to_ms == T0 + 59_000
    again.close()


def test_compacting_moves_no_watermark(opened):
    do_batch(opened, 0, beats(20))
    do_tick(opened, T0 + 2 * MINUTE_MS)
    opened.close()
    before = Manifest.load(opened.place).progress
    maintenance.compact(opened.place)
    after = Manifest.load(opened.place).progress
    assert (after.watermark_ms, after.read_to_ms) == (before.watermark_ms, before.read_to_ms)


def test_an_interrupted_tick_goes_on_with_the_time_it_had(opened):
    do_batch(opened, 0, beats(20))
    plan = opened.begin_tick(T0 + 2 * MINUTE_MS)
    assert plan is not None
    manifest = Manifest.load(opened.place)
    assert manifest.pending_tick == plan.pass_
    again = opened.begin_tick(T0 + 60 * MINUTE_MS)
    assert (again.pass_, again.settled_ms) == (plan.pass_, plan.settled_ms)


def test_ticks_end_after_very_many(opened):
    do_batch(opened, 0, beats(3))
    opened.manifest = Manifest(
        **{name: getattr(opened.manifest, name) for name in Manifest.__struct_fields__}
        | {"pass_": sequence(0, TICKS_MAX - 1)}
    )
    assert opened.begin_tick(T0 + 60 * MINUTE_MS) is None


def test_no_tick_while_a_batch_is_half_committed(opened, monkeypatch):
    """Its pass would be taken for one that the tables have already."""
    do_batch(opened, 0, beats(20))
    with monkeypatch.context() as patch:
        patch.setattr(Commits, "_save", lambda *_, **__: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            do_batch(opened, 1, [Record("d", T0 + 30_000, 20, {"a": 1.0})])
    assert opened.begin_tick(T0 + 60 * MINUTE_MS) is None


def test_the_lag_does_not_grow_while_no_record_comes(opened, monkeypatch):
    at_ms = T0 + 39_000 + 1_300
    monkeypatch.setattr("spark.tables.counters.now_ms", lambda: at_ms)
    do_batch(opened, 0, beats(40))
    assert opened.manifest.progress.publish_ms == 1_300
    at_ms += 10 * MINUTE_MS
    do_tick(opened, T0 + 10 * MINUTE_MS)
    assert opened.manifest.progress.committed_at_ms == at_ms
    assert opened.manifest.progress.publish_ms == 1_300
