"""The rule by which the event loop itself writes and syncs a small commit batch, and the commit thread all others.

On a fast disk a batch of few bytes costs less than the two hand-overs between threads that it takes otherwise
(docs/decisions/0048). A slow disk must not hold up the event loop. So the rule gets the time of each sync,
whichever thread waited for it. A fast disk has slow syncs too: what one keeps the loop beyond the limit is a debt,
which is paid off with a part of all time. While the debt is small the loop goes on; else it leaves all commits to the
threads until nothing is owed, and the disk has shown again that it is fast (docs/decisions/0057).
"""

import math
from typing import Final

LOOP_BYTES_MAX: Final = 256 << 10  # in one commit batch of the event loop: some 1,000 messages of 100 bytes
LOOP_SYNC_S_MAX: Final = 0.0005  # a sync that takes longer is slow
FAST_COUNT: Final = 8  # syncs in a row that were not slow, before the event loop waits for one
REST_FACTOR: Final = 20  # a debt is paid off in so many times as long: slow syncs take 5 % of the loop's time at most
DEBT_S_MAX: Final = 0.005  # owed by slow syncs; beyond, the loop waits for none until it is paid off
REST_S_MAX: Final = 60.0  # but for no longer than this


class LoopCommits:
    """Says whether the event loop may wait for the next sync. Each call takes the time, in seconds of one clock.

    Nothing is known of a disk at first: then it may not.
    """

    __slots__ = ("_debt_s", "_fast_count", "_owed_at_s", "_rests_until_s")

    def __init__(self) -> None:
        self._fast_count = 0  # syncs in a row that were not slow; FAST_COUNT stays until the debt is too large
        self._debt_s = 0.0  # owed at `_owed_at_s`; <= REST_S_MAX / REST_FACTOR
        self._owed_at_s = 0.0
        self._rests_until_s = -math.inf

    def allows(self, size_bytes: int, now_s: float) -> bool:
        """Returns whether the event loop may write and sync a commit batch of that size."""
        return size_bytes <= LOOP_BYTES_MAX and self._fast_count >= FAST_COUNT and now_s >= self._rests_until_s

    def synced(self, took_s: float, now_s: float) -> None:
        """Notes how long a sync took that has just ended, on any thread, one after the other."""
        if took_s > LOOP_SYNC_S_MAX:
            self._slow(took_s, now_s)
        elif self._fast_count < FAST_COUNT:
            self._fast_count += 1

    def wrote(self, size_bytes: int, took_s: float, now_s: float) -> None:
        """Notes how long a write took: a small one that had to wait for the disk counts as a slow sync."""
        if took_s > LOOP_SYNC_S_MAX and size_bytes <= LOOP_BYTES_MAX:
            self._slow(took_s, now_s)

    def _slow(self, took_s: float, now_s: float) -> None:
        began_s = now_s - took_s
        if not self.allows(0, began_s):  # so a thread has waited for it, and the loop owes nothing
            self._fast_count = 0
            return
        paid_s = (now_s - self._owed_at_s) / REST_FACTOR
        owed_s = max(self._debt_s - paid_s, 0.0) + took_s - LOOP_SYNC_S_MAX
        self._debt_s, self._owed_at_s = min(owed_s, REST_S_MAX / REST_FACTOR), now_s
        if self._debt_s > DEBT_S_MAX:
            self._fast_count = 0
            self._rests_until_s = now_s + self._debt_s * REST_FACTOR
