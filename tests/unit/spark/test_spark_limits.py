"""Limits of the state: names that somebody makes up do not grow it for ever, and nothing is lost that is counted."""

import random

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from spark.decode.values import NAMES_MAX  # noqa: E402
from spark.errors import BadOption  # noqa: E402
from spark.job.options import TelemetryOptions  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from spark.tables.state import load_state  # noqa: E402
from spark.telemetry import forgetting, marks  # noqa: E402
from spark.telemetry.forgetting import Capacity, has_series, refused_devices, refused_samples  # noqa: E402
from spark.telemetry.windows import LATEST, PARTIALS, settled_before  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown, total  # noqa: E402

T0 = 1_767_225_600_000
HOUR_MS = 3_600_000


def settings(**changes) -> CommitSettings:
    plain = {"watermark_ms": 30_000, "late_ms": HOUR_MS, "buckets": 1, "forget_ms": 2 * HOUR_MS}
    return CommitSettings(**(plain | changes))


@pytest.fixture
def opening(tmp_path):
    """Opens an output with some settings."""
    made = []

    def opens(**changes) -> Commits:
        made.append(Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", settings(**changes)))
        return made[-1]

    yield opens
    for commits in made:
        commits.close()


def sizes(commits: Commits) -> dict[str, int]:
    """Returns how many rows each table of the state has."""
    plan = commits.begin(commits.manifest.progress.batch + 1)
    state = load_state(plan, 0)
    found = {name: getattr(state, name).num_rows for name in ("devices", "latest", "series", "aliases")}
    found["windows"] = sum(table.num_rows for table in state.windows.values())
    return found | {"marks": sum(table.num_rows for table in state.marks.values())}


def rows(commits: Commits, name: str) -> list[dict]:
    return Tables(commits.place.url).table(name).to_pylist()


@pytest.mark.slow
def test_a_flood_of_names_does_not_grow_the_state(opening, monkeypatch):
    """A thousand names in ten minutes, where fifty may be kept; ten real devices are heard all the while."""
    monkeypatch.setattr("spark.job.limits.MARKS_SPARE", 50)
    monkeypatch.setattr(forgetting, "GRACE_MS", 60_000)
    commits, chance, offset = opening(devices_max=50), random.Random(1), 0
    real, counted, flood = [], 0, 0
    for batch in range(60):
        records = []
        for step in range(10):
            at = T0 + (batch * 10 + step) * 1_000
            mine = Record(f"real{step}", at, offset, {"a": float(step)})
            made_up = [Record(f"x{chance.getrandbits(60):x}", at, offset + 1 + n, {"a": 1.0}) for n in range(2)]
            records += [mine, *made_up]
            real.append(mine)
            offset, flood = offset + 3, flood + 2
        do_batch(commits, batch, records)
        counted += len(records)
    found = sizes(commits)
    assert found["devices"] <= 50
    assert found["latest"] <= 50
    assert found["series"] <= 50
    assert found["marks"] <= 2 * (2 * 50 + 51)
    names = {row["device"] for row in rows(commits, "devices")}
    assert {f"real{n}" for n in range(10)} <= names
    quality = Tables(commits.place.url).quality()
    assert quality["too_many_devices"] + quality["ok"] == counted == commits.manifest.progress.records
    assert commits.manifest.progress.forgotten_devices > 100
    windows = {key: row for key, row in shown(Tables(commits.place.url).windows()).items() if key[0] < "x"}
    assert windows == naive(real)
    assert total(deltalake.DeltaTable(commits.place.child("traffic")).to_pyarrow_table(), "records") == counted


@pytest.mark.slow
def test_silent_devices_and_series_are_forgotten_after_a_time(opening):
    commits = opening()
    do_batch(commits, 0, [Record("gone", T0, 0, {"a": 1.0}), Record("here", T0, 1, {"old": 1.0, "a": 2.0})])
    do_batch(commits, 1, [Record("here", T0 + HOUR_MS, 2, {"a": 3.0})])
    do_tick(commits, T0 + 300 * HOUR_MS)  # without data no device is forgotten
    assert {row["device"] for row in rows(commits, "latest")} == {"gone", "here"}
    do_batch(commits, 2, [Record("here", T0 + 2 * HOUR_MS + 1_000, 3, {"a": 3.0})])
    do_tick(commits)
    assert [(row["device"], row["metric"]) for row in rows(commits, "latest")] == [("here", "a")]
    assert [row["device"] for row in rows(commits, "devices")] == [row["device"] for row in rows(commits, "quality")]
    assert [row["device"] for row in rows(commits, "devices")] == ["here"]
    progress = commits.manifest.progress
    assert (progress.forgotten_devices, progress.forgotten_series) == (1, 2)
    assert sizes(commits)["series"] == 1
    assert shown(Tables(commits.place.url).windows()).keys() >= {("gone", "a", T0)}  # counted windows stay
    do_batch(commits, 3, [Record("gone", T0 + 3 * HOUR_MS, 4, {"a": 4.0})])
    assert {row["device"] for row in rows(commits, "devices")} == {"gone", "here"}


@pytest.mark.slow
def test_a_late_sample_of_a_forgotten_series_corrects_its_window(opening):
    """Its mark is gone; the floor says that the window may be settled."""
    commits = opening(forget_ms=HOUR_MS + 60_000, late_ms=HOUR_MS)
    first = [Record("gone", T0 + 59_000, 0, {"a": 1.0}), Record("here", T0 + 50 * MINUTE_MS, 1, {"b": 1.0})]
    do_batch(commits, 0, first)
    do_tick(commits, T0 + 55 * MINUTE_MS)
    do_batch(commits, 1, [Record("here", T0 + 62 * MINUTE_MS + 1_000, 2, {"b": 1.0})])
    late = Record("gone", T0 + 58_000, 3, {"a": 5.0}, T0 + 60 * MINUTE_MS)
    do_tick(commits)
    assert {row["device"] for row in rows(commits, "latest")} == {"here"}
    do_batch(commits, 2, [late])
    assert shown(Tables(commits.place.url).windows())["gone", "a", T0] == (2, 1.0, 5.0, 3.0, 5.0, 1.0)


def test_metrics_of_a_device_and_series_in_all_are_limited(opening):
    commits = opening(metrics_max=3, series_max=5)
    many = {f"m{n}": float(n) for n in range(5)}
    do_batch(commits, 0, [Record("d", T0, 0, many), Record("d", T0 + 1_000, 1, {"m0": 7.0, "m9": 1.0})])
    assert [row["metric"] for row in rows(commits, "latest")] == ["m0", "m1", "m2"]
    assert Tables(commits.place.url).quality() == {"too_many_metrics": 2}
    do_batch(commits, 1, [Record("e", T0 + 2_000, 2, {"a": 1.0, "b": 1.0, "c": 1.0}), Record("d", T0, 3, {"m1": 2.0})])
    assert [row["metric"] for row in rows(commits, "latest")] == ["m0", "m1", "m2", "a", "b"]
    assert Tables(commits.place.url).quality() == {"ok": 1, "too_many_metrics": 3}
    assert {key[:2] for key in shown(Tables(commits.place.url).windows())} == {
        *(("d", f"m{n}") for n in range(3)),
        *(("e", name) for name in "ab"),
    }


def test_records_of_as_many_samples_as_count_are_read(opening):
    """The samples of a record are not copied for each of them: 11 MB were 2.7 GB so, which no Arrow array holds."""
    texts = {f"m{n}": "x" * 1_024 for n in range(256)}
    names = {f"n{n}": (None, n) for n in range(1_000)}
    records = [Record("d", T0 + n, n, texts if n % 2 else texts | names) for n in range(40)]
    commits = opening()
    do_batch(commits, 0, records)
    found = sizes(commits)
    assert [found[name] for name in ("devices", "latest", "series", "aliases")] == [1, 256, 0, 1_000]


def test_aliases_of_a_device_are_limited(opening):
    """To as many as one BIRTH gives, at least: how the log was cut does not show then."""
    commits = opening(metrics_max=3)
    high = {f"h{n}": (None, 10_000 + n) for n in range(NAMES_MAX)}
    low = {f"m{n}": (None, n) for n in range(NAMES_MAX)}
    do_batch(commits, 0, [Record("d", T0, 0, high)])
    do_batch(commits, 1, [Record("d", T0 + 1, 1, low)])
    do_batch(
        commits,
        2,
        [Record("d", T0 + 2, 2, {"alias/3": (5.0, 3), "alias/1023": (6.0, 1_023), "alias/10007": (7.0, 10_007)})],
    )
    assert sizes(commits)["aliases"] == NAMES_MAX
    assert {row["metric"]: row["value"] for row in rows(commits, "latest")} == {
        "m3": 5.0,
        "m1023": 6.0,
        "alias/10007": 7.0,
    }


def test_aliases_in_all_are_limited(opening):
    """A BIRTH without values makes no series: names of made-up devices grew to 1,024 for each that may be known."""
    commits = opening(series_max=3 * NAMES_MAX)
    for batch in range(5):
        birth = {f"m{n}": (None, n) for n in range(NAMES_MAX)}
        do_batch(commits, batch, [Record(f"d{batch}", T0 + batch, batch, birth)])
        assert sizes(commits)["aliases"] == min(batch + 1, 3) * NAMES_MAX
    data = {"alias/7": (5.0, 7)}
    do_batch(commits, 5, [Record(f"d{n}", T0 + 5 + n, 5 + n, data) for n in range(5)])
    assert {row["device"]: row["metric"] for row in rows(commits, "latest")} == {
        **dict.fromkeys(("d0", "d1"), "alias/7"),
        **dict.fromkeys(("d2", "d3", "d4"), "m7"),
    }


def test_windows_that_wait_for_late_samples_are_limited():
    samples = pa.table(
        {
            name: pa.array([T0 * 1000] * 5, pa.int64()).cast(PARTIALS.field(name).type)
            if pa.types.is_timestamp(PARTIALS.field(name).type)
            else pa.nulls(5, PARTIALS.field(name).type)
            for name in PARTIALS.names
        },
        schema=PARTIALS,
    )
    now_ms = T0 + 10 * MINUTE_MS
    fresh = samples.set_column(
        samples.schema.get_field_index("stored_at"),
        "stored_at",
        pa.array([(now_ms + 1) * 1000] * 5, pa.int64()).cast(PARTIALS.field("stored_at").type),
    )
    assert settled_before(fresh, now_ms)[1].num_rows == 5
    assert settled_before(fresh, now_ms, open_max=4)[1].num_rows == 0


def slow_refusals(known: list[str], names: list[str], most: int) -> list[bool]:
    """Returns which names are refused, decided one name at a time: the first ones that fit are taken."""
    taken, found = set(known), []
    for name in names:
        if name not in taken and len(taken) >= most:
            found.append(True)
        else:
            taken.add(name)
            found.append(False)
    return found


@given(
    st.lists(st.sampled_from("abcdefg"), unique=True),
    st.lists(st.sampled_from("abcdefghij"), max_size=20),
    st.integers(0, 12),
)
def test_refused_devices_are_those_by_the_book(known, names, most):
    devices = pa.table({"device": pa.array(known, pa.string())})
    capacity = Capacity(max(most, len(known)), 0, 0, 0)
    refused = refused_devices(devices, pa.chunked_array([pa.array(names, pa.string())]), capacity)
    assert refused.tolist() == slow_refusals(known, names, capacity.devices)


KEYS = st.tuples(st.sampled_from("abc"), st.sampled_from("wxyz"))


@given(st.lists(KEYS, unique=True), st.lists(KEYS, max_size=20), st.integers(1, 4), st.integers(0, 12))
def test_refused_samples_are_those_by_the_book(known, keys, metrics, series):
    def table(some):
        columns = {name: pa.array([key[n] for key in some], pa.string()) for n, name in enumerate(("device", "metric"))}
        return pa.table(columns)

    capacity = Capacity(100, series, metrics, 0)
    taken, expected, refused_keys = set(known), [], set()
    for key in keys:
        mine = sum(one[0] == key[0] for one in taken | {k for k in refused_keys if k[0] == key[0]})
        if key not in taken and (key in refused_keys or mine >= metrics or len(taken) >= series):
            refused_keys.add(key)
            expected.append(True)
        else:
            taken.add(key)
            expected.append(False)
    found = refused_samples(table(known), table(keys), capacity)
    assert found.tolist() == expected
    kept = {key for key, bad in zip(keys, found.tolist(), strict=True) if not bad} | set(known)
    assert len(kept) <= max(series, len(known))
    assert has_series(table(keys), table(known)).tolist() == [key in known for key in keys]


def test_pruned_marks_leave_a_floor():
    held = pa.table(
        [["a", "b", "c"], ["m", "m", "m"], pa.array([1, 5, 3], pa.int64()).cast(pa.timestamp("us", "UTC"))],
        schema=marks.MARKS,
    )
    once = marks.prune(held, np.array([True, False, True]))
    assert once["metric"].to_pylist() == ["m", "m", None]
    twice = marks.prune(once, np.array([False, True, True]))
    assert twice["device"].to_pylist() == ["c", ""]
    assert pa.compute.max(twice["until"].cast(pa.int64())).as_py() == 5
    assert marks.prune(twice, np.array([True, False])).num_rows == 2


def test_options_that_forget_too_soon_are_refused():
    with pytest.raises(BadOption, match="forget_s must be longer than windows are corrected"):
        TelemetryOptions(output="x", forget_s=60)
    assert LATEST.names[:2] == ["device", "metric"]
