"""Findings of samples are reported once, and kept no longer than their samples are judged."""

import pytest

pa = pytest.importorskip("pyarrow")

from spark.telemetry.events import EVENTS  # noqa: E402
from spark.telemetry.reported import REPORTED, unreported  # noqa: E402

T0 = 1_767_225_600_000
MINUTE_MS = 60_000


def found(*keys: tuple[str, str, str, int]) -> "pa.Table":
    """Returns findings of (device, metric, kind, time in ms), with their number as the score."""
    names = ("device", "metric", "kind", "time")
    rows = [dict(zip(names, (*key[:3], key[3] * 1000), strict=True), score=float(n)) for n, key in enumerate(keys)]
    return pa.table([pa.array([row.get(f.name) for row in rows], f.type) for f in EVENTS], schema=EVENTS)


def test_the_first_of_equal_findings_is_reported():
    some = found(("d", "a", "spike", T0), ("d", "a", "stuck", T0), ("d", "a", "spike", T0), ("e", "a", "spike", T0))
    new, reported = unreported(REPORTED.empty_table(), some, T0)
    assert new["score"].to_pylist() == [0.0, 1.0, 3.0]
    assert reported.num_rows == 3
    more = found(("e", "a", "spike", T0), ("d", "b", "spike", T0), ("d", "a", "spike", T0 + 1))
    new, reported = unreported(reported, more, T0)
    assert new["score"].to_pylist() == [1.0, 2.0]
    assert reported.num_rows == 5
    assert unreported(reported, found(), T0)[1] is reported


def test_a_finding_is_kept_until_its_window_is_settled():
    early, late = ("d", "a", "spike", T0), ("d", "a", "spike", T0 + MINUTE_MS)
    _, reported = unreported(REPORTED.empty_table(), found(early, late), T0)
    other = found(("e", "a", "spike", T0 + MINUTE_MS))
    assert unreported(reported, other, T0 + MINUTE_MS - 1)[1].num_rows == 3
    new, reported = unreported(reported, other, T0 + MINUTE_MS)
    assert new.num_rows == 1
    assert reported["device"].to_pylist() == ["d", "e"]
    assert unreported(reported, found(late), T0 + MINUTE_MS)[0].num_rows == 0


def test_no_more_findings_are_kept_than_the_limit():
    many = found(*(("d", "a", "spike", T0 + n) for n in range(50)))
    new, reported = unreported(REPORTED.empty_table(), many, T0, reported_max=10)
    assert new.num_rows == 50
    assert sorted(reported["time"].cast(pa.int64()).to_pylist()) == [(T0 + n) * 1000 for n in range(40, 50)]
