"""Sessions of activity: by the store's clock, however the log was cut into batches, each record in one session."""

import random
from collections import defaultdict

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from spark.errors import BadOption  # noqa: E402
from spark.job import maintenance  # noqa: E402
from spark.job.options import TelemetryOptions  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from spark.telemetry.sessions import SESSIONS, absorb, closed_before  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, table  # noqa: E402

T0 = 1_767_225_600_000
PAUSE_MS = 600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2, session_ms=PAUSE_MS)


def by_the_book(records, pause_ms=PAUSE_MS):
    """Returns sessions as (device, first, last, records, first time, last time, address), record by record."""
    by_device = defaultdict(list)
    for record in records:
        address = record.address or f"telemetry/{record.device}"
        by_device[record.device].append((record.stored_at_ms, record.time_ms, address))
    found = []
    for device, some in by_device.items():
        session = []
        for one in sorted(some):
            if session and one[0] - session[-1][0] > pause_ms:
                found.append((device, session))
                session = []
            session.append(one)
        found.append((device, session))
    return sorted(
        (
            *(device, some[0][0], some[-1][0], len(some)),
            *(min(time for _, time, _ in some), max(time for _, time, _ in some)),
            max((at, address) for at, _, address in some)[1],
        )
        for device, some in found
    )


def ms(when):
    return round(when.timestamp() * 1_000)


def told(rows):
    names = ("first_seen", "last_seen", "first_time", "last_time")
    return sorted(
        (
            *(row["device"], *(ms(row[name]) for name in names[:2]), row["records"]),
            *(*(ms(row[name]) for name in names[2:]), row["address"]),
        )
        for row in rows.to_pylist()
    )


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), st.integers(0, 5)), max_size=60), st.integers(1, 7))
def test_sessions_equal_a_plain_count_in_any_order_and_any_pieces(some, pieces):
    """The log's queues may be read at different speeds, so that records of a device do not come in order."""
    records = [
        Record(
            f"d{device}", T0 + (minute - early) * MINUTE_MS, n, stored_ms=T0 + minute * MINUTE_MS, address=f"t/{early}"
        )
        for n, (minute, device, early) in enumerate(some)
    ]
    sessions = SESSIONS.empty_table()
    size = -(-len(records) // pieces) or 1
    for at in range(0, len(records), size):
        sessions = absorb(sessions, table(records[at : at + size]), PAUSE_MS)
    assert told(sessions) == by_the_book(records)


def test_a_session_ends_when_nothing_can_be_added_to_it():
    records = [Record("a", T0, 0), Record("b", T0 + 1_000, 1)]
    sessions = absorb(SESSIONS.empty_table(), table(records), PAUSE_MS)
    closed, still_open = closed_before(sessions, T0 + PAUSE_MS, PAUSE_MS)
    assert (closed.num_rows, still_open.num_rows) == (0, 2)  # one that is stored now would belong to it
    closed, still_open = closed_before(sessions, T0 + PAUSE_MS + 1, PAUSE_MS)
    assert (closed["device"].to_pylist(), still_open["device"].to_pylist()) == (["a"], ["b"])
    closed, still_open = closed_before(sessions, T0, PAUSE_MS, open_max=1)
    assert (closed["device"].to_pylist(), still_open["device"].to_pylist()) == (["a"], ["b"])


def history(seed):
    chance, records, at = random.Random(seed), [], T0
    for n in range(300):
        at += chance.choice((1_000, 20_000, 90_000, 700_000))
        records.append(Record(f"d{chance.randrange(4)}", at - chance.randrange(900_000), n, {"a": 1.0}, at))
    return records


@pytest.mark.slow
def test_the_table_has_each_record_in_one_session(tmp_path):
    place, checkpoint, records = Location.of(tmp_path / "out"), tmp_path / "checkpoint", history(3)
    commits = Commits.open(place, checkpoint, SETTINGS)
    for batch, low in enumerate(range(0, len(records), 50)):
        do_batch(commits, batch, records[low : low + 50])
        do_tick(commits, records[min(low + 50, len(records)) - 1].stored_at_ms)
        found = Tables(place.url).table("sessions")
        assert told(found) == by_the_book(records[: low + 50])
    assert 0 < sum(not settled for settled in found["settled"].to_pylist()) <= 4
    commits.close()
    maintenance.compact(place)  # which knows nothing of the job's pause, and ends no session
    assert told(Tables(place.url).table("sessions")) == by_the_book(records)
    assert sum(not settled for settled in Tables(place.url).table("sessions")["settled"].to_pylist()) > 0
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_tick(commits, records[-1].stored_at_ms + PAUSE_MS + 60_000)
    commits.close()
    found = Tables(place.url).table("sessions")
    assert all(found["settled"].to_pylist())
    assert told(found) == by_the_book(records)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_state_of_before_sessions_or_reported_findings_is_taken_over(tmp_path, missing):
    place, checkpoint = Location.of(tmp_path / "out"), tmp_path / "checkpoint"
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 0, [Record("d", T0, 0, {"a": 1.0})])
    for path in commits.manifest.states.values():
        file = tmp_path / "out" / path
        whole = pa.BufferReader(file.read_bytes())
        parts = []
        while whole.tell() < whole.size():
            parts.append(pa.ipc.open_stream(whole).read_all())
        with file.open("wb") as older:
            for part in parts[:-missing]:
                with pa.ipc.new_stream(older, part.schema) as writer:
                    writer.write_table(part)
    do_batch(commits, 1, [Record("d", T0 + 1_000, 1, {"a": 2.0})])
    commits.close()
    known = [Record("d", T0, 0)] if missing == 1 else []
    assert told(Tables(place.url).table("sessions")) == by_the_book([*known, Record("d", T0 + 1_000, 1)])
    (device,) = Tables(place.url).table("devices").to_pylist()
    assert device["records"] == 2


@pytest.mark.parametrize("seconds", [0, -1, 1e12, float("nan")])
def test_a_pause_that_is_none_is_refused(seconds):
    with pytest.raises(BadOption, match="session_s"):
        TelemetryOptions(output="x", session_s=seconds)
