"""The store's time while nothing new comes, so that windows settle and silence is noticed without a record.

The newest record that the job has read has the time of the store's clock. While every queue is read to its end, that
clock has gone on since by as much as this process has waited; so no difference between two machines' clocks counts.
Time in which the store did not answer is left out: no device could have been read in it.
"""

from pathlib import Path
from typing import Any, NamedTuple

from spark.job.position import position_of
from spark.source import offsets
from store.base.errors import StoreError, StoreUnreachable
from store.remoting.reader import RemoteReader


class IdleTime:
    """The least that the store's clock can be, from looks at the log: pure arithmetic on the time it is given."""

    def __init__(self) -> None:
        self._known_ms = 0
        self._idle_s = 0.0
        self._looked_s: float | None = None  # when it was last found idle

    def look(self, now_s: float, *, idle: bool, known_ms: int) -> int | None:
        """Returns the time in ms since 1970; None while there is something to read.

        `now_s` is this process's own time. `known_ms` is the time up to which the tables have everything: by a record,
        or by a tick with the time that the look before has returned.
        """
        if known_ms > self._known_ms + round(self._idle_s * 1000):
            self._known_ms, self._idle_s, self._looked_s = known_ms, 0.0, None
        if not idle:
            self._looked_s = None
            return None
        if self._looked_s is not None:
            self._idle_s += max(0.0, now_s - self._looked_s)
        self._looked_s = now_s
        return self._known_ms + round(self._idle_s * 1000)


class Unread(NamedTuple):
    """The records that a batch has left in the log."""

    records: int | None  # None: not known
    why: str = ""  # the reason for which no record can be read


class LogEndCheck:
    """Looks whether a batch has left anything to read.

    `credentials` are `store.rpc.credentials`'; without them the connection is plain.
    """

    def __init__(self, target: str, topics: tuple[str, ...], checkpoint: Path, credentials: Any = None) -> None:
        self._reader = RemoteReader(target, retry_s=0.0, credentials=credentials)
        self._topics, self._checkpoint = topics, checkpoint

    def reached(self, batch: int) -> bool:
        """Returns whether a batch has read every queue to its end; False when the store does not say."""
        return self.unread(batch).records == 0

    def unread(self, batch: int) -> Unread:
        """Returns how many records are behind a batch. Raises `SparkError` for a checkpoint that is none."""
        position = position_of(self._checkpoint, batch)
        try:
            queues = offsets.chosen_queues(self._reader.topics(), self._topics, must_exist=False)
            bounds = self._reader.bounds(list(queues))
        except StoreUnreachable:
            return Unread(None, f"the store at {self._reader.target} does not answer")
        except StoreError as error:
            return Unread(None, f"the store at {self._reader.target} refuses: {error}")
        if position is not None:
            left = (max(0, int(bound.next) - position.get(queue, 0)) for queue, bound in bounds.items())
            return Unread(sum(left))
        if not queues:
            named = f" {', '.join(self._topics)}" if self._topics else ""
            return Unread(None, f"there is no topic{named} yet")
        return Unread(None, "" if any(b.next > b.first for b in bounds.values()) else "no record is in the log yet")

    def close(self) -> None:
        """Ends the connection."""
        self._reader.close()
