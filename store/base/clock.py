"""The clock of everything that meets peers."""

import time


def now_ms() -> int:
    """Returns the clock of all shells: ms since 1970."""
    return time.time_ns() // 1_000_000
