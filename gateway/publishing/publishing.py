"""Frames that are being built or in flight to the store groups, and the receipts that wait for them."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from gateway.domain.errors import Cause, Refusal
from gateway.domain.idempotency import IdempotencyKey, KeyRepeated, once_record
from gateway.domain.principal import Principal
from gateway.ownership.owners import OwnershipLost
from gateway.port.adapter import DONE, Outcome, Publish, Token
from gateway.port.marks import Fence, Marks
from gateway.port.single import Single
from gateway.publishing.fences import fence_change
from gateway.publishing.routing.length_gates import LengthGate
from gateway.publishing.session_marks import marks_change
from store.api.log import Appended
from store.api.message import Message
from store.base.errors import (
    AppendOutcomeUnknown,
    CorruptFrame,
    FrameTooLarge,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreOverloaded,
    TimersFull,
    TimerTooFar,
    ViewsDamaged,
)
from store.format.frame import Position, QueueNumber, QueueOffset
from store.guards.rows import guard_row

FRAME_PAYLOAD_BYTES: Final = 512 << 10  # a frame is closed when its payload has grown past this
FRAME_ROWS: Final = 16_384
_DAMAGED_TEXT: Final = (
    "data that the store needs for this is damaged on its disk; it cannot be read until it is made anew"
)
_FAILED_TEXT: Final = "the store's disk has failed; it takes nothing until it is started again"
NONE_DENIED: Final[Mapping[int, Refusal]] = {}


class PublishSource(Protocol):
    """The source of a `Publish`, told of outcomes in order."""

    @property
    def principal(self) -> Principal | None:
        """The owner of the topics that it creates; None: they have no owner."""

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """Takes the outcome of one `Publish`; `size_bytes` of it are no longer held."""


class SinglePublisher(PublishSource, Protocol):
    """A connection that has published single messages, and nothing else that is in flight."""

    protocol: str

    def publish_of(self, single: Single) -> Publish:
        """Returns the effect that the message is when it takes the general way. Raises nothing."""

    def failed(self, single: Single, error: Refusal, size_bytes: int) -> None:
        """Notes that the message is not stored."""


# A single message on its way: its publisher, and how many bytes the read took that brought it.
WaitingSingle: TypeAlias = tuple[SinglePublisher, Single, int]


class Producer:
    """The identity of this process at one store group, by which a frame that is sent twice is stored once."""

    __slots__ = ("id", "sequence")

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.sequence = 0  # of the last frame


class Building:
    """A frame of one store group, under construction and then on its way."""

    __slots__ = (
        "_before",
        "began_s",
        "group",
        "guarded",
        "named",
        "once",
        "owner",
        "pos",
        "receipts",
        "records",
        "result",
        "rows",
        "settles",
        "singles",
        "stored",
        "sync",
        "topics",
    )

    def __init__(self, group: int) -> None:
        self.group = group
        self.rows: list[bytes] = []
        self.records: list[bytes] = []
        self.pos = 0  # the payload's length so far
        self.receipts: list[Receipt] = []
        self.singles: list[WaitingSingle] = []
        self.topics: dict[tuple[str, str], int] = {}  # of the singles: how many by protocol and topic
        self.named: dict[int, int] = {}  # the named queues it has rows for; how many each gate had admitted then
        self.once = 0  # the number that it is stored once by, if not by its producer's sequence
        self.stored = False  # its log has all of it already
        self.guarded = False  # some of its rows are guards (`store.guards`)
        self.settles: list[tuple[QueueNumber, Sequence[QueueOffset]]] = []  # of a transaction
        self.owner = 0  # the owner of the settled messages
        self.sync = False  # it must be on disk before it is acknowledged
        self.began_s = 0.0  # when it was handed to the store
        self.result: Appended | StoreError | None = None
        self._before = (0, 0, 0, False)

    def count(self, protocol: str, topic: str, count: int) -> None:
        """Notes how many more single messages it has of a topic that came by a protocol."""
        if count:
            self.topics[protocol, topic] = self.topics.get((protocol, topic), 0) + count

    def enter(self, receipt: "Receipt") -> None:
        """Begins the part of an effect: the rows that follow belong to it."""
        self._before = (len(self.rows), len(self.records), self.pos, self.sync)
        receipt.parts[self] = len(self.rows)

    def take_back(self) -> None:
        """Restores the frame as it was before the last effect."""
        rows, records, self.pos, self.sync = self._before
        del self.rows[rows:], self.records[records:]


NOWHERE: Final = Building(-1)  # where messages are before their first frame: none has this group


class RowCopy(NamedTuple):
    """A second row of a message, in another frame than its first row."""

    frame: Building
    row: int


class Receipt:
    """One `Publish`, until it is answered: with nothing pending, and behind those of its publisher before it."""

    __slots__ = (
        "copies",
        "counted",
        "counts",
        "denied",
        "failed",
        "fence",
        "head",
        "key",
        "marks",
        "messages",
        "next",
        "overflowed",
        "parts",
        "pending",
        "pinned",
        "protocol",
        "publisher",
        "refused",
        "runs",
        "size_bytes",
        "token",
        "transaction",
        "unrouted",
        "unsure",
        "who",
        "with_copies",
    )

    def __init__(
        self,
        publisher: PublishSource,
        effect: Publish,
        size_bytes: int,
        denied: Mapping[int, Refusal] = NONE_DENIED,
        counted: bool = False,
    ) -> None:
        # Once a `Publish`, which may be of one message: hence few containers.
        messages = effect.messages
        self.protocol = messages[0].protocol if messages else ""
        if denied:
            messages = [message for index, message in enumerate(messages) if index not in denied]
        self.publisher = publisher
        self.who = effect.who
        self.token: Token = effect.token
        self.messages: Sequence[Message] = messages  # to which all indexes refer, but those of `denied`
        self.denied = denied
        self.marks: Marks | None = effect.marks
        self.key: IdempotencyKey | None = effect.key
        self.fence: Fence | None = effect.fence
        self.transaction = effect.transaction
        self.with_copies = effect.copied
        # Sent again, by another proxy maybe, it has to find the same log.
        self.pinned = effect.key is not None or effect.once != 0
        self.failed: tuple[Building, ...] = ()  # the frames in which its guard has failed
        self.size_bytes = size_bytes
        self.counts: dict[str, int] = {}  # by topic, messages to be stored
        self.refused: dict[int, Refusal] = {}
        self.overflowed: tuple[int, ...] = ()  # messages that a full queue has not taken
        self.counted = counted  # gates decide by what they know
        self.unsure: Sequence[LengthGate] = ()  # gates that have to count first
        self.unrouted: tuple[int, ...] = ()  # mandatory messages that are for no named queue
        self.parts: dict[Building, int] = {}  # the frames it is in, and its first row there
        self.runs: Sequence[tuple[int, Building]] = ()  # of several frames: from which message on they are in which
        self.copies: dict[int, list[RowCopy]] | None = None  # by message: of those that are in several frames
        self.pending = 0  # frames whose result has not come
        self.head = False  # all earlier messages of its publisher are answered
        self.next: Receipt | None = None  # the publisher's next

    @property
    def guarded(self) -> bool:
        """Returns whether its messages are stored with a session's marks, under a key or behind a fence."""
        return self.marks is not None or self.key is not None or self.fence is not None

    def count(self, topic: str, messages: int) -> None:
        """Counts messages of a topic that will be stored."""
        if messages > 0:
            self.counts[topic] = self.counts.get(topic, 0) + messages

    def copied(self, index: int, frame: Building) -> None:
        """Counts the next row of another frame for a message, too."""
        if self.copies is None:
            self.copies = {}
        self.copies.setdefault(index, []).append(RowCopy(frame, len(frame.rows)))

    def take_back(self) -> None:
        """Removes the receipt's rows from all frames."""
        for frame in self.parts:
            frame.take_back()


