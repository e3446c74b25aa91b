"""What of a session must outlive the gateway, besides its cursor in the log: bytes of `SaveSession`."""

from typing import TypeAlias

import msgspec

from store.format import LogOffset, Position

__all__ = ["EMPTY", "Place", "SavedDelivery", "SavedSubscription", "SessionState", "dump", "load", "position"]

Place: TypeAlias = tuple[LogOffset, int]  # a position as a plain tuple: cheaper to make, compares the same


class SavedSubscription(msgspec.Struct, frozen=True, array_like=True):
    """A subscription with its options."""

    pattern: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int | None = None


class SavedDelivery(msgspec.Struct, frozen=True, array_like=True):
    """A packet identifier in use towards the client.

    `released`: the PUBREC has come, so that PUBREL is what has to be sent again (4.4). `place` is None for a retained
    message, which the log will not bring again.
    """

    packet_id: int
    qos: int
    released: bool = False
    place: Place | None = None


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a session (4.1). Fields are only ever added at the end.

    `settled` and `done` speak of the log: everything before `settled` and every place in `done` has been delivered
    for good. They are saved in the same record as the packet identifiers, so that QoS 2 stays exactly once whatever
    the age of the gateway's own cursor.
    """

    subscriptions: tuple[SavedSubscription, ...] = ()
    received: tuple[int, ...] = ()  # QoS 2 from the client: stored, and not yet released by its PUBREL
    sent: tuple[SavedDelivery, ...] = ()  # in the order they were sent
    next_packet_id: int = 1
    settled: Place | None = None
    done: tuple[Place, ...] = ()


EMPTY = SessionState()

_FORMAT = b"\x01"  # the first byte says how the rest is to be read
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionState).decode


def dump(state: SessionState) -> bytes:
    """The bytes to keep."""
    return _FORMAT + _encode(state)


def load(raw: bytes) -> SessionState | None:
    """The state of `dump`; None for bytes that are none, among them b"", a session that was never saved."""
    if raw[:1] != _FORMAT:
        return None
    try:
        return _decode(raw[1:])
    except msgspec.DecodeError:
        return None


def position(place: Place | None) -> Position | None:
    """The port's form of a place."""
    return None if place is None else Position(*place)
