"""Timers: a `TimerSet` record in a frame (queue TIMERS_QUEUE) sets one."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class TimersHeld(NamedTuple):
    """The number of pending timers, and the bytes that they hold."""

    timers: int
    size_bytes: int


class TimerEntry(NamedTuple):
    """A pending timer. Its `id` is made of when it is due and of the position of its `TimerSet`."""

    id: str
    due_ms: int
    size_bytes: int


class TimerCalls(Protocol):
    """The pending timers; of a cluster those of all groups."""

    def admit(self, due_ms: int, size_bytes: int) -> None:
        """Checks that a timer may be put in a frame; `size_bytes` are those of its rows and payload.

        Raises `TimersFull`, `TimerTooFar`, `FrameTooLarge`. Timers in flight are not counted yet.
        """

    @property
    def held(self) -> TimersHeld:
        """The number of pending timers, and the bytes that they hold."""

    async def cancel(self, timer: str) -> bool:
        """Cancels a timer by its id; returns whether it was pending. Raises `NoSuchTimer` for a text that is no id."""

    async def entries(self, *, after: str = "", limit: int = 1000) -> Sequence[TimerEntry]:
        """Lists pending timers as they are due, behind the one with the id `after`. Raises `NoSuchTimer`."""
