"""Moving messages from their queue to its dead-letter exchange.

A dead letter is published to the exchange as any message is: it has an address, it is stored in the topic of that, and
in every queue that the exchange routes it to. One frame of the source's store group holds it and the settlement of its
source, so a crash leaves it in one of the two places and never in both. Messages for other store groups are stored
there first: a crash in between may double it there, and loses nothing. A refusal in between doubles nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final

from gateway.base.turns import Turns
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import local_name
from gateway.port.bodies import parts_of
from gateway.port.queues import DEATHS
from gateway.publishing.bodies import Bodies
from gateway.publishing.moving import Mover
from gateway.publishing.publishing import FRAME_PAYLOAD_BYTES, FRAME_ROWS
from gateway.publishing.routing.placing import Parts, Source
from gateway.publishing.routing.router import Route
from gateway.queues.leaving.deaths import Reason, dead_letter, is_cycle
from gateway.queues.leaving.lost import LostMessages
from gateway.queues.leaving.reading import Letter, read
from gateway.queues.leaving.rules import NO_RULES
from gateway.queues.model.queue import Queue
from gateway.queues.rejections import Rejections
from store.api.leases import Lease
from store.api.message import Message
from store.base import logs
from store.base.errors import CorruptFrame, LeaseLost, OffsetOutOfRange, StoreError
from store.format.frame import QueueNumber, QueueOffset
from store.format.ranges import Range, ranges_of

READ_BYTES: Final = 1 << 20  # of rejected messages read at once
OUTSIDE_COUNT_MAX: Final = 10_000  # messages that full queues have not taken, and that wait to be published elsewhere

log = logs.get(__name__)


class DeadLetters:
    """Moves messages that leave their queues. `queue_of` finds a queue by its number."""

    def __init__(
        self, mover: Mover, *, bodies: Bodies, queue_of: Callable[[int], Queue | None], now_ms: Callable[[], int]
    ) -> None:
        self._mover = mover
        self._store, self._router = mover.store, mover.router
        self._bodies = bodies
        self._queue_of = queue_of
        self._now_ms = now_ms
        self.lost = LostMessages()
        self.dropped = 0  # dead letters that nothing has taken
        self._moving: dict[int, set[asyncio.Future[None]]] = {}  # by owner
        self._rejections = Rejections(self._reject)
        self._turns = Turns()  # of queues whose messages leave them by themselves
        self._outside: list[tuple[Queue, Message]] = []  # messages that full queues have not taken
        self._publishing: asyncio.Task[None] | None = None

    async def reject(self, queue: Queue, owner: int, offsets: Sequence[QueueOffset], reason: str) -> None:
        """Moves messages that their owner rejects, in that order, or settles them.

        Raises `StoreError`: they are leased again.
        """
        await self._rejections.add(queue, owner, offsets, reason)

    async def _reject(self, queue: Queue, owner: int, offsets: Sequence[QueueOffset], reason: str) -> None:
        if queue.rules.dead_letter_exchange is None:
            await self._store.leases.settle(queue.number, owner, offsets)
            return
        with self._held(queue, owner, offsets):
            place = {offset: nth for nth, offset in enumerate(offsets)}
            found, damaged = await self._read(queue.number, offsets)
            letters = sorted(found, key=lambda letter: place[letter.offset])
            known = {letter.offset for letter in letters}
            await self._move(queue, owner, letters, reason)
            if lost := [offset for offset in offsets if offset not in known]:  # damaged, or gone with old records
                await self._store.leases.settle(queue.number, owner, lost)
                self._note_lost(queue, damaged)

    async def dead_letter(self, queue: Queue, owner: int, letters: Sequence[Letter], reason: str) -> None:
        """Moves messages that an owner holds, or settles them. Raises `StoreError`: they are leased again."""
        offsets = [letter.offset for letter in letters]
        if queue.rules.dead_letter_exchange is None:
            await self._store.leases.settle(queue.number, owner, offsets)
            return
        with self._held(queue, owner, offsets):
            async with self._turns.at(f"{queue.number}"):  # in the order in which messages have left
                await self._move(queue, owner, letters, reason)

    async def finished(self, owner: int) -> None:
        """Waits until nothing is being moved that an owner holds: given back before that, it would not be moved."""
        while moving := {*self._moving.get(owner, ()), *self._rejections.of(owner)}:
            await asyncio.wait(moving)

    @contextmanager
    def _held(self, queue: Queue, owner: int, offsets: Sequence[QueueOffset]) -> Iterator[None]:
        """Notes messages that are being moved; gives back those that could not be."""
        done = asyncio.get_running_loop().create_future()
        self._moving.setdefault(owner, set()).add(done)
        try:
            yield
        except BaseException as error:
            self._store.leases.requeue(queue.number, owner, offsets, delivered=False)
            if not isinstance(error, LeaseLost):  # leased to another owner meanwhile, which moves it
                raise
        finally:
            done.set_result(None)
            self._moving[owner].discard(done)
            if not self._moving[owner]:
                del self._moving[owner]

    def _note_lost(self, queue: Queue, damaged: Sequence[tuple[Range, str]]) -> None:
        """Logs and counts rejected messages that are lost."""
        for (start, end), error in damaged:
            offsets = [QueueOffset(offset) for offset in range(start, end)]
            for lane, some in self._router.lanes.split(queue.number, offsets):
                self.lost.note(
                    "rejected messages are lost and not dead-lettered: the log is damaged",
                    queue.definition.name,
                    lane,
                    ranges_of(some),
                    error,
                )

    async def _read(
        self, number: QueueNumber, offsets: Sequence[QueueOffset]
    ) -> tuple[list[Letter], list[tuple[Range, str]]]:
        """Returns the messages of some offsets that can be read; also the damaged offsets, and why they are.

        Raises `StoreError`.
        """
        letters, lost = list[Letter](), list[tuple[Range, str]]()
        for start, end in ranges_of(offsets):
            at = start
            while at < end:
                try:
                    fetched = await self._store.queues.fetch(
                        number, QueueOffset(at), max_bytes=READ_BYTES, max_rows=end - at
                    )
                except OffsetOutOfRange as gone:
                    at = max(gone.first, at + 1)
                    continue
                except CorruptFrame as damaged:
                    behind = damaged.next or end
                    lost.append(((at, min(behind, end)), str(damaged)))
                    at = behind
                    continue
                places = [
                    (frame, row) for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows
                ]
                found = [Lease(QueueOffset(fetched.offset + n), 0, *place) for n, place in enumerate(places)]
                some = read(found, now_ms=0, rules=NO_RULES)
                letters += [Letter(lease.offset, one) for lease, one in zip(some.live, some.messages, strict=True)]
                at = fetched.next if places else end
        return letters, lost

    def publish_soon(self, queue: Queue, message: Message) -> None:
        """Publishes a message that a full queue has refused to its dead-letter exchange, without a promise."""
        if queue.rules.dead_letter_exchange is None:
            return
        if len(self._outside) >= OUTSIDE_COUNT_MAX:
            self._note_dropped(Counter([(queue.definition.name, "too many at once")]))
            return
        self._outside.append((queue, message))
        if self._publishing is None or self._publishing.done():
            self._publishing = asyncio.create_task(self._publish_outside(), name="dead letters")

    async def _publish_outside(self) -> None:
        while self._outside:
            some, self._outside = self._outside, []
            parts, added, dropped = Parts(self._router, -1), Counter[str](), Counter[tuple[str, str]]()
            for queue, message in some:
                name = queue.definition.name
                try:
                    why = await self._add(parts, queue, message, Reason.MAXLEN)
                except StoreError as error:
                    why = str(error)
                if why is None:
                    added[name] += 1
                else:
                    dropped[name, why] += 1
            try:
                await self._mover.store_elsewhere(parts)
            except StoreError as error:
                dropped += Counter({(name, str(error)): count for name, count in added.items()})
            else:
                self._mover.appended(parts.named)
            self._note_dropped(dropped)

    def _note_dropped(self, dropped: Counter[tuple[str, str]]) -> None:
        """Logs and counts dead letters that are gone, by their queue and why."""
        for (queue, why), count in dropped.items():
            self.dropped += count
            log.warning("dead letters are dropped", queue=queue, count=count, why=why)

    # ---- moving

    async def _move(self, queue: Queue, owner: int, letters: Sequence[Letter], reason: str) -> None:
        """Publishes messages to the dead-letter exchange, and settles them. Raises `StoreError`."""
        for group, some in self._by_group(queue, letters):
            await self._move_within(queue, group, owner, some, reason)

    def _by_group(self, queue: Queue, letters: Sequence[Letter]) -> Iterator[tuple[int, Sequence[Letter]]]:
        """Yields messages in their order, by the store group that they lie in: of a queue that was moved in two."""
        if queue.definition.move is None:
            yield queue.definition.group, letters
            return
        by_lane = self._router.lanes.by_lane(queue.number, [letter.offset for letter in letters])
        groups = {one: self._router.group_of(lane) or 0 for lane, offsets in by_lane.items() for one in offsets}
        known = (letter for letter in letters if letter.offset in groups)
        for group, some in groupby(known, key=lambda letter: groups[letter.offset]):
            yield group, list(some)

    async def _move_within(self, queue: Queue, group: int, owner: int, letters: Sequence[Letter], reason: str) -> None:
        """Does so with messages that lie in one store group."""
        parts, offsets, dropped = self._mover.parts(group), list[QueueOffset](), Counter[tuple[str, str]]()
        for letter in letters:
            why = await self._add(parts, queue, letter.message, reason, (queue.number, "", letter.offset))
            if why is not None:
                dropped[queue.definition.name, why] += 1
            offsets.append(letter.offset)
            full = parts.size_bytes >= FRAME_PAYLOAD_BYTES or parts.rows_count >= FRAME_ROWS
            if full or parts_of(letter.message) is not None:  # the parts have just been stored anew
                await self._mover.move(parts, queue.number, owner, offsets)
                self._note_dropped(dropped)
                parts, offsets, dropped = self._mover.parts(group), [], Counter()
        if offsets:
            await self._mover.move(parts, queue.number, owner, offsets)
            self._note_dropped(dropped)

    async def _add(
        self, parts: Parts, queue: Queue, message: Message, reason: str, source: Source | None = None
    ) -> str | None:
        """Adds the dead letter of a message; returns why there is none, as RabbitMQ has none then. As `Mover.route`."""
        rules, name = queue.rules, queue.definition.name
        if rules.dead_letter_exchange is None:  # the policy was cleared while the message waited
            return "the queue has no dead-letter exchange any more"
        try:
            letter = dead_letter(
                message,
                queue=name,
                reason=reason,
                exchange=rules.dead_letter_exchange,
                routing_key=rules.dead_letter_key,
                now_ms=self._now_ms(),
            )
            route = await self._route(queue, letter)
        except Refusal as refusal:
            return refusal.detail
        targets = list(self._router.named(letter, route))
        if reason != Reason.REJECTED and targets:
            deaths = letter.native["amqp"][DEATHS] if letter.native else []
            kept = [number for number in targets if not self._has_died_in(number, deaths)]
            if not kept:
                return "they went in a circle of queues without being rejected"
            targets = kept
        if parts_of(letter) is not None:
            targets = [number for number in targets if self._bodies.takes(number)]
            if not targets:
                return "their bodies are in parts, and no queue takes them"
            targets = list(parts.missing(targets, source))
            if not targets:
                return None
            try:
                letter = await self._bodies.copy(letter, self._bodies.groups_of(targets))
            except Refusal as lost:
                return lost.detail
        parts.add(letter, route, targets, source)
        return None

    async def _route(self, queue: Queue, letter: Message) -> Route:
        """Returns the route of a dead letter: to named queues alone where its topic is beyond a limit.

        Otherwise one such letter would hold up all behind it. Raises as `Mover.route` where no named queue takes it.
        """
        try:
            return await self._mover.route(letter.address, creator=queue.definition.creator, inside=True)
        except Refusal as refusal:
            if refusal.cause is not Cause.QUOTA:
                raise
            route = self._router.without_topic(letter.address, inside=True)
            if not self._router.named(letter, route):
                raise
            return route

    def _has_died_in(self, number: int, deaths: Sequence[dict[str, Any]]) -> bool:
        queue = self._queue_of(number)
        return queue is not None and is_cycle(local_name(queue.definition.name), deaths)
