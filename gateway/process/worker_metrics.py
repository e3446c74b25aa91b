"""The metrics of several workers as those of one gateway.

Counters, histograms and gauges of the gateway are sums. The counts of a worker that is gone stay in the sums, as far as
they were read before, so that they do not fall. Of figures that all workers have in common, those of the process that
owns the thing are shown. Figures of the system and the interpreter have the process as a label.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

OURS = frozenset(  # figures of the store and its metadata, which no worker has
    {
        "headgate_log_end_bytes",
        "headgate_log_confirmed_bytes",
        "headgate_log_damages",
        "headgate_log_damages_repaired",
        "headgate_view_damages",
        "headgate_scrub_bytes",
        "headgate_topics",
        "headgate_wills_undecodable",
        "headgate_group_writable",
        "headgate_group_in_sync",
        "headgate_group_damages",
        "headgate_group_lost_messages",
        "headgate_group_lost_unknown",
    }
)
# Gauges that only rise: counts since the start, under names without the ending of counters.
COUNTS = frozenset({"headgate_damages_passed", "headgate_dead_letters_dropped"})
SHARED = frozenset({"headgate_messages_lost"})  # counted by the store and, of what they meet themselves, by workers
PREFIX = "headgate_"
PROCESS = "process"  # the label

_Key: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]  # family, sample, labels


class WorkerMetrics(Collector):
    """A collector over `own`, this process's metrics, and `texts`, each worker's last metrics, by its name."""

    def __init__(self, own: CollectorRegistry, texts: Callable[[], Mapping[str, str]], *, name: str) -> None:
        self._own = own
        self._texts = texts
        self._name = name
        self._past: dict[_Key, float] = {}  # of workers that are gone; as many as there are series

    def gone(self, text: str) -> None:
        """Keeps the last figures of a worker that is gone."""
        for family in text_string_to_metric_families(text):
            counts = family.type in {"counter", "histogram"} or family.name in COUNTS
            if family.name.startswith(PREFIX) and counts:
                for sample in family.samples:
                    key = (family.name, sample.name, tuple(sorted(sample.labels.items())))
                    self._past[key] = self._past.get(key, 0.0) + sample.value

    def collect(self) -> Iterator[Metric]:
        """Yields all families."""
        families: dict[str, Metric] = {}
        sums: dict[_Key, float] = {}
        for metric in self._own.collect():
            if metric.name in OURS:
                yield metric
            elif metric.name in SHARED:
                _add(families, sums, metric)
            elif not metric.name.startswith(PREFIX):
                _labelled(families, [metric], self._name)
        for name, text in self._texts().items():
            found = list(text_string_to_metric_families(text))
            _labelled(families, [one for one in found if not one.name.startswith(PREFIX)], name)
            for family in found:
                if family.name.startswith(PREFIX) and family.name not in OURS:
                    _add(families, sums, family)
        for key, value in self._past.items():
            if key[0] in families:
                sums[key] = sums.get(key, 0.0) + value
        for (family_name, sample_name, labels), value in sums.items():
            families[family_name].add_sample(sample_name, dict(labels), value)
        yield from families.values()


def _add(families: dict[str, Metric], sums: dict[_Key, float], family: Metric) -> None:
    """Adds one process's samples of a family to the sums."""
    families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
    for sample in family.samples:
        key = (family.name, sample.name, tuple(sorted(sample.labels.items())))
        sums[key] = sums.get(key, 0.0) + sample.value


def _labelled(families: dict[str, Metric], found: Iterable[Metric], process: str) -> None:
    """Adds the metrics of one process."""
    for metric in found:
        into = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        for sample in metric.samples:
            into.add_sample(sample.name, {**sample.labels, PROCESS: process}, sample.value)
