"""The health of a store group: whether it stores what is published to it, and the faults that it has now."""

from collections.abc import Sequence
from typing import NamedTuple

from controller.api.client import Group, Replica
from controller.api.names import listed
from controller.elections.registry import GroupRoute, RouteReplica
from controller.metadata.groups import majority


class GroupHealth(NamedTuple):
    """One group. `refusals`: why it takes nothing. `damages` are the damaged ranges of all its replicas' logs.

    `in_sync` counts the replicas of which `warnings` do not say that they are silent or out of the SyncStateSet.
    `low`: the disk of its master has little room.
    """

    number: int
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    in_sync: int = 0
    damages: int = 0
    low: bool = False

    @property
    def writable(self) -> bool:
        """Returns whether published messages are stored."""
        return not self.refusals


class ClusterHealth(NamedTuple):
    """All groups, as a proxy answers for them. `reasons`: why it cannot serve."""

    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def cluster_health(groups: Sequence[GroupHealth], *, home: int) -> ClusterHealth:
    """Returns a proxy's answer for all groups.

    It serves while sessions and keys, which are in the home group, and any group take writes.
    """
    refusals = tuple(refusal for group in groups for refusal in group.refusals)
    warnings = tuple(warning for group in groups for warning in group.warnings)
    refused = {group.number for group in groups if not group.writable}
    if home in refused or (groups and len(refused) == len(groups)):
        return ClusterHealth(refusals, warnings)
    return ClusterHealth((), (*refusals, *warnings))


def group_health(group: Group, route: GroupRoute | None, *, reached: bool = True, refused: str = "") -> GroupHealth:
    """Returns a group's health: from the metadata, from heartbeats (`route`), and from the proxies that write to it.

    `reached`: a connection to its master stands. `refused`: what the master answered to the newest writes.
    """
    replicas = {} if route is None else {one.id: one for one in route.replicas}
    name = f"store group {group.number}"
    return GroupHealth(
        number=group.number,
        refusals=tuple(f"{name}: {why}" for why in _refusals(group, replicas, reached=reached, refused=refused)),
        warnings=tuple(f"{name}: {what}" for what in _warnings(group, route, replicas)),
        in_sync=sum(_is_in_sync(group, replica, replicas.get(replica.id)) for replica in group.replicas),
        damages=sum(one.damages for one in replicas.values()),
        low=group.master is not None and (master := replicas.get(group.master)) is not None and master.low,
    )


def _refusals(group: Group, replicas: dict[int, RouteReplica], *, reached: bool, refused: str) -> Sequence[str]:
    """Returns why a write would not be stored now: the first reason that holds, as it explains the others."""
    if group.master is None:
        return [_no_master(group, replicas)]
    master = group.replica(group.master)
    where = f"replica {group.master}" + ("" if master is None else f" at {master.address}")
    if not reached:
        return [f"its master, {where}, is not reached"]
    least = 1 if group.config.acknowledge == "master" else group.config.min_in_sync
    if len(group.sync_set) < least:
        return [f"writes are refused: {len(group.sync_set)} of its replicas are in sync, and min_in_sync is {least}"]
    state = replicas.get(group.master)
    if state is not None and state.full:
        return [f"writes are refused: the disk of its master, {where}, is full (store.disk_reserve_bytes)"]
    if refused:
        return [f"writes are refused by its master, {where}: {refused}"]
    if state is not None and state.stalled:
        return [f"its master, {where}, takes no writes for now"]
    return []


def _no_master(group: Group, replicas: dict[int, RouteReplica]) -> str:
    """Returns how many replicas of a group without a master are alive, and what it waits for or needs."""
    alive = {id_ for id_, one in replicas.items() if one.alive}
    said = f"it has no master; {len(alive)} of {len(group.replicas)} replicas are alive"
    elect = f"headgate cluster elect {group.number}"
    if group.sync_set:
        if not alive or alive.intersection(group.sync_set) or group.config.unclean_election:
            return said + (_unpromised(group, replicas) if group.config.acknowledge == "quorum" else "")
        return (
            f"{said}; it waits for one that was in sync ({listed(group.sync_set)}): if none comes back, {elect} "
            "--unclean elects another one, without the writes that only they had"
        )
    silent = [id_ for id_ in group.voters if id_ not in alive]
    if silent and alive:
        return (
            f"{said}; it waits for all ({listed(silent)}): headgate cluster replicas forget {group.number} REPLICA "
            "takes out one that is gone for good"
        )
    if alive and len(group.voters) < majority(group.config.replicas):
        return (
            f"{said}, of {group.config.replicas} that it is meant to have: it waits for more, or for {elect}, which "
            "elects one of these"
        )
    return said + _unpromised(group, replicas)


def _unpromised(group: Group, replicas: dict[int, RouteReplica]) -> str:
    """Returns the replicas that have to keep the newest epoch before a master is elected, in words; "" without any."""
    asked = [replicas[id_] for id_ in group.sync_set or group.voters if id_ in replicas]
    late = [one for one in asked if one.alive and 0 <= one.promised < group.master_epoch]
    alive = sum(one.alive for one in asked)
    enough = majority(len(group.sync_set)) if group.sync_set else len(group.voters)
    if not alive - len(late) < enough <= alive:  # they are enough, or others are missing
        return ""
    full = [one.id for one in late if one.full]
    why = f"; the disk is full at {listed(full)} (store.disk_reserve_bytes)" if full else ""
    return f"; it waits until epoch {group.master_epoch} is on the disk of {listed([one.id for one in late])}{why}"


def _warnings(group: Group, route: GroupRoute | None, replicas: dict[int, RouteReplica]) -> Sequence[str]:
    """Returns the problems that refuse no writes: of replicas, of their number, and of a master that stays."""
    found = []
    for replica in group.replicas:
        state = replicas.get(replica.id)
        found += [f"replica {replica.id} ({replica.node}) {what}" for what in _of_replica(group, replica, state)]
    missing = group.config.replicas - sum(not one.learner for one in group.replicas)
    if missing > 0:
        count = group.config.replicas
        found.append(f"it has {count - missing} of the {count} replicas that it is meant to have")
    if route is not None and route.trouble is not None and route.trouble.stays:
        found.append(f"its master stays though others do not reach it: {route.trouble.stays}")
    return found


def _is_silent(state: RouteReplica | None) -> bool:
    return state is not None and not state.alive


def _is_in_sync(group: Group, replica: Replica, state: RouteReplica | None) -> bool:
    """Returns whether a replica is in the SyncStateSet and not known to be silent.

    A master does not take silent ones out of its set where fewer than `min_in_sync` would be left.
    """
    return replica.id in group.sync_set and not _is_silent(state)


def _of_replica(group: Group, replica: Replica, state: RouteReplica | None) -> Sequence[str]:
    found = []
    if _is_silent(state):
        master = ", and it is the master: writes may be refused" if replica.id == group.master else ""
        found.append(f"sends no heartbeats{master}")
    elif group.master is not None and not replica.learner and not _is_in_sync(group, replica, state):
        found.append("is not in sync: it does not count for acknowledgements")
    if state is not None and state.full and replica.id != group.master:
        found.append("has a full disk")
    if state is not None and state.expired:
        found.append("has a certificate that has expired: others cannot connect to it")
    if state is not None and state.damages:
        lost = f", {state.lost_bytes} bytes of them on no replica" if state.lost_bytes else ""
        found.append(f"has {state.damages} damaged ranges of its log, {state.damaged_bytes} bytes{lost}")
    return found
