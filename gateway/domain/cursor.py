"""Cursors: a reader's place in all logs, one position for each.

A position says by itself which log it is in, and the order of positions means something within one log alone; so a
cursor is simply its positions, the logs ascending. A log that a cursor says nothing of is one that its owner has not
met: for it, that log begins at its beginning.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from store.format.frame import LogOffset, Position, QueueNumber, group_of, origin_of

Cursor: TypeAlias = tuple[Position, ...]


def beginning_of(group: int) -> Position:
    """Returns the position in front of everything in a group's log."""
    return Position(origin_of(group), 0)


def end_of(group: int) -> Position:
    """Returns a position behind all that a group's log will ever hold: resolves to the log's end on first use."""
    return Position(LogOffset(origin_of(group + 1) - 1), 0)


def by_log(positions: Iterable[Position]) -> dict[int, Position]:
    """Returns positions by the group whose log they are in; of several in one log, the last."""
    return {group_of(position.frame): position for position in positions}


def cursor_of(positions: dict[int, Position]) -> Cursor:
    """Returns the cursor of positions by group."""
    return tuple([positions[group] for group in sorted(positions)])


def later(one: Cursor, other: Cursor) -> Cursor:
    """Returns the later of two positions in each log, or the only one. The end of a log gives way to any other."""
    found = by_log(one)
    for position in other:
        group = group_of(position.frame)
        before, end = found.get(group), end_of(group)
        if before is None or before == end or before < position < end:
            found[group] = position
    return cursor_of(found)


def earlier(cursor: Cursor, bounds: Cursor) -> Cursor:
    """Returns the positions of a cursor, none of them later than the end in `bounds` of its log."""
    if not bounds:
        return cursor
    limits = by_log(bounds)
    return tuple([min(at, limits.get(group_of(at.frame), at)) for at in cursor])


# A cursor as a group's offsets: of the log of group g, the frame is under 2 g and the row under 2 g + 1.


def offsets_of(cursor: Cursor) -> Mapping[QueueNumber, int]:
    """Returns a cursor as offsets."""
    offsets: dict[QueueNumber, int] = {}
    for group, position in by_log(cursor).items():
        offsets[QueueNumber(2 * group)], offsets[QueueNumber(2 * group + 1)] = position
    return offsets


def cursor_of_offsets(offsets: Mapping[QueueNumber, int]) -> Cursor:
    """Returns offsets as a cursor."""
    frames = [(number, frame) for number, frame in sorted(offsets.items()) if number % 2 == 0]
    return tuple([Position(LogOffset(at), offsets.get(QueueNumber(number + 1), 0)) for number, at in frames])


def distance(one: Cursor, other: Cursor) -> int:
    """Returns how many bytes `other` is ahead in a log: the largest such distance of all logs."""
    behind = by_log(one)
    return max(
        (at.frame - behind.get(group, beginning_of(group)).frame for group, at in by_log(other).items()), default=0
    )
