"""Messages that are to be delivered later: kept as timers, and put into their queues when they are due.

Where a message goes is decided when it is published: its topic's queue and the named queues that want it then. What
it would have put into the log comes later, rows, record and the change of a retained message, and the log takes all
of that at once. An empty id is filled in as of then: the place where subscribers find it.

A timer lies in the log that its rows are for. What goes to the queues of several groups waits in a timer in each of
them; the ids of these, joined, are the message's.

What a publisher is told is a ticket: the id with a MAC by a secret of its principal's, because ids can be guessed. So
nobody calls off what another principal has published, and nobody anything without having been told of it.
"""

import base64
import hmac
from collections.abc import Mapping, Sequence

from gateway.errors import Cause, Refusal
from gateway.message import Message
from gateway.port import Principal
from gateway.retained import retained_change
from store.client import StoreClient
from store.errors import FrameTooLarge, NoSuchTimer, StoreError, TimersFull, TimerTooFar
from store.format import ROW, ROW_EXTRA, Position
from store.records import TimerSet, encode
from store.timer_key import TimerKey

__all__ = ["cancel_timer", "timer_id", "timer_of", "timer_ticket", "timers_of"]

TIMERS_OF_MESSAGE_MAX = 64  # in as many groups; an id that names more is none
_MAC_BYTES = 16
_SEAL = "_"  # between an id and its MAC; in no id
_JOINT = "~"  # of the ids of one message's timers; stands in a path as it is (RFC 3986, 2.3)


def timers_of(
    store: StoreClient,
    message: Message,
    record: bytes,
    *,
    queue: int,
    named: Sequence[int],
    groups: Mapping[int, int],
    key_hash: int,
    address_hash: int,
    row_flags: int,
    id_hash: int,
) -> dict[int, bytes] | Refusal:
    """The records that set the timers of a message with `deliver_at_ms`, by group, or why they may not be set.

    `record` is the encoded message, which goes to `queue` and to the `named` ones; `groups` says where these lie.
    """
    row = ROW.pack(queue, 0, len(record), row_flags, key_hash, address_hash, id_hash, message.time_ms)
    held = {groups[queue]: (row, record)}  # rows and payload
    for other in named:
        row = ROW.pack(other, 0, len(record), ROW_EXTRA, 0, address_hash, 0, message.time_ms)
        rows, payload = held.get(groups[other], (b"", record))
        held[groups[other]] = rows + row, payload
    if message.retain:
        rows, payload = held.get(store.group, (b"", b""))
        row, change = retained_change(message, len(payload))
        held[store.group] = rows + row, payload + change
    timers: dict[int, bytes] = {}
    for group, (rows, payload) in held.items():
        timer = _timer(store.logs.get(group), message.deliver_at_ms or 0, rows, payload)
        if isinstance(timer, Refusal):
            return timer
        timers[group] = timer
    return timers


def _timer(log: StoreClient | None, due_ms: int, rows: bytes, payload: bytes) -> bytes | Refusal:
    if log is None:
        return Refusal(Cause.UNAVAILABLE, "a store group is not known here", retry_after_ms=5_000)
    try:
        log.admit_timer(due_ms, len(rows) + len(payload))
    except TimersFull as full:
        return Refusal(Cause.QUOTA, str(full), retry_after_ms=10_000)
    except TimerTooFar as far:
        return Refusal(Cause.MALFORMED, str(far))
    except FrameTooLarge as large:
        return Refusal(Cause.TOO_LARGE, str(large))
    except StoreError as error:
        return Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=5_000)
    return encode(TimerSet(max(due_ms, 0), rows, payload))


def timer_id(message: Message, places: Sequence[Position]) -> str | None:
    """The id of the timers that a stored message is kept by; None for one that is delivered at once."""
    if message.deliver_at_ms is None or not places:
        return None
    due_ms = max(message.deliver_at_ms, 0)
    return _JOINT.join([str(TimerKey(due_ms, at.frame, at.row)) for at in places])


def timer_ticket(principal: Principal, message: Message, places: Sequence[Position]) -> str | None:
    """What a publisher calls its stored message off by; None for one that is delivered at once."""
    timer = timer_id(message, places)
    return None if timer is None else timer + _SEAL + _mac(principal, timer)


def timer_of(principal: Principal, ticket: str) -> str:
    """The id that a ticket is for. Raises `Refusal` (NOT_FOUND) for one that this principal was not given."""
    timer, _, mac = ticket.partition(_SEAL)
    if not hmac.compare_digest(mac.encode(), _mac(principal, timer).encode()):
        raise Refusal(Cause.NOT_FOUND, f"not a timer of yours: {ticket[:64]!r}")
    return timer


def _mac(principal: Principal, timer: str) -> str:
    mac = hmac.digest(principal.secret, timer.encode(), "sha256")[:_MAC_BYTES]
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


async def cancel_timer(store: StoreClient, timer: str) -> bool:
    """Whether a message was still waiting by this id; it is not any more. Raises `Refusal` or `StoreError`."""
    parts = timer.split(_JOINT, TIMERS_OF_MESSAGE_MAX)
    try:
        return any([await store.cancel_timer(part) for part in parts])
    except NoSuchTimer as error:
        raise Refusal(Cause.NOT_FOUND, str(error)) from error
