"""Ingest: everything published in one turn of the event loop becomes frames, and their outcomes come back in order.

This is the hot path between adapters and the store. Adapters hand over whole reads; here each message costs one
look-up, one encoding and one row; checksums, the write, its sync and the answer cost once a frame.

A frame holds rows of one store group. A turn's messages for several store groups become a frame for each of them. A
message that goes to queues of several groups has its row where its topic's queue lies, and copies in the frames of the
others: for named queues there, and for the retained messages. A publish is answered when all of its frames are, behind
its publisher's earlier publishes; a group that refuses its frame refuses only the messages that needed it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.ops.metrics import Metrics
from gateway.port.adapter import Publish
from gateway.publishing.delayed import timers_of
from gateway.publishing.outgoing import OutgoingFrames
from gateway.publishing.pending_counts import PendingCounts, WaitingPublish, unsure_gates
from gateway.publishing.publishing import (
    FRAME_PAYLOAD_BYTES,
    FRAME_ROWS,
    NONE_DENIED,
    NOWHERE,
    Building,
    PublishSource,
    Receipt,
    WaitingSingle,
    add_guards,
)
from gateway.publishing.retained import retained_change
from gateway.publishing.routing.router import SPREAD, Route, Router, UnknownTopicError
from gateway.publishing.singles import Singles
from gateway.publishing.topic_shares import creator_of
from gateway.publishing.transactions import complete
from store.api.client import StoreClient
from store.api.message import Message, encode
from store.format.frame import ROW, ROW_EXTRA, Position
from store.format.records import TIMERS_QUEUE

ENVELOPE_BYTES_MAX = 128 << 10  # of a record besides the body that the limit is for: address, properties
WHOLE_BYTES_MAX = 48 << 20  # of a body that is stored whole: for a larger one a frame of the log might have no room

_OWN_FRAME = ""  # no topic has this name

# A message with more than one row: its index, route, frame, record and where that is in the frame's payload.
_Special: TypeAlias = tuple[int, Route, Building, bytes, int]


class Ingest:
    """Builds frames of published messages and appends them to the logs of a store.

    `soon` runs a callable in the next turn of the event loop; `clock` counts seconds. `create_topic` is called with the
    name of a missing topic and its owner-to-be; while it works, messages for the topic wait, so that order holds, until
    `resume`. `new_producer` returns a number that no other producer has. `appended_to` is called with the named queues
    that got something, `drained` when fewer bytes are held, `acknowledged` with the singles that are stored, row by row
    from a position on.
    `gathers`: few single messages wait for a frame in flight, which costs no time where the store is in this process.
    """

    def __init__(
        self,
        store: StoreClient,
        router: Router,
        metrics: Metrics,
        *,
        new_producer: Callable[[], int],
        message_bytes_max: int,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        create_topic: Callable[[str, str], None],
        appended_to: Callable[[Sequence[int]], None],
        drained: Callable[[], None],
        acknowledged: Callable[[Sequence[WaitingSingle], Position], None],
        compress_bytes_min: int = 0,
        gathers: bool = False,
    ) -> None:
        self._store = store
        self._router = router
        self._outgoing = OutgoingFrames(
            store,
            router,
            metrics,
            new_producer=new_producer,
            soon=soon,
            clock=clock,
            appended_to=appended_to,
            drained=self._frame_ended,
            acknowledged=acknowledged,
            compress_bytes_min=compress_bytes_min,
        )
        self.message_bytes_max = message_bytes_max = min(message_bytes_max, WHOLE_BYTES_MAX)
        self._soon = soon
        self._drained = drained
        self._create_topic = create_topic
        self._waiting: list[WaitingPublish] = []
        self._waiting_bytes = 0  # of the input that they took
        self._counts = PendingCounts(self._counted)
        self._scheduled = False
        self._parked: str | None = None  # the topic being created, while everything waits for it
        # Topics that could not be created, while messages wait for them: by topic and by the creator it would count
        # against.
        self._refused_topics: dict[tuple[str, str], Refusal] = {}
        self._building: dict[int, Building] = {}  # by group, the frames of this turn
        self._singles = Singles(
            router, self._outgoing, self._building, message_bytes_max=message_bytes_max, gathers=gathers
        )

    @property
    def waiting_bytes(self) -> int:
        """Returns the bytes of the input that waits for a topic or for its frame."""
        return self._waiting_bytes + self._singles.size_bytes

    @property
    def idle(self) -> bool:
        """Returns whether nothing waits and nothing is in flight."""
        return not self._waiting and not self._singles and not self._counts.held and self._outgoing.idle

    def publish(
        self, publisher: PublishSource, effect: Publish, size_bytes: int, denied: Mapping[int, Refusal] = NONE_DENIED
    ) -> None:
        """Stores an effect's messages; `publisher.published` follows. `size_bytes` is the size of the input.

        Those that are `denied`, by index, are refused in their turn.
        """
        self._waiting.append(WaitingPublish(publisher, effect, size_bytes, denied))
        self._waiting_bytes += size_bytes
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._flush)

    def publish_singles(self, singles: Sequence[WaitingSingle]) -> None:
        """Stores messages, of each publisher in their order; `acknowledged` follows, or `failed` of each.

        Nothing else that they have published is in flight but messages of such calls. None has a guard, a key or a time
        to be delivered at.
        """
        self._singles.add(singles)
        self._flush_soon()

    def _frame_ended(self) -> None:
        if self._singles:
            self._flush_soon()
        self._drained()

    def _counted(self, publishes: Sequence[WaitingPublish]) -> None:
        self._waiting[:0] = publishes  # in front of later ones of the same publishers
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._flush)

    def resume(self, topic: str, refusal: Refusal | None, *, creator: str = "") -> None:
        """Goes on where a topic exists now that was asked for, or could not be made for `creator`, and why."""
        if refusal is not None:
            self._refused_topics[topic, creator] = refusal
        self._parked = None
        self._flush()
        if self._parked is None:
            self._refused_topics.clear()  # asked for again with the next message: things may have changed

    def _flush(self) -> None:  # noqa: PLR0912 - one loop, as below: a function for its cases would be called for each
        self._scheduled = False
        if self._singles:
            if not self._waiting and self._singles.gather():
                return  # until `_frame_ended`
            self._enter_singles()
        if self._parked is not None:
            self._append_all()
            return
        waiting, self._waiting = self._waiting, []
        held = self._counts.held
        for n, one in enumerate(waiting):
            publisher, effect, size_bytes, *_ = one
            if held and publisher in held:
                held[publisher].append(one)
                continue
            stored = effect.marks.stored if effect.marks is not None else ()
            if alone := effect.once or stored or effect.transaction is not None:  # it shares its frames with no other
                self._append_all()
            receipt = Receipt(*one)
            missing = self._add(receipt)
            if missing is _OWN_FRAME:
                self._append_all()
                receipt = Receipt(*one)
                missing = self._add(receipt)
            if missing is not None:
                self._parked = missing
                self._waiting = waiting[n:] + self._waiting
                break
            if receipt.unsure:
                self._counts.hold(one, receipt.unsure)
                continue
            # Now: by the bindings that its rows have followed.
            receipt.unrouted = self._router.unrouted(effect.messages, effect.mandatory) if effect.mandatory else ()
            if receipt.transaction is not None:
                complete(receipt, self._building, self._router)
            self._waiting_bytes -= size_bytes
            self._outgoing.expect(receipt)
            for frame in receipt.parts:
                frame.receipts.append(receipt)
                frame.once = effect.once
                frame.stored = frame.group in stored
                if len(frame.rows) >= FRAME_ROWS or frame.pos >= FRAME_PAYLOAD_BYTES:
                    self._outgoing.append(self._building.pop(frame.group))
            if alone:
                self._append_all()
        self._append_all()
        self._counts.begin()
        if self._parked is not None:
            publisher, effect, *_ = self._waiting[0]
            self._create_topic(self._parked, creator_of(effect.who or publisher.principal))

    def _enter_singles(self) -> None:
        others = [WaitingPublish(*one) for one in self._singles.enter(self._counts.held)]
        self._waiting_bytes += sum([one.size_bytes for one in others])
        self._waiting[:0] = others  # in front of later messages of the same publishers

    # ---- messages to rows

    def _add(  # noqa: PLR0912, PLR0915 - one loop over the messages: a function for its cases would be called for each
        self, receipt: Receipt
    ) -> str | None:
        """Adds the messages of one effect to the frames of this turn.

        The name of a topic that must be created first, or `_OWN_FRAME` for one that is not to share its frame: then
        nothing was added.
        """
        # The loop below runs once a message: 0.6 us each here, 0.15 for encoding and 0.25 for packing the row.
        router = self._router
        routes, hashes, groups, pack = router.routes, router.hashes, router.groups, ROW.pack
        messages, parts, refused, frames = receipt.messages, receipt.parts, receipt.refused, self._building
        special: list[_Special] = []
        runs: list[tuple[int, Building]] = []
        elsewhere: list[tuple[int, int, bytes]] = []  # timers in other groups: the message, the place, the record
        topic, began, refused_before = "", 0, 0  # the messages from `began` on belong to this topic
        # Of the whole `Publish`: asked for each message, it took 0.06 us of the 0.8 that routing one takes.
        away = bool(self._outgoing.refusing) and not (receipt.marks is not None and receipt.marks.stored)
        pinned, copied = receipt.pinned, receipt.with_copies
        spread = durable = False  # of the topic: whether it lies in several groups, and has to be on disk at once
        frame, group, into = NOWHERE, SPREAD, SPREAD
        rows, records, pos = frame.rows, frame.records, 0
        size_max = self.message_bytes_max
        for index, message in enumerate(messages):
            address = message.address
            route = routes.get(address)
            if route is None:
                found = self._find(address, receipt)
                if isinstance(found, str):
                    receipt.take_back()
                    return found
                if isinstance(found, Refusal):
                    refused[index] = found
                    continue
                route = found
            record = encode(message)
            size = len(record)
            if size > size_max and (len(message.body) > size_max or size > size_max + ENVELOPE_BYTES_MAX):
                refused[index] = Refusal(Cause.TOO_LARGE, f"{len(message.body)} bytes; at most {size_max} are taken")
                continue
            key = message.key
            if key:
                queues = route.queues
            else:
                key, queues = message.device, route.queues if pinned else route.near
            key_hash = hashes.get(key) or router.key_hash(key)
            queue = queues[key_hash % len(queues)]
            if away and (refusal := self._refusal(message, route, groups[queue])) is not None:
                refused[index] = refusal
                continue
            if route.topic is not topic:
                receipt.count(topic, index - began - len(refused) + refused_before)
                topic, began, refused_before = route.topic, index, len(refused)
                spread, durable, into = route.group == SPREAD, not route.relaxed, route.group
                group = SPREAD  # so that the frame is told
            if spread:
                into = groups[queue]
            if into != group:
                frame.pos = pos
                frame, group = frames.get(into) or self._begin(into), into
                if frame not in parts:
                    frame.enter(receipt)
                runs.append((index, frame))
                rows, records, pos = frame.rows, frame.records, frame.pos
                frame.sync = frame.sync or durable
            if message.deliver_at_ms is not None:
                timers = self._timers(message, route, record, queue)
                if isinstance(timers, Refusal):
                    refused[index] = timers
                    continue
                record = timers.pop(group)
                rows.append(pack(TIMERS_QUEUE, pos, len(record), 0, 0, 0, 0, message.time_ms))
                records.append(record)
                pos += len(record)
                elsewhere += [(index, other, timer) for other, timer in timers.items()]
                continue
            id_ = message.id
            rows.append(
                pack(
                    queue,
                    pos,
                    size,
                    route.row_flags if message.body else route.empty_flags,
                    key_hash,
                    route.address_hash,
                    hash64(id_) if id_ else 0,
                    message.time_ms,
                )
            )
            records.append(record)
            if route.extra or route.asking or message.retain or copied:
                special.append((index, route, frame, record, pos))
            pos += size
        frame.pos = pos
        receipt.count(topic, len(messages) - began - len(refused) + refused_before)
        if special or elsewhere or refused or len(parts) > 1 or receipt.guarded:
            return self._finish(receipt, special, elsewhere, runs)
        receipt.messages = ()  # all are stored in one frame, one behind the other
        return None

    def _finish(
        self,
        receipt: Receipt,
        special: Sequence[_Special],
        elsewhere: Iterable[tuple[int, int, bytes]],
        runs: Sequence[tuple[int, Building]],
    ) -> str | None:
        """Adds the messages' further records; none where that is too much, `_OWN_FRAME`, or gates are unsure."""
        if special and not receipt.counted:
            routed = ((message := receipt.messages[n], self._router.named(message, route)) for n, route, *_ in special)
            receipt.unsure = unsure_gates(self._router.gates, routed)
            if receipt.unsure:
                receipt.take_back()
                return None
        if receipt.with_copies:
            extra = sum([len(self._router.named(receipt.messages[index], route)) for index, route, *_ in special])
        else:
            extra = sum([len(route.extra) + len(route.asking) + 1 for _, route, *_ in special])
        if extra > FRAME_ROWS and any(one.receipts or one.singles for one in self._building.values()):
            receipt.take_back()
            return _OWN_FRAME
        self._add_special(receipt, special)
        for index, group, timer in elsewhere:
            self._add_timer(receipt, index, group, timer)
        if receipt.refused:  # a frame may have been entered for nothing
            receipt.parts = {frame: first for frame, first in receipt.parts.items() if len(frame.rows) > first}
        if receipt.guarded:
            add_guards(receipt, runs)
        if len(receipt.parts) > 1:
            receipt.runs = runs
        else:
            receipt.messages = ()
        return None

    def _refusal(self, message: Message, route: Route, group: int) -> Refusal | None:
        """Returns the refusal of a message for several groups; None if all take it, or it goes to one group only."""
        named = self._router.named(message, route)
        if not (named or message.retain):
            return None
        groups = {group, *(self._router.groups[queue] for queue in named)}
        return self._outgoing.refusing.refusal(groups | {self._store.group} if message.retain else groups)

    def _begin(self, group: int) -> Building:
        frame = self._building[group] = Building(group)
        return frame

    def _add_special(self, receipt: Receipt, special: Iterable[_Special]) -> None:
        """Adds rows for named queues, and changes of retained messages, to the frames of the groups where these are."""
        groups, home, gates = self._router.groups, self._store.group, self._router.gates
        for index, route, frame, record, pos in special:
            message = receipt.messages[index]
            places = {frame.group: (frame, pos)}  # of the record, by group
            for queue in self._router.named(message, route):
                gate = gates.get(queue)
                if gate is not None and not gate.admit(message):
                    receipt.overflowed = (*receipt.overflowed, index)
                    continue
                into = groups[queue]
                if into not in places:
                    places[into] = self._copy(receipt, index, into, record, durable=not route.relaxed)
                there, at = places[into]
                there.rows.append(
                    ROW.pack(queue, at, len(record), ROW_EXTRA, 0, route.address_hash, 0, message.time_ms)
                )
                there.named[queue] = 0 if gate is None else gate.admitted
            if message.retain:
                there = frame
                if home != frame.group:
                    there = self._elsewhere(receipt, index, home, durable=not route.relaxed)
                row, change = retained_change(message, there.pos)
                there.rows.append(row)
                there.records.append(change)
                there.pos += len(change)

    def _copy(self, receipt: Receipt, index: int, group: int, record: bytes, *, durable: bool) -> tuple[Building, int]:
        """Puts a record in another group's frame, too; the frame, and where the record is."""
        frame = self._elsewhere(receipt, index, group, durable=durable)
        at = frame.pos
        frame.records.append(record)
        frame.pos += len(record)
        return frame, at

    def _add_timer(self, receipt: Receipt, index: int, group: int, timer: bytes) -> None:
        message = receipt.messages[index]
        frame, at = self._copy(receipt, index, group, timer, durable=True)
        frame.rows.append(ROW.pack(TIMERS_QUEUE, at, len(timer), 0, 0, 0, 0, message.time_ms))

    def _elsewhere(self, receipt: Receipt, index: int, group: int, *, durable: bool) -> Building:
        """Returns the frame of another group for a copy of a message, which is stored when that frame is, too."""
        frame = self._building.get(group) or self._begin(group)
        if frame not in receipt.parts:
            frame.enter(receipt)
        frame.sync = frame.sync or durable
        receipt.copied(index, frame)
        return frame

    def _timers(self, message: Message, route: Route, record: bytes, queue: int) -> dict[int, bytes] | Refusal:
        """Returns the records that keep a message until it is due, by group, or why there can be none."""
        return timers_of(
            self._store,
            message,
            record,
            queue=queue,
            named=self._router.named(message, route),
            groups=self._router.groups,
            key_hash=self._router.key_hash(message.key or message.device),
            address_hash=route.address_hash,
            row_flags=route.row_flags,
            id_hash=hash64(message.id) if message.id else 0,
        )

    def _find(self, address: str, receipt: Receipt) -> Route | Refusal | str:
        """Returns the route of an address not seen before, why there is none, or the topic to create first."""
        try:
            return self._router.resolve(address)
        except UnknownTopicError as unknown:
            creator = creator_of(receipt.who or receipt.publisher.principal)
            return self._refused_topics.get((unknown.topic, creator), unknown.topic)
        except Refusal as refusal:
            return refusal

    def _append_all(self) -> None:
        building = list(self._building.values())
        self._building.clear()
        for frame in building:
            self._outgoing.append(frame)