def add_guards(receipt: Receipt, runs: Sequence[tuple[int, Building]]) -> None:
    """Adds the marks, the key and the fence of a `Publish` to its frames. `runs` are as for `_add_marks`."""
    if receipt.marks is not None:
        _add_marks(receipt, receipt.marks, runs)
    if receipt.key is not None:
        _add_key(receipt, receipt.key)
    if receipt.fence is not None:
        _add_fence(receipt, receipt.fence)


def _add_marks(receipt: Receipt, marks: Marks, runs: Sequence[tuple[int, Building]]) -> None:
    """Marks messages, in every frame that has one of them. `runs` are as `Receipt` says, of a single frame too."""
    denied, copies = sorted(receipt.denied), receipt.copies or {}
    starts = [start for start, _ in runs]
    said: dict[Building, list[tuple[bytes, int]]] = {}
    for number, mark in marks.of.items():
        index = number - bisect_left(denied, number)
        if number in receipt.denied or index in receipt.refused:
            continue
        frames = dict.fromkeys(
            (runs[bisect_right(starts, index) - 1][1], *(one.frame for one in copies.get(index, ())))
        )
        for frame in frames:
            said.setdefault(frame, []).append((mark, len(frames)))
    for frame, some in said.items():
        row, change = marks_change(marks, some, frame.pos, covers=len(frame.rows) - receipt.parts[frame])
        frame.guarded = frame.guarded or marks.fence is not None
        frame.rows.append(row)
        frame.records.append(change)
        frame.pos += len(change)


