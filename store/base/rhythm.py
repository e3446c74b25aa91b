"""Periodic work in step: all that a process does at multiples of one time shares the wakes of the process.

A wake of an idle process costs more than most of its work: the kernel's part, and caches that others have filled
meanwhile. So the work of every second is done at whole seconds of the event loop's clock, work of twice a second at
half ones, and so on. The clock is the machine's: processes of one machine are in step too, and those of several are
not.
"""

import asyncio
from contextvars import ContextVar
from typing import Final

PHASE_S: Final[ContextVar[float]] = ContextVar("PHASE_S", default=0.0)  # of this process; simulations vary it
_SOON: Final = 0.1  # of a period: work due sooner than that is postponed by one period
_EARLY_S: Final = 0.002  # by which timers ring too early


def since_last_s(period_s: float, loop: asyncio.AbstractEventLoop | None = None) -> float:
    """Returns how long it is since the last multiple of `period_s` on the running loop's clock, or another's."""
    return ((loop or asyncio.get_running_loop()).time() + PHASE_S.get()) % period_s


def until_next_s(period_s: float, loop: asyncio.AbstractEventLoop | None = None) -> float:
    """Returns the time until work that is done every `period_s` is due again: up to a tenth more than that."""
    left_s = period_s - since_last_s(period_s, loop)
    return left_s if left_s > _SOON * period_s else left_s + period_s


async def pause(period_s: float) -> None:
    """Waits until work that is done every `period_s` is due again."""
    await asyncio.sleep(until_next_s(period_s))


class Reminder:
    """The time at which a message is to be sent again, in step with other periodic work."""

    def __init__(self, period_s: float) -> None:
        """Begins with something to say at once."""
        self._period_s = period_s
        self._due_s = asyncio.get_running_loop().time()

    def said(self) -> None:
        """Notes that a message is sent now."""
        self._due_s = asyncio.get_running_loop().time() + until_next_s(self._period_s)

    @property
    def left_s(self) -> float:
        """Returns the time until a message is to be sent; 0: now."""
        left_s = self._due_s - asyncio.get_running_loop().time()
        return left_s if left_s > _EARLY_S else 0.0
