"""The pressure on memory and disk: whether publishes may have to be refused soon.

Memory is short while this process holds more than a limit, and while several checks in a row find the backlog of its
log too large; disk is short where a store says so. Each pressure ends at a lower value than it begins at, so that it
does not change rapidly.
"""

from collections.abc import Callable
from typing import Final

from store.base import logs
from store.base.memory import resident_bytes

PRESSURE_INTERVAL_MS: Final = 500  # between two checks
CROWDED_LOOKS: Final = 4  # in a row with too much to write: memory is short
CALM_LOOKS: Final = 2  # in a row without: it is not any more
_EASED: Final = 0.95  # of the limit: with less than that held, there is enough again

log = logs.get(__name__)


class Pressure:
    """The pressure on one process. `crowded` says whether too much waits to be written at this moment."""

    def __init__(
        self,
        *,
        memory_bytes_max: int,
        crowded: Callable[[], bool],
        low_disk: Callable[[], bool] = lambda: False,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self.reason = ""  # in RabbitMQ's words, which clients show; "": there is none
        self.low_disk = low_disk
        self._memory_bytes_max = memory_bytes_max
        self._crowded = crowded
        self._resident = resident
        self._looks = 0  # in a row that contradict the present state
        self._overrun = False  # too much has waited to be written for some time
        self._large = False  # this process holds too much

    def look(self) -> bool:
        """Looks once; returns whether the reason is another one now."""
        self._looks = self._looks + 1 if self._crowded() is not self._overrun else 0
        if self._looks >= (CALM_LOOKS if self._overrun else CROWDED_LOOKS):
            self._overrun, self._looks = not self._overrun, 0
        limit = self._memory_bytes_max * (_EASED if self._large else 1)
        self._large = self._resident() > limit
        short = (["memory"] if self._large or self._overrun else []) + (["disk"] if self.low_disk() else [])
        reason = f"low on {' & '.join(short)}" if short else ""
        if reason == self.reason:
            return False
        log.warning("publishers over AMQP are asked to wait" if reason else "publishers may go on", why=reason)
        self.reason = reason
        return True
