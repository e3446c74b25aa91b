"""Counters of damage that a store keeps, as metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class RepairFigures(Collector):
    """The damages that were repaired."""

    def __init__(self, repaired: Callable[[], float]) -> None:
        self._repaired = repaired

    def collect(self) -> Iterator[Metric]:
        """Yields their number, as it is now."""
        yield CounterMetricFamily(
            "headgate_log_damages_repaired", "Damaged ranges of the log that were repaired", self._repaired()
        )


class LostFigures(Collector):
    """The messages lost to damage, as all counts together have them."""

    def __init__(self, *counts: Callable[[], float]) -> None:
        self._counts = list(counts)

    def add(self, count: Callable[[], float]) -> None:
        """Adds a count of other messages."""
        self._counts.append(count)

    def collect(self) -> Iterator[Metric]:
        """Yields their number, as it is now."""
        yield CounterMetricFamily(
            "headgate_messages_lost",
            "Messages lost to damage, which consumers skipped",
            sum(count() for count in self._counts),
        )
