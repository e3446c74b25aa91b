"""Liveness of devices: the learned interval of their messages, silence, flapping, and the quality of their data.

A device's interval is the exponential mean of the distances between its messages, by the store's clock; its jitter is
the exponential mean of their deviations. A device is silent when nothing came for `FACTOR` intervals and `JITTERS`
jitters, `SILENT_S_MIN` at least. Its state goes `new` (no interval known), `alive`, `silent`; one that has come back
`FLAPS_COUNT_MIN` times within `FLAP_WINDOW_S` is `flapping`. Now is the time up to which every queue has been read: no
device is silent because a job was stopped, or lags.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry import bursts, repeats
from spark.telemetry.events import EVENTS, events_of
from spark.telemetry.groups import Indices, codes, column, group
from spark.telemetry.windows import INSTANT

NEW, ALIVE, SILENT, FLAPPING = "new", "alive", "silent", "flapping"
BACK = "back"
KINDS = (SILENT, BACK, FLAPPING)  # of findings
LEARNED_COUNT = 5  # distances between messages from which on an interval is known
SILENT_S_MIN, FACTOR, JITTERS = 10.0, 3.0, 6.0
WEIGHT = 0.1  # of the newest distance in the means
FLAPS_COUNT_MIN, FLAP_WINDOW_S = 3, 3_600.0

COUNTS = ("late", "ahead", "rejected", "duplicates", "out_of_order")  # of records, by quality
_NONE = -1
_TIMES = ("first_seen", "last_seen", "silent_since", "flaps_since", "last_time", "minute")
_FLOATS = ("interval_s", "jitter_s", "skew_s", "rate", "rate_spread")
_INTEGERS = ("records", *COUNTS, "intervals", "flaps", "minute_count", "minutes", "burst", "burst_before")
_TEXTS = ("device", "address", "protocol", "state")
_PLACES = ("recent_times", "recent_prints")  # of the newest records (`spark.telemetry.repeats`)
DEVICES = pa.schema(
    [(name, pa.string()) for name in _TEXTS]
    + [(name, INSTANT) for name in _TIMES]
    + [(name, pa.float64()) for name in _FLOATS]
    + [(name, pa.int64()) for name in _INTEGERS]
    + [(name, repeats.PLACES) for name in _PLACES]
)

Arrays = dict[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]


class Flags(NamedTuple):
    """The verdicts on each record of a batch."""

    late: Mask
    ahead: Mask
    rejected: Mask
    strayed: Mask  # the record's own time is late, too old or ahead: it says nothing of the clock
    gathered: Mask  # the record's own time is late or too old: while its device was offline, it may be


def observe(
    devices: pa.Table,
    records: pa.Table,
    flags: Flags,
    said: tuple[Indices, Mask],
    *,
    read_to_ms: int = 0,
    watermark_ms: int,
) -> tuple[pa.Table, pa.Table]:
    """Returns the devices after some records, sorted by queue and offset.

    With them the events of those that were silent before, and of those that send more than usual. `said` are the
    records' fingerprints, and which have samples with times of their own (`spark.telemetry.repeats`). `read_to_ms` is
    the time up to which every queue had been read before: a record that was stored earlier, as by a clock that was set
    back, counts as heard at that time. So no device is found silent at one time twice. `watermark_ms` is how far ahead
    of the store's clock a time may be.
    """
    groups = group([codes(records["device"])])
    heads = records["device"].take(pa.array(groups.heads))
    at, arrays = _joined(devices, heads)
    owner = np.repeat(np.arange(len(groups.starts)), groups.sizes)
    stored = column(records, "stored_at")
    order = groups.order[np.lexsort((stored[groups.order], owner))]  # as they came: a device may be in several queues
    time, stored = column(records, "time")[order], stored[order]
    last = groups.starts + groups.sizes - 1
    before = arrays["last_seen"][at]
    heard = np.maximum(stored, read_to_ms * 1000)
    _learn(arrays, at, owner, heard, before)
    newest = np.maximum.reduceat(heard, groups.starts)
    fresh = before == _NONE
    arrays["first_seen"][at] = np.where(fresh, np.minimum.reduceat(stored, groups.starts), arrays["first_seen"][at])
    arrays["last_seen"][at] = np.maximum(before, newest)
    timely = ~flags.strayed[order]
    known = arrays["last_time"][at]
    known[known > before + watermark_ms * 1000] = _NONE  # of a time ahead, in a state of an older version
    _learn_skew(arrays, at, owner, np.where(timely, stored - time, 0), timely=timely, known=known != _NONE)
    told_at = np.where(timely, time, _NONE)
    newest_before = _running_newest(owner, told_at, known)
    prints, timed = said
    prints, said_at = prints[order], np.where(timed[order], repeats.TIMED, time)
    later = newest >= before  # a queue that lags brings older records
    for name in ("address", "protocol"):
        told = records[name].take(pa.array(order[last])).to_numpy(zero_copy_only=False)
        arrays[name][at] = np.where(later, told, arrays[name][at])
    again, *places = repeats.find(owner, said_at, prints, *(arrays[name][at] for name in _PLACES))
    for name, newest_ones in zip(_PLACES, places, strict=True):
        arrays[name][at] = newest_ones
    counted = {
        "late": flags.late[order],
        "ahead": flags.ahead[order],
        "rejected": flags.rejected[order],
        "duplicates": again,
        "out_of_order": timely & (time < newest_before),
    }
    arrays["records"][at] += groups.sizes
    for name, mask in counted.items():
        arrays[name][at] += np.add.reduceat(mask.astype(np.int64), groups.starts)
    arrays["last_time"][at] = np.maximum(known, np.maximum.reduceat(told_at, groups.starts))
    in_time = ~flags.gathered[order]
    events = [
        _back(arrays, at, np.minimum.reduceat(heard, groups.starts)),
        bursts.find(arrays, at, owner[in_time], stored[in_time]),
    ]
    return _table(arrays), pa.concat_tables(events)


def any_may_fall_silent(devices: pa.Table) -> bool:
    """Returns whether some device may fall silent as time goes on."""
    return bool(pc.any(pc.is_in(devices["state"], pa.array([ALIVE, FLAPPING]))).as_py())


def silence(devices: pa.Table, now_ms: int) -> tuple[pa.Table, pa.Table]:
    """Returns the devices at a time, and the events of those that have become silent; the same table where none has."""
    if not devices.num_rows:
        return devices, EVENTS.empty_table()
    arrays = _arrays(devices)
    now = now_ms * 1000
    patience = np.maximum(FACTOR * arrays["interval_s"] + JITTERS * arrays["jitter_s"], SILENT_S_MIN)
    known = np.isin(arrays["state"], (ALIVE, FLAPPING))
    quiet = np.flatnonzero(known & (arrays["last_seen"] + patience * 1e6 < now))
    if not len(quiet):
        return devices, EVENTS.empty_table()
    arrays["state"][quiet] = SILENT
    arrays["silent_since"][quiet] = arrays["last_seen"][quiet]
    waited = (now - arrays["last_seen"][quiet]) / 1e6
    interval = arrays["interval_s"][quiet]
    sentences = [
        f"nothing was heard for {w:.0f} s; it is usually heard every {_span(i)}"
        for w, i in zip(waited.tolist(), interval.tolist(), strict=True)
    ]
    events = events_of(
        time=np.full(len(quiet), now),
        device=arrays["device"][quiet],
        address=arrays["address"][quiet],
        kind=np.full(len(quiet), SILENT, object),
        value=waited,
        expected=interval,
        score=waited / patience[quiet],
        sentence=sentences,
    )
    return _table(arrays), events


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{1_000 * seconds:.2g} ms"


def _back(arrays: Arrays, at: Indices, came: npt.NDArray[np.int64]) -> pa.Table:
    """Brings silent devices back, and counts how often."""
    state = arrays["state"][at]
    back = np.flatnonzero(state == SILENT)
    who = at[back]
    recent = came[back] - arrays["flaps_since"][who] < FLAP_WINDOW_S * 1e6
    counted = (arrays["flaps_since"][who] != _NONE) & recent
    arrays["flaps"][who] = np.where(counted, arrays["flaps"][who] + 1, 1)
    arrays["flaps_since"][who] = np.where(counted, arrays["flaps_since"][who], came[back])
    away = (came[back] - arrays["silent_since"][who]) / 1e6
    arrays["silent_since"][who] = _NONE
    learned = arrays["intervals"][at] >= LEARNED_COUNT
    flapping = (arrays["flaps"][at] >= FLAPS_COUNT_MIN) & (
        arrays["last_seen"][at] - arrays["flaps_since"][at] < FLAP_WINDOW_S * 1e6
    )
    arrays["state"][at] = np.where(flapping, FLAPPING, np.where(learned, ALIVE, NEW)).astype(object)
    kind = arrays["state"][who]
    flaps = arrays["flaps"][who]
    sentences = [
        f"it is back after {a:.0f} s" + (f", for the {n}th time within an hour" if k == FLAPPING else "")
        for a, n, k in zip(away.tolist(), flaps.tolist(), kind.tolist(), strict=True)
    ]
    return events_of(
        time=came[back],
        device=arrays["device"][who],
        address=arrays["address"][who],
        kind=np.where(kind == FLAPPING, FLAPPING, BACK).astype(object),
        value=away,
        expected=arrays["interval_s"][who],
        score=flaps.astype(np.float64),
        sentence=sentences,
    )


def _learn(
    arrays: Arrays, at: Indices, owner: Indices, stored: npt.NDArray[np.int64], before: npt.NDArray[np.int64]
) -> None:
    """Learns interval and jitter by the distances between messages.

    Those while a device was silent do not count, unless it comes back again and again: then that is its interval.
    """
    order = np.lexsort((stored, owner))
    ordered, owners = stored[order], owner[order]
    first = np.concatenate([[True], owners[1:] != owners[:-1]])
    previous = np.where(first, before[owners], np.concatenate([[0], ordered[:-1]]))
    since = arrays["flaps_since"][at][owners]
    returns = (arrays["flaps"][at][owners] >= FLAPS_COUNT_MIN - 1) & (ordered - since < FLAP_WINDOW_S * 1e6)
    away = (arrays["state"][at][owners] == SILENT) & ~returns
    counts = ~(first & ((before[owners] == _NONE) | away))
    distance = np.where(counts, (ordered - previous) / 1e6, 0.0)
    size = len(at)
    number = np.bincount(owners, counts, size)
    some = number > 0
    mean = np.divide(np.bincount(owners, distance, size), number, out=np.zeros(size), where=some)
    known = arrays["intervals"][at] > 0
    held = np.where(known, arrays["interval_s"][at], mean)
    share = 1 - (1 - WEIGHT) ** number
    interval = held + share * (mean - held)
    off = np.where(counts, np.abs(distance - interval[owners]), 0.0)
    spread = np.divide(np.bincount(owners, off, size), number, out=np.zeros(size), where=some)
    jitter = np.where(known, arrays["jitter_s"][at], spread)
    arrays["interval_s"][at] = np.where(some, interval, arrays["interval_s"][at])
    arrays["jitter_s"][at] = np.where(some, jitter + share * (spread - jitter), arrays["jitter_s"][at])
    arrays["intervals"][at] += number.astype(np.int64)


def _learn_skew(arrays: Arrays, at: Indices, owner: Indices, late_us: Indices, *, timely: Mask, known: Mask) -> None:
    """Learns the skew of clocks: by how much records are stored after their times, of those that are in time.

    An exponential mean of them as they came: of one queue how the log was cut into batches does not show.
    """
    number = np.bincount(owner, timely, len(at))
    behind = np.cumsum(number)[owner] - np.cumsum(timely)  # records in time behind each
    first = ~known[owner] & (behind == number[owner] - 1)
    weight = timely * np.where(first, 1.0, WEIGHT) * (1 - WEIGHT) ** behind
    held = arrays["skew_s"][at]
    learned = np.where(known, held * (1 - WEIGHT) ** number, 0.0) + np.bincount(owner, weight * late_us / 1e6, len(at))
    arrays["skew_s"][at] = np.where(number > 0, learned, held)


def _running_newest(owner: Indices, time: npt.NDArray[np.int64], known: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the newest time of each device before each of its records, as these came."""
    distinct, rank = np.unique(np.concatenate([time, known]), return_inverse=True)
    of_record, of_known = rank[: len(time)], rank[len(time) :]
    width = len(distinct) + 1
    first = np.concatenate([[True], owner[1:] != owner[:-1]])
    shifted = np.where(first, of_known[owner], np.concatenate([[0], of_record[:-1]]))
    running = np.maximum.accumulate(np.maximum(shifted, of_known[owner]) + owner * width)
    newest: npt.NDArray[np.int64] = distinct[running - owner * width]
    return newest


