"""The clocks of everything that meets peers, and of the store."""

import logging
import time
from collections.abc import Callable
from functools import partial
from threading import Lock

logger = logging.getLogger(__name__)

LEAP_MS = 10 * 60 * 1000  # a clock that was set ahead by more is not believed at once
BELIEF_MS = 2 * 60 * 1000  # but when it has stayed so for this long

_MS_NS = 1_000_000
_LEAP_NS, _BELIEF_NS = LEAP_MS * _MS_NS, BELIEF_MS * _MS_NS
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps, where it can
_steady_ns = partial(time.clock_gettime_ns, _STEADY)


def steady_ms() -> int:
    """Returns ms by a clock that is never set: for durations within one process."""
    return _steady_ns() // _MS_NS


class WallClock:
    """The machine's clock, but for leaps ahead that it takes back soon; any thread may ask.

    Stored times never go back, so a single wrong reading would last forever: everything with an end would expire, and
    retention would delete all older records. A clock that is set ahead by more than `LEAP_MS`, which no correction
    does, is followed when it has stayed so for `BELIEF_MS`; until then time goes on as before. The first reading is
    believed.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = _steady_ns) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._lock = Lock()
        self._ahead_ns = wall_ns() - monotonic_ns()  # of the monotonic clock: the difference that is believed
        self._leapt_ns: int | None = None  # by the monotonic clock, since when it is another one

    def __call__(self) -> int:
        """Returns the time now: ms since 1970."""
        steady_ns = self._monotonic_ns()  # first: a stop in between looks like a leap, and is looked at again
        wall_ns = self._wall_ns()
        ahead_ns = wall_ns - steady_ns
        if self._leapt_ns is None and ahead_ns - self._ahead_ns <= _LEAP_NS:
            self._ahead_ns = ahead_ns  # without the lock, which would take half the time: the next is as good
            return wall_ns // _MS_NS
        with self._lock:
            return self._leapt() // _MS_NS

    def _leapt(self) -> int:
        """Returns the time in ns now, when the clock has leapt ahead or had done so."""
        steady_ns, wall_ns = self._monotonic_ns(), self._wall_ns()
        ahead_ns = wall_ns - steady_ns
        leap_ns = ahead_ns - self._ahead_ns
        if leap_ns <= _LEAP_NS:
            if self._leapt_ns is not None:
                logger.warning("the clock that had leapt ahead was set back")
            self._ahead_ns, self._leapt_ns = ahead_ns, None
            return wall_ns
        if self._leapt_ns is None:
            self._leapt_ns = steady_ns
            logger.error(
                "the clock has leapt far ahead and is not followed yet; check NTP",
                extra={"leap_ms": leap_ns // _MS_NS},
            )
        elif steady_ns - self._leapt_ns >= _BELIEF_NS:
            logger.error("the clock has stayed far ahead and is followed now", extra={"leap_ms": leap_ns // _MS_NS})
            self._ahead_ns, self._leapt_ns = ahead_ns, None
            return wall_ns
        return steady_ns + self._ahead_ns


now_ms = WallClock()  # the clock of all shells, and of the store


def lead_ms() -> int:
    """Returns how far that clock is ahead of the monotonic one, which nobody sets; it changes when the clock is set."""
    return now_ms() - time.monotonic_ns() // _MS_NS


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


def present(now_ms: Callable[[], int], steady_ms: Callable[[], int] | None = None) -> Callable[[], int]:
    """Returns the present moment, to be asked for later: by a clock that was set since, it is as far back as it is.

    Without `steady_ms` only steps back of `now_ms` are known as such.
    """
    steady = steady_ms or SteadyClock(now_ms)
    began_ms = steady()
    return lambda: now_ms() - (steady() - began_ms)
