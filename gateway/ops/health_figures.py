"""The health of store groups as metrics, by the group's number."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.elections.health import GroupHealth

_FIGURES: dict[str, tuple[str, Callable[[GroupHealth], float]]] = {
    "writable": ("Whether the group stores what is published to it", lambda one: float(one.writable)),
    "in_sync": ("Replicas in the group's SyncStateSet that are alive", lambda one: float(one.in_sync)),
    "damages": ("Damaged ranges of the logs of all its replicas", lambda one: float(one.damages)),
}


class GroupFigures(Collector):
    """Collected at each scrape."""

    def __init__(self, groups: Callable[[], Sequence[GroupHealth]]) -> None:
        self._groups = groups

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yields the families, without values."""
        for name, (what, _) in _FIGURES.items():
            yield GaugeMetricFamily(f"headgate_group_{name}", what, labels=["group"])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the families."""
        groups = self._groups()
        for name, (what, value) in _FIGURES.items():
            family = GaugeMetricFamily(f"headgate_group_{name}", what, labels=["group"])
            for one in groups:
                family.add_metric([str(one.number)], value(one))
            yield family
