"""A simulated replica's log and views: lists and dictionaries, and real frames."""

import copy
from bisect import bisect_left, bisect_right

import msgspec

from store.format.frame import HEADER, ROW, Header, LogOffset, UnplacedFrame
from store.format.records import VOID_QUEUE


def header_of(frame: bytes) -> Header:
    return Header(*HEADER.unpack_from(frame))


class CountedLog:
    """Frames, of which those behind `durable` may be lost."""

    def __init__(self, first: LogOffset) -> None:
        self.reset(first)

    def reset(self, at: LogOffset) -> None:
        self.first = self.durable = self.end = at
        self.starts: list[int] = []
        self.frames: list[bytes] = []
        self.cuts = getattr(self, "cuts", 0) + 1  # a sync that began before a cut tells nothing of what came after

    def append(self, frame: bytes) -> LogOffset:
        assert header_of(frame).log_offset == self.end
        self.starts.append(self.end)
        self.frames.append(frame)
        self.end = LogOffset(self.end + len(frame))
        return self.end

    def place(self, frame: UnplacedFrame, *, epoch: int, now_ms: int) -> LogOffset:
        header = frame.header(log_offset=self.end, epoch=epoch, stored_at_ms=now_ms)
        return self.append(header + frame.rows + frame.payload)

    def truncate(self, end: LogOffset) -> None:
        keep = bisect_left(self.starts, end)
        del self.starts[keep:], self.frames[keep:]
        assert end == (self.starts[-1] + len(self.frames[-1]) if self.starts else self.first), "cut inside of a frame"
        self.end = self.durable = end
        self.cuts += 1

    def has(self, start: int, end: int) -> bool:
        """Returns whether there is a frame of that place on disk, or was before it was trimmed."""
        return self.durable >= end and (start < self.first or start in self.starts)

    def trim(self, first: LogOffset) -> None:
        gone = bisect_left(self.starts, first)
        del self.starts[:gone], self.frames[:gone]
        self.first = first

    def between(self, start: LogOffset, end: LogOffset) -> list[bytes]:
        """Returns all frames that begin from `start` on and before `end`."""
        return self.frames[bisect_left(self.starts, start) : bisect_left(self.starts, end)]

    def boundary(self, at: LogOffset) -> LogOffset:
        """Returns the last start of a frame at or before an offset."""
        index = bisect_right(self.starts, at) - 1
        return LogOffset(self.starts[index]) if index >= 0 else self.first

    def lose_unsynced(self, chance) -> None:
        """Cuts the power: any number of the last frames, which were not synced, are lost."""
        unsynced = [start for start in self.starts if start >= self.durable]
        if unsynced:
            self.truncate(LogOffset(chance.choice([*unsynced, self.end])))


class Views:
    """The applied part of a log: the operations it holds, and keys with values."""

    def __init__(self, applied: LogOffset) -> None:
        self.applied = applied
        self.newest_queue = 0  # the greatest number of one that has a record
        self.stored: dict[tuple[int, int], tuple[int, int]] = {}  # (producer, sequence) -> (start, end)
        self.results: dict[int, object] = {}  # of operations on keys, by where they are
        self.keys: dict[str, tuple[str, int]] = {}  # value and revision
        self.spoiled: dict[str, None] = {}  # keys of which something else is on the disk than was written
        self.damages: list[str] = []  # of these, what was met; an entry is a sentence

    def copy(self) -> "Views":
        return copy.deepcopy(self)

    def apply(self, frame: bytes) -> None:
        header = header_of(frame)
        start = header.log_offset
        assert start == self.applied, "views are a prefix of the log"
        self.stored[header.producer_id, header.sequence] = (start, start + len(frame))
        self.applied = LogOffset(start + len(frame))
        (queue, *_) = ROW.unpack_from(frame, HEADER.size)
        self.newest_queue = max(self.newest_queue, queue)
        if queue == VOID_QUEUE:
            return  # its guard has failed
        match msgspec.msgpack.decode(frame[HEADER.size + ROW.size :]):
            case ["exact", number]:
                assert f"exact/{number}" not in self.keys, f"message {number} is stored twice"
                self.keys[f"exact/{number}"] = (b"", self.applied)
            case [1, name, epoch, _, "$fences", *_]:
                self.keys[name] = (epoch, self.applied)
            case ["put", key, value]:
                self.keys[key] = (value, self.applied)
                self.results[start] = self.applied
            case ["cas", key, expected, value]:
                actual = self.keys[key][1] if key in self.keys else 0
                if actual == expected:
                    self.keys[key] = (value, self.applied)
                    self.results[start] = self.applied
                else:
                    self.results[start] = ["conflict", actual]
