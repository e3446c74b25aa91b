"""The key of a timer: when it is due, and where in the log it was set."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from store.format.frame import LogOffset, Position

TIMER_KEY = struct.Struct(">QQI")  # due, log offset of the frame that set it, row: ordered as the keys are


class TimerKey(NamedTuple):
    """A pending timer. Ordered by when it is due, then as the log is."""

    due_ms: int
    frame: LogOffset
    row: int

    def __str__(self) -> str:
        return f"{self.due_ms:x}-{Position(self.frame, self.row)}"

    @classmethod
    def parse(cls, text: str) -> "TimerKey":
        """Returns the key that `str` wrote; raises ValueError for any other text."""
        due, _, rest = text.partition("-")
        key = cls(int(due, 16), *Position.parse(rest))
        if str(key) != text or key.due_ms >= 1 << 63:
            raise ValueError(f"not a timer: {text!r}")
        return key


def pack_keys(keys: Sequence[TimerKey]) -> bytes:
    """Packs keys as `store.format.records.TimersFired` has them."""
    return b"".join([TIMER_KEY.pack(*key) for key in keys])


def unpack_keys(data: bytes) -> list[TimerKey]:
    """Returns the keys of a `TimersFired`, without an incomplete one at the end."""
    whole = len(data) - len(data) % TIMER_KEY.size
    return [TimerKey(due, LogOffset(frame), row) for due, frame, row in TIMER_KEY.iter_unpack(data[:whole])]
