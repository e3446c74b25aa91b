"""The arguments of the calls of a session, each a struct that a row of `store.rpc.table` names."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from store.api.keys import Delete, Put
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig
from store.rpc.wire import Queue

ITEMS_COUNT_MAX = 1 << 20  # queues, addresses, handles, ranges named in one call
OPERATIONS_COUNT_MAX = 1 << 16  # of one transaction; the store has a lower limit of its own

Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Items = Meta(max_length=ITEMS_COUNT_MAX)
Ranges = Annotated[tuple[tuple[Integer, Integer], ...], _Items]  # of queue offsets, end exclusive
_Operation = tuple[str, bytes | None, int | None, int | None]  # key, value (None: delete), expires_at_ms, ttl_ms


class Arguments(msgspec.Struct, array_like=True):
    """The arguments of a call. Fields are only ever added at the end, with a default."""


class Hello(Arguments):
    """The first call of a session, of group `group` of a cluster; with `reading` a replica will do."""

    group: int
    reading: bool = False
    cluster: Annotated[str, Meta(max_length=255)] = ""  # empty: not known to the client


class Ping(Arguments):
    """A sign of life."""


class Cancel(Arguments):
    """A note that the client waits no more for the answers to these calls."""

    numbers: Annotated[tuple[Count, ...], _Items]


class Scan(Arguments):
    """See `LogCalls.scan`."""

    frame: Integer
    row: Integer
    queues: Annotated[tuple[Queue, ...], _Items] | None
    max_bytes: Count


class Fetch(Arguments):
    """See `QueueCalls.fetch`."""

    queue: Queue
    offset: Integer
    max_bytes: Count
    max_rows: Count
    max_wait_ms: Count


class Read(Arguments):
    """See `LogCalls.read`."""

    frame: Integer
    row: Integer


class OfQueue(Arguments):
    """The arguments of a method that takes a queue."""

    queue: Queue


class ConfigureQueues(Arguments):
    """See `QueueCalls.configure`."""

    configs: Annotated[tuple[QueueConfig, ...], _Items]


class Lost(Arguments):
    """See `QueueCalls.lost`."""

    limit: Count  # of ranges; a store has one of its own


class QueueConfigs(Arguments):
    """A request for the configurations of queues; the answer has None for those that have none."""

    queues: Annotated[tuple[Queue, ...], _Items]


class OffsetAtTime(Arguments):
    """See `QueueCalls.offset_at_time`."""

    queue: Queue
    time_ms: Integer


class Last(Arguments):
    """See `LogCalls.last`."""

    address_hash: Annotated[int, Meta(ge=0)]


class Find(Arguments):
    """See `LogCalls.find`."""

    kind: int
    hash_: Annotated[int, Meta(ge=0)]
    from_ms: int
    until_ms: int
    below: tuple[Integer, Integer] | None
    limit: Integer


class Addresses(Arguments):
    """See `LogCalls.addresses`."""

    prefix: str
    after: str
    limit: Integer


class NoteAddresses(Arguments):
    """See `LogCalls.note_addresses`."""

    addresses: Annotated[tuple[str, ...], _Items]


class KvGet(Arguments):
    """See `KeyCalls.get`."""

    key: str
    namespace: str


class PutKey(Arguments):
    """See `KeyCalls.put`."""

    key: str
    value: bytes
    expected_revision: Integer | None
    namespace: str
    ttl_ms: int | None
    expires_at_ms: int | None


class DeleteKey(Arguments):
    """See `KeyCalls.delete`."""

    key: str
    expected_revision: Integer | None
    namespace: str


class KvTransact(Arguments):
    """See `KeyCalls.transact`; operations as `packed_operations` makes them."""

    compares: Annotated[dict[str, Integer], Meta(max_length=OPERATIONS_COUNT_MAX)]
    operations: Annotated[tuple[_Operation, ...], Meta(max_length=OPERATIONS_COUNT_MAX)]
    namespace: str


class KvPrefix(Arguments):
    """See `KeyCalls.prefix`."""

    prefix: str
    after: str
    limit: Integer
    namespace: str


class KvRange(Arguments):
    """See `KeyCalls.range`."""

    start: str
    end: str | None
    namespace: str
    after: str | None
    limit: Integer
    at_revision: Integer | None


class KvCount(Arguments):
    """See `KeyCalls.count`."""

    start: str
    end: str | None
    namespace: str


class Nothing(Arguments):
    """The arguments of a method that takes nothing."""


class KvRelease(Arguments):
    """See `KeyCalls.release`."""

    revision: Integer


class KvWatch(Arguments):
    """Begin a watch from a revision on; it is named by the call's own number. Answered when it stands."""

    start: str
    end: str | None
    namespace: str
    from_revision: Integer


