"""Queues that end in front of where a group is: whether their log has lost its end, or is only known late.

Confirmed messages are lost by an unclean election alone, which a store group or an operator has to allow. Without one,
an end that is too low is temporary: the master does not know yet which messages it may show, or that it is no longer
the master.
"""

from collections.abc import Callable, Mapping

from controller.api.client import ControllerClient
from store.base import logs

CERTAIN_S = 5.0  # an end that is too low for so long is one
REMEMBERED_COUNT_MAX = 4_096  # queues of groups; beyond, all are forgotten and seen for the first time again

log = logs.get(__name__)


class LostEnds:
    """Ends that were seen to be too low, since when. `clock` counts seconds and never goes back."""

    def __init__(self, controller: ControllerClient, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._clock = clock
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}  # since when, and the first end

    def certain(self, group: str, ends: Mapping[int, int]) -> dict[int, int]:
        """Returns the queues that have lost their end, with the end that was seen first: later messages are new."""
        found: dict[int, int] = {}
        now_s = self._clock()
        for queue, end in ends.items():
            if (group, queue) not in self._seen:
                if len(self._seen) >= REMEMBERED_COUNT_MAX:
                    self._seen.clear()
                log.warning(
                    "a queue ends before the offset that a consumer group has committed",
                    group=group,
                    queue=queue,
                    end=end,
                )
            since_s, first = self._seen.setdefault((group, queue), (now_s, end))
            if now_s - since_s >= CERTAIN_S and self._may_lose(queue):
                found[queue] = min(first, end)
        return found

    def seen(self, group: str, queue: int) -> None:
        """Notes that a queue has all that a group has read of it."""
        self._seen.pop((group, queue), None)

    @property
    def any(self) -> bool:
        """Returns whether any end has been noted as too low."""
        return bool(self._seen)

    def _may_lose(self, queue: int) -> bool:
        number = self._controller.group_of_queue(queue)
        group = None if number is None else self._controller.group(number)
        return group is not None and (group.config.unclean_election or group.unclean_epoch > 0)
