"""The store's clock."""

import logging
import time
from collections.abc import Callable
from threading import Lock

logger = logging.getLogger(__name__)

LEAP_MS = 10 * 60 * 1000  # a clock that was set ahead by more is not believed at once
BELIEF_MS = 2 * 60 * 1000  # but when it has stayed so for this long


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps, where it can


def _monotonic_ms() -> int:
    return time.clock_gettime_ns(_STEADY) // 1_000_000


class WallClock:
    """The machine's clock, but for leaps ahead that it takes back soon; any thread may ask.

    Stored times never go back, so a single wrong reading would last forever: everything with an end would expire, and
    retention would delete all older records. A clock that is set ahead by more than `LEAP_MS`, which no correction
    does, is followed when it has stayed so for `BELIEF_MS`; until then time goes on as before. The first reading is
    believed.
    """

    def __init__(self, wall_ms: Callable[[], int] = _wall_ms, monotonic_ms: Callable[[], int] = _monotonic_ms) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._lock = Lock()
        self._ahead = wall_ms() - monotonic_ms()  # of the monotonic clock: the difference that is believed
        self._leapt_ms: int | None = None  # by the monotonic clock, since when it is another one

    def __call__(self) -> int:
        """Returns the time now."""
        with self._lock:
            steady, wall = self._monotonic_ms(), self._wall_ms()
            ahead = wall - steady
            leap = ahead - self._ahead
            if leap <= LEAP_MS:
                if self._leapt_ms is not None:
                    logger.warning("the clock that had leapt ahead was set back")
                self._ahead, self._leapt_ms = ahead, None
                return wall
            if self._leapt_ms is None:
                self._leapt_ms = steady
                logger.error(
                    "the clock has leapt far ahead; stored times do not follow it yet; check NTP",
                    extra={"leap_ms": leap},
                )
            elif steady - self._leapt_ms >= BELIEF_MS:
                logger.error("the clock has stayed far ahead; stored times follow it now", extra={"leap_ms": leap})
                self._ahead, self._leapt_ms = ahead, None
                return wall
            return steady + self._ahead


class RisingClock:
    """Milliseconds since 1970 that never go back; any thread may ask.

    While the clock it is made of is set back it stands still. So a time limit that has passed stays passed, and a frame
    is never stored before a moment that a reader has already seen.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._last_ms = 0
        self._lock = Lock()

    def __call__(self) -> int:
        """Returns the time now."""
        with self._lock:
            self._last_ms = max(self._last_ms, self._now_ms())
            return self._last_ms

    def reached(self, ms: int) -> None:
        """Notes a time that has passed: a record was stored then, perhaps by another clock."""
        ahead = ms - self._now_ms()
        if ahead > LEAP_MS:
            logger.error(
                "this machine's clock is behind times that the store has recorded: stored times stand still until it "
                "catches up; check NTP",
                extra={"for_ms": ahead},
            )
        with self._lock:
            self._last_ms = max(self._last_ms, ms)


class SteadyClock:
    """Milliseconds that never go back, made of a clock that may: steps forward count, steps back do not.

    For durations, such as that of a lease. It is ahead of the other clock by as much as that was set back.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seen = self._ms = now_ms()

    def __call__(self) -> int:
        """Returns the time, never less than before."""
        now = self._now_ms()
        if now > self._seen:
            self._ms += now - self._seen
        self._seen = now
        return self._ms
