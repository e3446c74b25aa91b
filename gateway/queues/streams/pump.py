"""The pump of one stream: reads the log for each consumer from where that is, as far as it has credit.

Nothing is leased, and nothing settled: an acknowledgement only gives credit. A consumer that comes again says where to
begin. One whose messages cannot be read now, as where the log is being repaired, is served beside the others until they
can be: they are at other places of the stream.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Consume, Leased
from gateway.port.streams import AGO, FILTER_VALUE, FIRST, LAST, OFFSET, OFFSET_HEADER, TIME, StreamRead
from gateway.queues.leasing.last_tries import LastTries
from gateway.queues.leasing.pump import RETRY_S, QueueConsumer
from gateway.queues.leasing.pump_task import PumpTask
from gateway.queues.leaving.head import BATCH_COUNT_MAX
from gateway.queues.leaving.lost import LostMessages
from gateway.queues.leaving.reading import read, with_headers
from gateway.queues.leaving.rules import NO_RULES
from store.api.client import StoreClient
from store.api.leases import Lease
from store.api.message import Message
from store.base import logs
from store.base.errors import CorruptFrame, OffsetOutOfRange, StoreError
from store.base.streams import until_one_ends
from store.format.frame import QueueNumber, QueueOffset
from store.format.ranges import RangeSet

READ_BYTES: Final = 1 << 20  # at once for one consumer
WAIT_MS: Final = 10_000  # for new messages, in one call to the store

log = logs.get(__name__)


class StreamDefinition(Protocol):
    """The name of a stream, and its number in the store."""

    @property
    def name(self) -> str:
        """Returns the name that clients know."""

    @property
    def number(self) -> int:
        """Returns the number of its queue."""


class StreamHead:
    """The counts of a stream, as `gateway.queues.leaving.head` has them for queues; nothing ever leaves at its head."""

    def __init__(self, store: StoreClient, number: QueueNumber) -> None:
        self._store = store
        self._number = number

    async def waiting(self, owner: int) -> int:
        """Returns how many messages it has."""
        return await self.count()

    async def count(self) -> int:
        """Returns how many messages it has. Raises `StoreError`."""
        bounds = await self._store.queues.bounds(self._number)
        return bounds.next - bounds.first

    async def trim(self, owner: int, batches_max: int = 0) -> int | None:
        """Returns None: nothing expires."""
        return None

    async def probe(self, owner: int) -> bool:
        """Returns whether it has a message."""
        return await self.count() > 0

    async def length(self) -> tuple[int, int]:
        """Returns how many messages it has; their bytes are not needed."""
        return await self.count(), 0


class StreamPump:
    """Delivers one stream, with the interface of `gateway.queues.leasing.pump.Pump`."""

    has_ready_consumer = True  # a stream keeps its messages: the keeper need not look for expired ones
    room = 0  # no stream refuses messages for its length

    def __init__(
        self,
        store: StoreClient,
        definition: StreamDefinition,
        *,
        lost: LostMessages,
        now_ms: Callable[[], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._name, self._number = definition.name, QueueNumber(definition.number)
        self._lost = lost
        self._skipped = RangeSet()  # lost offsets, which are counted once, however many consumers skip them
        self._now_ms = now_ms
        self._wake = asyncio.Event()
        self._task = PumpTask(f"pump of stream {self._number}", failed)
        self._failing: dict[QueueConsumer, None] = {}  # those whose messages cannot be read now; the next one first
        self._retries = PumpTask(f"retries of stream {self._number}", failed)
        self.head = StreamHead(store, self._number)
        self.consumers: list[QueueConsumer] = []
        self.active = True
        self.last_tries = LastTries(lambda: NO_RULES)

    async def begin(self, effect: Consume) -> QueueOffset:
        """Returns the offset at which a consumer begins. Raises `Refusal` by RabbitMQ's rules, `StoreError`."""
        if effect.settle_on_delivery:
            raise Refusal(Cause.PRECONDITION, "a queue of the type stream has no automatic acknowledgement")
        if not effect.limited:
            why = "consumer prefetch count is not set, which a queue of the type stream needs"
            raise Refusal(Cause.PRECONDITION, why)
        wanted = effect.stream or StreamRead()
        first, end = await self._store.queues.bounds(self._number)
        if wanted.place in (TIME, AGO):
            time_ms = wanted.value if wanted.place == TIME else self._now_ms() - wanted.value
            return await self._store.queues.offset_at_time(self._number, max(0, time_ms))
        places = {FIRST: first, LAST: max(first, end - 1), OFFSET: min(max(first, wanted.value), end)}
        return QueueOffset(places.get(wanted.place, end))

    def add(self, consumer: QueueConsumer) -> None:
        """Begins to deliver to a consumer, from its offset on."""
        self.consumers.append(consumer)
        self._wake.set()
        self._task.start(self._run)

    def remove(self, consumer: QueueConsumer) -> None:
        """Delivers nothing more to a consumer."""
        consumer.gone = True
        self.consumers.remove(consumer)
        self._wake.set()

    def ready(self, consumer: QueueConsumer, credit: int | None) -> None:
        """Delivers again to a consumer that can take more."""
        if consumer.ready(credit):
            self._wake.set()

    def look_again(self) -> None:
        """Does nothing: `room` stays."""

    def wake(self) -> None:
        """Wakes the pump: there may be messages to deliver."""
        self._wake.set()

    async def get(self, owner: int) -> tuple[Message, Lease] | None:
        """Raises `Refusal`: a stream has no first message that one could take."""
        raise Refusal(Cause.PRECONDITION, "basic.get is not supported by a queue of the type stream")

    async def stop(self) -> None:
        """Ends the tasks. Its queue is gone, or the process ends."""
        await self._task.stop()
        await self._retries.stop()

    async def _run(self) -> None:
        while self.consumers:
            self._wake.clear()
            served = [await self._try(one) for one in list(self.consumers) if self._is_ready(one)]
            if not any(served):
                await self._wait()

    def _is_ready(self, consumer: QueueConsumer) -> bool:
        """Returns whether a consumer can take messages, and they can be read as far as is known."""
        return not (consumer.gone or consumer.idle or consumer in self._failing)

    async def _try(self, consumer: QueueConsumer) -> bool:
        """Serves a consumer, and leaves it to `_retry` where that fails."""
        try:
            return await self._serve(consumer)
        except StoreError as error:
            if not self._failing:
                self._say(error)
            self._failing[consumer] = None
            self._retries.start(self._retry)
            return False

    async def _retry(self) -> None:
        """Serves failing consumers, one after the other, each until that succeeds."""
        await asyncio.sleep(RETRY_S)
        while self._failing:
            consumer = next(iter(self._failing))
            try:
                if not (consumer.gone or consumer.idle):
                    await self._serve(consumer)
            except StoreError as error:
                self._say(error)
                self._failing[consumer] = self._failing.pop(consumer)  # behind the others
                await asyncio.sleep(RETRY_S)
            else:
                del self._failing[consumer]
                self._wake.set()

    def _say(self, error: StoreError) -> None:
        log.warning(
            "messages of a stream cannot be delivered now", queue=self._number, error=str(error), retry_s=RETRY_S
        )

    async def _serve(self, consumer: QueueConsumer) -> bool:
        """Offers a consumer the next messages; returns whether there was anything."""
        wanted = consumer.stream
        assert wanted is not None
        count = BATCH_COUNT_MAX if wanted.wanted else consumer.offer_count()
        leases, following = await self._fetch(consumer.at, count)
        if following == consumer.at:
            return False
        if consumer.gone or consumer.idle:
            return True
        found = read(leases, now_ms=0, rules=NO_RULES)
        offers = [
            (lease.offset, message)
            for lease, message in zip(found.live, found.messages, strict=True)
            if _is_wanted(message, wanted)
        ]
        some = offers[: consumer.offer_count()]
        offsets = [offset for offset, _ in some]
        taken = 0
        if some:
            messages = [with_headers(message, {OFFSET_HEADER: offset}) for offset, message in some]
            taken = consumer.conn.deliver(Leased(consumer.id, messages, offsets, [0] * len(some), self._number))
            consumer.took(taken, len(some))
        consumer.at = offers[taken][0] if taken < len(offers) else QueueOffset(following)
        return True

    async def _fetch(self, at: QueueOffset, count: int) -> tuple[Sequence[Lease], int]:
        """Reads rows from an offset on; also where to go on: behind lost or deleted messages."""
        try:
            fetched = await self._store.queues.fetch(self._number, at, max_bytes=READ_BYTES, max_rows=count)
        except OffsetOutOfRange as gone:
            return (), gone.first if at < gone.first else at
        except CorruptFrame as damaged:
            if damaged.next is None or damaged.next <= at:
                raise
            self._note_lost(at, damaged.next, damaged)
            return (), damaged.next
        places = [(frame, row) for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]
        leases = [Lease(QueueOffset(fetched.offset + n), 0, *place) for n, place in enumerate(places)]
        return leases, fetched.next

    def _note_lost(self, first: int, following: int, damaged: CorruptFrame) -> None:
        """Logs and counts lost messages that no consumer has skipped before."""
        new = RangeSet([(first, following)])
        for start, end in self._skipped:
            new.remove(start, end)
        self._skipped.add(first, following)
        self._lost.note(
            "messages of a stream are lost and skipped: the log is damaged",
            self._name,
            self._number,
            list(new),
            str(damaged),
        )

    async def _wait(self) -> None:
        """Waits until a consumer has changed or, while one has room, until the stream may have grown."""
        ready = [consumer.at for consumer in self.consumers if self._is_ready(consumer)]
        if ready:
            await until_one_ends(self._wake.wait(), self._arrived(min(ready)))
        else:
            await self._wake.wait()

    async def _arrived(self, at: QueueOffset) -> None:
        try:
            await self._store.queues.fetch(self._number, at, max_bytes=1, max_rows=1, max_wait_ms=WAIT_MS)
        except StoreError:
            await asyncio.sleep(RETRY_S)  # the reader meets the error too


def _is_wanted(message: Message, wanted: StreamRead) -> bool:
    """Returns whether a message passes a consumer's filter."""
    if not wanted.wanted:
        return True
    value = next((text for name, text in message.properties if name == FILTER_VALUE), None)
    return wanted.unfiltered if value is None else value in wanted.wanted