def _joined(devices: pa.Table, names: pa.ChunkedArray) -> tuple[Indices, Arrays]:
    """Returns the row of each named device, and the columns, with rows for those that are new."""
    both = pa.concat_arrays([*devices["device"].chunks, *names.chunks])
    code, count = codes(both)
    row = np.full(count, _NONE, np.int64)
    row[code[: devices.num_rows]] = np.arange(devices.num_rows)
    wanted = code[devices.num_rows :]
    new = np.flatnonzero(row[wanted] == _NONE)
    row[wanted[new]] = devices.num_rows + np.arange(len(new))
    arrays = _arrays(devices)
    fresh: dict[str, Any] = {name: np.full(len(new), _NONE, np.int64) for name in _TIMES}
    fresh |= {name: np.zeros(len(new)) for name in _FLOATS} | {name: np.zeros(len(new), np.int64) for name in _INTEGERS}
    fresh |= {name: np.full(len(new), "", object) for name in _TEXTS}
    fresh |= {name: np.full((len(new), repeats.KEPT_COUNT), repeats.NOTHING) for name in _PLACES}
    fresh["state"] = np.full(len(new), NEW, object)
    fresh["device"] = names.to_numpy(zero_copy_only=False)[new] if len(new) else np.empty(0, object)
    return row[wanted], {name: np.concatenate([arrays[name], fresh[name]]) for name in DEVICES.names}


