"""One subscription at work: events from the logs to its sink, as long as this process owns its name.

The outbox decides which events are attempted. Events that it has no room for stay in the log: the fan-out keeps a
cursor for it. The subscription's own cursor is committed every `COMMIT_S` while it moves, never past an event that is
not settled, so that a crash repeats later deliveries and loses nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.delivery.lanes import Subscriber
from gateway.domain.access import Permissions
from gateway.domain.batch import Batch, LostRange
from gateway.domain.cursor import Cursor, by_log, cursor_of_offsets, distance, earlier, later, offsets_of
from gateway.ownership.owners import Owned
from gateway.port.adapter import Deliverable, Deliveries, SubscriptionId
from gateway.port.push import DeliveryStatus
from gateway.push.context import PushContext
from gateway.push.dead_letters import PushDeadLetters
from gateway.push.outbox import Attempt, Failure, Outbox, held_size
from gateway.push.sender import EventSender, SinkKind
from gateway.push.spec import SINK_GONE, STATUS, SubscriptionRecord, filter_of, policy_of
from store.api.keys import Put
from store.base import logs
from store.base.clock import SteadyClock
from store.base.errors import StoreError
from store.base.streams import Backoff, until_one_ends
from store.base.streams.event_wait import wait_at_most

COMMIT_S: Final = 1.0  # between two commits of a cursor that moves
STATUS_S: Final = 5.0  # between two statuses, unless the state changes
STOP_S: Final = 5.0  # that deliveries in flight have to end when the subscription stops here
IDLE_COMMIT_BYTES: Final = 16 << 20  # an idle subscription's cursor is moved once it is this far behind
CONSENT_MIN_S, CONSENT_MAX_S = 1.0, 300.0  # between two requests for a sink's consent
_MEMO: Final = "push.attributes"

log = logs.get(__name__)


class SinkGone(Exception):
    """Raised where the sink has said that it wants nothing more."""


def status_key(id_: str) -> str:
    """Returns the key of a subscription's status."""
    return f"{STATUS}/{id_}"


