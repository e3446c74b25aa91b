"""Counts the messages that were delivered, by topic."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from gateway.domain.batch import Batch
from gateway.ops.flow import Flow
from gateway.ops.metrics import Metrics
from gateway.port.adapter import Deliverable, Deliveries, Leased

TopicOfQueue = Callable[[int], str | None]

_TOPICS = "topics"  # in `Batch.memo`


class _Topics(NamedTuple):
    names: dict[int, str]  # the topics of a batch's messages, by queue
    only: str | None  # the topic of all of them, where they have one topic


def count(metrics: Metrics, flow: Flow, deliveries: Deliverable, taken: int, topic_of: TopicOfQueue) -> None:
    """Counts the first `taken` of some deliveries. Hot: of a batch of one topic, with two look-ups."""
    if type(deliveries) is Deliveries:
        batch = deliveries.batch
        topics: _Topics = batch.memo.get(_TOPICS) or _topics(batch, topic_of)
        if topics.only is not None:
            metrics.sent(flow, topics.only, taken)
            return
        names = [topics.names[batch.queues[index]] for index in deliveries.picks[:taken]]
        for topic, some in Counter(names).items():
            metrics.sent(flow, topic, some)
    elif type(deliveries) is Leased:
        metrics.sent(flow, "$queue", taken)


def _topics(batch: Batch, topic_of: TopicOfQueue) -> _Topics:
    """Returns the topics of a batch, from now on in its memo."""
    names = {queue: topic_of(queue) or "" for queue in set(batch.queues)}
    different = set(names.values())
    found = batch.memo[_TOPICS] = _Topics(names, different.pop() if len(different) == 1 else None)
    return found
