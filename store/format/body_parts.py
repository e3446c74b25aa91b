"""The parts of a body that is too long to be held whole: each is a frame of its own, in the reserved queue PARTS_QUEUE.

    part    0xC1 | bytes of the body

0xC1 begins no MessagePack value, so that a part is never taken for a message or a record, whatever a client has put
there. The message itself follows in the same log, names the frames of its parts, and makes them visible by being so:
parts that no message names are never read, and are deleted with their segment.

A segment is kept for the messages that lie in it or behind it, and their parts lie at most `UPLOAD_MS_MAX` before them:
the process that stores a message ensures that, and retention keeps parts `PARTS_KEPT_MS` longer
(`store.engine.trimming`).
"""

from typing import Final

from store.base.errors import CorruptFrame
from store.format.frame import FRAME_PART, ROW, LogOffset, UnplacedFrame
from store.format.records import PARTS_QUEUE

PART_BYTES: Final = 512 << 10  # of a body in one part, but the last
UPLOAD_MS_MAX: Final = 600_000  # from the first part of a body to its message
PARTS_KEPT_MS: Final = 1_800_000  # before the oldest message that is kept: the clocks of masters differ
_PREFIX: Final = b"\xc1"


def part_frame(
    data: bytes, *, time_ms: int, producer_id: int, sequence: int, compress_bytes_min: int = 0
) -> UnplacedFrame:
    """Returns the frame of a part of a body."""
    record = _PREFIX + data
    row = ROW.pack(PARTS_QUEUE, 0, len(record), 0, 0, 0, 0, time_ms)
    return UnplacedFrame.build(
        row,
        record,
        producer_id=producer_id,
        sequence=sequence,
        flags=FRAME_PART,
        compress_bytes_min=compress_bytes_min,
    )


def part_of(record: bytes, at: LogOffset) -> bytes:
    """Returns the bytes of a body that a record holds. Raises `CorruptFrame` for a record that is no part."""
    if not record.startswith(_PREFIX):
        raise CorruptFrame(at, "no part of a body lies here")
    return record[len(_PREFIX) :]
