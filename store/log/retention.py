"""The retention of records: a queue's limits, and which of its chunks can still be read.

Limits are honoured twice. A reader does not see records past their queue's limits, even while the segment is still
there; and a segment is deleted only when all queues with records in it are past theirs (`store.engine.trimming`).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from store.format.chunks import Chunk
from store.format.frame import FIRST_QUEUE, LogOffset, QueueNumber
from store.format.queue_config import FOREVER, QueueConfig


class RetentionLimits(NamedTuple):
    """The limits of a queue's records, -1: without end. Past either limit a record is gone."""

    age_ms: int = FOREVER
    size_bytes: int = FOREVER
    compact: bool = False
    until_settled: bool = False  # nor as long as it is not settled


class ReadableRange(NamedTuple):
    """The readable chunks of a queue: all from some chunk on, as log offset, time and size grow together."""

    frame: LogOffset = LogOffset(0)  # where the log begins
    since_ms: int = 0  # stored then or later
    size_bytes: int = FOREVER  # of the queue's newest

    def test(self, end_bytes: int) -> Callable[[Chunk], bool]:
        """Returns a test of whether a chunk can be read, of a queue that has had so many bytes in all."""
        frame, since_ms, size = self
        above = end_bytes - size if size >= 0 else -1
        return lambda chunk: chunk.frame >= frame and chunk.stored_at_ms >= since_ms and chunk.bytes_end > above


ALL = ReadableRange()
UNLIMITED = RetentionLimits()


def limits_of(config: QueueConfig | None, default: RetentionLimits) -> RetentionLimits:
    """Returns the limits that a configuration comes to.

    A compacted queue without limits of its own keeps its history only until its segments are compacted, whatever the
    default is: its newest records stay without end.
    """
    if config is None:
        return default
    unsaid = RetentionLimits(0, FOREVER) if config.compact and config.retention_bytes is None else default
    if config.until_settled:
        unsaid = UNLIMITED
    return RetentionLimits(
        unsaid.age_ms if config.retention_ms is None else config.retention_ms,
        unsaid.size_bytes if config.retention_bytes is None else config.retention_bytes,
        config.compact,
        config.until_settled,
    )


class LimitsTable:
    """The configurations of all queues up to `confirmed`: a part of `store.recent.recent.Recent`."""

    def __init__(self, default: RetentionLimits = UNLIMITED, configs: Iterable[QueueConfig] = ()) -> None:
        self._default = default
        self._configs: dict[QueueNumber, QueueConfig] = {}
        self.closed: frozenset[int] = frozenset()  # the queues that are
        for config in configs:
            self.set(config)

    def set(self, config: QueueConfig) -> None:
        """Sets the configuration of a queue. One that is closed stays so."""
        if config.closed:
            self.closed |= {config.queue}
        if config.queue not in self.closed or config.closed:
            self._configs[QueueNumber(config.queue)] = config

    def forget(self, queue: QueueNumber) -> None:
        """Forgets a queue that is deleted; one that is closed stays so."""
        if queue not in self.closed:
            self._configs.pop(queue, None)

    def get(self, queue: QueueNumber) -> QueueConfig | None:
        """Returns a queue's own configuration."""
        return self._configs.get(queue)

    def kept(self, queue: QueueNumber, log_first: LogOffset, now_ms: int) -> ReadableRange:
        """Returns a queue's readable range at a time. The store's own queues have no limits but the log's."""
        if queue < FIRST_QUEUE:
            return ReadableRange(log_first)
        limits = limits_of(self._configs.get(queue), self._default)
        if limits.compact:  # readers see the newest of each key wherever it is, and history until it is compacted
            return ReadableRange(log_first)
        return ReadableRange(log_first, 0 if limits.age_ms < 0 else max(now_ms - limits.age_ms, 0), limits.size_bytes)
