"""The messages of a queue that are leased for the last time: given back, they leave the queue (`x-delivery-limit`)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gateway.queues.leaving.rules import QueueRules
from store.api.leases import Lease
from store.format.frame import QueueOffset

LAST_TRIES_COUNT_MAX: Final = 10_000  # messages that are known; any other is noticed when it would be leased again


class LastTries:
    """The leased messages that have come back as often as the rules of their queue let them."""

    __slots__ = ("_counts", "_rules")

    def __init__(self, rules: Callable[[], QueueRules]) -> None:
        self._rules = rules
        self._counts: dict[QueueOffset, int] = {}  # how often each has come back

    def leased(self, leases: Iterable[Lease]) -> None:
        """Notes leased messages."""
        limit = self._rules().delivery_limit
        if limit is not None and len(self._counts) < LAST_TRIES_COUNT_MAX:
            self._counts.update([(lease.offset, lease.deliveries) for lease in leases if lease.deliveries >= limit])

    def exhausted(self, offsets: Sequence[QueueOffset]) -> list[QueueOffset]:
        """Returns which of some leased messages may not come back once more."""
        limit = self._rules().delivery_limit
        if limit is None or not self._counts:
            return []
        return [offset for offset in offsets if self._counts.get(offset, -1) >= limit]

    def left(self, offsets: Iterable[QueueOffset]) -> None:
        """Forgets messages that leave the queue."""
        if self._counts:
            for offset in offsets:
                self._counts.pop(offset, None)
