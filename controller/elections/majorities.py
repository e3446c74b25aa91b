"""The replicas that have to be heard before one is elected: for a group's first master, and by quorum."""

from collections.abc import Collection, Mapping
from typing import Final

from controller.api.client import Group
from controller.elections.registry import Heartbeat
from controller.metadata.groups import majority

FIRST_WAIT_MS: Final = 10_000  # of a new group for the rest of its replicas, when it has a majority


def are_enough_at_first(group: Group, alive: Mapping[int, Heartbeat], waited_ms: int) -> bool:
    """Returns whether the first master of a group may be elected among its voters that are alive.

    A group with an epoch has had masters: its controllers were recovered, and do not know the set. The former master
    may acknowledge until a replica that it needs has promised the new epoch, so only then are the logs final.
    """
    everyone = len(alive) == len(group.voters)
    enough = len(alive) >= group.config.replicas
    if not enough and waited_ms >= FIRST_WAIT_MS:
        enough = len(alive) >= majority(group.config.replicas) and everyone
    if not group.master_epoch:
        return enough
    promised = all(heartbeat.master_epoch >= group.master_epoch for heartbeat in alive.values())
    return enough and everyone and promised


def those_promised(
    group: Group, alive: Mapping[int, Heartbeat], avoided: Collection[int], whole_min: int
) -> dict[int, Heartbeat]:
    """Returns the heartbeats of those that know of the newest epoch, without the `avoided` where others are enough.

    `whole_min` of them have to have the end of their logs.
    """
    rest = [id_ for id_, heartbeat in alive.items() if id_ not in avoided and not heartbeat.cut_short]
    left_out = avoided if len(rest) >= max(majority(len(group.sync_set)), whole_min) else ()
    return {
        id_: heartbeat
        for id_, heartbeat in alive.items()
        if heartbeat.master_epoch >= group.master_epoch and id_ not in left_out
    }
