"""The reasons of dead letters, read from the frame that moved them."""

from typing import NamedTuple

import numpy as np

from store.format.frame import ROW_DEAD, Frame, Position, QueueNumber, QueueOffset
from store.format.records import DEAD_LETTERS_QUEUE, DeadLettered, decode


class Death(NamedTuple):
    """The reason why a message is a dead letter. `origin` is where its record was: its id, if the sender gave none."""

    queue: QueueNumber  # that it came from
    group: str
    offset: QueueOffset  # in that queue
    origin: Position
    reason: str  # "rejected", "expired", "delivery_limit"
    deliveries: int


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
