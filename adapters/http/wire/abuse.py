"""Peers that ask for work and bring nothing: how many frames of that kind they may send."""

from typing import Final

PERIOD_MS: Final = 10_000
RESETS_MAX: Final = 200  # streams a peer may reset in a period (CVE-2023-44487)
CONTROL_FRAMES_MAX: Final = 2_000  # frames without content in a period: PING, SETTINGS, WINDOW_UPDATE, empty DATA
LARGE_HEAD_COUNT: Final = 20  # such frames that a refused head counts as: one of 2,000 fields takes some 8 ms
DATA_BYTES_MIN: Final = 128  # of a frame of DATA that is not small: a frame takes some 20 us, whatever is in it
SMALL_PERIOD_MS: Final = 100
SMALL_FRAMES_MAX: Final = 500  # small frames of bodies that a process takes in such a time: 6% to 10% of a processor


class SmallFrames:
    """The small frames of bodies that all connections of a process bring.

    They may be honest, as those of an encoder that writes token by token, and each is as much work as a large one. So
    only some are taken at a time, and the others later.
    """

    __slots__ = ("_count", "_since_ms")

    def __init__(self) -> None:
        self._since_ms = 0
        self._count = 0

    def count(self, now_ms: int) -> None:
        """Counts one that is taken."""
        if now_ms - self._since_ms >= SMALL_PERIOD_MS:
            self._since_ms, self._count = now_ms, 0
        self._count += 1

    def resumes_ms(self, now_ms: int) -> int:
        """Returns when another may be taken."""
        return now_ms if self._count < SMALL_FRAMES_MAX else max(self._since_ms + SMALL_PERIOD_MS, now_ms)


class AbuseLimiter:
    """Counts actions that a peer may do only so often; both methods return False beyond that (RFC 9113, 10.5)."""

    __slots__ = ("_control_frames", "_resets", "_since_ms")

    def __init__(self) -> None:
        self._since_ms = 0
        self._resets = 0
        self._control_frames = 0

    def reset(self, now_ms: int) -> bool:
        """Counts a stream that the peer has reset; returns whether it is within the limit."""
        self._enter(now_ms)
        self._resets += 1
        return self._resets <= RESETS_MAX

    def control(self, now_ms: int, count: int = 1) -> bool:
        """Counts a frame without content, or one as costly as `count`; returns whether it is within the limit."""
        self._enter(now_ms)
        self._control_frames += count
        return self._control_frames <= CONTROL_FRAMES_MAX

    def progress(self) -> None:
        """Notes that we have sent a frame of data: two window updates may answer that."""
        self._control_frames = max(self._control_frames - 2, 0)

    def _enter(self, now_ms: int) -> None:
        if now_ms - self._since_ms >= PERIOD_MS:
            self._since_ms = now_ms
            self._resets = self._control_frames = 0
