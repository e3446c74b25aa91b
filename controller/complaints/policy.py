"""The policy that replaces a master that sends heartbeats, because others cannot reach it (docs/decisions/0035).

`Complaints.judge` is a function of the metadata, the newest heartbeats, the proxies' reports and the time. It does not
elect: it names the replicas that may be elected, and `controller.elections.elections` proposes the ordinary command
with its epochs.
"""

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from controller.api.client import Group
from controller.complaints.ledger import Damping, Reports
from controller.complaints.messages import COMPLAIN_MS, PROXY_COMPLAIN_MS, Complaint, Report, Trouble

logger = logging.getLogger(__name__)

LONE_PROXY_MS = 10_000  # that the only proxy has to complain of a master which all replicas reach
SLOW_MS = 5_000  # that a master with a slow disk has for handing over by itself
KEEP_MS = 5_000  # that replicas which do not reach their master stay in its set, if most of them do not
SETTLE_MS = 4_000  # of a new leader, in which all proxies report: a few do not speak for the others
_NOBODY = "no other replica in sync is within reach of those that complain, with room on its disk"


class ReplicaReport(Protocol):
    """The part of a heartbeat that counts here (`controller.elections.registry.Heartbeat`)."""

    @property
    def complaint(self) -> Complaint | None:
        """The replica's own complaint."""

    @property
    def stalled(self) -> bool:
        """Returns whether this master cannot confirm writes."""

    @property
    def slow(self) -> bool:
        """Returns whether its disk is slow."""

    @property
    def full(self) -> bool:
        """Returns whether its disk is full."""

    @property
    def damaged(self) -> bool:
        """Returns whether its log is damaged."""

    @property
    def expired(self) -> bool:
        """Returns whether its certificate has expired."""


class _CurrentComplaints(NamedTuple):
    """The complaints about a group's master that count now."""

    master: int
    others: tuple[int, ...]  # voters that are alive and not cut off themselves, the master not among them
    replicas: Mapping[int, Complaint]  # of those the ones that complain
    proxies: Mapping[str, Complaint]
    proxies_heard: int
    slow: bool

    @property
    def all(self) -> list[Complaint]:
        return [*self.replicas.values(), *self.proxies.values()]


