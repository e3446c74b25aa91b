"""Reads leased messages of a queue: the messages to deliver, and those that are not to be."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from gateway.port.bodies import in_group
from gateway.port.queues import ADDED, EXPIRATION, PROPERTIES, STORED
from gateway.queues.leaving.rules import QueueRules
from store.api.leases import Lease
from store.api.message import Message, decode
from store.base import logs
from store.format.frame import ROW_EXTRA, Frame, Position, QueueOffset, group_of

_AMQP: Final = "amqp"

log = logs.get(__name__)


class Letter(NamedTuple):
    """A message that leaves its queue without having been consumed."""

    offset: QueueOffset
    message: Message


# Moves messages that an owner holds to the dead letter exchange, or settles them, for a reason; raises `StoreError`.
DeadLettering: TypeAlias = Callable[[int, Sequence[Letter], str], Awaitable[None]]


class Found(NamedTuple):
    """The contents of leases: messages with their ids filled in and their leases, and those not to deliver."""

    messages: list[Message]
    live: list[Lease]
    expired: list[Letter]
    exhausted: list[Letter]  # came back too often
    broken: list[QueueOffset]  # no messages: a fault of ours that must not stop the queue


def read(leases: Sequence[Lease], *, now_ms: int, rules: QueueRules, idle_since_ms: int | None = None) -> Found:
    """Returns the messages of leases.

    Messages stored while a consumer was waiting, since `idle_since_ms`, have not waited in the queue. They do not
    expire by the queue's time to live, nor by one that AMQP says: 0 means "at once or never" there.
    """
    found = Found([], [], [], [], [])
    messages, live = found.messages, found.live
    ttl_ms, delivery_limit = rules.message_ttl_ms, rules.delivery_limit
    for _, group in groupby(leases, key=_frame_identity):
        of_frame = list(group)
        frame = of_frame[0].frame
        plain, at, stored_at_ms = frame.plain, Position(frame.start, 0).prefix(), frame.header.stored_at_ms
        was_waiting = idle_since_ms is not None and stored_at_ms >= idle_since_ms
        outlived = ttl_ms is not None and stored_at_ms + ttl_ms <= now_ms
        for lease, (start, end, row) in zip(of_frame, _places(frame, [lease.row for lease in of_frame]), strict=True):
            try:
                message = decode(plain[start:end])
            except msgspec.DecodeError as error:
                log.error("a queue holds a record that is not a message", position=f"{at}{row:x}", error=str(error))
                found.broken.append(lease.offset)
                continue
            if not message.id:
                message = replace(message, id=f"{at}{row:x}")
            if not message.body:
                message = in_group(message, group_of(frame.start))
            if outlived or (message.expires_at_ms is not None and message.expires_at_ms <= now_ms):
                excused = was_waiting and not lease.deliveries and (outlived or _is_amqp(message))
                if not excused:
                    found.expired.append(Letter(lease.offset, message))
                    continue
            if delivery_limit is not None and lease.deliveries > delivery_limit:
                found.exhausted.append(Letter(lease.offset, message))
                continue
            messages.append(message)
            live.append(lease)
    return found


def _frame_identity(lease: Lease) -> int:
    return id(lease.frame)


def with_headers(message: Message, headers: Mapping[str, int]) -> Message:
    """Returns a message that is delivered with headers besides its own: the adapter writes them."""
    native = message.native or {}
    own = {PROPERTIES: b"", ADDED: headers, STORED: native.get(_AMQP)}
    return replace(message, native={**native, _AMQP: own})


def _is_amqp(message: Message) -> bool:
    """Returns whether a message has a time to live that AMQP's `expiration` has given it."""
    return EXPIRATION in ((message.native or {}).get(_AMQP) or {})


def _places(frame: Frame, rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns where records are in `frame.plain`, and their row in their topic's queue, which a position names."""
    few = frame.few_rows()
    if few is not None:
        numbered = reversed(list(enumerate(few)))  # the first row of a record counts
        originals = {pos: row for row, (_, pos, _, flags, *_) in numbered if not flags & ROW_EXTRA}
        start = frame.payload_start
        return [
            (start + pos, start + pos + size, originals.get(pos, row))
            for row in rows
            for _, pos, size, *_ in (few[row],)
        ]
    table = frame.rows
    positions = table["pos"]
    picked = positions[np.asarray(rows)].astype(np.int64)
    starts = picked + frame.payload_start
    ends = starts + table["len"][np.asarray(rows)]
    extra = table["flags"] & ROW_EXTRA
    if not extra.any():  # mostly: no record is in several queues
        return list(zip(starts.tolist(), ends.tolist(), rows, strict=True))
    first_rows = np.flatnonzero(extra == 0)
    found = np.searchsorted(positions[first_rows], picked)  # records lie in the order of their first rows
    original = first_rows[np.minimum(found, len(first_rows) - 1)] if len(first_rows) else np.asarray(rows)
    same = positions[original] == picked
    return list(zip(starts.tolist(), ends.tolist(), np.where(same, original, rows).tolist(), strict=True))