class KvWatched(Arguments):
    """The next changes of a watch: asked for one at a time, so nothing is queued for a slow reader."""

    watch: Count


class KvLimit(Arguments):
    """See `KeyCalls.limit`."""

    namespace: str
    keys_max: Integer
    size_bytes_max: Integer


class CommitOffsets(Arguments):
    """See `GroupCalls.commit`."""

    group: str
    offsets: Annotated[dict[Queue, int], _Items]


class OfGroup(Arguments):
    """The arguments of a method that takes a group."""

    group: str


class CancelTimer(Arguments):
    """See `TimerCalls.cancel`."""

    timer: str


class TimerEntries(Arguments):
    """See `TimerCalls.entries`."""

    after: str
    limit: Integer


class Take(Arguments):
    """See `LeaseCalls.take`. Owners are the session's own."""

    queue: Queue
    owner: Integer
    max_count: Integer
    max_bytes: Count
    group: str
    invisible_ms: int | None


class Settle(Arguments):
    """See `LeaseCalls.settle`, and `settle_soon` for settlements that are not urgent."""

    queue: Queue
    owner: Integer
    offsets: Ranges
    group: str
    urgent: bool = True


class Forward(Arguments):
    """See `LeaseCalls.forward`."""

    queue: Queue
    owner: Integer
    offsets: Ranges
    rows: bytes
    payload: bytes
    group: str


class Commit(Arguments):
    """See `LeaseCalls.commit`."""

    owner: Integer
    settled: Annotated[tuple[tuple[Queue, Ranges], ...], _Items]
    rows: bytes
    payload: bytes


class Reject(Arguments):
    """See `LeaseCalls.reject`."""

    queue: Queue
    owner: Integer
    offsets: Ranges
    reason: str
    group: str


class Requeue(Arguments):
    """See `LeaseCalls.requeue`."""

    queue: Queue
    owner: Integer
    offsets: Ranges
    delivered: bool
    delay_ms: int | None
    group: str


class Extend(Arguments):
    """See `LeaseCalls.extend`."""

    queue: Queue
    owner: Integer
    offsets: Ranges
    invisible_ms: int
    group: str


class Release(Arguments):
    """See `LeaseCalls.release`."""

    owner: Integer


class SettleHandles(Arguments):
    """See `LeaseCalls.settle_handles`."""

    handles: Annotated[tuple[str, ...], _Items]


class RequeueHandles(Arguments):
    """See `LeaseCalls.requeue_handles`."""

    handles: Annotated[tuple[str, ...], _Items]
    delay_ms: int | None


class ExtendHandles(Arguments):
    """See `LeaseCalls.extend_handles`."""

    handles: Annotated[tuple[str, ...], _Items]
    invisible_ms: int


class SetLeasePolicy(Arguments):
    """See `LeaseCalls.set_policy`."""

    queue: Queue
    policy: LeasePolicy
    group: str


class OfQueueGroup(Arguments):
    """The arguments of a method that takes a queue and a group's leases of it."""

    queue: Queue
    group: str


def packed_operations(operations: Sequence[Put | Delete]) -> tuple[_Operation, ...]:
    """Returns a transaction's operations as they travel."""
    return tuple(
        (one.key, one.value, one.expires_at_ms, one.ttl_ms) if isinstance(one, Put) else (one.key, None, None, None)
        for one in operations
    )


def operations_of(packed: Sequence[_Operation]) -> list[Put | Delete]:
    """Returns the operations that `packed_operations` was given."""
    return [
        Delete(key) if value is None else Put(key, value, expires_at_ms, ttl_ms)
        for key, value, expires_at_ms, ttl_ms in packed
    ]
