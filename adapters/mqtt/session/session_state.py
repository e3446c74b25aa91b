"""The parts of a session that outlive the gateway, besides its cursor in the log: the two parts of `SaveSession`.

`PacketExchanges` changes with every message of QoS 2 and is small, whatever the session subscribes to; `SessionState`
is the rest. They are stored one after the other: neither relies on the other being of the same moment.
"""

from collections.abc import Iterable
from typing import TypeAlias, TypeVar

import msgspec

from gateway.domain.cursor import Cursor
from store.format.frame import LogOffset, Position

PositionTuple: TypeAlias = tuple[LogOffset, int]  # a position as a plain tuple: cheaper to make, compares the same


class SavedSubscription(msgspec.Struct, frozen=True, array_like=True):
    """A subscription with its options. `ticket` numbers its wish for retained messages, 0 when it has none.

    `since`: where it began in each log. The session's progress may lie before that, because of others.
    """

    pattern: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int | None = None
    ticket: int = 0
    since: tuple[PositionTuple, ...] = ()


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """A client's subscriptions. Fields are only ever added at the end."""

    subscriptions: tuple[SavedSubscription, ...] = ()


class SavedDelivery(msgspec.Struct, frozen=True, array_like=True):
    """A packet identifier in use towards the client.

    `released`: the PUBREC has come, so that PUBREL has to be sent again (4.4). The log will bring the message at
    `place` again; a message that it will not, a retained one or one of a shared subscription, is kept here, encoded,
    with its subscription identifiers and its RETAIN flag.
    """

    packet_id: int
    qos: int
    released: bool = False
    place: PositionTuple | None = None
    record: bytes | None = None
    identifiers: tuple[int, ...] = ()
    retain: bool = True


class SavedFeed(msgspec.Struct, frozen=True, array_like=True):
    """The progress of one wish's retained messages: a page, and the address of the last one sent of it."""

    ticket: int
    after: str
    last: str | None = None


class PacketExchanges(msgspec.Struct, frozen=True, array_like=True):
    """Deliveries and packet identifiers in flight (4.1). Fields are only ever added at the end.

    `settled`, `settled_elsewhere` and `done` speak of the logs: everything in a log before its place in one of the
    first two, and every place in `done`, has been delivered for good. They are saved in the same record as the packet
    identifiers, so that QoS 2 stays exactly once whatever the age of the gateway's own cursor. Wishes for retained
    messages are fulfilled in the order of their tickets.
    """

    received: tuple[int, ...] = ()  # QoS 2 from the client: stored, and not yet released by its PUBREL
    sent: tuple[SavedDelivery, ...] = ()  # in the order they were sent
    next_packet_id: int = 1
    settled: PositionTuple | None = None
    done: tuple[PositionTuple, ...] = ()
    fed: int = 0  # wishes up to this ticket have been fulfilled
    feed: SavedFeed | None = None  # the one that is being fulfilled
    settled_elsewhere: tuple[PositionTuple, ...] = ()  # as `settled`, in the logs of other groups
    claimed: tuple[tuple[int, int], ...] = ()  # of `sent`, or once sent: queue and offset that may be leased once more
    storing: tuple[tuple[int, int], ...] = ()  # as `received`, but not stored yet: the identifier, and which use it is
    uses: int = 0  # QoS 2 messages there have been from the client

    def settled_places(self) -> tuple[PositionTuple, ...]:
        """Returns the settled place in each log."""
        return self.settled_elsewhere if self.settled is None else (self.settled, *self.settled_elsewhere)


NO_STATE = SessionState()
NO_EXCHANGES = PacketExchanges()

P = TypeVar("P", SessionState, PacketExchanges)

_FORMAT = b"\x02"  # the first byte says how the rest is to be read
_encode = msgspec.msgpack.Encoder().encode


def dump(part: SessionState | PacketExchanges) -> bytes:
    """Returns the bytes to keep."""
    return _FORMAT + _encode(part)


def load(raw: bytes, nothing: P) -> P | None:
    """Returns the part that `dump` was given; `nothing` when it was never saved, None for unknown bytes."""
    if not raw:
        return nothing
    if raw[:1] != _FORMAT:
        return None
    try:
        return msgspec.msgpack.decode(raw[1:], type=type(nothing))
    except msgspec.DecodeError:
        return None


def positions(places: Iterable[PositionTuple]) -> Cursor:
    """Returns the port's form of places, one for each log."""
    return tuple([Position(*place) for place in sorted(places)])
