"""The timers of a store group over the network."""

from collections.abc import Callable

from store.api.timers import TimerCalls, TimersHeld
from store.base.errors import FrameTooLarge, StoreUnreachable, TimersFull, TimerTooFar
from store.remoting.core import Remote
from store.remoting.stubs import stubs

DAY_MS = 24 * 3600 * 1000


@stubs
class RemoteTimers(TimerCalls):
    """`TimerCalls` of one group over the network."""

    def __init__(self, remote: Remote, now_ms: Callable[[], int]) -> None:
        self._remote = remote
        self._now_ms = now_ms

    def admit(self, due_ms: int, size_bytes: int) -> None:
        """See `TimerCalls.admit`: by this process's clock, and the count pending when the store was heard last."""
        limits, held = self._remote.connection.admission, self.held
        if limits is None:
            raise StoreUnreachable(f"store group {self._remote.group} was not reached yet")
        if held.timers >= limits.timers:
            raise TimersFull(f"{held.timers} timers are pending already")
        if held.size_bytes + size_bytes > limits.size_bytes:
            raise TimersFull(f"the pending timers hold {held.size_bytes} bytes of {limits.size_bytes} already")
        if size_bytes > limits.timer_bytes:
            raise FrameTooLarge(f"{size_bytes} bytes in one timer, which may have {limits.timer_bytes}")
        if due_ms - self._now_ms() > limits.horizon_ms:
            raise TimerTooFar(f"a timer is due in {limits.horizon_ms // DAY_MS} days at most")

    @property
    def held(self) -> TimersHeld:
        """See `TimerCalls.held`: as it was heard last."""
        return self._remote.connection.timers