class Complaints:
    """The complaints that one controller has heard. `now_ms` is the registry's clock."""

    def __init__(self, now_ms: int) -> None:
        self._since_ms = now_ms  # when reports began to come here
        self._reports = Reports()
        self._damping: dict[int, Damping] = {}  # by group
        self._slow_ms: dict[int, int] = {}  # group -> since when its master has said that its disk is slow
        self._stays: dict[int, str] = {}  # group -> why its master stays, as it was logged last

    def began(self, now_ms: int) -> None:
        """Begins anew as leader: proxies report to this controller from now on."""
        self._since_ms = now_ms
        self._reports.clear()
        for table in (self._damping, self._slow_ms, self._stays):
            table.clear()

    def take(self, report: Report, now_ms: int) -> None:
        """Takes a proxy's report. Raises `ControllerOverloaded`."""
        self._reports.take(report, now_ms)

    def are_none(self, now_ms: int) -> bool:
        """Returns whether no proxy complains, and no master has to be watched since one did or its disk was slow."""
        reports = self._reports.in_force(now_ms).values()
        return not (self._damping or self._slow_ms or any(reports))

    def why(self, group: Group, voters: Mapping[int, ReplicaReport], now_ms: int) -> str:
        """Returns why a master is to be replaced: whom it is unreachable for, or that it is slow."""
        trouble = self.trouble(group, voters, now_ms)
        return f"unreachable for {trouble.whom}" if trouble is not None and trouble.whom else "slow"

    def trouble(self, group: Group, voters: Mapping[int, ReplicaReport], now_ms: int) -> Trouble | None:
        """Returns the complaints about a group's master, for operators; None: there are none."""
        if group.master is None or group.master not in voters:
            return None
        found = self._current(group, group.master, voters, now_ms)
        if not found.all and not found.slow:
            return None
        return Trouble(
            replicas=len(found.replicas),
            replicas_heard=len(found.others),
            proxies=len(found.proxies),
            proxies_heard=found.proxies_heard,
            silent_ms=max((one.silent_ms for one in found.all), default=0),
            slow=found.slow,
            stays=self._stays.get(group.number, ""),
        )

    def is_out_of_reach(self, group: Group, voters: Mapping[int, ReplicaReport], now_ms: int) -> bool:
        """Returns whether the complaints about a group's master are enough to replace it."""
        if group.master is None or group.master not in voters:
            return False
        found = self._current(group, group.master, voters, now_ms)
        return self._by_proxies(found) or self._by_replicas(found, voters[group.master])

    def judge(self, group: Group, voters: Mapping[int, ReplicaReport], now_ms: int) -> tuple[int, ...]:
        """Returns the candidates to replace a group's master; empty: the master stays.

        `voters` are the newest heartbeats of the group's voters that are alive, the master's among them.
        """
        assert group.master is not None
        master = voters[group.master]
        found = self._current(group, group.master, voters, now_ms)
        slow = self._is_slow(group.number, now_ms, slow=found.slow)
        by_proxies = self._by_proxies(found) and now_ms - self._since_ms >= SETTLE_MS
        if not (slow or by_proxies or self._by_replicas(found, master)):
            self._forget(group.number, now_ms)
            return ()
        damping = self._damping.setdefault(group.number, Damping())
        damping.complained_ms = now_ms
        if damping.count and found.all and not any(one.met for one in found.all):
            damping.useless[group.master] = None
        able = [id_ for id_ in found.others if id_ in group.sync_set and id_ not in damping.useless]
        able = [id_ for id_ in able if _is_fit(voters[id_]) and _is_reached(id_, found)]
        if not by_proxies:
            able = [id_ for id_ in able if _could_write(id_, found, group, slow=slow)]
        wait_ms = damping.wait_ms(now_ms)
        if wait_ms or not able:
            why = f"the next election by complaint is in {wait_ms / 1000:.0f} s at the earliest"
            self._stay(group, why if wait_ms else _NOBODY)
            return ()
        return tuple(able)

    def keeps(self, group: Group, removed: Collection[int], voters: Mapping[int, ReplicaReport]) -> bool:
        """Returns whether replicas stay in the set for now, because the master may be the isolated one.

        With a set of the master and few others no replica could be elected in its place.
        """
        others = [id_ for id_ in group.voters if id_ != group.master and id_ in voters]
        silent = [
            id_
            for id_ in others
            if (one := voters[id_].complaint) is not None
            and one.epoch == group.master_epoch
            and one.silent_ms < KEEP_MS
        ]
        return 2 * len(silent) > len(others) and not set(removed).isdisjoint(silent)

    def moved(self, group: Group, now_ms: int) -> None:
        """Notes that the election of a replica named by `judge` is proposed."""
        self._damping.setdefault(group.number, Damping()).moved(group.master_epoch, now_ms)
        self._stays.pop(group.number, None)

    # ---- who complains

    def _current(
        self, group: Group, master: int, voters: Mapping[int, ReplicaReport], now_ms: int
    ) -> _CurrentComplaints:
        others = [id_ for id_ in group.voters if id_ != master and id_ in voters]
        replicas = {
            id_: one
            for id_ in others
            if (one := voters[id_].complaint) is not None and _counts(one, group, COMPLAIN_MS)
        }
        if len(others) > 1:  # one that reaches no other is cut off itself: its complaint does not count
            cut_off = [id_ for id_, one in replicas.items() if not set(one.reaches).intersection(others)]
            others = [id_ for id_ in others if id_ not in cut_off]
            replicas = {id_: one for id_, one in replicas.items() if id_ not in cut_off}
        reports = self._reports.in_force(now_ms)
        proxies = {
            proxy: one
            for proxy, complaints in reports.items()
            if (one := complaints.get(group.number)) is not None and _counts(one, group, PROXY_COMPLAIN_MS)
        }
        return _CurrentComplaints(master, tuple(others), replicas, proxies, len(reports), voters[master].slow)

    def _by_replicas(self, found: _CurrentComplaints, master: ReplicaReport) -> bool:
        """Returns whether most replicas complain, and neither the master nor the proxies contradict.

        A master that confirms writes without its replicas serves those proxies that reach it.
        """
        contradicted = 2 * len(found.proxies) <= found.proxies_heard and found.proxies_heard > 0
        return 2 * len(found.replicas) > len(found.others) and (master.stalled or not contradicted)

    def _by_proxies(self, found: _CurrentComplaints) -> bool:
        """Returns whether most proxies complain. One alone is not believed so soon while replicas reach the master."""
        if len(found.proxies) == found.proxies_heard == 1:
            (one,) = found.proxies.values()
            alone = len(found.replicas) < len(found.others)
            return not alone or one.silent_ms >= LONE_PROXY_MS
        return len(found.proxies) > 1 and 2 * len(found.proxies) > found.proxies_heard

    def _is_slow(self, group: int, now_ms: int, *, slow: bool) -> bool:
        if not slow:
            self._slow_ms.pop(group, None)
            return False
        return now_ms - self._slow_ms.setdefault(group, now_ms) >= SLOW_MS

    # ---- whether anything follows

    def _forget(self, group: int, now_ms: int) -> None:
        self._stays.pop(group, None)
        damping = self._damping.get(group)
        if damping is not None and damping.is_calm(now_ms):
            del self._damping[group]

    def _stay(self, group: Group, why: str) -> None:
        if group.number not in self._stays:
            logger.warning(
                "store group %d: its master, replica %s, is reported unreachable and stays master: %s",
                group.number,
                group.master,
                why,
            )
        self._stays[group.number] = why


def _counts(complaint: Complaint, group: Group, least_ms: int) -> bool:
    return complaint.epoch == group.master_epoch and complaint.silent_ms >= least_ms


def _is_fit(report: ReplicaReport) -> bool:
    return not (report.slow or report.full or report.damaged or report.expired)


def _is_reached(candidate: int, found: _CurrentComplaints) -> bool:
    """Returns whether most of the replicas that complain reach a candidate, and most of the proxies."""
    for complaints in (
        [one for id_, one in found.replicas.items() if id_ != candidate],
        list(found.proxies.values()),
    ):
        reached = sum(candidate in one.reaches for one in complaints)
        if complaints and 2 * reached <= len(complaints):
            return False
    return True


def _could_write(candidate: int, found: _CurrentComplaints, group: Group, *, slow: bool) -> bool:
    """Returns whether enough replicas would be in sync with a candidate, as far as is known."""
    mine = found.replicas.get(candidate)
    with_it = [id_ for id_ in found.others if id_ != candidate]
    with_it = [id_ for id_ in with_it if (one := found.replicas.get(id_)) is None or candidate in one.reaches]
    master = slow and mine is None  # it follows, as slowly as it can
    return 1 + len(with_it) + master >= group.config.min_in_sync
