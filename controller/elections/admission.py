"""Refusals by the heartbeats that the controllers' leader has: the metadata alone would allow the change."""

from collections.abc import Mapping

from controller.api.client import Group, NotElectable, ReplicaElsewhere, ReplicaInSync
from controller.api.commands import AlterSyncSet, RegisterReplica
from controller.elections.registry import Registry


class ReplicaAdmission:
    """Over `groups`, which is the live metadata, and `registry`."""

    def __init__(self, groups: Mapping[int, Group], registry: Registry) -> None:
        self._groups = groups
        self._registry = registry

    def check_alteration(self, command: AlterSyncSet, now_ms: int) -> None:
        """Refuses unsafe changes that the metadata alone would allow. Raises `NotElectable`, `ReplicaInSync`.

        A dead replica is not taken into a SyncStateSet, and none that lives leaves it for a master that may be cut off.
        """
        there = self._groups.get(command.group)
        removed = set() if there is None else set(there.sync_set).difference(command.new_set)
        complaints = self._registry.complaints
        if there is not None and complaints.keeps(there, removed, self._registry.voters(there, now_ms)):
            why = f"{sorted(removed)} are alive, and most of the replicas do not reach the master"
            raise ReplicaInSync(f"store group {command.group}: {why}")
        for id_ in command.new_set:
            if (
                there is not None
                and id_ not in there.sync_set
                and self._registry.heartbeat_if_alive(command.group, id_, now_ms) is None
            ):
                raise NotElectable(f"replica {id_} of store group {command.group} sends no heartbeats")

    def check_registration(self, command: RegisterReplica, now_ms: int) -> None:
        """Refuses a replica at a second address while it is alive at the first. Raises `ReplicaElsewhere`.

        One that was moved is silent where it was, and may be here as soon as it is dead there.
        """
        there, wanted = self._groups.get(command.group), command.replica
        known = there.replica(wanted.id) if there is not None else None
        heartbeat = self._registry.heartbeat_if_alive(command.group, wanted.id, now_ms)
        if known is None or known.check != wanted.check or heartbeat is None or heartbeat.address == wanted.address:
            return
        raise ReplicaElsewhere(
            f"replica {wanted.id} of store group {command.group} is alive at {heartbeat.address}, so it cannot be at "
            f"{wanted.address} too: one of both has a copy of the other's data directory"
        )
