"""The retention of each configured queue: queue u32, big-endian -> the `QueueConfig`, as in the log."""

from collections.abc import Iterator, Sequence
from typing import Any

from store.format.frame import QueueNumber
from store.format.queue_config import QueueConfig
from store.format.records import QueueDeleted, decode, encode
from store.log.run import FrameRun


class ConfigsView:
    """The newest configuration of each queue."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Makes the changes that some runs hold."""
        for run in runs:
            for _, record in run.records:
                if isinstance(record, QueueConfig) and (record.closed or not self._is_closed(txn, record.queue)):
                    txn.put(record.queue.to_bytes(4, "big"), encode(record), db=self._db)
                elif isinstance(record, QueueDeleted) and not self._is_closed(txn, record.queue):
                    txn.delete(record.queue.to_bytes(4, "big"), db=self._db)

    def _is_closed(self, txn: Any, queue: int) -> bool:
        config = self.get(txn, QueueNumber(queue))
        return config is not None and config.closed

    def get(self, txn: Any, queue: QueueNumber) -> QueueConfig | None:
        """Returns a queue's configuration, None when it has none of its own."""
        value = txn.get(queue.to_bytes(4, "big"), db=self._db)
        return None if value is None else _config(value)

    def all(self, txn: Any) -> Iterator[QueueConfig]:
        """Yields every configuration, by queue."""
        with txn.cursor(db=self._db) as cursor:
            for _, value in cursor:
                yield _config(value)


def _config(value: bytes) -> QueueConfig:
    record = decode(value)
    assert isinstance(record, QueueConfig)
    return record