def _add_key(receipt: Receipt, key: IdempotencyKey) -> None:
    """Adds the key to every frame of a `Publish`, which is stored only if its log does not know the key yet."""
    for frame, first in receipt.parts.items():
        change = once_record(key, row=len(frame.rows), first=first, deliver_at_ms=receipt.messages[0].deliver_at_ms)
        frame.rows.append(guard_row(frame.pos, len(change), key.name, covers=len(frame.rows) - first, once=True))
        frame.records.append(change)
        frame.pos += len(change)
        frame.guarded = True


def _add_fence(receipt: Receipt, fence: Fence) -> None:
    """Adds the fence to every frame of a `Publish`, which is stored unless its log knows of a later owner."""
    for frame, first in receipt.parts.items():
        row, change = fence_change(fence, frame.pos, covers=len(frame.rows) - first)
        frame.rows.append(row)
        frame.records.append(change)
        frame.pos += len(change)
        frame.guarded = True


def outcome_of(receipt: Receipt) -> Outcome:
    """Returns the outcome of a `Publish`, that of each message by itself if its frames are in several logs."""
    refused = receipt.refused
    if receipt.failed:
        if receipt.marks is not None:
            return Outcome(error=OwnershipLost(receipt.marks.key))
        if receipt.fence is not None:
            return Outcome(error=OwnershipLost(receipt.fence.name.hex()))
        if len(receipt.failed) == len(receipt.parts):
            return Outcome(error=KeyRepeated(next(iter(receipt.parts)).group, refused))  # where its answer's place was
    if receipt.transaction is not None:
        return _whole_outcome(receipt)
    if len(receipt.parts) > 1:
        return _spread_outcome(receipt)
    for frame, first_row in receipt.parts.items():
        result = frame.result
        if isinstance(result, Appended):
            return Outcome(first=Position(result.frame, first_row), refused=refused)
        assert result is not None
        return Outcome(error=refusal_of(result))
    return Outcome(refused=refused) if refused else DONE


def _whole_outcome(receipt: Receipt) -> Outcome:
    """Returns the outcome of a transaction: it is done in all groups, in none, or in some, which is an error too."""
    errors = [frame.result for frame in receipt.parts if isinstance(frame.result, StoreError)]
    if not errors:
        return Outcome(refused=receipt.refused) if receipt.refused else DONE
    refusal = refusal_of(errors[0])
    return Outcome(error=refusal if len(errors) == len(receipt.parts) else _in_part(refusal))


