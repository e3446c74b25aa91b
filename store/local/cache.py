"""Verified frames in memory: those written or read last."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import overload

from store.format.frame import FIRST_QUEUE, FRAME_OBJECTS_BYTES, FRAME_PART, Frame, LogOffset
from store.format.placed import Placed

CACHE_BYTES_MAX = 64 << 20
RECORDS_PART = 16  # frames of the store's own records have one part in so many of that: only followers read them


class _Shelf:
    """Frames by log offset, those used longest ago first, bounded in bytes."""

    __slots__ = ("bytes_max", "frames", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.frames: OrderedDict[LogOffset, tuple[Frame | Placed, int]] = OrderedDict()  # with the bytes it is charged
        self.size_bytes = 0  # of the frames; <= bytes_max between calls

    def put(self, frame: Frame | Placed) -> None:
        """Keeps a frame."""
        charge = frame.memory_bytes + FRAME_OBJECTS_BYTES
        self.frames[frame.start] = frame, charge
        self.size_bytes += charge

    def shrink(self) -> None:
        """Lets the frames used longest ago go, until the others are within the limit."""
        while self.size_bytes > self.bytes_max:
            _, (_, charge) = self.frames.popitem(last=False)
            self.size_bytes -= charge


class FrameCache:
    """The frames used last, bounded in bytes, by log offset. Any thread may use it.

    Frames of records alone, as settlements and keys are, do not push out messages: the views have them already.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        records_bytes_max = bytes_max // RECORDS_PART
        self._messages, self._records = _Shelf(bytes_max - records_bytes_max), _Shelf(records_bytes_max)
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """The bytes of the frames held, and of the objects that hold them."""
        return self._messages.size_bytes + self._records.size_bytes

    def get(self, log_offset: LogOffset) -> Frame | None:
        """Returns a frame. One that was just written is put together when it is first asked for."""
        with self._lock:
            frames = self._messages.frames
            entry = frames.get(log_offset)
            if entry is None:
                frames = self._records.frames
                entry = frames.get(log_offset)
                if entry is None:
                    return None
            frames.move_to_end(log_offset)
            found, charge = entry
            if isinstance(found, Placed):
                found = found.whole()
                frames[log_offset] = found, charge
            return found

    def put(self, *frames: Frame | Placed) -> None:
        """Keeps frames, but for parts of bodies, and lets the ones used longest ago go."""
        with self._lock:
            for frame in frames:
                shelf = self._records if frame.first_queue < FIRST_QUEUE else self._messages
                if frame.start not in shelf.frames and not frame.flags & FRAME_PART:
                    shelf.put(frame)
            self._messages.shrink()
            self._records.shrink()


class NewFrames(Sequence[Frame]):
    """Frames that were just written, joined when a reader looks at them: not all listeners do."""

    def __init__(self, cache: FrameCache, placed: Sequence[Placed]) -> None:
        self._cache = cache
        self._placed = placed
        self._whole: list[Frame] | None = None

    def __len__(self) -> int:
        return len(self._placed)

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Frame]: ...
    def __getitem__(self, index: int | slice) -> Frame | Sequence[Frame]:
        if self._whole is None:
            self._whole = [self._cache.get(one.start) or one.whole() for one in self._placed]
        return self._whole[index]
