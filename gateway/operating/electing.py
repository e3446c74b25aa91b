"""Elections that an operator asks for: another master, or why not; and the possible loss of an unclean one."""

from typing import NamedTuple

from controller.api.client import Group, UnknownGroup
from controller.api.requests import Elect
from controller.elections.registry import GroupRoute, RouteReplica
from controller.remote.remote import RemoteController


class Risk(NamedTuple):
    """A group that may have no replica in sync left; the known state of each replica's log, and which one has most."""

    group: Group
    lines: tuple[str, ...]


async def elect(controller: RemoteController, number: int, replica: int | None) -> Group:
    """Elects this replica, or the best one that is not master now; returns the group then.

    The request names the known epoch, so that a lost answer does not elect twice. Raises `ControllerError`.
    """
    there = await _known(controller, number)
    return await controller.do(Elect(group=number, candidate=replica, master_epoch=there.master_epoch))


async def at_risk(controller: RemoteController, number: int) -> Risk:
    """Looks at the logs of a group's replicas, as the controllers heard them last. Raises `ControllerError`."""
    there = await _known(controller, number)
    routes = {route.group: route for route in await controller.routes(number)}
    route = routes.get(number)
    return Risk(there, (*_lines(there, route), *_advice(there, route)))


async def elect_unclean(controller: RemoteController, risk: Risk, replica: int | None) -> Group:
    """Elects a replica outside the set, at the epoch that was looked at. Raises `ControllerError`."""
    return await controller.do(
        Elect(group=risk.group.number, candidate=replica, master_epoch=risk.group.master_epoch, unclean=True)
    )


async def _known(controller: RemoteController, number: int) -> Group:
    await controller.barrier()
    there = controller.group(number)
    if there is None:
        raise UnknownGroup(f"there is no store group {number}")
    return there


def _lines(group: Group, route: GroupRoute | None) -> list[str]:
    replicas = {} if route is None else {one.id: one for one in route.replicas}
    ends = [
        (one.log_epoch, one.log_end) for one in replicas.values() if one.silent_ms >= 0 and one.id in group.sync_set
    ]
    furthest = max(ends, default=None)
    return [_line(group, id_, replicas.get(id_), furthest) for id_ in group.voters]


def _advice(group: Group, route: GroupRoute | None) -> list[str]:
    """Names the replica that loses least: the newest epoch in its log decides, then the log's length."""
    alive = [one for one in route.replicas if one.alive and one.id in group.voters] if route is not None else []
    best = max(alive, key=lambda one: (one.log_epoch, one.log_end), default=None)
    return (
        [] if best is None else [f"of those that are alive, replica {best.id} has the longest log of the newest epoch"]
    )


def _line(group: Group, id_: int, said: RouteReplica | None, furthest: tuple[int, int] | None) -> str:
    in_sync = id_ in group.sync_set
    where = "in sync" if in_sync else "not in sync"
    if said is None or said.silent_ms < 0:
        return f"replica {id_}: {where}, no heartbeat since the controllers were started; its log is not known"
    alive = "alive" if said.alive else f"no heartbeat for {said.silent_ms / 1000:.0f} s"
    line = f"replica {id_}: {where}, {alive}, its log ended at {said.log_end} in epoch {said.log_epoch}"
    if in_sync:
        if not said.cut_short:
            return line
        return f"{line}, and it has lost its end: {said.damaged_bytes} bytes are damaged or missing"
    if furthest is None:
        return f"{line}; how much it lacks is not known"
    if said.log_epoch != furthest[0]:
        return f"{line}; it lacks writes since epoch {said.log_epoch}, the newest is {furthest[0]}"
    return f"{line}; it lacks {max(furthest[1] - said.log_end, 0)} bytes that the controllers know, and later ones"
