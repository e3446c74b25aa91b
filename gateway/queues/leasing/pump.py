"""The pump of one named queue: leases its messages to its consumers as they come, in turn.

A consumer's credit is its adapter's business. Where the adapter names it, no more than that is leased. Otherwise the
pump learns it by offering: a consumer that takes less than offered is blocked until it is `Ready`, and is then offered
as many messages as it had taken since it was last ready, and a few more, in case it can take more now. One without a
limit gets whole batches.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.domain.access import OPEN, Access, Permissions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.domain.vhosts import queue_address
from gateway.port.adapter import Consume, ConsumerCancelled, ConsumerId, Leased
from gateway.port.streams import StreamRead
from gateway.queues.leasing.last_tries import LastTries
from gateway.queues.leasing.pump_task import PumpTask
from gateway.queues.leaving.head import BATCH_COUNT_MAX, QueueHead
from gateway.queues.leaving.reading import DeadLettering, Found, with_headers
from gateway.queues.leaving.rules import QueueRules
from gateway.queues.leaving.sizes import LanedSizes
from store.api.client import StoreClient
from store.api.leases import Lease
from store.api.message import Message
from store.base import logs
from store.base.errors import StoreError
from store.format.frame import QueueNumber, QueueOffset

RETRY_S = 1.0  # after the store has failed
NOWHERE = QueueOffset(0)
SHARE_COUNT_MIN = 16  # messages offered at once where there are very many consumers, if so many wait
YIELD_S = 0.003  # the head start of consumers at other proxies, where ours have just been first
SETTLING_COUNT_MAX = 64  # settlements in flight of messages that were delivered without acknowledgement
DELIVERY_COUNT = "x-delivery-count"  # a header: how often a message has been given back
ROOM_COUNT_MAX = 65_535  # messages that a consumer without acknowledgements is known to take: the largest prefetch
_UNKNOWN = 1 << 30  # messages that a consumer takes which has never been blocked
_LOWEST = -(1 << 63)  # of all priorities

log = logs.get(__name__)


class ConsumerConnection(Protocol):
    """A consuming connection. `id` is unique among all connections that this process ever had: it owns the leases."""

    id: int
    gone: bool

    @property
    def principal(self) -> Principal | None:
        """Returns the client, None for an operator."""

    def deliver(self, deliveries: Leased | ConsumerCancelled, /) -> int:
        """Offers messages; returns how many were taken, from the first on."""


class QueueConsumer:
    """One consumer of one queue."""

    __slots__ = (
        "_allowed",
        "at",
        "blocked",
        "conn",
        "credit",
        "exclusive",
        "gone",
        "id",
        "pattern",
        "permissions",
        "priority",
        "probe",
        "queue",
        "settle_on_delivery",
        "shares",
        "stream",
        "taken",
        "window",
    )

    def __init__(
        self,
        conn: ConsumerConnection,
        consumer: ConsumerId,
        queue: str,
        *,
        exclusive: bool,
        settle_on_delivery: bool,
        credit: int | None = None,
        shares: int = 0,
        priority: int = 0,
        pattern: str = "",
        permissions: Permissions = OPEN,
        stream: StreamRead | None = None,
        at: QueueOffset = NOWHERE,
    ) -> None:
        self.conn = conn
        self.stream = stream  # of a stream: which messages it wants, and
        self.at = at  # the offset of its next message
        self.permissions = permissions  # of the consumer's principal
        self._allowed: tuple[Access | None, bool] = (None, True)  # the last answer of `allowed`, by the access of then
        self.id = consumer
        self.queue = queue
        self.exclusive = exclusive
        self.settle_on_delivery = settle_on_delivery
        self.priority = priority
        self.pattern = pattern  # that fills the queue of a shared subscription, "" for any other queue
        self.gone = False
        self.shares = shares  # a number of its connection's: consumers with the same one have one credit; 0: none has
        self.credit = credit  # messages it can take; None: unknown, and the following learn it
        self.blocked = credit == 0  # took less than offered, or all it had credit for
        self.taken = 0  # since it was last ready
        self.window = _UNKNOWN  # messages that it took the last time before it was blocked
        self.probe = 1  # offered beyond the window; doubles while it is taken

    @property
    def shared(self) -> bool:
        """Returns whether the consumer is a member of a shared subscription."""
        return bool(self.pattern)

    @property
    def allowed(self) -> bool:
        """Returns whether it may read all the queue's messages: for a shared subscription, all that the filter matches.

        A member with fewer rights would take messages from others that it must not have.
        """
        access = self.permissions.access
        if access is None:
            return True
        if not self.pattern:
            return access.may("subscribe", queue_address(self.queue))
        if self._allowed[0] is not access:
            self._allowed = access, access.reaches_all("subscribe", self.pattern)
        return self._allowed[1]

    @property
    def idle(self) -> bool:
        """Returns whether it gets nothing now: it has no room, its connection ends, or it may not read any more."""
        return self.blocked or self.conn.gone or not self.allowed

    def offer_count(self) -> int:
        """Returns how many messages to offer next."""
        if self.credit is not None:
            return min(self.credit, BATCH_COUNT_MAX)
        return min(max(0, self.window - self.taken) + self.probe, BATCH_COUNT_MAX)

    @property
    def room(self) -> int:
        """Returns how many messages it takes before it is ready again, as far as is known."""
        if self.credit is not None:
            return self.credit
        return min(max(0, self.window - self.taken) + self.probe, ROOM_COUNT_MAX)

    def took(self, count: int, offered: int) -> None:
        """Learns from how much of an offer was taken."""
        if self.credit is not None:
            self.credit = max(0, self.credit - count)
            self.blocked = count < offered or not self.credit
            return
        self.taken += count
        if count == offered and self.taken > self.window:
            self.probe = min(self.probe * 2, BATCH_COUNT_MAX)
        if count < offered:
            self.blocked = True
            self.window = max(1, self.taken)

    def ready(self, credit: int | None) -> bool:
        """Notes that the consumer can take more; returns whether it could not before."""
        if credit is not None:
            self.credit = credit
        before, self.blocked = self.blocked, self.credit == 0
        self.taken, self.probe = 0, 1
        return before and not self.blocked


class Pump:
    """Delivers one queue. Its task lives while there are consumers; `failed` is called if a bug of ours ends it.

    `dead_letter` takes messages that are not to be delivered; `taken` is called when the head of the queue has changed.

    `counted`: a message that was given back says how often, in a header, as those of RabbitMQ's quorum queues do.

    `elsewhere` says how many consumers the queue has at other proxies that are to have their fair share. All of them
    share the waiting messages; where there are fewer messages than consumers, one that has had its turn waits a moment.
    """

    def __init__(
        self,
        store: StoreClient,
        number: QueueNumber,
        *,
        rules: Callable[[], QueueRules],
        now_ms: Callable[[], int],
        dead_letter: DeadLettering,
        taken: Callable[[], None],
        failed: Callable[[BaseException], None],
        elsewhere: Callable[[], int] = lambda: 0,
        sizes: LanedSizes | None = None,
        counted: bool = False,
    ) -> None:
        self._store = store
        self._number = number
        self._counted = counted
        self._elsewhere = elsewhere
        self._ahead = 0  # messages our consumers have got since they last let others be first, while there were few
        self._plenty = False  # since it woke there was a message for everybody
        self._wake = asyncio.Event()
        self.head = QueueHead(  # which does not know the pump: a deleted queue is freed without a search for cycles
            store, number, rules=rules, now_ms=now_ms, dead_letter=dead_letter, woken=self._wake.set, sizes=sizes
        )
        self._now_ms = now_ms
        self._idle_since_ms: int | None = None  # since then a consumer has room, and nothing waits
        self._taken = taken
        self._task = PumpTask(f"pump of queue {number}", failed)
        self._settling: set[asyncio.Future[None]] = set()  # of messages delivered without acknowledgement
        self._unsettled: BaseException | None = None  # why one of them failed, until the pump has seen it
        self._rules = rules
        self.consumers: list[QueueConsumer] = []  # the consumer that was served last is last
        self._oldest: list[QueueConsumer] = []  # the same consumers, the oldest first
        self._highest = _LOWEST  # priority of all consumers since there were none
        self.last_tries = LastTries(rules)
        self.active = True  # this process may deliver, of a queue with a single active consumer
        self._single: QueueConsumer | None = None  # that consumer, until it ends or may not read any more
        self._room: int | None = None  # None: not known since a consumer has changed

    def add(self, consumer: QueueConsumer) -> None:
        """Begins to deliver to a consumer."""
        self.consumers.append(consumer)
        self._oldest.append(consumer)
        self._highest = max(self._highest, consumer.priority)
        self._room = None
        self._wake.set()
        self._task.start(self._run)

    def remove(self, consumer: QueueConsumer) -> None:
        """Delivers nothing more to a consumer. A message that is being offered to it goes back."""
        consumer.gone = True
        self.consumers.remove(consumer)
        self._oldest.remove(consumer)
        if consumer is self._single:
            self._single = None
        if not self.consumers:
            self._highest = _LOWEST
        self._room = None
        self._wake.set()

    def ready(self, consumer: QueueConsumer, credit: int | None) -> None:
        """Delivers again to a consumer that can take more."""
        self._room = None
        if consumer.ready(credit):
            self._wake.set()

    def wake(self) -> None:
        """Wakes the pump: there may be messages to deliver."""
        self._wake.set()

    @property
    def has_ready_consumer(self) -> bool:
        """Returns whether a consumer takes every message: it meets expired ones itself."""
        return bool(self._ready())

    @property
    def room(self) -> int:
        """Returns how many messages its consumers take at once: a full queue asks that for each message that comes."""
        if self._room is None:
            self._room = _room_of([consumer for consumer in self._candidates() if not consumer.idle])
        return self._room

    def look_again(self) -> None:
        """Adds up `room` anew when it is asked: connections may have ended, and rights been revoked."""
        self._room = None

    def _ready(self) -> list[QueueConsumer]:
        """Returns the consumers whose turn it is: those of the highest priority that have room."""
        ready = [consumer for consumer in self._candidates() if not consumer.idle]
        if len(ready) > 1:
            highest = max(consumer.priority for consumer in ready)
            ready = [consumer for consumer in ready if consumer.priority == highest]
        return ready

    def _candidates(self) -> list[QueueConsumer]:
        """Returns the consumers that may have messages: of a queue with a single active one, that alone.

        It stays active until it ends. One whose right is revoked holds up no others: the oldest one that may read the
        queue follows it, and stays active when the right comes back, as it holds messages by then.
        """
        if not self._rules().single_active:
            return self.consumers
        if not self.active:
            self._single = None
        elif self._single is None or not self._single.allowed:
            self._single = next((one for one in self._oldest if one.allowed), None)
        return [] if self._single is None else [self._single]

    def _is_preceded(self, consumer: QueueConsumer) -> bool:
        """Returns whether a consumer of a higher priority has room: it came while messages were leased for this one."""
        if consumer.priority >= self._highest:
            return False
        return any(other.priority > consumer.priority and not other.idle for other in self._candidates())

    async def get(self, owner: int) -> tuple[Message, Lease] | None:
        """Leases the first message that has not expired; removes those before it. Raises `StoreError`."""
        await self.head.trim(owner)
        while leases := await self.head.take(owner, max_count=1):
            found = self.head.read(leases)
            if found.messages:
                self.last_tries.leased(found.live)
                message, lease = found.messages[0], found.live[0]
                if self._counted:  # RabbitMQ sets it on messages fetched for the first time, too
                    message = with_headers(message, {DELIVERY_COUNT: lease.deliveries})
                return message, lease
            await self._discard(owner, found)
        return None

    async def begin(self, effect: Consume) -> QueueOffset:
        """Raises `Refusal` for a consumer of a stream; returns an offset that means nothing."""
        if effect.stream is not None:
            raise Refusal(Cause.PRECONDITION, "arguments that begin with 'x-stream-' are for queues of the type stream")
        return NOWHERE

    async def stop(self) -> None:
        """Ends the task. Its queue is gone, or the process ends."""
        await self._task.stop()

    async def _run(self) -> None:
        while self.consumers:
            await self._wake.wait()
            if self._ahead >= len(self.consumers) and self._elsewhere():
                await asyncio.sleep(YIELD_S)
                self._ahead = 0
            self._wake.clear()
            self._plenty = False
            try:
                while await self._round():
                    pass
                if self._plenty:
                    self._ahead = 0
            except StoreError as error:
                log.warning(
                    "messages of a queue cannot be delivered now", queue=self._number, error=str(error), retry_s=RETRY_S
                )
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _round(self) -> bool:
        """Offers every consumer its share once; returns whether anything was there."""
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is not None:
            raise unsettled
        ready = self._ready()
        share = BATCH_COUNT_MAX
        among = len(ready) + (self._elsewhere() if ready else 0)
        if among > 1:
            waiting = await self._store.leases.waiting(self._number)
            # At least one: only a consumer that has asked learns of new messages. Among many a few, each in their turn,
            # so that there is not a call for every message.
            share = max(1, -(-waiting // among), min(among // 16, SHARE_COUNT_MIN))
            self._plenty = self._plenty or waiting >= among
        if not ready:
            self._idle_since_ms = None
        found = False
        for consumer in ready:
            if consumer.gone or consumer.idle:
                continue
            if not await self._serve(consumer, share):
                break
            found = True
        if ready and not found and self._idle_since_ms is None:
            self._idle_since_ms = self._now_ms()
        return found

    async def _serve(self, consumer: QueueConsumer, share: int) -> bool:
        """Leases up to `share` messages to a consumer and offers them; returns whether any were there."""
        store, conn = self._store, consumer.conn
        leases = await self.head.take(conn.id, max_count=min(share, consumer.offer_count()))
        if not leases:
            return False
        if consumer.gone or conn.gone or not consumer.allowed or self._is_preceded(consumer):
            store.leases.requeue(self._number, conn.id, [lease.offset for lease in leases], delivered=False)
            return True
        found = self.head.read(leases, self._idle_since_ms)
        taken, offsets = 0, [lease.offset for lease in found.live]
        if found.messages:
            # `delivered`, without the call of a property for each message: 0.05 in place of 0.17 us
            counts = [lease.deliveries or (1 if lease.earlier else 0) for lease in found.live]
            taken = conn.deliver(Leased(consumer.id, self._offered(found), offsets, counts, self._number))
            consumer.took(taken, len(offsets))
            self._room = None
            if not consumer.settle_on_delivery:
                self.last_tries.leased(found.live[:taken])
            if taken < len(offsets):
                store.leases.requeue(self._number, conn.id, offsets[taken:], delivered=False)
        self._ahead += taken
        self._taken()
        if taken and not consumer.gone:
            self.consumers.remove(consumer)
            self.consumers.append(consumer)
        if consumer.settle_on_delivery and taken:
            self._settle_soon(conn.id, offsets[:taken])
            await asyncio.sleep(0)  # others have their turn: nothing else is waited for while there is a backlog
        await self._discard(conn.id, found)
        if len(self._settling) >= SETTLING_COUNT_MAX:
            await asyncio.wait(self._settling)
        return True

    async def _discard(self, owner: int, found: Found) -> None:
        """Removes messages that are not to be delivered. Raises `StoreError`."""
        self.last_tries.left(letter.offset for letter in found.exhausted)
        await self.head.discard(owner, found)

    def _offered(self, found: Found) -> Sequence[Message]:
        """Returns messages as they are offered."""
        if not self._counted:
            return found.messages
        return [
            with_headers(message, {DELIVERY_COUNT: lease.deliveries}) if lease.deliveries else message
            for message, lease in zip(found.messages, found.live, strict=True)
        ]

    def _settle_soon(self, owner: int, offsets: Sequence[QueueOffset]) -> None:
        """Settles messages that were delivered to a consumer that acknowledges none: the next ones need not wait."""
        settling = self._store.leases.settle_soon(self._number, owner, offsets)
        self._settling.add(settling)
        settling.add_done_callback(self._settled)

    def _settled(self, settling: asyncio.Future[None]) -> None:
        self._settling.discard(settling)
        if not settling.cancelled() and (error := settling.exception()) is not None:
            self._unsettled = error
            self._wake.set()


def _room_of(consumers: Sequence[QueueConsumer]) -> int:
    """Returns how many messages some consumers take: those that share their credit as many as one of them."""
    shared: dict[tuple[int, int], int] = {}
    for consumer in consumers:
        if consumer.shares:
            whose = consumer.conn.id, consumer.shares
            shared[whose] = max(shared.get(whose, 0), consumer.room)
    return sum(shared.values()) + sum(consumer.room for consumer in consumers if not consumer.shares)
