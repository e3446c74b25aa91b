"""Counts connections, their bytes and the messages delivered to them, by protocol.

Counted at every read, every write and every delivery, so these are plain numbers that become metrics at a scrape: a
counter of the metrics' library takes six calls and a lock.
"""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class Flow:
    """Traffic counters of one protocol in one process, changed by the event loop alone."""

    __slots__ = ("accepted", "bytes_in", "bytes_out", "open", "sent")

    def __init__(self) -> None:
        self.open = 0  # connections
        self.accepted = 0  # connections since the start
        self.bytes_in = 0  # read from peers since the start
        self.bytes_out = 0  # written to them
        self.sent: dict[str, int] = {}  # messages delivered to them, by topic


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
        sent = CounterMetricFamily("headgate_messages_out", "Messages delivered", labels=["protocol", "topic"])
        for protocol, flow in list(self._flows.items()):
            bytes_in.add_metric([protocol], flow.bytes_in)
            bytes_out.add_metric([protocol], flow.bytes_out)
            connections.add_metric([protocol], flow.open)
            accepted.add_metric([protocol], flow.accepted)
            for topic, count in list(flow.sent.items()):
                sent.add_metric([protocol, topic], count)
        yield from (bytes_in, bytes_out, connections, accepted, sent)
