"""The positions of a query: queue offsets, as plain dictionaries from queue number to the next offset to read.

Arithmetic alone, so that every rule of resuming can be tested without Spark. A queue that a position does not
name was not read when the position was taken: it begins at 0, or at the first record that is left of it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from spark.errors import BadOption
from spark.source.options import EARLIEST, LATEST, At, Location
from store.api.queues import Bounds


class OffsetRange(NamedTuple):
    """Records `start` (inclusive) to `end` (exclusive) of one queue, read by one task."""

    queue: int
    start: int
    end: int


def encode(offsets: Mapping[int, int]) -> dict[str, int]:
    """Returns the position as Spark keeps it in its checkpoint: `{"16": 120}`, by queue."""
    return {str(queue): offsets[queue] for queue in sorted(offsets)}


def decode(offsets: Mapping[str, int]) -> dict[int, int]:
    """Returns the position that `encode` was given."""
    return {int(queue): offset for queue, offset in offsets.items()}


def chosen_queues(topics: Mapping[str, Iterable[int]], wanted: Iterable[str], *, must_exist: bool) -> dict[int, str]:
    """Returns the topic of each queue of the wanted topics (none named: all). Raises `BadOption` for one not there.

    A stream may be told of a topic before its first message creates it: not `must_exist`.
    """
    names = list(wanted)
    if must_exist and (missing := [name for name in names if name not in topics]):
        raise BadOption("topic", f"names {', '.join(missing)}; there are: {', '.join(sorted(topics)) or 'none'}")
    return {queue: name for name in names or sorted(topics) for queue in topics.get(name, ())}


def place(
    where: Location, bounds: Mapping[int, Bounds], *, default: str, at_time: Callable[[int, int], int] | None = None
) -> dict[int, int]:
    """Returns an offset for each queue of `bounds`; `default` is for those that `where` does not name.

    `at_time` finds the first offset of a queue that was stored at a time or later.
    Raises `BadOption` for a queue that is not there, or an offset beyond its end.
    """
    if isinstance(where, At):
        assert at_time is not None
        return {queue: int(at_time(queue, where.time_ms)) for queue in bounds}
    word = where if isinstance(where, str) else default
    found = {queue: int(b.next if word == LATEST else b.first) for queue, b in bounds.items()}
    assert word in (EARLIEST, LATEST)
    if not isinstance(where, str):
        for queue, offset in where.items():
            if queue not in bounds:
                raise BadOption(
                    "startingOffsets or endingOffsets", f"names queue {queue}, which is none of the topics'"
                )
            if offset > bounds[queue].next:
                raise BadOption(
                    "startingOffsets or endingOffsets",
                    f"names offset {offset} of queue {queue}, which ends at {bounds[queue].next}",
                )
            found[queue] = offset
    return found


def advance(
    start: Mapping[int, int],
    bounds: Mapping[int, Bounds],
    limit: int | None,
    *,
    fitting: Callable[[list[OffsetRange]], Mapping[int, int]] | None = None,
) -> dict[int, int]:
    """Returns the end of the micro-batch after `start`: that of every queue, or about `limit` records in all.

    `fitting` returns ends of ranges, none behind its range's, that another limit allows.

    A limit is shared out in proportion to the records that wait in each queue, so that no queue runs ahead of the
    others in time, and at least one each, so that none stands still: it may be exceeded by one record a queue. A queue
    of `start` that is no longer there stays where it was. A queue whose end is now below `start` was begun anew: its
    end goes back, and `ranges` reads it from 0.
    """
    end = dict(start)
    waiting: dict[int, int] = {}
    for queue, b in bounds.items():
        begin = start.get(queue, 0)
        if begin > b.next:
            begin = 0
        waiting[queue] = b.next - max(begin, b.first)
        end[queue] = int(b.next)
    total = sum(waiting.values())
    if limit is not None and total > limit:
        for queue, count in waiting.items():
            if count:
                end[queue] -= count - max(1, count * limit // total)
    if fitting is not None:
        begins = {queue: int(bounds[queue].next) - count for queue, count in waiting.items() if count}
        end |= fitting([OffsetRange(queue, begin, end[queue]) for queue, begin in begins.items()])
    return end


def ranges(
    start: Mapping[int, int], end: Mapping[int, int], *, records_max: int, pieces_min: int = 1
) -> list[OffsetRange]:
    """Returns the ranges to read between two positions, by queue, none longer than `records_max`.

    They are at least `pieces_min`, of about the same length, where there are as many records.
    """
    begins = {queue: start.get(queue, 0) for queue in end}
    whole = [OffsetRange(q, begins[q] if begins[q] <= end[q] else 0, end[q]) for q in sorted(end)]  # from 0: begun anew
    total = sum(one.end - one.start for one in whole)
    found = []
    for queue, at, until in whole:
        count = until - at
        share = -(-count * pieces_min // total) if pieces_min > 1 and total else 1
        pieces = min(count, max(-(-count // records_max), share))
        for piece in range(pieces):
            upto = at + -(-(until - at) // (pieces - piece))
            found.append(OffsetRange(queue, at, upto))
            at = upto  # noqa: PLW2901  # the next piece's start
    return found
