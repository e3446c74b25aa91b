"""Liveness and mastership of replicas, from heartbeats: the part of a controller that is not agreed upon.

Every store node tells every controller about each of its replicas, every `HEARTBEAT_MS` and at once when it has
connected or anything in it about epochs and roles has changed. So each controller answers where the masters are, with a
majority of controllers or without; and whichever of them leads knows the replicas that it could elect. Nothing here is
on disk.

**How long until a silent replica is dead.** A failover is: noticing, an entry in the controllers' log (one sync on a
majority), telling the replicas, and opening the store in its new role; all but the noticing well under half a second. A
process killed between two heartbeats is silent for 0 to 1 s already, so with `DEAD_AFTER_MS` of 2 s noticing takes 1 to
2 s, and a failover 2 s in the median and 2.5 s at worst; a heartbeat may be up to 1 s late. Where the connection ends
with the process, as it does when the machine goes on, `SUSPECT_MS` of silence is enough: a node that lives connects
again sooner, and speaks at once. Longer times would be kinder to pauses: to elect because a master only slept loses
nothing, but interrupts its group.
"""

from collections.abc import Sequence

import msgspec

from controller.api.client import ControllerError, Group
from controller.complaints.messages import Complaint, Trouble
from controller.complaints.policy import Complaints

HEARTBEAT_MS = 1000
DEAD_AFTER_MS = 2000
SUSPECT_MS = 500
OVERDUE_MS = 1_300  # after the heartbeat before
TICK_MS = 100
PAUSE_MS = 1000  # between two ticks: this process was not listening. With a heartbeat's interval it is `DEAD_AFTER_MS`
FORGET_MS = 600_000  # silent for so long: may make room for others
HEARTBEATS_MAX = 65_536
TEXT_BYTES_MAX = 255  # of a node's name, an address, a zone, a version


class RegistryFull(ControllerError):
    """More replicas send heartbeats than the registry holds."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's report of itself.

    `master_epoch` is the newest epoch it knows of, kept on its disk before it says so: from then on it takes nothing
    from masters of older ones. `master`: it is the master of that epoch, and serves as such. `log_end` is where its log
    ends on its disk, and `log_epoch` the newest epoch that begins there or before: as if every epoch began with a frame
    of no length. `confirmed` is how far readers may go, `free_bytes` what its disk has left. `incarnation` is another
    number after every start of its process: a master elected before has nothing of the role left. `failed`: its disk or
    its engine is, so it counts as dead. `stalled`: the master takes no writes now, or cannot confirm them. `full`: its
    disk has no room but for what is kept in reserve; `low`: it has little more. `damaged`: its log has damage that
    another replica may still repair, so it is elected only where no other replica can be; `cut_short`: some of that is
    the end of its log, which it has acknowledged once, so it is not elected at all. `damages` are the ranges, of
    `damaged_bytes` in all, not yet repaired; `lost_bytes` of them no replica has; `repairing_from` is the replica that
    is asked now, 0 for none. `complaint`: this replica cannot reach its master. `slow`: the disk of this replica takes
    far longer to sync than it should. `expired`: its certificate has, and others refuse it, so it is elected only where
    no other replica can be.
    """

    group: int
    replica: int
    node: str
    address: str
    zone: str = ""
    priority: int = 0
    master: bool = False
    master_epoch: int = 0
    log_epoch: int = 0
    log_end: int = 0
    confirmed: int = 0
    free_bytes: int = 0
    version: str = ""
    incarnation: int = 0
    failed: bool = False
    stalled: bool = False
    full: bool = False
    damaged: bool = False
    cut_short: bool = False
    damages: int = 0
    damaged_bytes: int = 0
    lost_bytes: int = 0
    repairing_from: int = 0
    complaint: Complaint | None = None
    slow: bool = False
    low: bool = False
    expired: bool = False


class RouteReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as a proxy needs it. `confirmed`, where its log ends and its damage are as of its last heartbeat.

    That was `silent_ms` ago; -1: this controller has never heard one.
    """

    id: int
    node: str
    address: str
    zone: str
    alive: bool
    in_sync: bool
    learner: bool
    confirmed: int
    damages: int = 0
    damaged_bytes: int = 0
    lost_bytes: int = 0
    repairing_from: int = 0
    log_epoch: int = 0
    log_end: int = 0
    silent_ms: int = -1
    full: bool = False
    stalled: bool = False
    cut_short: bool = False  # its log has lost its end
    low: bool = False  # its disk has little room
    expired: bool = False  # its certificate has
    promised: int = -1  # the newest epoch that it has kept on its disk; -1: unknown


class GroupRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A group's master of the newest epoch that any replica has reported, and all its replicas, by id.

    `master` None: there is none in that epoch, as far as is known here. `trouble`: the complaints about the master.
    """

    group: int
    master: int | None
    master_epoch: int
    replicas: tuple[RouteReplica, ...]
    trouble: Trouble | None = None

    @property
    def refuses(self) -> bool:
        """Returns whether the master has said that it takes no writes, which may be over any moment."""
        return any(one.stalled or one.full for one in self.replicas if one.id == self.master)


class _LastHeartbeat:
    """The newest heartbeat of a replica."""

    __slots__ = ("at_ms", "cut_ms", "heartbeat", "restarted_ms", "served")

    def __init__(self, heartbeat: Heartbeat, now_ms: int) -> None:
        self.heartbeat = heartbeat
        self.at_ms = now_ms
        self.restarted_ms: int | None = None  # when it spoke first after its process was started again
        self.cut_ms: int | None = None  # when its connection ended, if it has sent nothing since
        self.served = 0  # the newest epoch in which it has said that it serves as master


