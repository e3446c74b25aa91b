"""The fitness of a candidate, and the unclean election that an operator asks for.

An unclean election is for a group without an electable replica in sync: all of its SyncStateSet are dead, or have lost
the end of their logs (docs/decisions/0031). Frames that the new master lacks are lost.
"""

from collections.abc import Mapping

from controller.api.client import Group, NotElectable, UnknownReplica
from controller.api.names import listed
from controller.elections.registry import Heartbeat


def candidates(
    group: Group,
    alive: Mapping[int, Heartbeat],
    *,
    wanted: int | None,
    serving: bool,
) -> dict[int, Heartbeat]:
    """Returns the candidates, of which the best is elected: the replicas that are alive, or the one that is `wanted`.

    `alive` are the voters that are alive. `serving`: the group's master is one of them and takes writes, so it can go
    on, whatever it has lost. Raises `UnknownReplica`, `NotElectable`.
    """
    if not group.sync_set:
        raise NotElectable(f"store group {group.number} had no master yet: it needs no unclean election")
    clean = [
        id_
        for id_ in group.sync_set
        if id_ in alive and (not alive[id_].cut_short or (serving and id_ == group.master))
    ]
    if clean:
        raise NotElectable(
            f"store group {group.number}: nothing needs to be lost, as replicas in sync are alive ({listed(clean)}); "
            "elect one of them without --unclean"
        )
    if wanted is not None and group.replica(wanted) is None:
        raise UnknownReplica(f"store group {group.number} has no replica {wanted}")
    found = {id_: heartbeat for id_, heartbeat in alive.items() if wanted in {None, id_}}
    if not found:
        if wanted is None:
            raise NotElectable(f"store group {group.number}: no voter sends heartbeats, so no replica can be elected")
        if wanted not in group.voters:
            raise NotElectable(f"store group {group.number}: replica {wanted} is a learner, so it cannot be elected")
        raise NotElectable(f"store group {group.number}: replica {wanted} sends no heartbeats, so it cannot be elected")
    return found


def check_fit(group: Group, heartbeat: Heartbeat, alive: Mapping[int, Heartbeat]) -> None:
    """Raises `NotElectable` for a replica that others do not reach, or that is damaged while a sound one is alive.

    `heartbeat` is the replica's; `alive` are those of the SyncStateSet that are alive.
    """
    replica = f"replica {heartbeat.replica} of store group {group.number}"
    if heartbeat.expired:
        raise NotElectable(f"the certificate of {replica} has expired: others would not reach it")
    if not group.sync_set or not heartbeat.damaged:
        return
    if heartbeat.cut_short and not group.config.unclean_election:
        raise NotElectable(
            f"the log of {replica} has lost its end, which was acknowledged; it is filled again from a master. If no "
            "replica in sync has its end, headgate cluster elect --unclean accepts the loss"
        )
    sound = [id_ for id_, one in sorted(alive.items()) if not one.damaged]
    if sound:
        raise NotElectable(
            f"the log of {replica} is damaged in {heartbeat.damages} ranges, {heartbeat.damaged_bytes} bytes, which "
            f"are being repaired; sound are {sound}"
        )


def not_electable(group: Group, alive: Mapping[int, Heartbeat]) -> str:
    """Returns the reason why no replica of a group can be elected; `alive` are those of its set that are alive."""
    short = [id_ for id_, heartbeat in sorted(alive.items()) if heartbeat.cut_short]
    voters = listed(group.sync_set or group.voters)
    if not short:
        kind = "replicas in sync" if group.sync_set else "replicas"
        said = f"store group {group.number}: too few of its {kind}, {voters}, are alive: {listed(sorted(alive))}"
        if alive or not group.sync_set:
            return said
        return f"{said}; --unclean elects another one, without the writes that only they had"
    silent = [id_ for id_ in group.sync_set if id_ not in alive]
    gone = f", and no heartbeats come from {listed(silent)}" if silent else ""
    return (
        f"store group {group.number}: of its replicas in sync, {voters}, these have lost the end of their logs: "
        f"{listed(short)}{gone}; if no replica brings it back, headgate cluster elect {group.number} --unclean accepts "
        "the loss"
    )
