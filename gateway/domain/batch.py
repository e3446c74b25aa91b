"""A frame's messages, decoded once and shared by everybody they are delivered to."""

import logging
from collections.abc import Hashable, Set
from typing import Any

import msgspec
import numpy as np

from store.api.message import Message, decode
from store.format.frame import FIRST_QUEUE, ROW_COPY, ROW_EXTRA, Frame, LogOffset, Position

log = logging.getLogger(__name__)


class Batch:
    """The messages of one frame, in row order, without the rows that only index them a second time.

    `memo` is for its readers: an adapter keeps its encoded packets there, under a key of its own, so that a hundred
    subscribers of one protocol cost one encoding.
    """

    __slots__ = ("end", "frame", "memo", "messages", "queues", "rows")

    def __init__(
        self, frame: LogOffset, end: LogOffset, messages: list[Message], rows: list[int], queues: list[int]
    ) -> None:
        self.frame = frame
        self.end = end
        self.messages = messages
        self.rows = rows  # ascending; rows[i] is the row of messages[i]
        self.queues = queues  # queues[i] is the queue number of messages[i]
        self.memo: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, frame: Frame) -> "Batch":
        """Decodes a frame. Leaves out records that are no messages (reserved queues), by their queue's number.

        Copies that compaction has made are left out too: readers that follow the log have had the message before.
        """
        rows = frame.rows
        kept = np.flatnonzero((rows["flags"] & (ROW_EXTRA | ROW_COPY) == 0) & (rows["queue"] >= FIRST_QUEUE))
        data, base = frame.plain, frame.payload_start
        starts = rows["pos"][kept].astype(np.int64) + base
        ends = starts + rows["len"][kept]
        spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
        numbers, queues = kept.tolist(), rows["queue"][kept].tolist()
        try:
            messages = [decode(data[s:e]) for s, e in spans]
        except msgspec.MsgspecError:
            readable = [n for n, (s, e) in enumerate(spans) if _is_message(data[s:e])]
            log.exception(
                "records that are not messages are skipped",
                extra={"frame": frame.start, "records": len(spans) - len(readable)},
            )
            messages = [decode(data[s:e]) for s, e in (spans[n] for n in readable)]
            numbers, queues = [numbers[n] for n in readable], [queues[n] for n in readable]
        return cls(frame.start, frame.end, messages, numbers, queues)

    def position(self, index: int) -> Position:
        """Returns the position of `messages[index]` in the log."""
        return Position(self.frame, self.rows[index])

    def message(self, index: int) -> Message:
        """Returns `messages[index]` with its id filled in."""
        found = self.messages[index]
        return found if found.id else msgspec.structs.replace(found, id=str(self.position(index)))


class LostRange(Batch):
    """A range of the log that is lost to damage: a batch without messages.

    Adapters whose protocol has a word for it tell the clients of `subs`, the subscriptions that may know of it.
    """

    __slots__ = ("subs",)

    def __init__(self, start: LogOffset, end: LogOffset, subs: Set[int]) -> None:
        super().__init__(start, end, [], [], [])
        self.subs = subs


def _is_message(record: bytes) -> bool:
    try:
        decode(record)
    except msgspec.MsgspecError:
        return False
    return True
