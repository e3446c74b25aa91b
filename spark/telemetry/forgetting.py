"""Limits of the state: how many devices and series are kept, which are refused, and which are forgotten.

A series is a device and a metric. Devices and series that nothing came from for long are forgotten. Where devices are
too many, those give way that were heard too seldom for an interval to be learned, the longest silent first; a flood of
made-up names pushes itself out. Devices and series beyond the limit are then refused, in the log's order. Every verdict
follows from the state, the records and the store's clock, so a repeated pass comes to the same.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import codes, column
from spark.telemetry.liveness import LEARNED_COUNT
from spark.telemetry.windows import INSTANT

GRACE_MS = 600_000  # for so long a device that was heard once does not give way

Mask = npt.NDArray[np.bool_]


class Capacity(NamedTuple):
    """The limits of one bucket."""

    devices: int
    series: int
    metrics: int  # of one device
    forget_ms: int  # without a record, until a device or a series is forgotten


def crowded_out(devices: pa.Table, names: pa.ChunkedArray, capacity: Capacity, clock_ms: int) -> pa.Array:
    """Returns the devices that give way to the new ones among `names`, those of a batch's records."""
    if devices.num_rows + len(names) <= capacity.devices:
        return _none()
    fresh = pc.unique(names)
    fresh = fresh.filter(pc.invert(pc.is_in(fresh, devices["device"])))
    over = devices.num_rows + len(fresh) - capacity.devices
    if over <= 0:
        return _none()
    seldom = pc.less(devices["intervals"], LEARNED_COUNT)
    quiet = pc.less(devices["last_seen"], pa.scalar((clock_ms - GRACE_MS) * 1000, INSTANT))
    absent = pc.invert(pc.is_in(devices["device"], pc.unique(names)))
    some = devices.select(["device", "last_seen"]).filter(pc.and_(pc.and_(seldom, quiet), absent))
    order = pc.sort_indices(some, sort_keys=[("last_seen", "ascending"), ("device", "ascending")])
    return some["device"].take(order[:over]).combine_chunks()


def refused_devices(devices: pa.Table, names: pa.ChunkedArray, capacity: Capacity) -> Mask:
    """Returns which records are of devices beyond the limit; `names` has the device of each, in the log's order."""
    refused = np.zeros(len(names), np.bool_)
    if devices.num_rows + len(names) <= capacity.devices:
        return refused
    new = np.flatnonzero(~np.asarray(pc.is_in(names, devices["device"])))
    if not len(new):
        return refused
    rank = _ranks(codes(names.take(pa.array(new)))[0])
    refused[new] = rank >= capacity.devices - devices.num_rows
    return refused


def refused_samples(latest: pa.Table, samples: pa.Table, capacity: Capacity) -> Mask:
    """Returns which samples are of series beyond the limits, in all or of their device."""
    refused = np.zeros(samples.num_rows, np.bool_)
    if not samples.num_rows:
        return refused
    names = pa.chunked_array([*samples["device"].chunks, *latest["device"].chunks], pa.string())
    device, devices = codes(names)
    mine, known = device[: samples.num_rows], np.bincount(device[samples.num_rows :], minlength=devices)
    metric, metrics = codes(samples["metric"])
    _, first, inverse = np.unique(mine * metrics + metric, return_index=True, return_inverse=True)
    most = known + np.bincount(mine[first], minlength=devices)
    if latest.num_rows + len(first) <= capacity.series and not (most > capacity.metrics).any():
        return refused
    head = samples.select(["device", "metric"]).take(pa.array(first))
    new = np.flatnonzero(~has_series(head, latest))
    new = new[np.argsort(first[new], kind="stable")]  # in the log's order
    owner = mine[first[new]]
    over = known[owner] + _counted(owner) >= capacity.metrics
    over[~over] |= np.arange(int((~over).sum())) >= capacity.series - latest.num_rows
    bad = np.zeros(len(first), np.bool_)
    bad[new[over]] = True
    found: Mask = bad[inverse.ravel()]
    return found


def stale(rows: pa.Table, time: str, clock_ms: int, capacity: Capacity) -> Mask | None:
    """Returns which rows of devices or series are to be forgotten by the time of a column; None: there are none."""
    before = pa.scalar((clock_ms - capacity.forget_ms) * 1000, INSTANT)
    old = pc.fill_null(pc.less(rows[time], before), fill_value=False)
    return np.asarray(old) if pc.any(old).as_py() else None


def has_series(rows: pa.Table, known: pa.Table) -> Mask:
    """Returns which rows are of a series that `known` has."""
    (device, _), (metric, bound) = (
        codes(pa.chunked_array([*rows[name].chunks, *known[name].chunks], pa.string())) for name in ("device", "metric")
    )
    key = device * bound + metric
    found: Mask = np.isin(key[: rows.num_rows], key[rows.num_rows :])
    return found


def trimmed_aliases(aliases: pa.Table, count_max: int, all_max: int) -> pa.Table:
    """Returns the names of aliases, so many of each device and in all at most; those that were given last stay."""
    device, devices = codes(aliases["device"])
    sizes = np.bincount(device, minlength=devices)
    if aliases.num_rows and sizes.max() > count_max:
        order = np.lexsort([*_given(aliases), device])
        from_end = np.repeat(np.cumsum(sizes), sizes) - np.arange(len(order))  # 1: the newest of its device
        aliases = aliases.take(pa.array(np.sort(order[from_end <= count_max])))
    if aliases.num_rows > all_max:
        aliases = aliases.take(pa.array(np.sort(np.lexsort(_given(aliases))[-all_max:])))
    return aliases


def _given(aliases: pa.Table) -> list[npt.NDArray[np.int64]]:
    """Returns the place where each name was given, the most significant part last."""
    return [column(aliases, name) for name in ("offset", "queue", "stored_at")]


def _ranks(code: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns of each value the number of distinct values that came before it first did."""
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    found: npt.NDArray[np.int64] = rank[inverse.ravel()]
    return found


def _counted(code: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns of each value how often it came before."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(code) else np.empty(0, int)
    found = np.empty(len(code), np.int64)
    found[order] = np.arange(len(code)) - np.repeat(starts, np.diff(np.append(starts, len(code))))
    return found


def _none() -> pa.Array:
    return pa.array([], pa.string())
