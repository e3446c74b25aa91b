"""Messages that were given up, and what is known of why.

A dead letter is the same record in another queue: its bytes are copied into a new frame, unread, with a row that has
`ROW_DEAD`, and a `DeadLettered` record in the same frame says where it came from, why, and after how many deliveries;
that record also settles it where it was. So a message is moved whole or not at all. Readers of the other queue find
its story with `death_of`, in the frame they have in their hands.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from store.format.frame import ROW, ROW_DEAD, ROW_EXTRA, Frame, Position, QueueNumber, QueueOffset, UnplacedFrame
from store.format.records import DEAD_LETTERS_QUEUE, DeadLetter, DeadLettered, decode, encode


class Death(NamedTuple):
    """The reason why a message is a dead letter. `origin` is where its record was: its id, if the sender gave none."""

    queue: QueueNumber  # that it came from
    group: str
    offset: QueueOffset  # in that queue
    origin: Position
    reason: str  # "rejected", "expired", "delivery_limit"
    deliveries: int


def dead_letters_frame(
    records: Sequence[tuple[int, Frame, int]],
    deliveries: Sequence[int],
    *,
    queue: QueueNumber,
    group: str,
    reason: str,
    target: QueueNumber,
    known: int,
) -> UnplacedFrame:
    """The frame that moves records, as (offset in `queue`, frame, row), to another queue; `known` as in `Settled`."""
    rows: list[bytes] = []
    parts: list[bytes] = []
    letters: list[DeadLetter] = []
    pos = 0
    for (offset, frame, row), count in zip(records, deliveries, strict=True):
        data = frame.record(row)
        _, _, _, _, key_hash, address_hash, id_hash, time_ms = frame.rows[row].item()
        rows.append(ROW.pack(target, pos, len(data), ROW_EXTRA | ROW_DEAD, key_hash, address_hash, id_hash, time_ms))
        parts.append(data)
        letters.append(DeadLetter(offset, frame.start, row, count))
        pos += len(data)
    told = encode(DeadLettered(queue, group, reason, 0, tuple(letters), known))
    rows.append(ROW.pack(DEAD_LETTERS_QUEUE, pos, len(told), 0, 0, 0, 0, 0))
    return UnplacedFrame.build(b"".join(rows), b"".join([*parts, told]))


def death_of(frame: Frame, row: int) -> Death | None:
    """Returns why the record of a row is a dead letter; None for one that is none."""
    table = frame.rows
    if not int(table["flags"][row]) & ROW_DEAD:
        return None
    for at in np.flatnonzero(table["queue"] == DEAD_LETTERS_QUEUE).tolist():
        told = decode(frame.record(at))
        if isinstance(told, DeadLettered) and 0 <= (n := row - told.first_row) < len(told.letters):
            letter = told.letters[n]
            return Death(
                QueueNumber(told.queue),
                told.group,
                QueueOffset(letter.offset),
                Position(letter.frame, letter.row),  # type: ignore[arg-type]  # checked when it was decoded
                told.reason,
                letter.deliveries,
            )
    return None
