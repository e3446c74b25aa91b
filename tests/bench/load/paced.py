"""The figures of messages that leave at their times, whatever has become of those before."""

import bisect

from tests.bench.load.base import LoadError, Measured, percentile

LATE_S = 0.001  # a message sent later than this after its time is counted as late
SOON_MS = 20.0  # an application does not notice a shorter delay
DRAIN_S = 5.0  # for the last answers


def paced(taken_s: list[float], *, total: int, late: int, elapsed_s: float) -> Measured:
    """Returns the average and the percentiles, in ms, of answers that took so many seconds.

    `total` is the number of messages, `late` of those that were sent late. Raises `LoadError` without an answer.
    """
    if not taken_s:
        raise LoadError("nothing was answered")
    taken_ms = sorted(one * 1e3 for one in taken_s)
    also = {f"p{name}_ms": percentile(taken_ms, part) for name, part in (("50", 0.5), ("99", 0.99), ("99_9", 0.999))}
    soon = bisect.bisect(taken_ms, SOON_MS) / total * 100
    also |= {"max_ms": taken_ms[-1], f"percent_within_{SOON_MS:.0f}_ms": soon, "sent_late": float(late)}
    average = sum(taken_ms) / len(taken_ms)
    return Measured(value=average, elapsed_s=elapsed_s, done=len(taken_ms), failed=total - len(taken_ms), also=also)
