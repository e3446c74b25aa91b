"""The gateway's metrics, by the names that its dashboards know.

Counted once a batch, never once a message: `messages_in("mqtt", "telemetry", "stored").inc(1_000)`. The child of each
combination of labels is kept, so that an increment is a dictionary look-up and an addition. No label ever holds a value
that a peer can choose without limit: there is no device, client or address among them, and topics are bounded.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from controller.elections.health import GroupHealth
from gateway.ops.flow import Flow, Flows
from gateway.ops.health_figures import GroupFigures
from gateway.ops.histogram import Distribution
from gateway.ops.lost_watch import GroupLoss
from store.base.admin import process_registry
from store.integrity.figures import LostFigures, RepairFigures

TOPIC_LABELS_MAX = 500  # topics counted by name; all later ones are counted together
OTHER_TOPICS = "_other"

disable_created_metrics()  # type: ignore[no-untyped-call]  # an unwanted second series for each counter

_APPEND_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_BATCH_MESSAGES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)


class Traffic(NamedTuple):
    """Messages and bytes of one protocol since the start."""

    messages_received: int
    messages_sent: int
    messages_dropped: int  # received and refused
    bytes_received: int
    bytes_sent: int


class Metrics:
    """One registry with everything in it. `process` adds the interpreter's and the system's figures of this process."""

    def __init__(self, *, process: bool = True) -> None:
        self.registry = process_registry() if process else CollectorRegistry()
        self._topics: dict[str, str] = {}
        self._in: dict[tuple[str, str, str], Counter] = {}
        self._counters: dict[tuple[str, str], Counter] = {}
        self._errors: dict[tuple[str, str], Counter] = {}
        self._build()

    def _build(self) -> None:
        registry = self.registry
        self._messages_in = Counter(
            "headgate_messages_in_total",
            'Messages received, by outcome: "stored" or the cause of refusal',
            ["protocol", "topic", "status"],
            registry=registry,
        )
        self._flows = Flows()
        registry.register(self._flows)
        self._error_count = Counter(
            "headgate_errors_total", "Exchanges refused or cut off", ["protocol", "cause"], registry=registry
        )
        self._denied = Counter(
            "headgate_access_denied_total",
            "Requests that access rules refused, by action",
            ["protocol", "action"],
            registry=registry,
        )
        self.append_seconds = Distribution(
            "headgate_append_seconds", "Time from handing a batch to the store until it is durable", _APPEND_SECONDS
        )
        self.append_messages = Distribution("headgate_append_messages", "Messages in a batch", _BATCH_MESSAGES)
        registry.register(self.append_seconds)
        registry.register(self.append_messages)
        self.log_end_bytes = Gauge(
            "headgate_log_end_bytes", "Log offset behind the last frame written", registry=registry
        )
        self.log_confirmed_bytes = Gauge(
            "headgate_log_confirmed_bytes", "Log offset behind the last frame that readers may see", registry=registry
        )
        self.log_damages = Gauge(
            "headgate_log_damages",
            "Ranges of the log without a valid frame",
            registry=registry,
        )
        self.damages_passed = Gauge(
            "headgate_damages_passed", "Lost ranges of the log that subscribers skipped", registry=registry
        )
        self.dead_letters_dropped = Gauge(
            "headgate_dead_letters_dropped", "Dead letters of AMQP queues dropped since the start", registry=registry
        )
        self.wills_undecodable = Gauge(
            "headgate_wills_undecodable", "Records of wills that cannot be decoded", registry=registry
        )
        self.messages_lost = LostFigures()
        registry.register(self.messages_lost)
        self.view_damages = Gauge("headgate_view_damages", "Known damage of the views", registry=registry)
        self.scrub_bytes = Gauge(
            "headgate_scrub_bytes", "Log offset up to which the scrub has read in this pass", registry=registry
        )
        self.pending_bytes = Gauge("headgate_pending_bytes", "Bytes received and not yet durable", registry=registry)
        self.subscribers = Gauge("headgate_subscribers", "Connections with a subscription", registry=registry)
        self.subscribers_behind = Gauge(
            "headgate_subscribers_behind", "Subscribers that read from the log, not from the tail", registry=registry
        )
        self.topics = Gauge("headgate_topics", "Topics", registry=registry)

    def messages_in(self, protocol: str, topic: str, status: str) -> Counter:
        """Returns the counter of messages that came in. `status` is "stored" or a `Cause`'s value."""
        key = (protocol, topic, status)
        child = self._in.get(key)
        if child is None:
            named = self.topic_label(topic)
            child = self._messages_in.labels(protocol, named, status)
            if named == topic:
                self._in[key] = child
        return child

    def sent(self, flow: Flow, topic: str, count: int) -> None:
        """Counts messages of a topic that were delivered by a protocol."""
        label = self.topic_label(topic)
        flow.sent[label] = flow.sent.get(label, 0) + count

    def flow(self, protocol: str) -> Flow:
        """Returns the counters of a protocol's connections and bytes."""
        return self._flows.of(protocol)

    def errors(self, protocol: str, cause: str) -> Counter:
        """Returns the counter of refusals. `cause` is a `Cause`'s value or "protocol" for malformed bytes."""
        key = (protocol, cause)
        child = self._errors.get(key)
        if child is None:
            child = self._errors[key] = self._error_count.labels(protocol, cause)
        return child

    def access_denied(self, protocol: str, action: str) -> Counter:
        """Returns the counter of requests that the access rules refused. `action` is one of
        `gateway.domain.access_settings.ACTIONS`.
        """
        return self._per_protocol(f"denied {action}", self._denied, protocol, action)

    def topic_label(self, topic: str) -> str:
        """Returns a topic's own name while there are few, then one name for all the rest."""
        label = self._topics.get(topic)
        if label is None:
            if len(self._topics) >= TOPIC_LABELS_MAX:
                return OTHER_TOPICS
            label = self._topics[topic] = topic
        return label

    def watch_log(
        self, *, end: Callable[[], float], confirmed: Callable[[], float], pending: Callable[[], float]
    ) -> None:
        """Reads the log's positions and the bytes in flight at each scrape."""
        self.log_end_bytes.set_function(end)
        self.log_confirmed_bytes.set_function(confirmed)
        self.pending_bytes.set_function(pending)

    def watch_damage(self, *, damages: Callable[[], float], scrubbed: Callable[[], float] | None) -> None:
        """Reads the known damage and the progress of the scrub at each scrape.

        `scrubbed` is None where log and views are another process's, which has these metrics itself.
        """
        self.log_damages.set_function(damages)
        if scrubbed is None:
            self.registry.unregister(self.scrub_bytes)
            self.registry.unregister(self.view_damages)
        else:
            self.scrub_bytes.set_function(scrubbed)

    def watch_views(self, *, damages: Callable[[], float]) -> None:
        """Reads the known damage of the views at each scrape."""
        self.view_damages.set_function(damages)

    def watch_groups(
        self, groups: Callable[[], Sequence[GroupHealth]], losses: Callable[[], Sequence[GroupLoss]]
    ) -> None:
        """Adds each store group's health, and what groups have lost, to the metrics."""
        self.registry.register(GroupFigures(groups, losses))

    def watch_repairs(self, *, repaired: Callable[[], float], lost: Callable[[], float]) -> None:
        """Adds the figures of repairs, and of messages that a store of this process has lost, to the metrics."""
        self.registry.register(RepairFigures(repaired))
        self.messages_lost.add(lost)

    def stored_by_protocol(self) -> dict[str, int]:
        """Returns how many messages of each protocol were stored since the start."""
        totals: dict[str, int] = {}
        for metric in self._messages_in.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total") and sample.labels["status"] == "stored":
                    name = sample.labels["protocol"]
                    totals[name] = totals.get(name, 0) + int(sample.value)
        return totals

    def traffic(self, protocol: str) -> Traffic:
        """Returns the messages and bytes of one protocol since the start."""
        flow = self.flow(protocol)
        taken_in = [
            sample
            for metric in self._messages_in.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.labels["protocol"] == protocol
        ]
        received = sum(int(sample.value) for sample in taken_in)
        stored = sum(int(sample.value) for sample in taken_in if sample.labels["status"] == "stored")
        return Traffic(
            messages_received=received,
            messages_sent=sum(flow.sent.values()),
            messages_dropped=received - stored,
            bytes_received=flow.bytes_in,
            bytes_sent=flow.bytes_out,
        )

    def open_count(self, protocol: str) -> int:
        """Returns how many connections of a protocol are open."""
        return self.flow(protocol).open

    def accepted_count(self, protocol: str) -> int:
        """Returns how many connections of a protocol were accepted since the start."""
        return self.flow(protocol).accepted

    def _per_protocol(self, name: str, parent: Counter, protocol: str, *others: str) -> Counter:
        child = self._counters.get((name, protocol))
        if child is None:
            child = self._counters[name, protocol] = parent.labels(protocol, *others)
        return child
