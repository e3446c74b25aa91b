"""Verdicts on the times of records."""

import pytest

np = pytest.importorskip("numpy")

from spark.telemetry.lateness import AHEAD, LATE, OK, TOO_OLD, LatenessLimits, judge  # noqa: E402

MINUTE_MS = 60_000
END_MS = 1_767_225_600_000  # of the window of the records here
WATERMARK_MS = 2 * MINUTE_MS


def verdicts(stored_ms: list[int], late_ms: int) -> list[str]:
    """Returns the verdicts on records of the window's last second, by when they are stored after its end."""
    count = len(stored_ms)
    found = judge(
        np.array([OK] * count, object),
        np.full(count, END_MS - 1_000),
        END_MS + np.array(stored_ms),
        LatenessLimits(WATERMARK_MS, late_ms),
        settled_ms=0,
    )
    return found.tolist()


@pytest.mark.parametrize("late_ms", [0, MINUTE_MS, WATERMARK_MS, WATERMARK_MS + 1, 60 * MINUTE_MS])
def test_a_record_is_in_time_until_its_window_is_settled(late_ms):
    """With `--late` shorter than `--watermark` records in time were too old."""
    assert verdicts([-1_000 - WATERMARK_MS, -900, 0, 2_000, WATERMARK_MS - 1], late_ms) == [OK] * 5
    assert verdicts([-1_001 - WATERMARK_MS], late_ms) == [AHEAD]
    corrected = late_ms > WATERMARK_MS
    assert verdicts([WATERMARK_MS], late_ms) == [LATE if corrected else TOO_OLD]
    assert verdicts([max(late_ms, WATERMARK_MS)], late_ms) == [TOO_OLD]
