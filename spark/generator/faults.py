"""The faults that a generated device can have: how each changes the messages, and as which finding it is told.

A device sends a message each `interval`, with the value

    base + swing sin(2 pi n / 600 + phase) + noise N(0, 1)        n: the number of the message

of which base, swing, phase and noise are drawn by the seed and the device's number; `sigma` is the spread of the whole,
`hypot(noise, swing / sqrt(2))`. A fault lasts from its start to its end, by the schedule of the messages:

    spike        one value is off by 12 to 30 sigma
    level_shift  all values from here on are off by 8 to 15 sigma
    stuck        60 messages have the value of the first of them
    drift        the value rises by 3 sigma in 300 messages, and stays there
    gap          nothing is sent for 120 s, or 24 intervals where that is longer
    flood        20 messages are sent in the place of one, for 60 s; their times are 1 ms apart, their values differ
    skew         the device's clock is 45 s behind, for 60 messages
    ahead        the device's clock is an hour ahead, for 60 messages
    duplicates   60 messages are sent twice, with equal times and values
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from spark.telemetry.anomalies import LEVEL_SHIFT, SPIKE, STUCK
from spark.telemetry.bursts import RATE_SPIKE
from spark.telemetry.liveness import BACK, FLAPPING, SILENT

GAP, FLOOD, DRIFT, SKEW, AHEAD, DUPLICATES = "gap", "flood", "drift", "skew", "ahead", "duplicates"
SPIKE_SIGMAS, SHIFT_SIGMAS, DRIFT_SIGMAS = (12.0, 30.0), (8.0, 15.0), 3.0
FLOOD_COPIES, SKEW_MS, AHEAD_MS = 20, -45_000, 3_600_000
WARM_MESSAGES, FLOOD_WARM_S = 60, 660.0  # before the first fault: until then the job learns the usual values


class FaultKind(NamedTuple):
    """One kind of fault."""

    messages: int  # that it lasts
    seconds: float  # that it lasts at least
    finds: tuple[str, ...]  # kinds of findings that tell it
    quality: str = ""  # the column of the table `quality` that tells it instead


KINDS: Final[Mapping[str, FaultKind]] = {
    SPIKE: FaultKind(1, 0.0, (SPIKE,)),
    LEVEL_SHIFT: FaultKind(40, 0.0, (LEVEL_SHIFT, SPIKE)),
    STUCK: FaultKind(60, 0.0, (STUCK,)),
    GAP: FaultKind(24, 120.0, (SILENT, BACK, FLAPPING)),
    FLOOD: FaultKind(1, 60.0, (RATE_SPIKE,)),
    DRIFT: FaultKind(300, 0.0, (LEVEL_SHIFT,)),
    SKEW: FaultKind(60, 0.0, ()),
    AHEAD: FaultKind(60, 0.0, (), "ahead"),
    DUPLICATES: FaultKind(60, 0.0, (), "duplicates"),
}


def length_ms(kind: str, interval_s: float) -> int:
    """Returns how long a fault lasts, of a device that sends a message each `interval_s`."""
    one = KINDS[kind]
    return round(max(one.messages * interval_s, one.seconds) * 1_000)


def warm_s(kind: str, interval_s: float) -> float:
    """Returns how long a device has to send before a fault can be told from its usual values."""
    return max(WARM_MESSAGES * interval_s, FLOOD_WARM_S if kind == FLOOD else 0.0)
