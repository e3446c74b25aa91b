"""The store's own records: what reserved queues hold, so that one log makes all state durable.

A record is a MessagePack array whose first item is its kind. Fields are only ever added at the end.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from store.format import QueueNumber

__all__ = [
    "ADDRESSES_QUEUE",
    "GROUPS_QUEUE",
    "KV_QUEUE",
    "LEASES_QUEUE",
    "QUEUES_QUEUE",
    "AddressesSeen",
    "GroupDeleted",
    "GroupOffsets",
    "KvDelete",
    "KvPut",
    "QueueDeleted",
    "Record",
    "Settled",
    "decode",
    "encode",
    "queue_of",
]

logger = logging.getLogger(__name__)

KV_QUEUE = QueueNumber(1)
GROUPS_QUEUE = QueueNumber(2)
LEASES_QUEUE = QueueNumber(3)
QUEUES_QUEUE = QueueNumber(4)
ADDRESSES_QUEUE = QueueNumber(10)

# What the views can hold: a record outside these bounds is not understood, and so has no effect.
_Queue = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Cursor = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class KvPut(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Store a value; with `expected` only over that revision (0: no key)."""

    key: str
    value: bytes
    expected: int | None = None


class KvDelete(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Remove a key; with `expected` only at that revision."""

    key: str
    expected: int | None = None


class GroupOffsets(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Where a group is in some queues."""

    group: str
    offsets: Mapping[_Queue, _Cursor]


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Forget a group."""

    group: str


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Messages of a queue that are done with: ranges of queue offsets, end exclusive."""

    queue: _Queue
    ranges: tuple[tuple[_Offset, _Offset], ...]


class QueueDeleted(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Forget a queue's index and settlements, as of the end of the frame that says so."""

    queue: _Queue


class AddressesSeen(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Addresses that messages are published to, so that they can be listed; again changes nothing."""

    addresses: tuple[str, ...]


Record: TypeAlias = AddressesSeen | KvPut | KvDelete | GroupOffsets | GroupDeleted | Settled | QueueDeleted

_QUEUES: dict[type, QueueNumber] = {
    AddressesSeen: ADDRESSES_QUEUE,
    KvPut: KV_QUEUE,
    KvDelete: KV_QUEUE,
    GroupOffsets: GROUPS_QUEUE,
    GroupDeleted: GROUPS_QUEUE,
    Settled: LEASES_QUEUE,
    QueueDeleted: QUEUES_QUEUE,
}

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def queue_of(record: Record) -> QueueNumber:
    """The reserved queue that a record goes to."""
    return _QUEUES[type(record)]


def decode(data: bytes) -> Record | None:
    """A record, or None for one that this version does not know: applied as nothing, on every replica alike."""
    try:
        record: Record = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        logger.exception("a record of a reserved queue is not understood and has no effect")
        return None
    return record