def _arrays(devices: pa.Table) -> Arrays:
    found: Arrays = {}
    for name in DEVICES.names:
        if name not in devices.column_names:  # of a state written before there was such a column
            shape = (devices.num_rows, repeats.KEPT_COUNT) if name in _PLACES else devices.num_rows
            found[name] = np.full(shape, _NONE if name in (*_TIMES, *_PLACES) else 0, _dtype(name))
            continue
        values = devices[name]
        if name in _TIMES:
            found[name] = np.asarray(values.cast(pa.int64()).fill_null(_NONE)).copy()
        elif name in _PLACES:
            found[name] = repeats.places_of(values, devices.num_rows).copy()
        elif name in _TEXTS:
            found[name] = values.to_numpy(zero_copy_only=False).astype(object)
        else:
            found[name] = values.to_numpy().copy()
    return found


def _dtype(name: str) -> Any:
    return np.float64 if name in _FLOATS else np.int64


def _table(arrays: Arrays) -> pa.Table:
    order = np.argsort(arrays["device"], kind="stable")
    columns = []
    for field in DEVICES:
        values = arrays[field.name][order]
        if field.name in _PLACES:
            columns.append(repeats.column_of(values))
            continue
        mask = values == _NONE if field.name in _TIMES else None
        columns.append(pa.array(values, field.type, mask=mask))
    return pa.table(columns, schema=DEVICES)
