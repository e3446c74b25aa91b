"""Anomalies of series (device and metric): spikes, level shifts, stuck sensors; with a score and a sentence.

Each series keeps its level and its trend a sample (Holt's double exponential smoothing), and its spread, the
exponential mean of the distance between a sample and the forecast, `level + trend`. All three learn from distances cut
at `CUT` sigmas, so that one outlier teaches them little. Sigma is 1.2533 spreads, as it is of a normal
distribution, and the least step between two values at least, so that the steps of a coarse sensor are no events. A
sample is

- a `spike` when it is `SPIKE_SIGMAS` or more from its forecast, and the sample before it was not;
- a `level_shift` when the sum of its distances beyond `SLACK` sigmas, cut at `CUT`, with those before it on the same
  side, passes `SHIFT` (Page's CUSUM): level and trend are then learned anew from here. The forecast of a smooth curve
  errs smoothly, and a sine's amplitude is 1.2533 of these sigmas: less than `SLACK`, so slow movement, a day's
  temperature for example, sums up to nothing whatever its period and height. A shift is abrupt: one smaller than some
  seven sigmas, or spread over many samples, is followed as a trend;
- `stuck` when it is the `STUCK`th of equal values in a row, of a series in which values usually differ.

Samples of one series are judged in the order of their times, one rank after another, all series at once; where only a
few series have so many samples, as one that is caught up with, the rest of each by itself. Every sample is judged. Of
samples that come in order, of one queue, how the log was cut into batches does not show; others are put in order within
a batch alone.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark.telemetry.events import EVENTS, events_of
from spark.telemetry.groups import Indices, codes, column, group

SPIKE, LEVEL_SHIFT, STUCK = "spike", "level_shift", "stuck"
FEW_COUNT = 32  # series of which the rest is judged one by one: 2 us a sample; a rank takes 66 us
SLICE_COUNT = 65_536  # samples of one series that are plain numbers of Python at a time
WARM_COUNT = 30  # samples from which on a series is judged
WEIGHT = 0.03  # of the newest sample in the spread, once warm
LEVEL_WEIGHT, TREND_WEIGHT = 0.1, 0.05  # of a forecast's error in the level, and of the level's step in the trend
SPIKE_SIGMAS, CUT, SLACK = 7.0, 4.0, 1.5
SHIFT = 12.0
STUCK_COUNT = 20
MOVES = 0.6  # of samples that differ from the one before, from which on a series can be stuck
_SIGMA = 1.2533
_FLOOR = 1e-3  # of the level: a spread is never thought smaller

_FLOATS = ("level", "trend", "spread", "last", "least_step", "above", "below", "moves")
_INTEGERS = ("seen", "run", "outside")
SERIES = pa.schema(
    [("device", pa.string()), ("metric", pa.string())]
    + [(name, pa.float64()) for name in _FLOATS]
    + [(name, pa.int64()) for name in _INTEGERS]
)

Arrays = dict[str, npt.NDArray[Any]]


class _Found(NamedTuple):
    """An anomaly: the number of its sample, and how it was judged."""

    kind: str
    row: int
    level: float
    score: float
    sigma: float


def detect(series: pa.Table, samples: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the series after some samples, and the anomalies among these, as rows of `EVENTS`."""
    if not samples.num_rows:
        return series, EVENTS.empty_table()
    groups = group([codes(samples["device"]), codes(samples["metric"])])
    arrays, at = _joined(series, samples, groups.heads)
    owner = np.repeat(np.arange(len(groups.starts)), groups.sizes)
    by = [column(samples, name)[groups.order] for name in ("queue", "offset", "time")]
    rows = groups.order[np.lexsort([*by, owner])]
    value = column(samples, "value")
    ranks = np.sort(groups.sizes)[-FEW_COUNT - 1] if len(groups.sizes) > FEW_COUNT else 0  # that more than a few have
    rank = np.arange(len(rows)) - np.repeat(groups.starts, groups.sizes)
    common = np.flatnonzero(rank < ranks)
    by_rank = common[np.argsort(rank[common], kind="stable")]
    bounds = np.searchsorted(rank[by_rank], np.arange(ranks + 1))
    found: list[_Found] = []
    for low, high in itertools.pairwise(bounds.tolist()):
        some = by_rank[low:high]
        _judge(arrays, at[owner[some]], value[rows[some]], rows[some], found)
    for n in np.flatnonzero(groups.sizes > ranks).tolist():
        rest = rows[groups.starts[n] + ranks : groups.starts[n] + groups.sizes[n]]
        for low in range(0, len(rest), SLICE_COUNT):
            _judge_alone(arrays, int(at[n]), value, rest[low : low + SLICE_COUNT], found)
    return _table(arrays), _events(samples, found)


