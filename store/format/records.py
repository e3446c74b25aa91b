"""The store's own records, in reserved queues, so that one log makes all state durable.

A record is a MessagePack array whose first item is its kind. Fields are only ever added at the end.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from store.format.frame import QueueNumber
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig

logger = logging.getLogger(__name__)

KV_QUEUE = QueueNumber(1)
GROUPS_QUEUE = QueueNumber(2)
LEASES_QUEUE = QueueNumber(3)
QUEUES_QUEUE = QueueNumber(4)
CONFIGS_QUEUE = QueueNumber(5)
LOG_QUEUE = QueueNumber(6)
VOID_QUEUE = QueueNumber(7)  # of rows whose guard has failed: they have no record
TIMERS_QUEUE = QueueNumber(8)
DEAD_LETTERS_QUEUE = QueueNumber(9)
ADDRESSES_QUEUE = QueueNumber(10)
PARTS_QUEUE = QueueNumber(11)  # of parts of bodies (`store.format.body_parts`): bytes of clients, and no records

# Bounds of the views' keys: a record outside them is not understood, and so has no effect.
_Queue = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_OFFSET_MAX = (1 << 63) - 1
_Offset = Annotated[int, Meta(ge=0, le=_OFFSET_MAX)]
_Cursor = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Operations = Meta(max_length=1 << 16)  # an operation's ordinal is a u16


class KvPut(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Store a value; with `expected` only over that revision (0: no key, -1: any)."""

    key: str
    value: bytes
    expected: int | None = None
    namespace: str = ""
    expires_at_ms: _Offset = 0  # 0: never


class KvDelete(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Remove a key; with `expected` only at that revision."""

    key: str
    expected: int | None = None
    namespace: str = ""


class KvExpired(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Remove expired keys: (namespace, key, revision); one that has another revision stays."""

    keys: tuple[tuple[str, str, int], ...]


class KvTransaction(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """All operations, done if every key compared has the revision expected: (key, value or None, expires_at_ms)."""

    namespace: str
    compares: Annotated[tuple[tuple[str, int], ...], _Operations]
    operations: Annotated[tuple[tuple[str, bytes | None, _Offset], ...], _Operations]


class KvLimits(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The limits of a namespace from now on; 0: no limit."""

    namespace: str
    keys_max: _Offset = 0
    size_bytes_max: _Offset = 0


class GroupOffsets(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The offsets of a group in some queues."""

    group: str
    offsets: Mapping[_Queue, _Cursor]


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Forget a group."""

    group: str


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Messages of a queue that a group is done with: ranges of queue offsets, end exclusive.

    They are those of the queue and the group as they were before a log offset: where one of the two is deleted there or
    later, no message that came after it is settled.
    """

    queue: _Queue
    ranges: tuple[tuple[_Offset, _Offset], ...]
    group: str = ""
    known: _Offset = _OFFSET_MAX


class QueueDeleted(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Forget a queue's index and settlements, as of the end of the frame that says so."""

    queue: _Queue


class LogTrimmed(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The log begins at `first` from now on: earlier frames are deleted, and views remove their entries."""

    first: _Offset
    time_ms: _Offset


class AddressesSeen(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Addresses that messages are published to, so that they can be listed; again changes nothing."""

    addresses: tuple[str, ...]


class TimerSet(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """Append rows and the records they point into when a time has come; the record's own position names the timer."""

    due_ms: _Offset
    rows: bytes  # packed as in a frame
    payload: bytes


class TimerCancelled(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Forget a timer, named by when it is due and by the position of its `TimerSet`."""

    due_ms: _Offset
    frame: _Offset
    row: _Queue


class TimersFired(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """The timers whose content is in the same frame as this record; `keys` are as `store.views.timers` packs them."""

    keys: bytes


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """One message that was given up: its offset in the queue it came from, and where its record was."""

    offset: _Offset
    frame: _Offset
    row: _Queue
    deliveries: _Queue


class DeadLettered(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """Messages that a group gave up: settled, and in another queue by rows of the same frame, when it has one for them.

    The record of `letters[n]` is the frame's row `first_row + n`. `reason` is "rejected", "expired" or
    "delivery_limit". `known` is as in `Settled`.
    """

    queue: _Queue
    group: str
    reason: str
    first_row: _Queue
    letters: tuple[DeadLetter, ...]
    known: _Offset = _OFFSET_MAX


class LeasePolicySet(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """The policy of a group's leases of a queue from now on."""

    queue: _Queue
    group: str
    policy: LeasePolicy


Record: TypeAlias = (
    AddressesSeen
    | DeadLettered
    | GroupDeleted
    | GroupOffsets
    | KvDelete
    | KvExpired
    | KvLimits
    | KvPut
    | KvTransaction
    | LeasePolicySet
    | LogTrimmed
    | QueueConfig
    | QueueDeleted
    | Settled
    | TimerCancelled
    | TimerSet
    | TimersFired
)

_QUEUES: dict[type, QueueNumber] = {
    AddressesSeen: ADDRESSES_QUEUE,
    KvPut: KV_QUEUE,
    KvDelete: KV_QUEUE,
    KvExpired: KV_QUEUE,
    KvTransaction: KV_QUEUE,
    KvLimits: KV_QUEUE,
    GroupOffsets: GROUPS_QUEUE,
    GroupDeleted: GROUPS_QUEUE,
    Settled: LEASES_QUEUE,
    LeasePolicySet: LEASES_QUEUE,
    DeadLettered: DEAD_LETTERS_QUEUE,
    TimerSet: TIMERS_QUEUE,
    TimerCancelled: TIMERS_QUEUE,
    TimersFired: TIMERS_QUEUE,
    QueueConfig: CONFIGS_QUEUE,
    LogTrimmed: LOG_QUEUE,
    QueueDeleted: QUEUES_QUEUE,
}

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def encode_checked(record: Record) -> bytes:
    """Returns the record, encoded; raises ValueError where it could not be decoded again. Costs 1 us more."""
    data = encode(record)
    _decode(data)
    return data


def queue_of(record: Record) -> QueueNumber:
    """Returns the reserved queue that a record goes to."""
    return _QUEUES[type(record)]


def decode(data: bytes | memoryview) -> Record | None:
    """Returns a record, or None for one that this version does not know: applied as nothing, on every replica alike."""
    try:
        record: Record = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        logger.exception("a record of a reserved queue is invalid and has no effect")
        return None
    return record
