"""Messages that are to be delivered later: kept as timers, and put into their queues when they are due.

Where a message goes is decided when it is published: its topic's queue and the named queues that want it then. What
it would have put into the log comes later, rows, record and the change of a retained message, and the log takes all
of that at once. An empty id is filled in as of then: the place where subscribers find it.
"""

from collections.abc import Sequence

from gateway.errors import Cause, Refusal
from gateway.message import Message
from gateway.port import CancelTimer
from gateway.retained import retained_change
from store.client import StoreClient
from store.errors import FrameTooLarge, NoSuchTimer, StoreError, TimersFull, TimerTooFar
from store.format import ROW, ROW_EXTRA, Position
from store.records import TimerSet, encode
from store.timer_key import TimerKey

__all__ = ["cancel_timer", "timer_id", "timer_of"]


def timer_of(
    store: StoreClient,
    message: Message,
    record: bytes,
    *,
    queue: int,
    named: Sequence[int],
    key_hash: int,
    address_hash: int,
    row_flags: int,
    id_hash: int,
) -> bytes | Refusal:
    """The record that sets the timer of a message with `deliver_at_ms`, or why it may not be set.

    `record` is the encoded message, which goes to `queue` and to the `named` ones.
    """
    due_ms = message.deliver_at_ms
    assert due_ms is not None
    rows = [ROW.pack(queue, 0, len(record), row_flags, key_hash, address_hash, id_hash, message.time_ms)]
    rows += [ROW.pack(other, 0, len(record), ROW_EXTRA, 0, address_hash, 0, message.time_ms) for other in named]
    payload = record
    if message.retain:
        row, change = retained_change(message, len(record))
        rows.append(row)
        payload += change
    packed = b"".join(rows)
    try:
        store.admit_timer(due_ms, len(packed) + len(payload))
    except TimersFull as full:
        return Refusal(Cause.QUOTA, str(full), retry_after_ms=10_000)
    except TimerTooFar as far:
        return Refusal(Cause.MALFORMED, str(far))
    except FrameTooLarge as large:
        return Refusal(Cause.TOO_LARGE, str(large))
    except StoreError as error:
        return Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=5_000)
    return encode(TimerSet(max(due_ms, 0), packed, payload))


def timer_id(message: Message, stored: Position) -> str | None:
    """The id of the timer that a stored message is kept by; None for one that is delivered at once."""
    if message.deliver_at_ms is None:
        return None
    return str(TimerKey(max(message.deliver_at_ms, 0), stored.frame, stored.row))


async def cancel_timer(store: StoreClient, request: CancelTimer) -> bool:
    """See `CancelTimer`. Raises `Refusal` or `StoreError`."""
    try:
        return await store.cancel_timer(request.timer)
    except NoSuchTimer as error:
        raise Refusal(Cause.NOT_FOUND, str(error)) from error
