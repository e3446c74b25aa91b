"""The clock of everything that meets peers."""

import time


def now_ms() -> int:
    """Returns the clock of all shells: ms since 1970."""
    return time.time_ns() // 1_000_000


def lead_ms() -> int:
    """Returns how far that clock is ahead of the steady one, which nobody sets; it changes when the clock is set."""
    return now_ms() - time.monotonic_ns() // 1_000_000
