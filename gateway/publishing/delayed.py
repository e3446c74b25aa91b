"""Messages that are to be delivered later: kept as timers, and put into their queues when they are due.

Where a message goes is decided when it is published: its topic's queue and the named queues that want it then. Its
rows, its record and its change of a retained message come later, and the log takes all of that at once. An empty id is
filled in as of then: the place where subscribers find it.

A timer lies in the log that its rows are for. A message for the queues of several store groups waits in a timer in each
of them; the ids of these, joined, are the message's.

A publisher gets a ticket: the id with a MAC by a secret of its principal's, because ids can be guessed. So no principal
can cancel another's message, nor one whose ticket it was not given.
"""

from collections.abc import Mapping, Sequence

from gateway.domain.errors import Cause, Refusal
from gateway.port.tickets import _JOINT
from gateway.publishing.publishing import refusal_of
from gateway.publishing.retained import retained_change
from store.api.client import StoreClient
from store.api.message import Message
from store.base.errors import FrameTooLarge, NoSuchTimer, StoreError
from store.format.frame import ROW, ROW_EXTRA
from store.format.records import TimerSet, encode

TIMERS_OF_MESSAGE_MAX = 64  # in as many groups; an id that names more is none


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
    """Returns the records that set the timers of a message with `deliver_at_ms`, by group, or why they may not be set.

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


def _timer(store: StoreClient | None, due_ms: int, rows: bytes, payload: bytes) -> bytes | Refusal:
    if store is None:
        return Refusal(Cause.UNAVAILABLE, "a store group is not known here", retry_after_ms=5_000)
    try:
        store.timers.admit(due_ms, len(rows) + len(payload))
    except FrameTooLarge as large:
        return Refusal(Cause.TOO_LARGE, str(large))
    except StoreError as error:
        return refusal_of(error)
    return encode(TimerSet(max(due_ms, 0), rows, payload))


async def cancel_timer(store: StoreClient, timer: str) -> bool:
    """Cancels a message by this id and returns whether it was still waiting. Raises `Refusal` or `StoreError`."""
    parts = timer.split(_JOINT, TIMERS_OF_MESSAGE_MAX)
    try:
        return any([await store.timers.cancel(part) for part in parts])
    except NoSuchTimer as error:
        raise Refusal(Cause.NOT_FOUND, str(error)) from error
