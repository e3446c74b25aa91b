"""Frames that are ready go to their store groups, and publishers are answered in the order of their messages."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from gateway.ops.metrics import Metrics
from gateway.port.adapter import Outcome
from gateway.publishing.publishing import (
    Building,
    Producer,
    PublishSource,
    Receipt,
    WaitingSingle,
    outcome_of,
    refusal_of,
    with_denied,
)
from gateway.publishing.refusing_groups import RefusingGroups
from gateway.publishing.routing.router import Router
from gateway.publishing.transactions import commit
from store.api.client import StoreClient
from store.api.log import Appended
from store.base.errors import StoreError, StoreUnreachable
from store.format.frame import FRAME_ASYNC, FRAME_GUARDED, ONCE_PRODUCER, Position, UnplacedFrame, origin_of


class OutgoingFrames:
    """Frames in flight, and the receipts that wait for them. The callables are those of `Ingest`."""

    def __init__(
        self,
        store: StoreClient,
        router: Router,
        metrics: Metrics,
        *,
        new_producer: Callable[[], int],
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        appended_to: Callable[[Sequence[int]], None],
        drained: Callable[[], None],
        acknowledged: Callable[[Sequence[WaitingSingle], Position], None],
        compress_bytes_min: int = 0,
    ) -> None:
        self.refusing = RefusingGroups(store)
        self._store = store
        self._router = router
        self._metrics = metrics
        self._new_producer = new_producer
        self._producers: dict[int, Producer] = {}  # by group
        self._soon = soon
        self._clock = clock
        self._appended_to = appended_to
        self._drained = drained
        self._acknowledged = acknowledged
        self._compress_bytes_min = compress_bytes_min  # payloads that large are compressed; 0: none
        self._last: dict[PublishSource, Receipt] = {}  # the last one of each that is not answered
        self.under_way = 0  # frames that were handed over and have not ended
        self._commits: set[asyncio.Future[Appended | StoreError]] = set()
        self.singles_in_flight: dict[PublishSource, int] = {}  # in frames: how many of each
        self._behind: dict[PublishSource, Receipt] = {}  # of these, the first receipt behind them

    @property
    def idle(self) -> bool:
        """Returns whether every publisher has been answered."""
        return not self._last and not self.singles_in_flight

    def expect(self, receipt: Receipt) -> None:
        """Answers a receipt when its frames have ended, behind those of its publisher before it."""
        receipt.pending = len(receipt.parts)
        before = self._last.get(receipt.publisher)
        self._last[receipt.publisher] = receipt
        if before is not None:
            before.next = receipt
        elif self.singles_in_flight and receipt.publisher in self.singles_in_flight:
            self._behind[receipt.publisher] = receipt
        else:
            receipt.head = True
            if not receipt.pending:
                self._answer(receipt)

    def append(self, frame: Building) -> None:
        """Hands a frame to its group."""
        if not frame.receipts and not frame.singles:
            return
        group = frame.group
        if frame.stored:
            self.under_way += 1
            self._soon(partial(self._done, frame, Appended(origin_of(group), duplicate=True)))
            return
        if frame.settles:
            self._commit(frame)
            return
        producer = Producer(frame.once | ONCE_PRODUCER) if frame.once else self._producers.get(group)
        if producer is None:
            producer = self._producers[group] = Producer(self._new_producer())
        producer.sequence += 1
        unplaced = UnplacedFrame.build(
            b"".join(frame.rows),
            b"".join(frame.records),
            producer_id=producer.id,
            sequence=producer.sequence,
            flags=(0 if frame.sync else FRAME_ASYNC) | (FRAME_GUARDED if frame.guarded else 0),
            compress_bytes_min=self._compress_bytes_min,
        )
        self._metrics.append_messages.observe(len(frame.rows))
        frame.rows, frame.records = [], []
        frame.began_s = self._clock()
        store = self._store.logs.get(group)
        if store is None:
            self.under_way += 1
            self._soon(partial(self._done, frame, StoreUnreachable(f"store group {group} is not known here")))
            return
        store.log.append(unplaced, partial(self._done, frame))
        self.under_way += 1

    def _commit(self, frame: Building) -> None:
        """Hands the part of a transaction that settles something to its group."""
        frame.began_s = self._clock()
        self.under_way += 1
        task = asyncio.ensure_future(commit(self._store.logs.get(frame.group), frame))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        task.add_done_callback(lambda done: self._done(frame, done.result()))

    def _done(self, frame: Building, result: Appended | StoreError) -> None:
        """Answers a frame that has ended. A store reports refused ones ahead of those it still writes; we do not."""
        self.under_way -= 1
        try:
            self._answer_frame(frame, result)
        finally:
            self._drained()  # messages that wait for the frame's end go on

    def _answer_frame(self, frame: Building, result: Appended | StoreError) -> None:
        frame.result = result
        self._metrics.append_seconds.observe(self._clock() - frame.began_s)
        failed = isinstance(result, StoreError)
        if failed and not frame.once:
            # Its sequence number stays unused, which the store takes for a lost frame: begin another sequence.
            self._producers[frame.group] = Producer(self._new_producer())
        if failed or self.refusing:
            self.refusing.note(frame.group, result)
        if isinstance(result, Appended) and result.failed:
            _fail(frame, result.failed)
        if frame.singles:
            self._answer_singles(frame, result)
        for receipt in frame.receipts:
            receipt.pending -= 1
            if receipt.head and not receipt.pending:
                self._answer(receipt)
        for queue, admitted in frame.named.items():
            if admitted and (gate := self._router.gates.get(queue)) is not None:
                gate.landed(admitted)
        frame.receipts.clear()  # they name the frame: the collector need not look for such cycles
        if frame.named and isinstance(result, Appended):
            self._appended_to(tuple(frame.named))

    def _answer_singles(self, frame: Building, result: Appended | StoreError) -> None:
        """Answers the publishers of single messages, and their later publishes."""
        in_flight = self.singles_in_flight
        if isinstance(result, Appended):
            for (protocol, topic), count in frame.topics.items():
                self._metrics.messages_in(protocol, topic, "stored").inc(count)
            self._acknowledged(frame.singles, Position(result.frame, 0))
        else:
            error = refusal_of(result)
            for (protocol, topic), count in frame.topics.items():
                self._metrics.messages_in(protocol, topic, error.cause.value).inc(count)
            for publisher, single, size_bytes in frame.singles:
                publisher.failed(single, error, size_bytes)
        for publisher, _, _ in frame.singles:
            left = in_flight[publisher] - 1
            if left:
                in_flight[publisher] = left
                continue
            del in_flight[publisher]
            if self._behind and (receipt := self._behind.pop(publisher, None)) is not None:
                receipt.head = True
                self._answer(receipt)
        frame.singles.clear()

    def _answer(self, receipt: Receipt | None) -> None:
        """Answers a publisher's first receipt, and those behind it, as far as nothing is pending."""
        messages_in = self._metrics.messages_in
        while receipt is not None and not receipt.pending:
            following = receipt.next
            if following is None:
                del self._last[receipt.publisher]
            else:
                following.head = True
            outcome = outcome_of(receipt)
            if receipt.overflowed:
                outcome = msgspec.structs.replace(outcome, overflowed=receipt.overflowed)
            if receipt.unrouted:
                outcome = msgspec.structs.replace(outcome, unrouted=receipt.unrouted)
            protocol, counts = receipt.protocol, receipt.counts
            status = "stored" if outcome.error is None else outcome.error.cause.value
            if receipt.runs:
                self._count_refused(receipt, outcome)
            for topic, count in counts.items():
                messages_in(protocol, topic, status).inc(count)
            for refusal in receipt.refused.values():
                self._metrics.errors(protocol, refusal.cause.value).inc()
            if receipt.denied:  # for one cause
                cause = next(iter(receipt.denied.values())).cause
                self._metrics.errors(protocol, cause.value).inc(len(receipt.denied))
                outcome = with_denied(outcome, receipt.denied)
            receipt.publisher.published(receipt.token, outcome, receipt.size_bytes)
            receipt = following

    def _count_refused(self, receipt: Receipt, outcome: Outcome) -> None:
        """Counts the messages that one group refused and not the other."""
        for index in [index for index in outcome.refused if index not in receipt.refused]:
            topic = self._router.topic_of(receipt.messages[index].address)
            receipt.counts[topic] -= 1
            self._metrics.messages_in(receipt.protocol, topic, outcome.refused[index].cause.value).inc()


def _fail(frame: Building, rows: Sequence[int]) -> None:
    """Fails the receipts whose guard has failed in a frame; a guard's row is the last of its receipt."""
    firsts = [receipt.parts[frame] for receipt in frame.receipts]
    for row in rows:
        receipt = frame.receipts[bisect_right(firsts, row) - 1]
        receipt.failed = (*receipt.failed, frame)
