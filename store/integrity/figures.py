"""Counters of damage that a store keeps, as metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class DamageFigures(Collector):
    """The damages that were repaired, and the messages lost to damage, which consumers skipped."""

    def __init__(self, repaired: Callable[[], float], lost: Callable[[], float]) -> None:
        self._repaired = repaired
        self._lost = lost

    def collect(self) -> Iterator[Metric]:
        """Yields both, as they are now."""
        yield CounterMetricFamily(
            "headgate_log_damages_repaired", "Damaged ranges of the log that were repaired", self._repaired()
        )
        yield CounterMetricFamily(
            "headgate_messages_lost",
            "Messages lost to damage, which consumers skipped",
            self._lost(),
        )