class Registry:
    """The newest heartbeat of every replica. `now_ms` is of a clock that never goes back, the same one everywhere.

    `since_ms` is when listening began: a replica without a heartbeat since then is dead no sooner than one whose last
    heartbeat came at that time.
    """

    def __init__(self, now_ms: int, *, dead_after_ms: int = DEAD_AFTER_MS, suspect_ms: int = SUSPECT_MS) -> None:
        self.since_ms = now_ms
        self.dead_after_ms = dead_after_ms
        self._suspect_ms = suspect_ms
        self.ticked_ms = now_ms  # when `tick` was called last
        self._heartbeats: dict[tuple[int, int], _LastHeartbeat] = {}  # (group, replica), the longest silent first
        self._groups: dict[int, dict[int, _LastHeartbeat]] = {}  # the same by group
        self.complaints = Complaints(now_ms)

    # ---- heartbeats

    def heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> bool:
        """Takes a heartbeat; returns whether it brings anything new: of epochs, roles, addresses, damage, complaints.

        One that knows an older epoch than its replica has known before was late: a sign of life, and nothing else.
        Raises `RegistryFull`, `ControllerError`: no replica of ours would say that.
        """
        _check(heartbeat)
        key = (heartbeat.group, heartbeat.replica)
        last = self._heartbeats.pop(key, None)
        if last is None:
            self._make_room(now_ms)
            last, news = _LastHeartbeat(heartbeat, now_ms), True
            self._groups.setdefault(heartbeat.group, {})[heartbeat.replica] = last
        else:
            before, late = last.heartbeat, heartbeat.master_epoch < last.heartbeat.master_epoch
            news = not late and _news(heartbeat) != _news(before)
            if not late and heartbeat.incarnation != before.incarnation:
                last.restarted_ms = now_ms
            if not late:
                last.heartbeat = heartbeat
            last.at_ms, last.cut_ms = now_ms, None
        if last.heartbeat.master:
            last.served = last.heartbeat.master_epoch
        self._heartbeats[key] = last
        return news

    def disconnected(self, group: int, replica: int, now_ms: int) -> None:
        """Notes that a replica's connection has ended: unless it sends a heartbeat soon, it is dead."""
        last = self._heartbeats.get((group, replica))
        if last is not None and last.cut_ms is None:
            last.cut_ms = now_ms

    def tick(self, now_ms: int) -> bool:
        """Advances time, every `TICK_MS`, leading or not; returns whether this process has slept since the last call.

        Replicas that seemed silent meanwhile may not have been, so each has the whole time for its next heartbeat.
        """
        slept = now_ms - self.ticked_ms >= PAUSE_MS
        self.ticked_ms = now_ms
        if slept:
            self.since_ms = now_ms
            for last in self._heartbeats.values():
                last.cut_ms = None
        return slept

    def forget(self, group: int, replica: int) -> None:
        """Forgets a replica that is no more."""
        if self._heartbeats.pop((group, replica), None) is not None:
            del self._groups[group][replica]
            if not self._groups[group]:
                del self._groups[group]

    # ---- conclusions

    def last(self, group: int, replica: int) -> Heartbeat | None:
        """Returns the newest heartbeat of a replica, dead or alive."""
        last = self._heartbeats.get((group, replica))
        return None if last is None else last.heartbeat

    def heartbeat_if_alive(self, group: int, replica: int, now_ms: int) -> Heartbeat | None:
        """Returns the newest heartbeat of a replica that is alive."""
        last = self._heartbeats.get((group, replica))
        return last.heartbeat if last is not None and self.alive(group, replica, now_ms) else None

    def spoke(self, group: int, replica: int, now_ms: int) -> Heartbeat | None:
        """Returns the newest heartbeat of a replica that is alive, unless this process only slept since it came.

        A replica's earlier heartbeats may be out of date: by them no replica is taken for dead, and none is elected.
        """
        last = self._heartbeats.get((group, replica))
        if last is None or now_ms >= last.at_ms + self.dead_after_ms:
            return None
        return self.heartbeat_if_alive(group, replica, now_ms)

    def alive(self, group: int, replica: int, now_ms: int) -> bool:
        """Returns whether a replica's heartbeat came in time, or its time is not over yet."""
        return now_ms < self.dies_ms(group, replica)

    def dies_ms(self, group: int, replica: int) -> int:
        """Returns when a replica is dead, or has been since, if no more heartbeats come."""
        last = self._heartbeats.get((group, replica))
        if last is None:
            return self.since_ms + self.dead_after_ms
        if last.heartbeat.failed:
            return last.at_ms
        dies = max(last.at_ms, self.since_ms) + self.dead_after_ms
        return dies if last.cut_ms is None else min(dies, last.cut_ms + self._suspect_ms)

    def served(self, group: int, replica: int) -> int:
        """Returns the newest epoch in which a replica has said that it serves as master; 0: never."""
        last = self._heartbeats.get((group, replica))
        return 0 if last is None else last.served

    def is_punctual(self, group: int, replica: int, now_ms: int) -> bool:
        """Returns whether a replica's heartbeat is not overdue, its connection stands, and it has nothing to tell."""
        last = self._heartbeats.get((group, replica))
        if last is None or last.cut_ms is not None or now_ms - last.at_ms > OVERDUE_MS:
            return False
        said = last.heartbeat
        return said.complaint is None and not (said.slow or said.stalled or said.full or said.failed or said.damaged)

    def restarted(self, group: int, replica: int, since_ms: int) -> bool:
        """Returns whether a replica's process has been started again since then, as far as was heard here."""
        last = self._heartbeats.get((group, replica))
        return last is not None and last.restarted_ms is not None and last.restarted_ms > since_ms

    def groups(self) -> Sequence[int]:
        """Returns the groups with at least one replica that has sent a heartbeat, by number."""
        return sorted(self._groups)

    def route(self, group: int, known: Group | None, now_ms: int) -> GroupRoute | None:
        """Returns where a group is served; None when neither the metadata nor any heartbeat knows of it.

        `known` is the metadata as this controller has it, which without a majority may be old. The newest epoch counts,
        wherever it is said, and a master of an older one never does.
        """
        reporting = self._groups.get(group, {})
        if known is None and not reporting:
            return None
        master, epoch = (known.master, known.master_epoch) if known is not None else (None, 0)
        newest = max((one.heartbeat.master_epoch for one in reporting.values()), default=0)
        if newest > epoch:
            epoch = newest
            master = min(
                (id_ for id_, one in reporting.items() if one.heartbeat.master and one.served == newest), default=None
            )
        registered = {one.id for one in known.replicas} if known is not None else set()
        ids = sorted(registered | {id_ for id_ in reporting if self.alive(group, id_, now_ms)})
        replicas = tuple(self._replica(group, id_, known, now_ms) for id_ in ids)
        trouble = None
        if known is not None and known.master_epoch == epoch:
            trouble = self.complaints.trouble(known, self.voters(known, now_ms), now_ms)
        return GroupRoute(group=group, master=master, master_epoch=epoch, replicas=replicas, trouble=trouble)

    def voters(self, group: Group, now_ms: int) -> dict[int, Heartbeat]:
        """Returns the newest heartbeats of a group's voters that are alive, by id."""
        heartbeats = {id_: self.heartbeat_if_alive(group.number, id_, now_ms) for id_ in group.voters}
        return {id_: one for id_, one in heartbeats.items() if one is not None}

    def _replica(self, group: int, id_: int, known: Group | None, now_ms: int) -> RouteReplica:
        registered = known.replica(id_) if known is not None else None
        heartbeat = self.last(group, id_)
        one = heartbeat or registered
        assert one is not None
        return RouteReplica(
            id=id_,
            node=one.node,
            address=one.address,
            zone=one.zone,
            alive=heartbeat is not None and self.alive(group, id_, now_ms),
            in_sync=known is not None and id_ in known.sync_set,
            learner=registered is not None and registered.learner,
            confirmed=heartbeat.confirmed if heartbeat is not None else 0,
            full=heartbeat is not None and heartbeat.full,
            low=heartbeat is not None and heartbeat.low,
            expired=heartbeat is not None and heartbeat.expired,
            stalled=heartbeat is not None and heartbeat.stalled,
            cut_short=heartbeat is not None and heartbeat.cut_short,
            damages=heartbeat.damages if heartbeat is not None else 0,
            damaged_bytes=heartbeat.damaged_bytes if heartbeat is not None else 0,
            lost_bytes=heartbeat.lost_bytes if heartbeat is not None else 0,
            repairing_from=heartbeat.repairing_from if heartbeat is not None else 0,
            log_epoch=heartbeat.log_epoch if heartbeat is not None else 0,
            log_end=heartbeat.log_end if heartbeat is not None else 0,
            silent_ms=now_ms - self._heartbeats[group, id_].at_ms if heartbeat is not None else -1,
            promised=heartbeat.master_epoch if heartbeat is not None else -1,
        )

    def _make_room(self, now_ms: int) -> None:
        if len(self._heartbeats) < HEARTBEATS_MAX:
            return
        (group, replica), silent = next(iter(self._heartbeats.items()))
        if now_ms - silent.at_ms < FORGET_MS:
            raise RegistryFull(f"the registry holds its limit of {len(self._heartbeats)} replicas")
        self.forget(group, replica)


def _news(heartbeat: Heartbeat) -> tuple[object, ...]:
    role = heartbeat.master, heartbeat.master_epoch, heartbeat.address, heartbeat.incarnation, heartbeat.failed
    trouble = heartbeat.damaged, heartbeat.cut_short, heartbeat.complaint is None, heartbeat.slow, heartbeat.expired
    return *role, *trouble


def _check(heartbeat: Heartbeat) -> None:
    for text in (heartbeat.node, heartbeat.address, heartbeat.zone, heartbeat.version):
        if len(text) > TEXT_BYTES_MAX:
            raise ControllerError(f"a heartbeat with {len(text)} characters where {TEXT_BYTES_MAX} are enough")
    damage = heartbeat.damages, heartbeat.damaged_bytes, heartbeat.lost_bytes, heartbeat.repairing_from
    if (
        min(
            heartbeat.group,
            heartbeat.replica - 1,
            heartbeat.master_epoch,
            heartbeat.log_epoch,
            heartbeat.log_end,
            heartbeat.confirmed,
            *damage,
        )
        < 0
    ):
        raise ControllerError("a heartbeat has numbers out of range")
