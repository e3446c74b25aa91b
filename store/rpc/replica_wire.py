"""The messages between nodes of a store group beside those of replication, as MessagePack.

Replicate   replica -> master      messages of `store.replication.messages`, both ways; a Hello comes first
Snapshot    replica -> master      a `SnapshotRequest`; back come a `SnapshotHead` and the views in parts
FetchRange  replica -> replica   a `RangeRequest`; back come `RangePart`s and a `RangeEnd`
Seals       replica -> replica   a `SealsRequest`; back comes a `SealsAnswer`, unary
SwitchOver  operator -> master   a `SwitchRequest`, unary, over gRPC
Verify      operator -> replica  a `VerifyRequest`, likewise; back comes a `Verified`
"""

from functools import partial
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from store.base import streams
from store.base.errors import StoreError, StoreUnreachable
from store.base.streams import ErrorTable
from store.replication.errors import BadMessage
from store.replication.messages import DATA_BYTES_MAX, Epochs, Group, Number, Offset, Paper
from store.rpc import wire as store_wire

SERVICE = "headgate.store.v1.Replication"
REPLICATE, SNAPSHOT, SWITCH_OVER, FETCH_RANGE = "Replicate", "Snapshot", "SwitchOver", "FetchRange"
SEALS, VERIFY = "Seals", "Verify"
SEALS_MAX = 256  # in one request
MESSAGE_BYTES_MAX = DATA_BYTES_MAX + (1 << 20)
PART_BYTES = 1 << 20  # of a snapshot in one message

# Any refusal by another node counts as unreachable: the caller asks again later, or asks another node.
ERRORS: Final[ErrorTable[StoreError]] = ErrorTable(
    StoreError, (), store_wire.ERRORS.statuses, unreachable=StoreUnreachable
)

_T = TypeVar("_T")


class SnapshotRequest(msgspec.Struct, frozen=True, array_like=True):
    """A replica asks the master of an epoch for the views.

    `starts_over`: it throws away for it a log that the master may need to repair its own from.
    """

    group: Group
    replica: Number
    epoch: Number
    starts_over: bool = False


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a snapshot: views up to `dispatched` of a log that begins at `first`, in whose part `epochs` hold.

    `sound`: no damage is known of the master's log and views.
    """

    epoch: Number
    group: Group
    first: Offset
    dispatched: Offset
    size_bytes: Number
    epochs: Epochs
    sound: bool = False


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of the views' file, from `at` on, and their CRC-32C."""

    at: Number
    data: Annotated[bytes, Meta(min_length=1, max_length=PART_BYTES)]
    crc32c: Number


class RangeRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A replica asks another one of its group for the sound frames of a range of the log, which it has damaged.

    `epochs` are those of its log, which ends at `log_end`: only frames that both logs have in common are sent.
    `cluster`, `log` and `check` authenticate the replica, as in a `Hello`.
    """

    group: Group
    replica: Number
    start: Offset
    end: Offset
    log_end: Offset
    epochs: Epochs
    cluster: Paper = ""
    log: Paper = ""
    check: Paper = ""


class RangePart(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Whole frames back to back, as they are stored, from a log offset on."""

    start: Offset
    frames: Annotated[bytes, Meta(min_length=1, max_length=DATA_BYTES_MAX)]


class RangeEnd(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """All that the replica has of the range was sent, perhaps not all of it. `common` is how far both logs agree."""

    common: Offset


class SealsRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A replica asks another one of its group for the digests of closed segments, by where they begin and end."""

    group: Group
    replica: Number
    segments: Annotated[tuple[tuple[Offset, Offset], ...], Meta(max_length=SEALS_MAX)]
    cluster: Paper = ""
    log: Paper = ""
    check: Paper = ""


class SealsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The digests, in the order of the request; empty where there is no seal of just that segment."""

    digests: Annotated[tuple[bytes, ...], Meta(max_length=SEALS_MAX)]


class SwitchRequest(msgspec.Struct, frozen=True, array_like=True):
    """The master is to hand over: to `target`, or to the best replica in sync (None). Answered when it is elected."""

    group: Group
    target: Number | None = None


class VerifyRequest(msgspec.Struct, frozen=True, array_like=True):
    """A replica is to read all of its log now; without `begin` it only says how far it is."""

    group: Group
    begin: bool = False


class Verified(msgspec.Struct, frozen=True, array_like=True):
    """A replica's log lies from `first` to `end`, and is being read while `running`.

    `damages` are the damaged ranges that are known and not repaired, `repaired` how many ever were.
    """

    first: Offset
    end: Offset
    running: bool
    damages: Number
    repaired: Number


encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def decode(data: bytes, kind: type[_T]) -> _T:
    """Returns a message of this kind. Raises `BadMessage`."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        found: _T = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from error
    return found


def path(method: str) -> str:
    """Returns a method as gRPC names it."""
    return f"/{SERVICE}/{method}"


open_channel = partial(streams.open_channel, message_bytes_max=MESSAGE_BYTES_MAX)
