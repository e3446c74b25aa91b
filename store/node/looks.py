"""The times at which the roles of a replica look at the time: seldom while all is well."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from store.base.rhythm import pause, until_next_s
from store.node.replica.context import IDLE_TICK_S, TICK_S
from store.replication.master import Master

# A replica looks at the time when its master has sent something, and by itself when a heartbeat is late; there is one
# each 250 ms.
WITH_MESSAGE_S = 0.1  # after the look before
LATE_S = 0.3
SILENT_LOOK_S = 0.2  # between two looks from then on


class MasterLooks:
    """A master's looks: with its heartbeats while it is calm, often while anything may be due."""

    def __init__(self, core: Master, *, heartbeat_ms: int) -> None:
        self._core = core
        self._heartbeat_s = heartbeat_ms / 1000
        self._end = core.end
        self._stirred = asyncio.Event()

    def stir(self) -> None:
        """Notes that something has happened that time may have to follow soon."""
        self._stirred.set()

    async def next(self) -> None:
        """Waits for the next look."""
        core = self._core
        idle, self._end = self._end == core.end == core.confirmed, core.end
        if not core.calm:
            await pause(IDLE_TICK_S if idle else TICK_S)
            return
        self._stirred.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(until_next_s(self._heartbeat_s)):
                await self._stirred.wait()
                await pause(TICK_S)


class ReplicaLooks:
    """A replica's looks: `look` does one, and `failed` takes its error where no caller would."""

    def __init__(self, look: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._look = look
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        self._looked_s = 0.0

    def begin(self) -> None:
        """Begins."""
        self._look_in(TICK_S)

    def end(self) -> None:
        """Ends. Again does nothing."""
        if self._timer is not None:
            self._timer.cancel()

    def received(self) -> bool:
        """Looks, as the master has sent something, unless it was a moment ago; returns whether it does."""
        if self._loop.time() - self._looked_s < WITH_MESSAGE_S:
            return False
        self._looked_s = self._loop.time()
        self._look()
        self._look_in(LATE_S)
        return True

    def _look_in(self, seconds: float) -> None:
        self.end()
        self._timer = self._loop.call_later(seconds, self._on_time)

    def _on_time(self) -> None:
        self._looked_s = self._loop.time()
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - the role raises it
            self._failed(error)
        else:
            self._look_in(SILENT_LOOK_S)
