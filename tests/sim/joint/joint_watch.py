"""Checks a simulated cluster after every event: what must be true of it, and of what its clients are told."""

from bisect import bisect_left
from collections.abc import Iterable

from controller.api.client import GroupConfig
from store.format.frame import LogOffset, origin_of
from store.replication.master import Master
from store.replication.replica_core import ReplicaCore, Stage
from tests.sim.joint.joint_cluster import JointCluster, JointMachine, ReplicaMachine
from tests.sim.joint.joint_log import header_of
from tests.support.histories.linearizability import Operation


class ConfirmedLog:
    """The one log of a group: what was confirmed anywhere."""

    def __init__(self, group: int) -> None:
        self.frames: list[bytes] = []
        self.starts: list[int] = []
        self.origin = self.end = origin_of(group)
        self.operations: dict[tuple[int, int], int] = {}  # (producer, sequence) -> where

    def add(self, at: LogOffset, frame: bytes) -> None:
        header = header_of(frame)
        assert at == self.end
        if header.producer_id:
            operation = (header.producer_id, header.sequence)
            assert operation not in self.operations, f"{operation} is there twice"
            self.operations[operation] = at
        self.starts.append(at)
        self.frames.append(frame)
        self.end = LogOffset(at + len(frame))

    def frame(self, at: int) -> bytes | None:
        index = bisect_left(self.starts, at)
        return self.frames[index] if index < len(self.starts) and self.starts[index] == at else None


