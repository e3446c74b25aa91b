"""Bursts: minutes in which a device sends many more messages than it usually does; the finding `rate_spike`.

A device keeps the mean number of its messages in a minute, by the store's clock, and the mean distance from it, both
exponential; minutes without a message teach nothing. A minute is a burst when its messages exceed the mean by
`SIGMAS`, and `FACTOR` times the mean, and `COUNT_MIN`. Of bursts in successive minutes only the first counts. A burst
teaches as much as `CUT` sigmas would, so a device that sends more from now on is followed after a while.

The minute that goes on is counted and not yet learned from, so how the log was cut into batches does not show. Messages
that are late by their own time do not count: a device that was offline may send all that it gathered at once. Old
samples in messages in time do not matter.
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark.telemetry.events import EVENTS, events_of
from spark.telemetry.groups import Indices

RATE_SPIKE = "rate_spike"
WARM_COUNT = 10  # minutes from which on a device is judged
WEIGHT = 0.05  # of the newest minute in the means, once warm
SIGMAS, CUT, FACTOR, COUNT_MIN = 8.0, 4.0, 3.0, 30.0
_SIGMA = 1.2533  # mean distances, of a normal distribution
_MINUTE_US = 60_000_000

FEW_COUNT = 64  # devices of which the rest is counted one by one: 2 us a minute; a rank takes 0.1 ms

_FIELDS = ("minute", "minute_count", "rate", "rate_spread", "minutes", "burst", "burst_before")

Arrays = dict[str, npt.NDArray[Any]]


class _Burst(NamedTuple):
    """A burst: the row of its device, its minute in microseconds, the most messages that are none, and its score."""

    at: int
    minute: int
    most: float
    usual: float
    score: float


def find(arrays: Arrays, at: Indices, owner: Indices, stored: npt.NDArray[np.int64]) -> pa.Table:
    """Counts messages into the minutes of their devices, and returns the bursts among these as rows of `EVENTS`.

    `at` has the row in `arrays` of each owner, `owner` that of each message; `stored` is in microseconds. Minutes are
    counted one rank after another, all devices at once; where only a few have so many, the rest of each by itself.
    """
    if not len(stored):
        return EVENTS.empty_table()
    minutes = stored // _MINUTE_US
    base = int(minutes.min())
    span = int(minutes.max()) - base + 1
    keys, counts = np.unique(owner * span + (minutes - base), return_counts=True)
    who, minute = keys // span, (keys % span + base) * _MINUTE_US
    _, starts, sizes = np.unique(who, return_index=True, return_counts=True)
    ranks = int(np.sort(sizes)[-FEW_COUNT - 1]) if len(sizes) > FEW_COUNT else 0  # that more than a few have
    rank = np.arange(len(who)) - np.repeat(starts, sizes)
    common = np.flatnonzero(rank < ranks)
    by_rank = common[np.argsort(rank[common], kind="stable")]
    bounds = np.searchsorted(rank[by_rank], np.arange(ranks + 1))
    found: list[_Burst] = []
    for low, high in itertools.pairwise(bounds.tolist()):
        some = by_rank[low:high]
        _count(arrays, at[who[some]], minute[some], counts[some], found)
    for n in np.flatnonzero(sizes > ranks).tolist():
        rest = slice(starts[n] + ranks, starts[n] + sizes[n])
        _count_alone(arrays, int(at[who[starts[n]]]), minute[rest].tolist(), counts[rest].tolist(), found)
    return _events(arrays, sorted(found))


def _count(
    arrays: Arrays, at: Indices, minute: npt.NDArray[np.int64], count: npt.NDArray[np.int64], found: list[_Burst]
) -> None:
    """Counts one minute each of some devices."""
    known = arrays["minute"][at]
    ahead = minute >= known  # not one that is over, of a queue that is read behind another one
    at, minute, count, known = at[ahead], minute[ahead], count[ahead], known[ahead]
    ends = (known >= 0) & (minute > known)
    _learn(arrays, at[ends])
    held = np.where(minute > known, 0, arrays["minute_count"][at])
    arrays["minute"][at], arrays["minute_count"][at] = minute, held + count
    usual, sigma = arrays["rate"][at], _sigma(arrays, at)
    most = np.floor(np.maximum(np.maximum(usual + SIGMAS * sigma, FACTOR * usual), COUNT_MIN))
    burst = (arrays["minutes"][at] >= WARM_COUNT) & (held <= most) & (held + count > most)
    new = burst & (arrays["burst_before"][at] == 0)
    arrays["burst"][at] |= burst
    if new.any():
        columns = (at, minute, most, usual, (most - usual) / sigma)
        found.extend(_Burst(*each) for each in zip(*(column[new].tolist() for column in columns), strict=True))


def _count_alone(arrays: Arrays, at: int, minutes: list[int], counts: list[int], found: list[_Burst]) -> None:
    """Counts minutes of one device, as `_count` does, bit for bit: the same, of plain numbers and without numpy."""
    known, held, rate, spread, seen, burst, before = (arrays[name][at].item() for name in _FIELDS)
    sigma = max(_SIGMA * spread, math.sqrt(max(rate, 1.0)))
    for minute, count in zip(minutes, counts, strict=True):
        if minute < known:
            continue
        if minute > known:
            if known >= 0:
                mean = float(held) if seen == 0 else rate
                error, share = min(held - mean, CUT * sigma), max(WEIGHT, 1.0 / (seen + 1.0))
                rate = mean + share * error
                spread += share * (abs(error) - spread)
                seen, before, burst = seen + 1, burst, 0
                sigma = max(_SIGMA * spread, math.sqrt(max(rate, 1.0)))
            known, held = minute, 0
        most = float(math.floor(max(rate + SIGMAS * sigma, FACTOR * rate, COUNT_MIN)))
        if seen >= WARM_COUNT and held <= most < held + count:
            if not before:
                found.append(_Burst(at, minute, most, rate, (most - rate) / sigma))
            burst = 1
        held += count
    for name, value in zip(_FIELDS, (known, held, rate, spread, seen, burst, before), strict=True):
        arrays[name][at] = value


def _learn(arrays: Arrays, at: Indices) -> None:
    """Learns from the minutes of some devices that are over."""
    count, seen = arrays["minute_count"][at].astype(np.float64), arrays["minutes"][at]
    mean = np.where(seen == 0, count, arrays["rate"][at])
    error = np.minimum(count - mean, CUT * _sigma(arrays, at))
    share = np.maximum(WEIGHT, 1.0 / (seen + 1.0))
    arrays["rate"][at] = mean + share * error
    arrays["rate_spread"][at] += share * (np.abs(error) - arrays["rate_spread"][at])
    arrays["minutes"][at] = seen + 1
    arrays["burst_before"][at], arrays["burst"][at] = arrays["burst"][at], 0


def _sigma(arrays: Arrays, at: Indices) -> npt.NDArray[np.float64]:
    """Returns the spread of a device's minutes; that of messages by chance at least."""
    least = np.sqrt(np.maximum(arrays["rate"][at], 1.0))
    sigma: npt.NDArray[np.float64] = np.maximum(_SIGMA * arrays["rate_spread"][at], least)
    return sigma


def _events(arrays: Arrays, found: list[_Burst]) -> pa.Table:
    if not found:
        return EVENTS.empty_table()
    at, minute, most, usual, score = (np.array(column) for column in zip(*found, strict=True))
    return events_of(
        time=minute,
        device=arrays["device"][at],
        address=arrays["address"][at],
        kind=np.full(len(at), RATE_SPIKE, object),
        value=most + 1,
        expected=usual,
        score=score,
        sentence=[
            f"more than {one.most:.0f} messages came within a minute; usually {one.usual:.3g} do" for one in found
        ],
    )
