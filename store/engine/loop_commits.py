"""The rule by which the event loop itself writes and syncs a small commit batch, and the commit thread all others.

On a fast disk a batch of few bytes costs less than the two hand-overs between threads that it takes otherwise
(docs/decisions/0048). A slow disk must not hold up the event loop. So the rule is told how long each sync took,
whichever thread waited for it; a slow one leaves all commits to the threads for a time that grows with it.
"""

from typing import Final

LOOP_BYTES_MAX: Final = 256 << 10  # in one commit batch of the event loop: some 1,000 messages of 100 bytes
LOOP_SYNC_S_MAX: Final = 0.0005  # a sync that takes longer is slow
FAST_COUNT: Final = 8  # syncs in a row that were not slow, before the event loop waits for one
REST_FACTOR: Final = 20  # a slow sync keeps commits off the loop for so many times as long: slow ones take 5 % at most
REST_S_MAX: Final = 60.0  # but for no longer than this


class LoopCommits:
    """Says whether the event loop may wait for the next sync. Each call is told the time, in seconds of one clock.

    Nothing is known of a disk at first: then it may not.
    """

    __slots__ = ("_fast_count", "_rests_until_s")

    def __init__(self) -> None:
        self._fast_count = 0  # of syncs since the last slow one; <= FAST_COUNT
        self._rests_until_s = 0.0

    def allows(self, size_bytes: int, now_s: float) -> bool:
        """Returns whether the event loop may write and sync a commit batch of that size."""
        return size_bytes <= LOOP_BYTES_MAX and self._fast_count >= FAST_COUNT and now_s >= self._rests_until_s

    def synced(self, took_s: float, now_s: float) -> None:
        """Notes how long a sync took that has just ended, on any thread, one after the other."""
        if took_s > LOOP_SYNC_S_MAX:
            self._rest(took_s, now_s)
        elif self._fast_count < FAST_COUNT:
            self._fast_count += 1

    def wrote(self, size_bytes: int, took_s: float, now_s: float) -> None:
        """Notes how long a write took: a small one that had to wait for the disk counts as a slow sync."""
        if took_s > LOOP_SYNC_S_MAX and size_bytes <= LOOP_BYTES_MAX:
            self._rest(took_s, now_s)

    def _rest(self, took_s: float, now_s: float) -> None:
        self._fast_count = 0
        self._rests_until_s = max(self._rests_until_s, now_s + min(took_s * REST_FACTOR, REST_S_MAX))
