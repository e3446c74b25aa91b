"""The reports of proxies that are in force, and how often a group's master was replaced for complaints."""

from collections.abc import Mapping

from controller.api.client import ControllerOverloaded
from controller.complaints.messages import Complaint, Report

LEASE_MS = 4_000  # a report counts for so long: a complaint ends by itself unless it is repeated
PROXIES_MAX = 4_096  # proxies whose reports are kept
BACKOFF_MIN_MS, BACKOFF_MAX_MS = 10_000, 120_000  # between two elections by complaint in a group
CALM_MS = 120_000  # without enough complaints, and all of it is forgotten


class Reports:
    """The newest report of every proxy that reports."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[int, Mapping[int, Complaint]]] = {}  # the longest silent first; <= PROXIES_MAX

    def take(self, report: Report, now_ms: int) -> None:
        """Takes a report in the place of the proxy's one before. Raises `ControllerOverloaded`."""
        self._reports.pop(report.proxy, None)
        self._expire(now_ms)
        if len(self._reports) >= PROXIES_MAX:
            raise ControllerOverloaded(f"the limit of {PROXIES_MAX} reporting proxies is reached")
        self._reports[report.proxy] = (now_ms, {one.group: one for one in report.complaints})

    def in_force(self, now_ms: int) -> Mapping[str, Mapping[int, Complaint]]:
        """Returns each proxy's complaints by group, of all proxies that were heard lately."""
        self._expire(now_ms)
        return {proxy: complaints for proxy, (_, complaints) in self._reports.items()}

    def clear(self) -> None:
        """Forgets all complaints."""
        self._reports.clear()

    def _expire(self, now_ms: int) -> None:
        while self._reports:
            proxy, (at_ms, _) = next(iter(self._reports.items()))
            if now_ms - at_ms < LEASE_MS:
                return
            del self._reports[proxy]


class Damping:
    """Elections by complaint in one group since it was calm last."""

    def __init__(self) -> None:
        self.count = 0
        self.moved_ms = 0  # when the newest was decided
        self.complained_ms = 0  # when complaints were enough last
        self.epoch = 0  # of the master that was replaced last
        self.useless: dict[int, None] = {}  # elected, and out of the complainers' reach from the beginning

    def moved(self, epoch: int, now_ms: int) -> None:
        """Notes that the master of an epoch is replaced now."""
        if epoch != self.epoch:  # else it is proposed again
            self.count += 1
            self.moved_ms, self.epoch = now_ms, epoch

    def wait_ms(self, now_ms: int) -> int:
        """Returns how long the next election by complaint has to wait."""
        if not self.count:
            return 0
        backoff_ms = min(BACKOFF_MIN_MS << min(self.count - 1, 8), BACKOFF_MAX_MS)
        return max(0, self.moved_ms + backoff_ms - now_ms)

    def is_calm(self, now_ms: int) -> bool:
        """Returns whether there is no complaint to remember any more."""
        return now_ms - max(self.complained_ms, self.moved_ms) >= CALM_MS