class PushDelivery:
    """The deliveries of one subscription (`gateway.delivery.lanes.Receiver`)."""

    def __init__(
        self, record: SubscriptionRecord, context: PushContext, permissions: Permissions, kind: SinkKind | None
    ) -> None:
        self.record = record
        self.status = DeliveryStatus()
        self._context = context
        self.permissions = permissions  # of its owner
        self._spec = spec = record.spec
        self._passes = filter_of(spec)
        self._steady_ms = SteadyClock(context.now_ms)
        self._outbox = Outbox(
            policy_of(spec.protocolsettings), uniform=context.chance.uniform, now_ms=self._steady_ms()
        )
        self._subscriber = Subscriber(self)
        self._dead_letters = PushDeadLetters(record, context)
        self._kind = kind
        self._sender: EventSender | None = None
        self._wake = asyncio.Event()  # set when a delivery may be started
        self._gone = asyncio.Event()  # the sink wants nothing more
        self._under_way: set[asyncio.Task[None]] = set()
        self._blocked = False  # less was taken than offered
        self._closing = False
        self._consented = False
        self._moved = False  # a delivery was settled since the last commit
        self._settled: Cursor = ()  # all messages before it are settled
        self._committed: Cursor = ()
        self._status_s = 0.0  # when the status was stored
        self._stored = DeliveryStatus()

    @property
    def last_cursor(self) -> Cursor | None:
        """Returns the cursor to commit when the name is released; None where it has not moved."""
        return self._settled if self._settled != self._committed else None

    # ---- as long as it is ours

    async def run(self, owned: Owned) -> None:
        """Delivers until cancelled. Raises `SinkGone`, `OwnershipLost`, `StoreError`."""
        self._committed = self._settled = await self._begin(owned)
        if self._kind is None:
            self._set_error(f"no adapter of this process speaks {self._spec.protocol} to sinks")
        if self.record.gone:
            self._set_error(SINK_GONE)
        if self.record.paused or self._kind is None:
            await self._write(owned)
            await asyncio.Event().wait()
        assert self._kind is not None
        self._sender = self._kind.sender(self.record, self._context)
        try:
            await self._consent(owned)
            self._subscribe()
            await until_one_ends(self._attempting(), self._committing(owned), self._is_gone())
        finally:
            await self._end()

    async def _is_gone(self) -> None:
        await self._gone.wait()
        raise SinkGone

    async def _begin(self, owned: Owned) -> Cursor:
        entry = await self._context.store.keys.get(status_key(self.record.id))
        if entry is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                self.status = self._stored = msgspec.msgpack.decode(entry.value, type=DeliveryStatus)
        self.status = msgspec.structs.replace(self.status, held=0, error="")
        return cursor_of_offsets(await owned.cursor()) or cursor_of_offsets(self.record.start)

    def _subscribe(self) -> None:
        for number, pattern in enumerate(dict.fromkeys(self._spec.config.addresses)):
            self._context.fanout.subscribe(
                self._subscriber, SubscriptionId(number), pattern, self._settled, permissions=self.permissions
            )

    async def _end(self) -> None:
        """Lets deliveries in flight end, for a while."""
        self._closing = True
        try:
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=STOP_S)
        finally:
            for task in self._under_way:
                task.cancel()
            self._settle()
            self._context.fanout.leave(self._subscriber)
            self._context.budget.forget(self)
        if self._sender is not None:
            await self._sender.close()

    # ---- the sink's consent

    async def _consent(self, owned: Owned) -> None:
        """Asks the sink whether it wants to be sent events, until it does."""
        backoff = Backoff(CONSENT_MIN_S, CONSENT_MAX_S, uniform=self._context.chance.uniform)
        while not await self._asked():
            await self._write(owned)
            await backoff.pause()
        self._consented = True

    async def _asked(self) -> bool:
        assert self._sender is not None
        said = await self._sender.consent()
        self._set_error(said.refusal)
        if said.rate_per_s is not None:
            self._outbox.rate_per_s = min(self._outbox.rate_per_s or said.rate_per_s, said.rate_per_s)
        return not said.refusal

    # ---- from the logs

    def deliver(self, deliveries: Deliverable) -> int:
        """Takes events while there is room for them, and skips those that the filter does not match."""
        assert isinstance(deliveries, Deliveries)
        batch, outbox, budget = deliveries.batch, self._outbox, self._context.budget
        if isinstance(batch, LostRange):
            self._count(lost=1)
            return 0
        for taken, index in enumerate(deliveries.picks):
            if self._closing or outbox.full:
                self._blocked = True
                return taken
            if not self._wants(batch, index):
                continue
            message = batch.message(index)
            size = held_size(message)
            if not budget.take(self, size, first=not outbox.held_count):
                self._blocked = True
                return taken
            outbox.take(batch.position(index), message.key or message.device or message.address, message, size)
            self._wake.set()
        return len(deliveries.picks)

    def _wants(self, batch: Batch, index: int) -> bool:
        """Returns whether an event passes; its attributes are made once for all subscriptions."""
        known = batch.memo.setdefault(_MEMO, {})
        event = known.get(index)
        if event is None:
            event = known[index] = self._context.codec.event_attributes(batch.message(index))
        return self._passes(event)

    def room(self) -> None:
        """Asks for more where there was no room before."""
        if self._blocked and not self._outbox.full and not self._closing:
            self._blocked = False
            self._context.fanout.wake(self._subscriber)

    # ---- to the sink

    async def _attempting(self) -> None:
        outbox, now_ms = self._outbox, self._steady_ms
        while True:
            self._wake.clear()
            for one in outbox.start(now_ms()):
                task = asyncio.create_task(self._attempt(one))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            due_ms = outbox.deadline_ms(now_ms())
            wait_s = None if due_ms is None else max(due_ms - now_ms(), 1) / 1_000
            await wait_at_most(self._wake, wait_s)

    async def _attempt(self, one: Attempt) -> None:
        """Attempts a delivery, and notes how it ended."""
        outbox, expires_ms = self._outbox, one.message.expires_at_ms
        if not self.permissions.reads(one.message.address):  # any more: it waited for another attempt
            outbox.passed_over(one)
        elif expires_ms is not None and expires_ms <= self._context.now_ms():
            outbox.passed_over(one)
            self._count(expired=1)
        elif (failure := await self._sent(one)) is None:
            outbox.delivered(one)
            self._count(delivered=1)
            self._set_error("")
        elif failure.passed:
            outbox.passed_over(one)
            self._count(looped=1)
        else:
            self._count(failed=1)
            self._set_error(failure.error)
            if failure.gone:
                self._gone.set()
            if outbox.failed(one, failure, self._steady_ms()):
                await self._dead_letter(one)
        if one.settled:
            self._moved = True
            self._context.budget.release(self, one.size)
        self.room()
        self._wake.set()

    async def _dead_letter(self, one: Attempt) -> None:
        if await self._dead_letters.store(one):
            self._outbox.dead_lettered(one)
            self._count(dead=1)
        else:
            self._outbox.dead_letter_failed(one, self._steady_ms())

    async def _sent(self, one: Attempt) -> Failure | None:
        """Sends an event; None once the sink has taken it."""
        assert self._sender is not None
        try:
            async with self._context.attempts.begun(self):
                return await self._sender.send(one)
        except Exception:  # our own bug, or a library's: the event is not lost to it
            log.exception("a delivery failed", subscription=self.record.id)
            return Failure(error="internal error")

    # ---- the cursor and the status

    def _settle(self) -> None:
        if self._subscriber.patterns:
            reached = self._context.fanout.reached(self._subscriber)
            self._settled = later(self._settled, earlier(reached, self._outbox.oldest()))

    async def _committing(self, owned: Owned) -> None:
        said = ""
        while True:
            await asyncio.sleep(COMMIT_S)
            try:
                await self._commit(owned)
            except StoreError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("a subscription's cursor was not committed", subscription=self.record.id, error=said)
            else:
                said = ""

    async def _commit(self, owned: Owned) -> None:
        moved, self._moved = self._moved, False
        self._settle()
        settled = self._settled
        if moved or distance(self._committed, settled) > IDLE_COMMIT_BYTES:
            try:
                await self._write(owned, cursor=settled)
            except StoreError:
                self._moved = True
                raise
            self._committed = settled
        else:
            await self._write(owned)

    async def _write(self, owned: Owned, *, cursor: Cursor | None = None) -> None:
        """Stores the cursor, if it is given, and the status, if it is time for that. Raises `StoreError`."""
        stored, status_s = self._stored, self._status_s
        operations = self.changed_status(with_cursor=cursor is not None)
        try:
            if cursor is not None:
                await owned.write(operations, cursor=offsets_of(cursor))
            elif operations:
                await owned.write(operations)
        except StoreError:
            self._stored, self._status_s = stored, status_s
            raise

    def changed_status(self, *, with_cursor: bool = False) -> Sequence[Put]:
        """Returns the change that stores the status, if it is time for that.

        It always is where the cursor is committed: events before the cursor are not delivered, and counted, again.
        """
        found = msgspec.structs.replace(
            self.status, state=self.state, held=self._outbox.held_count, behind=self._behind(), time_ms=0
        )
        if found == self._stored:
            return ()
        now_s = time.monotonic()
        if not with_cursor and found.state == self._stored.state and now_s - self._status_s < STATUS_S:
            return ()
        self._stored, self._status_s = found, now_s
        self.status = msgspec.structs.replace(found, time_ms=self._context.now_ms())
        return (Put(status_key(self.record.id), msgspec.msgpack.encode(self.status)),)

    @property
    def state(self) -> str:
        """Returns the state, as in `DeliveryStatus`."""
        if self.record.paused:
            return "gone" if self.record.gone else "paused"
        if not self._consented:
            return "pending"
        return "failing" if self._outbox.broken else "active"

    def _behind(self) -> int:
        """Returns the bytes of the logs between the cursor and their ends, in steps that do not make new statuses."""
        found, at = 0, by_log(self._settled)
        for group, one in self._context.store.logs.items():
            with contextlib.suppress(StoreError):
                found += max(one.log.confirmed - at[group].frame, 0) if group in at else 0
        return found - found % IDLE_COMMIT_BYTES

    def _count(self, **counts: int) -> None:
        new = {name: getattr(self.status, name) + count for name, count in counts.items()}
        self.status = msgspec.structs.replace(self.status, **new)
        self._context.totals.count(**counts)

    def _set_error(self, error: str) -> None:
        self.status = msgspec.structs.replace(self.status, error=error)
