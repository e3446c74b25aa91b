"""The ticks of a Raft node: one timer for the next one in which something is due.

The core is told of ticks in which nothing is due when a message comes, or when the next one is over in which something
is (`Raft.rest_ticks`). So a follower that hears its leader wakes for no tick at all.
"""

import asyncio
from collections.abc import Callable

from controller.raft import Raft
from store.base.rhythm import since_last_s

EARLY_TICKS = 0.1  # by which a tick counts before it is over: timers ring a little early


class Ticks:
    """The time of one node, in the pace `tick_s`; None: the caller advances the core's time.

    `tick` lets the core do what is due in a tick; `failed` takes its error.
    """

    def __init__(
        self,
        raft: Raft,
        tick: Callable[[], None],
        failed: Callable[[Exception], None],
        *,
        tick_s: float | None,
        heartbeat_ticks: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._raft = raft
        self._tick = tick
        self._failed = failed
        self.tick_s = tick_s
        self._heartbeat_ticks = heartbeat_ticks
        self._told_s = self._loop.time()  # the core knows of all ticks up to here
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0  # when it rings

    def begin_in_step(self) -> None:
        """Begins: the heartbeats of a leader are in step with the other work of this process."""
        if self.tick_s is not None:
            interval_s = self._heartbeat_ticks * self.tick_s
            since_s, told_s = since_last_s(interval_s), self._raft.ticks % self._heartbeat_ticks * self.tick_s
            self._told_s = self._loop.time() - since_s + (told_s if told_s <= since_s else told_s - interval_s)
            self.arm()

    def end(self) -> None:
        """Ends."""
        if self._timer is not None:
            self._timer.cancel()

    def arm(self) -> None:
        """Sets the timer, unless it rings at about the right time: most messages hardly change that."""
        if self.tick_s is None:
            return
        due_s = self._told_s + (self._raft.rest_ticks + 1) * self.tick_s
        if self._timer is not None:
            if abs(due_s - self._due_s) < self.tick_s / 2:
                return
            self._timer.cancel()
        self._due_s = due_s
        self._timer = self._loop.call_later(max(0.0, due_s - self._loop.time()), self._on_due)

    def pass_time(self, *, due: bool = False) -> None:
        """Tells the core of the ticks that are over and in which nothing is due, and of one more if it is `due`.

        Time beyond that, after a pause of the process, does not count, but for the time between two heartbeats: the
        last ticks before an election are taken one by one.
        """
        if self.tick_s is None:
            return
        over = int((self._loop.time() - self._told_s) / self.tick_s + EARLY_TICKS)
        counted = min(over, self._raft.rest_ticks)
        if counted:
            self._raft.tick(counted)
        if due and over > counted:
            self._tick()
            counted += 1
        left, kept = over - counted, self._heartbeat_ticks
        skipped = left - left % kept if left > kept else 0
        self._told_s += (counted + skipped) * self.tick_s

    def _on_due(self) -> None:
        self._timer = None
        try:
            self.pass_time(due=True)
        except Exception as error:  # noqa: BLE001 - the driver raises it
            self._failed(error)
        self.arm()
