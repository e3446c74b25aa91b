"""The number of examples that tests of laws try, by day and by night."""

import os

NIGHTLY = bool(os.environ.get("HEADGATE_NIGHTLY"))
BY_DAY = 3  # a law has one in so many of its examples by day, and the same ones in all runs of a commit
LEAST = 10


def examples(count: int) -> int:
    """Returns how many examples a law has, of which it has `count` by night."""
    return count if NIGHTLY else max(count // BY_DAY, min(count, LEAST))
