"""A histogram that one thread fills, at the cost of an addition: prometheus-client's takes a lock for each bucket."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Distribution(Collector):
    """The distribution of a value, as the metrics of one histogram.

    The bounds of `buckets` are inclusive and ascending; a last bucket takes greater values.
    """

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """See `Collector.collect`."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))  # type: ignore[no-untyped-call]
        return [HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)]
