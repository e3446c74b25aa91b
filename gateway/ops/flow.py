"""Counts connections and their bytes, by protocol.

Counted at every read and every write, so these are plain numbers that become metrics at a scrape: a counter of
the metrics' library takes six calls and a lock.
"""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class Flow:
    """Traffic counters of one protocol in one process, changed by the event loop alone."""

    __slots__ = ("accepted", "bytes_in", "bytes_out", "open")

    def __init__(self) -> None:
        self.open = 0  # connections
        self.accepted = 0  # connections since the start
        self.bytes_in = 0  # read from peers since the start
        self.bytes_out = 0  # written to them


class Flows(Collector):
    """Traffic counters by protocol, as a collector of metrics."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}

    def of(self, protocol: str) -> Flow:
        """Returns the counters of a protocol."""
        flow = self._flows.get(protocol)
        if flow is None:
            flow = self._flows[protocol] = Flow()
        return flow

    def collect(self) -> Iterator[Metric]:
        """Yields all families."""
        labels = ["protocol"]
        bytes_in = CounterMetricFamily("headgate_bytes_in", "Bytes read from peers", labels=labels)
        bytes_out = CounterMetricFamily("headgate_bytes_out", "Bytes written to peers", labels=labels)
        connections = GaugeMetricFamily("headgate_connections", "Open connections", labels=labels)
        accepted = CounterMetricFamily("headgate_accepted", "Connections accepted", labels=labels)
        for protocol, flow in list(self._flows.items()):
            bytes_in.add_metric([protocol], flow.bytes_in)
            bytes_out.add_metric([protocol], flow.bytes_out)
            connections.add_metric([protocol], flow.open)
            accepted.add_metric([protocol], flow.accepted)
        yield from (bytes_in, bytes_out, connections, accepted)
