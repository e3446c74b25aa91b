"""Ingest: everything published in one turn of the event loop becomes frames, and their outcomes come back in order.

This is the hot path between adapters and the store. Adapters hand over whole reads; here each message costs one
look-up, one encoding and one row; checksums, the write, its sync and the answer cost once a frame.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from gateway.address import hash64
from gateway.delayed import timer_of
from gateway.errors import Cause, Refusal
from gateway.message import Message, encode
from gateway.metrics import Metrics
from gateway.port import DONE, Outcome, Publish, Token
from gateway.retained import retained_change
from gateway.router import Route, Router, UnknownTopicError
from store.client import Appended, StoreClient
from store.errors import AppendOutcomeUnknown, FrameTooLarge, StoreError, StoreFull, StoreOverloaded
from store.format import FRAME_ASYNC, ROW, ROW_EXTRA, Position, UnplacedFrame
from store.records import TIMERS_QUEUE

__all__ = ["Ingest", "Publisher"]

FRAME_PAYLOAD_BYTES = 512 << 10  # a frame is closed when its payload has grown past this
FRAME_ROWS = 16_384
ENVELOPE_BYTES_MAX = 128 << 10  # what a record may take besides the body that the limit is for: address, properties

_OWN_FRAME = ""  # no topic has this name


class Publisher(Protocol):
    """Who published: told how it ended, in order."""

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """The outcome of one `Publish`; `size_bytes` of it are no longer held."""


class _Receipt(NamedTuple):
    """One `Publish` of a frame: its first row, and what of it was refused."""

    publisher: Publisher
    token: Token
    first_row: int
    counts: dict[str, int]  # by topic, what will be stored
    size_bytes: int
    refused: dict[int, Refusal]
    protocol: str


class _Waiting(NamedTuple):
    publisher: Publisher
    effect: Publish
    size_bytes: int


_Special: TypeAlias = tuple[Route, Message, int, int]  # a message with more than one row: its route, pos and size


class Ingest:
    """Builds frames of what connections publish and appends them to a store.

    `soon` runs a callable in the next turn of the event loop; `clock` counts seconds. `create_topic` is asked for a
    topic that is missing; while it works, what is published waits behind it, so that order holds; `resume` says that
    it has ended. `new_producer` gives a number that no other producer has. `appended_to` is told which named queues
    got something, `drained` that fewer bytes are held than before.
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
        create_topic: Callable[[str], None],
        appended_to: Callable[[Sequence[int]], None],
        drained: Callable[[], None],
        compress_bytes_min: int = 0,
    ) -> None:
        self._store = store
        self._router = router
        self._metrics = metrics
        self._new_producer = new_producer
        self._producer_id = new_producer()
        self._sequence = 0
        self._message_bytes_max = message_bytes_max
        self._soon = soon
        self._clock = clock
        self._create_topic = create_topic
        self._appended_to = appended_to
        self._drained = drained
        self._compress_bytes_min = compress_bytes_min  # payloads that large are compressed; 0: none
        self._waiting: list[_Waiting] = []
        self.waiting_bytes = 0  # of the input that waits for a topic or for the next turn
        self._scheduled = False
        self._parked: str | None = None  # the topic being created, while everything waits for it
        self._refused_topics: dict[str, Refusal] = {}  # topics that could not be created, while what needs them waits
        self._in_flight: deque[_Flight] = deque()  # in the order of the appends

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._waiting and not self._in_flight

    def publish(self, publisher: Publisher, effect: Publish, size_bytes: int) -> None:
        """Store an effect's messages; `publisher.published` follows. `size_bytes` is what the input took."""
        self._waiting.append(_Waiting(publisher, effect, size_bytes))
        self.waiting_bytes += size_bytes
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._flush)

    def resume(self, topic: str, refusal: Refusal | None) -> None:
        """The topic that was asked for exists now, or could not be made and why."""
        if refusal is not None:
            self._refused_topics[topic] = refusal
        self._parked = None
        self._flush()
        if self._parked is None:
            self._refused_topics.clear()  # asked for again with the next message: things may have changed

    def _flush(self) -> None:
        self._scheduled = False
        if self._parked is not None:
            return
        waiting, self._waiting = self._waiting, []
        building = _Building()
        for n, (publisher, effect, size_bytes) in enumerate(waiting):
            missing = self._add(building, publisher, effect, size_bytes)
            if missing is _OWN_FRAME:
                self._append(building)
                building = _Building()
                missing = self._add(building, publisher, effect, size_bytes)
            if missing is not None:
                self._parked = missing
                self._waiting = waiting[n:] + self._waiting
                break
            self.waiting_bytes -= size_bytes
            if len(building.rows) + building.extra >= FRAME_ROWS or building.pos >= FRAME_PAYLOAD_BYTES:
                self._append(building)
                building = _Building()
        self._append(building)
        if self._parked is not None:
            self._create_topic(self._parked)

    def _add(  # noqa: PLR0912, PLR0915 - one loop over the messages: a function for its cases would be called for each
        self, building: "_Building", publisher: Publisher, effect: Publish, size_bytes: int
    ) -> str | None:
        """Add one effect to a frame.

        The name of a topic that must be created first, or `_OWN_FRAME` for one that is to share its frame with nobody:
        then nothing was added.
        """
        # The loop below runs once a message: 0.6 us each here, of which encoding is 0.15 and packing the row 0.25.
        router = self._router
        routes, hashes, pack = router.routes, router.hashes, ROW.pack
        rows: list[bytes] = []
        records: list[bytes] = []
        refused: dict[int, Refusal] = {}
        special: list[_Special] = []
        counts: dict[str, int] = {}
        topic, counted = "", 0  # rows[counted:] all belong to this topic
        sync = False  # whether one of the topics wants its messages on disk before they are acknowledged
        pos, size_max = building.pos, self._message_bytes_max
        for index, message in enumerate(effect.messages):
            address = message.address
            route = routes.get(address)
            if route is None:
                found = self._find(address)
                if isinstance(found, str):
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
            if route.topic is not topic:
                if len(rows) > counted:
                    counts[topic] = counts.get(topic, 0) + len(rows) - counted
                topic, counted = route.topic, len(rows)
                sync = sync or not route.relaxed
            if message.deliver_at_ms is not None:
                timer = self._timer(message, route, record)
                if isinstance(timer, Refusal):
                    refused[index] = timer
                else:
                    rows.append(pack(TIMERS_QUEUE, pos, len(timer), 0, 0, 0, 0, message.time_ms))
                    records.append(timer)
                    pos += len(timer)
                continue
            key = message.key or message.device
            key_hash = hashes.get(key) or router.key_hash(key)
            queues = route.queues
            id_ = message.id
            rows.append(
                pack(
                    queues[key_hash % len(queues)],
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
            if route.extra or route.asking or message.retain:
                special.append((route, message, pos, size))
            pos += size
        if len(rows) > counted:
            counts[topic] = counts.get(topic, 0) + len(rows) - counted
        if special:
            extra = sum([len(route.extra) + len(route.asking) + 1 for route, *_ in special])
            if extra > FRAME_ROWS and building.receipts:
                return _OWN_FRAME
            building.extra += extra
        protocol = effect.messages[0].protocol if effect.messages else ""
        receipt = _Receipt(publisher, effect.token, len(building.rows), counts, size_bytes, refused, protocol)
        building.add(receipt, rows, records, special, pos)
        building.sync = building.sync or sync
        return None

    def _timer(self, message: Message, route: Route, record: bytes) -> bytes | Refusal:
        """The record that keeps a message until it is due, or why there can be none."""
        key_hash = self._router.key_hash(message.key or message.device)
        return timer_of(
            self._store,
            message,
            record,
            queue=route.queues[key_hash % len(route.queues)],
            named=_named(route, message),
            key_hash=key_hash,
            address_hash=route.address_hash,
            row_flags=route.row_flags,
            id_hash=hash64(message.id) if message.id else 0,
        )

    def _find(self, address: str) -> Route | Refusal | str:
        """The route of an address not seen before, why there is none, or the topic to create first."""
        try:
            return self._router.resolve(address)
        except UnknownTopicError as unknown:
            return self._refused_topics.get(unknown.topic, unknown.topic)
        except Refusal as refusal:
            return refusal

    def _append(self, building: "_Building") -> None:
        receipts = building.receipts
        if not receipts:
            return
        if not building.rows:  # everything was refused; the answer still waits for its turn
            if self._in_flight:
                self._in_flight[-1].receipts += receipts
            else:
                self._answer(receipts, None)
            return
        named = self._add_special(building) if building.special else ()
        self._sequence += 1
        frame = UnplacedFrame.build(
            b"".join(building.rows),
            b"".join(building.records),
            producer_id=self._producer_id,
            sequence=self._sequence,
            flags=0 if building.sync else FRAME_ASYNC,
            compress_bytes_min=self._compress_bytes_min,
        )
        flight = _Flight(receipts, named, self._clock())
        self._metrics.append_messages.observe(len(building.rows))
        self._in_flight.append(flight)
        self._store.append(frame, lambda result: self._done(flight, result))

    def _add_special(self, building: "_Building") -> Sequence[int]:
        """Rows for named queues, and changes of retained messages; the named queues that got something."""
        named: dict[int, None] = {}
        for route, message, pos, size in building.special:
            for queue in _named(route, message):
                building.rows.append(ROW.pack(queue, pos, size, ROW_EXTRA, 0, route.address_hash, 0, message.time_ms))
                named[queue] = None
            if message.retain:
                row, record = retained_change(message, building.pos)
                building.rows.append(row)
                building.records.append(record)
                building.pos += len(record)
        return tuple(named)

    def _done(self, flight: "_Flight", result: Appended | StoreError) -> None:
        """A frame has ended. A store that refuses one says so ahead of those it is still writing; we do not."""
        flight.result = result
        self._metrics.append_seconds.observe(self._clock() - flight.began_s)
        if isinstance(result, StoreError):
            # Its sequence number stays unused, which the store takes for a lost frame: begin another sequence.
            self._producer_id, self._sequence = self._new_producer(), 0
        while self._in_flight and (ended := self._in_flight[0].result) is not None:
            first = self._in_flight.popleft()
            self._answer(first.receipts, ended)
            if first.named and isinstance(ended, Appended):
                self._appended_to(first.named)
        self._drained()

    def _answer(self, receipts: Sequence[_Receipt], result: Appended | StoreError | None) -> None:
        error = refusal_of(result) if isinstance(result, StoreError) else None
        messages_in = self._metrics.messages_in
        for publisher, token, first_row, counts, size_bytes, refused, protocol in receipts:
            status = "stored" if error is None else error.cause.value
            for topic, count in counts.items():
                messages_in(protocol, topic, status).inc(count)
            for refusal in refused.values():
                self._metrics.errors(protocol, refusal.cause.value).inc()
            if counts and error is not None:
                outcome = Outcome(error=error)
            elif counts and isinstance(result, Appended):
                outcome = Outcome(first=Position(result.frame, first_row), refused=refused)
            else:
                outcome = Outcome(refused=refused) if refused else DONE
            publisher.published(token, outcome, size_bytes)


def _named(route: Route, message: Message) -> Sequence[int]:
    """The named queues that a message goes to."""
    if not route.asking:
        return route.extra
    return (*route.extra, *dict.fromkeys(queue for queue, wants in route.asking if wants(message)))


class _Flight:
    """A frame on its way."""

    __slots__ = ("began_s", "named", "receipts", "result")

    def __init__(self, receipts: list[_Receipt], named: Sequence[int], began_s: float) -> None:
        self.receipts = receipts
        self.began_s = began_s
        self.named = named  # the named queues it has rows for
        self.result: Appended | StoreError | None = None


class _Building:
    """A frame under construction."""

    __slots__ = ("extra", "pos", "receipts", "records", "rows", "special", "sync")

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.records: list[bytes] = []
        self.pos = 0  # the payload's length so far
        self.extra = 0  # rows that `special` will add, at most
        self.receipts: list[_Receipt] = []
        self.special: list[_Special] = []
        self.sync = False  # whether it must be on disk before it is acknowledged

    def add(
        self, receipt: _Receipt, rows: list[bytes], records: list[bytes], special: "list[_Special]", pos: int
    ) -> None:
        """Take in one effect."""
        self.receipts.append(receipt)
        self.rows += rows
        self.records += records
        self.special += special
        self.pos = pos


def refusal_of(error: StoreError) -> Refusal:
    """What a store's error means to whoever published."""
    if isinstance(error, StoreOverloaded):
        return Refusal(Cause.OVERLOAD, str(error), retry_after_ms=1000)
    if isinstance(error, StoreFull):
        return Refusal(Cause.OVERLOAD, str(error), retry_after_ms=5000)
    if isinstance(error, FrameTooLarge):
        return Refusal(Cause.TOO_LARGE, "too many queues want so many messages at once")
    if isinstance(error, AppendOutcomeUnknown):
        return Refusal(Cause.UNKNOWN, str(error), retry_after_ms=5000)
    return Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=5000)
