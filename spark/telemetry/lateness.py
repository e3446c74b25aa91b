"""Judges each record by its times: in time, late, too old, or ahead of its time.

A record is judged by its own time, and each sample by the sample's, where it has one; a record counts as the worst of
these. Every verdict follows from these times and the watermark, by the store's clock and never by the greatest device
time seen. So it does not depend on how the log was cut into batches, and no device with a wrong clock makes the others
late.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark.telemetry.windows import WINDOW_MS

OK = "ok"
LATE = "late"  # stored after its window was settled; the window is corrected
TOO_OLD = "too_old"  # later than windows are corrected: in the latest values still, in no window
AHEAD = "ahead"  # its time is after it was stored, by more than clocks may differ: in no window and no latest value
FINDING = "finding"  # of this job itself, read back: counted in the traffic alone
TOO_MANY_DEVICES = "too_many_devices"  # of a device beyond the limit: counted in the traffic alone
TOO_MANY_METRICS = "too_many_metrics"  # some of its samples are beyond a limit (`spark.decode`, or the state's)
_MEASURED = (OK, TOO_MANY_METRICS)

_BY_HARM = (*_MEASURED, LATE, TOO_OLD, AHEAD)

IN_WINDOWS = (*_MEASURED, LATE)
IN_LATEST = (*IN_WINDOWS, TOO_OLD)


class LatenessLimits(NamedTuple):
    """The limits of the distance between a record's time and when it was stored, in ms."""

    watermark_ms: int  # after its window's end; and before it was stored, for clocks that are ahead
    late_ms: int  # after its window's end: so long a settled window is corrected; none is if watermark_ms is longer


def judge(
    quality: npt.NDArray[np.object_],
    time_ms: npt.NDArray[np.int64],
    stored_ms: npt.NDArray[np.int64],
    limits: LatenessLimits,
    *,
    settled_ms: int,
) -> npt.NDArray[np.object_]:
    """Returns the quality of each record: that of its body, or the verdict on its times where the body has samples.

    `settled_ms` is the watermark: windows that end at or before it are settled.
    """
    end_ms = time_ms - time_ms % WINDOW_MS + WINDOW_MS
    measured = np.isin(quality, _MEASURED)
    found = quality.copy()
    found[measured & (end_ms + limits.watermark_ms <= np.maximum(stored_ms, settled_ms + limits.watermark_ms))] = LATE
    found[measured & (end_ms + max(limits.late_ms, limits.watermark_ms) <= stored_ms)] = TOO_OLD
    found[measured & (time_ms > stored_ms + limits.watermark_ms)] = AHEAD
    return found


def worst(
    quality: npt.NDArray[np.object_], verdicts: npt.NDArray[np.object_], owners: npt.NDArray[np.int64]
) -> npt.NDArray[np.object_]:
    """Returns the quality of each record, or the worst verdict on its samples where that is worse.

    `owners` has the record of each sample. The order is: late, too old, ahead.
    """
    found = quality.copy()
    for verdict in (LATE, TOO_OLD, AHEAD):
        concerned = owners[verdicts == verdict]
        better = np.isin(found[concerned], _BY_HARM[: _BY_HARM.index(verdict)])
        found[concerned[better]] = verdict
    return found