def _judge(arrays: Arrays, at: Indices, x: npt.NDArray[np.float64], rows: Indices, found: list[_Found]) -> None:
    """Judges one sample each of some series, and learns from it."""
    level, trend, spread, last, least_step, above, below, moves = (arrays[name][at] for name in _FLOATS)
    seen, run, outside = (arrays[name][at] for name in _INTEGERS)
    new = seen == 0
    forecast = np.where(new, x, level + trend)
    warm = seen >= WARM_COUNT
    moved = np.where(new, 0.0, np.abs(x - last))
    least_step = np.where((moved > 0) & ((least_step == 0) | (moved < least_step)), moved, least_step)
    sigma = np.maximum(_SIGMA * spread, _FLOOR * np.maximum(np.abs(forecast), 1e-9))
    sigma = np.maximum(sigma, least_step)
    z = (x - forecast) / sigma
    far = warm & (np.abs(z) >= SPIKE_SIGMAS)
    spike = far & (outside == 0)
    cut = np.clip(z, -CUT, CUT)
    above = np.where(warm, np.maximum(0.0, above + cut - SLACK), 0.0)
    below = np.where(warm, np.maximum(0.0, below - cut - SLACK), 0.0)
    shift = np.maximum(above, below) >= SHIFT
    run = np.where(~new & (x == last), run + 1, 1)
    stuck = (run == STUCK_COUNT) & warm & (moves >= MOVES)
    for kind, mask, score in (
        (SPIKE, spike, np.abs(z)),
        (LEVEL_SHIFT, shift, np.maximum(above, below) / SHIFT * SPIKE_SIGMAS),
        (STUCK, stuck, run / 1.0),
    ):
        if mask.any():
            some = (rows[mask].tolist(), forecast[mask].tolist(), score[mask].tolist(), sigma[mask].tolist())
            found.extend(_Found(kind, *each) for each in zip(*some, strict=True))
    error = np.where(warm, np.clip(x - forecast, -CUT * sigma, CUT * sigma), x - forecast)
    share = 1.0 / (seen + 1.0)
    frozen = run > STUCK_COUNT // 2  # equal values teach no spread
    taught = spread + np.maximum(WEIGHT, share) * (np.abs(error) - spread)
    step = np.maximum(LEVEL_WEIGHT, share) * error
    arrays["spread"][at] = np.where(shift | frozen, spread, taught)
    arrays["level"][at] = np.where(shift, x, forecast + step)
    arrays["trend"][at] = np.where(shift, 0.0, trend + TREND_WEIGHT * step)
    arrays["least_step"][at] = least_step
    arrays["moves"][at] = np.where(new | frozen, moves, moves + np.maximum(WEIGHT, share) * ((x != last) - moves))
    arrays["above"][at], arrays["below"][at] = np.where(shift, 0.0, above), np.where(shift, 0.0, below)
    arrays["seen"][at] = np.where(shift, WARM_COUNT // 2, seen + 1)
    arrays["run"][at], arrays["last"][at] = run, x
    arrays["outside"][at] = np.where(far & ~shift, outside + 1, 0)


def _judge_alone(arrays: Arrays, at: int, values: npt.NDArray[np.float64], rows: Indices, found: list[_Found]) -> None:
    """Judges samples of one series, as `_judge` does, bit for bit: the same, of plain numbers and without numpy."""
    level, trend, spread, last, least_step, above, below, moves = (arrays[name][at].item() for name in _FLOATS)
    seen, run, outside = (arrays[name][at].item() for name in _INTEGERS)
    for row, x in zip(rows.tolist(), values[rows].tolist(), strict=True):
        new, warm = seen == 0, seen >= WARM_COUNT
        forecast = x if new else level + trend
        moved = 0.0 if new else abs(x - last)
        if moved > 0 and (least_step == 0 or moved < least_step):
            least_step = moved
        sigma = max(_SIGMA * spread, _FLOOR * max(abs(forecast), 1e-9), least_step)
        z = (x - forecast) / sigma
        far = warm and abs(z) >= SPIKE_SIGMAS
        cut = min(max(z, -CUT), CUT)
        above = max(0.0, above + cut - SLACK) if warm else 0.0
        below = max(0.0, below - cut - SLACK) if warm else 0.0
        shift = max(above, below) >= SHIFT
        run = run + 1 if not new and x == last else 1
        if far and outside == 0:
            found.append(_Found(SPIKE, row, forecast, abs(z), sigma))
        if shift:
            found.append(_Found(LEVEL_SHIFT, row, forecast, max(above, below) / SHIFT * SPIKE_SIGMAS, sigma))
        if run == STUCK_COUNT and warm and moves >= MOVES:
            found.append(_Found(STUCK, row, forecast, float(run), sigma))
        error = min(max(x - forecast, -CUT * sigma), CUT * sigma) if warm else x - forecast
        share = 1.0 / (seen + 1.0)
        frozen = run > STUCK_COUNT // 2
        if not shift and not frozen:
            spread += max(WEIGHT, share) * (abs(error) - spread)
        if not new and not frozen:
            moves += max(WEIGHT, share) * ((x != last) - moves)
        if shift:
            level, trend, above, below, seen, outside = x, 0.0, 0.0, 0.0, WARM_COUNT // 2, 0
        else:
            step = max(LEVEL_WEIGHT, share) * error
            level, trend, seen, outside = (
                forecast + step,
                trend + TREND_WEIGHT * step,
                seen + 1,
                outside + 1 if far else 0,
            )
        last = x
    told = (level, trend, spread, last, least_step, above, below, moves, seen, run, outside)
    for name, value in zip((*_FLOATS, *_INTEGERS), told, strict=True):
        arrays[name][at] = value


def _events(samples: pa.Table, found: list[_Found]) -> pa.Table:
    if not found:
        return EVENTS.empty_table()
    kinds, rows, levels, scores, sigmas = zip(*found, strict=True)
    some = samples.take(pa.array(rows))
    value = column(some, "value")
    words = zip(kinds, value.tolist(), levels, scores, sigmas, strict=True)
    events = events_of(
        time=column(some, "time"),
        device=some["device"].to_numpy(zero_copy_only=False),
        address=some["address"].to_numpy(zero_copy_only=False),
        metric=some["metric"].to_numpy(zero_copy_only=False),
        kind=np.array(kinds, object),
        value=value,
        expected=levels,
        score=scores,
        sentence=[_sentence(*each) for each in words],
    )
    return in_order(events)


def in_order(events: pa.Table) -> pa.Table:
    """Returns events by time, device, metric and kind."""
    return events.sort_by([(name, "ascending") for name in ("time", "device", "metric", "kind")])


def _sentence(kind: str, value: float, level: float, score: float, sigma: float) -> str:
    if kind == SPIKE:
        return f"{value:.6g} is {score:.1f} sigmas from its level of {level:.6g}"
    if kind == LEVEL_SHIFT:
        return f"the level has moved from {level:.6g} to about {value:.6g}, with a sigma of {sigma:.3g}"
    return f"the value {value:.6g} has come {score:.0f} times in a row, where values usually differ"


def _joined(series: pa.Table, samples: pa.Table, heads: Indices) -> tuple[Arrays, Indices]:
    """Returns the columns, with rows for new series, and the row of each series in the samples."""
    named = samples.select(["device", "metric"]).take(pa.array(heads))
    both = pa.concat_tables([series.select(["device", "metric"]), named])
    (device, _), (metric, bound) = codes(both["device"]), codes(both["metric"])
    _, code = np.unique(device * bound + metric, return_inverse=True)
    row = np.full(int(code.max()) + 1, -1, np.int64)
    row[code[: series.num_rows]] = np.arange(series.num_rows)
    wanted = code[series.num_rows :]
    new = np.flatnonzero(row[wanted] == -1)
    row[wanted[new]] = series.num_rows + np.arange(len(new))
    arrays: Arrays = {}
    for field in SERIES:
        name = field.name
        if name in series.column_names:
            held = series[name].to_numpy(zero_copy_only=False)
        else:  # of a state written before there was such a column
            held = np.zeros(series.num_rows, field.type.to_pandas_dtype())
        if name in ("device", "metric"):
            fresh = named[name].to_numpy(zero_copy_only=False)[new].astype(object)
            held = held.astype(object)
        else:
            fresh = np.zeros(len(new), held.dtype)
        arrays[name] = np.concatenate([held, fresh])
    arrays["moves"][series.num_rows :] = 1.0
    return arrays, row[wanted]


def _table(arrays: Arrays) -> pa.Table:
    return pa.table([pa.array(arrays[field.name], field.type) for field in SERIES], schema=SERIES)
