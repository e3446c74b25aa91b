"""The store's clock."""

from collections.abc import Callable
from threading import Lock

__all__ = ["RisingClock", "SteadyClock"]


class RisingClock:
    """Milliseconds since 1970 that never go back; any thread may ask.

    While the clock it is made of is set back it stands still. So what was over once stays over, and a frame is never
    stored before a moment that a reader has already seen.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._last_ms = 0
        self._lock = Lock()

    def __call__(self) -> int:
        """The time now."""
        with self._lock:
            self._last_ms = max(self._last_ms, self._now_ms())
            return self._last_ms

    def reached(self, ms: int) -> None:
        """It is at least as late as this: something was stored then, perhaps by another clock."""
        with self._lock:
            self._last_ms = max(self._last_ms, ms)


class SteadyClock:
    """Milliseconds that never go back, made of a clock that may: what went by is counted, steps back are not.

    For durations, such as that of a lease. It is ahead of the other clock by as much as that was set back.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seen = self._ms = now_ms()

    def __call__(self) -> int:
        """The time, never less than before."""
        now = self._now_ms()
        if now > self._seen:
            self._ms += now - self._seen
        self._seen = now
        return self._ms
