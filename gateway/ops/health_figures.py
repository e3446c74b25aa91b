"""The health of store groups as metrics, and their losses, by the group's number."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.elections.health import GroupHealth
from gateway.ops.lost_watch import GroupLoss

_FIGURES: dict[str, tuple[str, Callable[[GroupHealth], float]]] = {
    "writable": ("Whether the group stores what is published to it", lambda one: float(one.writable)),
    "in_sync": ("Replicas in the group's SyncStateSet that are alive", lambda one: float(one.in_sync)),
    "damages": ("Damaged ranges of the logs of all its replicas", lambda one: float(one.damages)),
}
_LOST = "headgate_group_lost_messages", "Messages that damage has taken for good; left out while that is not known"
_UNKNOWN = "headgate_group_lost_unknown", "Whether the master cannot say which messages damage has taken for good"


class GroupFigures(Collector):
    """Collected at each scrape. Of a group that no controller has said anything of, nothing is said of losses."""

    def __init__(self, groups: Callable[[], Sequence[GroupHealth]], losses: Callable[[], Sequence[GroupLoss]]) -> None:
        self._groups = groups
        self._losses = losses

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yields the families, without values."""
        for name, (what, _) in _FIGURES.items():
            yield GaugeMetricFamily(f"headgate_group_{name}", what, labels=["group"])
        for name, what in (_LOST, _UNKNOWN):
            yield GaugeMetricFamily(name, what, labels=["group"])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the families."""
        groups = self._groups()
        for name, (what, value) in _FIGURES.items():
            family = GaugeMetricFamily(f"headgate_group_{name}", what, labels=["group"])
            for one in groups:
                family.add_metric([str(one.number)], value(one))
            yield family
        lost, unknown = (GaugeMetricFamily(*one, labels=["group"]) for one in (_LOST, _UNKNOWN))
        for loss in self._losses():
            count = loss.messages
            if not loss.is_unheard:
                unknown.add_metric([str(loss.group)], float(count is None))
            if count is not None:
                lost.add_metric([str(loss.group)], count)
        yield lost
        yield unknown