class Watch:
    """Looks at a cluster whenever something in it has changed."""

    def __init__(self, raft_checks, config: GroupConfig) -> None:
        self.raft = raft_checks
        self.min_in_sync = config.min_in_sync
        self.quorum = config.acknowledge == "quorum"
        self.may_lose = config.acknowledge == "master"  # acknowledged messages that are not confirmed
        self.cluster: JointCluster | None = None
        self.logs: dict[int, ConfirmedLog] = {}
        self.masters: dict[tuple[int, int], int | None] = {}  # (group, epoch) -> replica, as agreed on
        self.sets: dict[tuple[int, int], tuple[int, ...]] = {}  # (group, epoch of the set) -> the set
        self.served: dict[tuple[int, int], ReplicaMachine] = {}  # (group, epoch) -> who served in it
        self.newest: dict[int, object] = {}  # by group: what was agreed on last
        self.acknowledgements = 0
        self.operations: list[Operation] = []  # on keys
        self._same: dict[ReplicaMachine, LogOffset] = {}  # how far a replica's log is known to be the common one
        self._cuts: dict[ReplicaMachine, int] = {}
        self._said: dict[ReplicaMachine, tuple[object, LogOffset]] = {}  # the confirmed offset by its core
        self._groups: dict[tuple[str, int], object] = {}  # as a controller had them when it was looked at last
        self._digest = 0
        self._machines: dict[str, JointMachine] = {}
        self._shrunk = False  # the log of the replica that was looked at last

    def follow(self, cluster: JointCluster) -> None:
        self.cluster = cluster
        cluster.loop.after_each = self.look
        self._machines = {one.name: one for one in (*cluster.controllers, *cluster.replicas)}
        for replica in cluster.replicas:
            self.logs.setdefault(replica.group, ConfirmedLog(replica.group))
            self._same[replica] = replica.platter.origin
            self._said[replica] = None, replica.platter.origin
            self._cuts[replica] = replica.platter.log.cuts

    def look(self, names: Iterable[str] | None = None) -> None:
        """Checks what holds at any time; of these machines, or all."""
        ends = [log.end for log in self.logs.values()]
        agreed = False
        for name in self._machines if names is None else names:
            machine = self._machines.get(name)
            if isinstance(machine, ReplicaMachine):
                self._replica(machine)
                agreed = agreed or self._shrunk
            elif machine is not None and machine.raft is not None:
                self.raft.look(machine)
                agreed = self._agreed(machine) or agreed
        if agreed or names is None or ends != [log.end for log in self.logs.values()]:
            for number in self.newest:
                self._electable(number)

    # ---- controllers

    def _agreed(self, controller) -> bool:
        """Checks that all agree on a group: one master an epoch, one set for each of its own.

        Returns whether there is anything new.
        """
        news = False
        for number, group in controller.node.state.groups.items():
            if self._groups.get((controller.name, number)) is group:
                continue
            self._groups[controller.name, number] = group
            held = self.masters.setdefault((number, group.master_epoch), group.master)
            assert held == group.master, f"store group {number} has two masters in epoch {group.master_epoch}"
            held = self.sets.setdefault((number, group.sync_epoch), group.sync_set)
            assert held == group.sync_set, f"store group {number} has two sets of epoch {group.sync_epoch}"
            newest = self.newest.get(number)
            if newest is None or _newness(group) > _newness(newest):
                self.newest[number] = group
                news = True
        return news

    # ---- replicas

    def _replica(self, replica: ReplicaMachine) -> None:
        platter, core = replica.platter, replica.core
        log = platter.log
        if replica.node is not None and replica.node.failed.done() and not replica.small_files.may_fail:
            raise AssertionError(f"{replica.name} has failed: {replica.node.failed.result()!r}")
        self._shrunk = self._cuts[replica] != log.cuts
        if self._shrunk:
            self._cuts[replica] = log.cuts
            self._same[replica] = min(self._same[replica], log.end)
        confirmed = platter.said
        if core is not None:
            confirmed = max(confirmed, core.confirmed)
            assert core.confirmed <= log.durable, f"{replica.name} confirms what is not on its disk"
            diverged = isinstance(core, ReplicaCore) and core.stage is Stage.DIVERGED
            assert not diverged, f"{replica.name} is left with a log that nobody else has"
            before, said = self._said[replica]
            assert core is not before or core.confirmed >= said, f"what {replica.name} has confirmed goes back"
            self._said[replica] = core, core.confirmed
        if confirmed > self._same[replica]:
            self._compare(replica, confirmed)
        if replica.serving and isinstance(core, Master):
            held = self.served.setdefault((replica.group, core.epoch), replica)
            assert held is replica, f"two masters serve store group {replica.group} in epoch {core.epoch}"
            named = self.masters.get((replica.group, core.epoch), core.replica)
            assert named == core.replica, f"{replica.name} serves in epoch {core.epoch}, for which {named} was elected"

    def _compare(self, replica: ReplicaMachine, until: LogOffset) -> None:
        """Checks that a replica's log is the common one, and makes the common log longer where it ends."""
        common = self.logs[replica.group]
        at = max(self._same[replica], replica.platter.log.first)
        for frame in replica.platter.log.between(at, until):
            if at < common.end:
                assert common.frame(at) == frame, f"{replica.name} differs at {at - common.origin}"
            else:
                common.add(at, frame)
            at = LogOffset(at + len(frame))
        assert at >= until, f"{replica.name} does not have what it says is confirmed"
        self._same[replica] = at

    def _has_all(self, replica: ReplicaMachine) -> bool:
        """Returns whether a replica has on its disk all that was confirmed anywhere."""
        common = self.logs[replica.group]
        if replica.platter.log.durable < common.end:
            return False
        at = max(self._same[replica], replica.platter.log.first)
        if at < common.end:
            for frame in replica.platter.log.between(at, common.end):
                if common.frame(at) != frame:
                    return False
                at = LogOffset(at + len(frame))
            self._same[replica] = at
        return at >= common.end

    def _electable(self, number: int) -> None:
        """Checks that every replica that may be elected has all that was confirmed."""
        members = self.newest[number].sync_set
        short = [id_ for id_ in members if self.cluster.replica_of[number, id_].platter.surface.is_short]
        if short and not self.quorum:  # they are not electable until they have their end again
            members = [id_ for id_ in members if id_ not in short]
            assert members, f"nobody of store group {number} can be elected"
        having = sum(self._has_all(self.cluster.replica_of[number, id_]) for id_ in members)
        if self.quorum:
            enough = len(members) - (len(members) // 2 + 1) + 1 - len(short) if members else 0
            assert having >= enough, f"{having} of {members} in store group {number} have what was confirmed"
        else:
            assert having == len(members), f"{having} of {members} in store group {number} have what was confirmed"

    # ---- what clients are told

    def acknowledged(self, group: int, producer: int, sequence: int, start: int, end: int) -> None:
        """Checks that an acknowledged frame is there as it was sent, can be read, and is on as many disks as was
        asked for; notes that it has to stay.

        A master that acknowledges alone promises nothing of that.
        """
        log = self.logs[group]
        self.look()
        if self.may_lose:
            self.acknowledgements += 1
            return
        assert end <= log.end, "acknowledged and not confirmed"
        header = header_of(log.frame(start))
        assert (header.producer_id, header.sequence) == (producer, sequence), (
            "acknowledged, and something else is there"
        )
        replicas = [one for one in self.cluster.voters if one.group == group]
        having = sum(one.platter.log.has(start, end) for one in replicas)
        assert having >= self.min_in_sync, f"acknowledged and on {having} disks"
        for one in replicas:
            if isinstance(one.core, Master) and one.core.epoch >= header.epoch:
                there = one.platter.log
                assert start < there.first or start in there.starts, "a stale master has acknowledged"
        self.acknowledgements += 1
        self._digest = hash((self._digest, group, producer, sequence, start, self.cluster.loop.steps))

    def read(self, group: int, at: int, frames, following: int) -> None:
        """Checks that a reader has got the common log from there on, without a gap."""
        self.look()
        log = self.logs[group]
        first = max(one.platter.log.first for one in self.cluster.replicas if one.group == group)
        for frame in frames:
            assert frame.start == at or at < frame.start <= first, (
                f"a reader of store group {group} has missed something"
            )
            assert log.frame(frame.start) == frame.data, f"a reader of store group {group} has got what is not there"
            at = frame.end
        assert at == following or not frames

    @property
    def digest(self) -> int:
        """The same whenever the same has happened."""
        return self._digest


def _newness(group) -> tuple[int, int]:
    return group.master_epoch, group.sync_epoch
