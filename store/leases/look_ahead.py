"""Messages located for takes to come: a backlog is read some takes at once."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from store.format.frame import Frame, LogOffset, QueueNumber, QueueOffset
from store.format.ranges import Range

TAKES_COUNT: Final = 4  # takes that are located at once
QUEUES_COUNT_MAX: Final = 16  # queues with messages ahead; what was located last stays

Records: TypeAlias = Sequence[tuple[QueueOffset, Frame, int]]  # (offset, frame, row), ascending


class _Ahead(NamedTuple):
    """Confirmed messages of a queue, without a gap. `max_bytes`: all of them together have no more."""

    first: int
    records: Records
    max_bytes: int


class LookAhead:
    """Keeps located messages beyond those asked for, a few takes of some queues.

    Confirmed messages do not change, so what is kept stays right until it is trimmed off the log. Leases say which of
    them may be had.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[QueueNumber, _Ahead] = OrderedDict()

    def take(self, queue: QueueNumber, ranges: Sequence[Range], max_bytes: int, first: LogOffset) -> Records | None:
        """Returns the messages at some offsets, of at most `max_bytes`; None unless all of them are kept.

        What lies in front of `first`, where the log begins now, was trimmed off it and is not kept any more.
        """
        kept = self._kept.get(queue)
        if kept is None or len(ranges) != 1 or kept.max_bytes > max_bytes:
            return None
        if kept.records[0][1].start < first:
            del self._kept[queue]
            return None
        start, end = ranges[0][0] - kept.first, ranges[0][1] - kept.first
        if start < 0 or end > len(kept.records):
            return None
        if end == len(kept.records):
            del self._kept[queue]
        return kept.records[start:end]

    @staticmethod
    def widened(ranges: Sequence[Range], following: QueueOffset | None) -> Sequence[Range]:
        """Returns what to locate for messages at some offsets, where a queue's next message will be `following`."""
        if len(ranges) != 1 or following is None:
            return ranges
        start, end = ranges[0]
        return ((start, max(end, min(start + (end - start) * TAKES_COUNT, following))),)

    def keep(self, queue: QueueNumber, ranges: Sequence[Range], records: Records, max_bytes: int) -> Records:
        """Keeps those of located messages that were not asked for, and returns the others.

        The messages are those asked for, and more behind them, without a gap.
        """
        count = sum(end - start for start, end in ranges)
        self._kept.pop(queue, None)
        if len(records) > count:
            self._kept[queue] = _Ahead(ranges[-1][1], records[count:], max_bytes)
            if len(self._kept) > QUEUES_COUNT_MAX:
                self._kept.popitem(last=False)
        return records[:count]
