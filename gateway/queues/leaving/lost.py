"""The count of messages that damage has taken, of those that the gateway meets itself: the store counts leased ones."""

from collections.abc import Sequence

from store.base import logs
from store.format.frame import QueueNumber
from store.format.ranges import Range

log = logs.get(__name__)


class LostMessages:
    """Logs and counts lost messages of this process's queues."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, event: str, name: str, number: QueueNumber, ranges: Sequence[Range], error: str) -> None:
        """Logs and counts offsets of a queue of the store, which the queue `name` has: of each message once."""
        for first, following in ranges:
            log.error(event, queue=name, number=number, first=first, next=following, error=error)
            self.count += following - first
