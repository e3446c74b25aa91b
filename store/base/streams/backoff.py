"""The pauses between attempts to reach a peer."""

import asyncio
import random
from collections.abc import Callable

from store.base.streams.event_wait import wait_at_most


class Backoff:
    """Pauses that double from `min_s` to `max_s`, each shortened by chance to between half of it and all of it.

    Chance keeps clients that have lost the same node from coming back at the same moment. `uniform` is its source;
    the default is the process's, which a simulation seeds.
    """

    __slots__ = ("_max_s", "_min_s", "_uniform", "longest_s")

    def __init__(
        self, min_s: float, max_s: float, *, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._min_s, self._max_s, self._uniform = min_s, max_s, uniform
        self.longest_s = min_s  # of the next pause; <= max_s

    def reset(self) -> None:
        """Begins again with the shortest pause: an attempt has worked."""
        self.longest_s = self._min_s

    def next_s(self) -> float:
        """Returns the length of the next pause, and doubles the one after it."""
        pause_s = self.longest_s * self._uniform(0.5, 1.0)
        self.longest_s = min(2 * self.longest_s, self._max_s)
        return pause_s

    async def pause(self, wake: asyncio.Event | None = None) -> None:
        """Waits before the next attempt. A pause that `wake` cuts short does not lengthen the next one."""
        if wake is None:
            await asyncio.sleep(self.next_s())
            return
        longest_s = self.longest_s
        if await wait_at_most(wake, self.next_s()):
            self.longest_s = min(longest_s, self.longest_s)
