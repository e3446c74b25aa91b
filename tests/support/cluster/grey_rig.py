"""A group whose links fail one way while the controllers hear everybody: replicas and proxies that complain."""

from contextlib import suppress

from controller.api.client import ReplicaInSync
from controller.complaints.messages import HINT_MS, REPORT_S, Complaint, Report
from controller.elections.registry import TICK_MS
from tests.support.controller.elections_rig import ElectionsRig

JOIN_MS = 500  # that a replica needs to be in sync again
LEAVE_MS = 2_000  # until a replica that is not reached leaves the set


class GreyRig(ElectionsRig):
    """`cut` are pairs (from, to) of replicas' ids and proxies' names; a connection needs both ways."""

    def __init__(self, replicas=3, *, proxies=2, **more):
        self.cut = set()
        self.proxies = [f"p{n}" for n in range(1, proxies + 1)]
        self.silence = {}  # complaining replica -> (epoch, ms, met)
        self.in_touch = {}  # replica -> for how long it reaches the master; negative: does not
        super().__init__(replicas, in_sync=replicas, **more)
        self.run(6_000)
        self.commands.clear()

    def isolate(self, id_, *, others=None):
        """Cuts a replica off from all but the controllers."""
        for other in others or [one for one in [*self.said, *self.proxies] if one != id_]:
            self.cut |= {(id_, other), (other, id_)}

    def reaches(self, one, other):
        return (one, other) not in self.cut and (other, one) not in self.cut and other in self.said

    def reached(self):
        """Returns whether clients of most proxies can write."""
        master = self.group.master
        if master is None:
            return False
        able = [one for one in self.proxies if self.reaches(one, master)]
        return 2 * len(able) > len(self.proxies) and not self.is_stalled(master)

    def is_stalled(self, master):
        with_it = sum(self.reaches(id_, master) for id_ in self.said if id_ != master)
        return 1 + with_it < self.group.config.min_in_sync

    def complaint(self, who):
        """Returns the present complaint of one of them."""
        epoch, ms, met = self.silence.get(who, (-1, 0, False))
        group, master = self.group, self.group.master
        if epoch != group.master_epoch:
            epoch, ms, met = group.master_epoch, 0, False
        if master is None or self.reaches(who, master):
            ms, met = 0, master is not None
        else:
            ms += TICK_MS
        self.silence[who] = epoch, ms, met
        if ms < HINT_MS:
            return None
        reaches = tuple(id_ for id_ in sorted(self.said) if id_ not in {who, master} and self.reaches(who, id_))
        return Complaint(group=0, epoch=epoch, silent_ms=ms, met=met, reaches=reaches)

    def tick(self):
        for id_ in list(self.said):
            mine = id_ == self.group.master
            self.said[id_] |= {
                "complaint": None if mine else self.complaint(id_),
                "stalled": mine and self.is_stalled(id_),
            }
            self._speak(id_)
        for proxy in self.proxies:
            found = self.complaint(proxy)
            if self.now % int(REPORT_S * 1000) == 0:
                said = () if found is None else (found,)
                self.registry.complaints.take(Report(proxy=proxy, complaints=said), self.now)
        self._follow()
        super().tick()

    def _follow(self):
        """Lets the master take replicas into the SyncStateSet and drop them from it."""
        master = self.group.master
        if master is None or master not in self.said:
            return
        for id_ in [one for one in self.said if one != master]:
            before = self.in_touch.get(id_, 0)
            near = self.reaches(id_, master)
            self.in_touch[id_] = max(before, 0) + TICK_MS if near else min(before, 0) - TICK_MS
            sync_set = set(self.group.sync_set)
            if id_ not in sync_set and self.in_touch[id_] >= JOIN_MS:
                self.alter(sorted(sync_set | {id_}))
            leaves = id_ in sync_set and self.in_touch[id_] <= -LEAVE_MS
            if leaves and len(sync_set) > self.group.config.min_in_sync:
                with suppress(ReplicaInSync):
                    self.alter(sorted(sync_set - {id_}))