def with_denied(outcome: Outcome, denied: Mapping[int, Refusal]) -> Outcome:
    """Returns the outcome of messages of which some were refused before the others were looked at."""
    if outcome.error is not None:
        return outcome
    numbers = count()
    known = [*outcome.refused, *outcome.positions, *outcome.overflowed]
    kept = [next(index for index in numbers if index not in denied) for _ in range(max(known, default=-1) + 1)]
    refused = {kept[index]: refusal for index, refusal in outcome.refused.items()}
    positions = {kept[index]: found for index, found in outcome.positions.items()}
    overflowed = [kept[index] for index in outcome.overflowed]
    return msgspec.structs.replace(outcome, refused={**denied, **refused}, positions=positions, overflowed=overflowed)


def _spread_outcome(receipt: Receipt) -> Outcome:
    refused = dict(receipt.refused)
    positions: dict[int, Sequence[Position]] = {}
    rows, copies = dict(receipt.parts), receipt.copies or {}
    ends = [start for start, _ in receipt.runs[1:]]
    for (start, frame), end in zip(receipt.runs, [*ends, len(receipt.messages)], strict=True):
        for index in range(start, end):
            if index in receipt.refused:
                continue
            found = [
                _place(copy)
                for copy in (RowCopy(frame, rows[frame]), *copies.get(index, ()))
                if copy.frame not in receipt.failed  # which has the message already
            ]
            rows[frame] += 1
            refusals = [one for one in found if isinstance(one, Refusal)]
            if not refusals:
                positions[index] = [one for one in found if isinstance(one, Position)]
            else:
                refused[index] = refusals[0] if len(refusals) == len(found) else _in_part(refusals[0])
    if not positions and len(refused) > len(receipt.refused):
        return Outcome(error=next(one for index, one in refused.items() if index not in receipt.refused))
    return Outcome(positions=positions, refused=refused)


def _place(copy: RowCopy) -> Position | Refusal:
    result = copy.frame.result
    assert result is not None
    return Position(result.frame, copy.row) if isinstance(result, Appended) else refusal_of(result)


def _in_part(refusal: Refusal) -> Refusal:
    """Returns the refusal of a message that one group's log has and another's lacks; an idempotent retry is safe."""
    return Refusal(Cause.UNKNOWN, f"stored in part: {refusal.detail}", retry_after_ms=refusal.retry_after_ms)


def refusal_of(error: StoreError) -> Refusal:
    """Returns the refusal that a publisher gets for a store's error."""
    if isinstance(error, StoreOverloaded):
        return Refusal(Cause.OVERLOAD, str(error), retry_after_ms=1000)
    if isinstance(error, StoreFull):
        return Refusal(Cause.OVERLOAD, str(error), retry_after_ms=5000)
    if isinstance(error, TimersFull):
        return Refusal(Cause.QUOTA, str(error), retry_after_ms=10_000)
    if isinstance(error, TimerTooFar):
        return Refusal(Cause.MALFORMED, str(error))
    if isinstance(error, FrameTooLarge):
        return Refusal(Cause.TOO_LARGE, "too many queues want so many messages at once")
    if isinstance(error, AppendOutcomeUnknown):
        return Refusal(Cause.UNKNOWN, str(error), retry_after_ms=5000)
    if isinstance(error, CorruptFrame):
        on = "" if error.next is None else f"; they are lost, and reading can go on at offset {error.next}"
        return Refusal(Cause.DAMAGED, f"{error}{on}")
    if isinstance(error, StoreFailed):  # its words name files: they are for operators, and in the log
        return Refusal(Cause.UNAVAILABLE, _FAILED_TEXT, retry_after_ms=5000)
    if isinstance(error, ViewsDamaged):  # a view's name and LMDB's own words are for operators
        return Refusal(Cause.UNAVAILABLE, _DAMAGED_TEXT, retry_after_ms=5000)
    return Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=5000)
