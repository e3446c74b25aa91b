"""Messages that were given up, and the known reasons.

A dead letter is the same record in another queue: its bytes are copied into a new frame, unread, with a row that has
`ROW_DEAD`, and a `DeadLettered` record in the same frame says where it came from, why, and after how many deliveries;
that record also settles it where it was. So a message is moved whole or not at all.
"""

from collections.abc import Sequence

from store.format.frame import ROW, ROW_DEAD, ROW_EXTRA, Frame, QueueNumber, UnplacedFrame
from store.format.records import DEAD_LETTERS_QUEUE, DeadLetter, DeadLettered, encode


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
    """Returns the frame that moves records, (offset in `queue`, frame, row), to a queue; `known` as in `Settled`."""
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
