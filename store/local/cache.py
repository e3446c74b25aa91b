"""Verified frames in memory: what was written or read last."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import overload

from store.format.frame import FRAME_OBJECTS_BYTES, FRAME_PART, Frame, LogOffset
from store.format.placed import Placed

CACHE_BYTES_MAX = 64 << 20


class FrameCache:
    """The frames used last, bounded in bytes, by log offset. Any thread may use it."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._frames: OrderedDict[LogOffset, tuple[Frame | Placed, int]] = OrderedDict()  # with what it is charged
        self._bytes = 0  # of what _frames holds; <= _bytes_max between calls
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """The bytes of the frames held, and of what holds them."""
        return self._bytes

    def get(self, log_offset: LogOffset) -> Frame | None:
        """A frame. One that was just written is put together when it is first asked for."""
        with self._lock:
            entry = self._frames.get(log_offset)
            if entry is None:
                return None
            self._frames.move_to_end(log_offset)
            found, charge = entry
            if isinstance(found, Placed):
                found = found.whole()
                self._frames[log_offset] = found, charge
            return found

    def put(self, *frames: Frame | Placed) -> None:
        """Keeps frames, but for parts of bodies, and lets the ones used longest ago go."""
        with self._lock:
            for frame in frames:
                if frame.start not in self._frames and not frame.flags & FRAME_PART:
                    charge = frame.memory_bytes + FRAME_OBJECTS_BYTES
                    self._frames[frame.start] = frame, charge
                    self._bytes += charge
            while self._bytes > self._bytes_max:
                _, (_, charge) = self._frames.popitem(last=False)
                self._bytes -= charge


class NewFrames(Sequence[Frame]):
    """Frames that were just written, put together when somebody looks at them: not all listeners do."""

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
