"""The output of `headgate cluster status`: controllers, groups, and the progress of each replica."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from controller.api.client import ControllerUnreachable, Group, Topic
from controller.elections.health import group_health
from controller.elections.registry import GroupRoute, RouteReplica
from controller.remote.remote import RemoteController
from controller.wire.status import ControllerStatus, MemberStatus


class ClusterReport(NamedTuple):
    """A cluster as its controllers see it. A controller that does not answer has no status."""

    controllers: Mapping[str, ControllerStatus | None]
    groups: Sequence[Group]
    routes: Mapping[int, GroupRoute]
    topics: Sequence[Topic]


async def gathered(controller: RemoteController) -> ClusterReport:
    """Asks every controller. Raises `ControllerUnreachable`: none answers."""
    answers = await controller.controllers()
    try:
        routes = {route.group: route for route in await controller.routes()}
    except ControllerUnreachable:
        routes = {}
    statuses = {address: answers.get(address) for address in controller.addresses()}
    statuses |= {address: None for address in members_of(statuses) if address not in statuses}
    return ClusterReport(statuses, controller.groups(), routes, controller.topics())


def members_of(statuses: Mapping[str, ControllerStatus | None]) -> Mapping[str, MemberStatus]:
    """Returns the members by address, as the leader knows them: one that was added and never started, too."""
    leading = (status for status in statuses.values() if status is not None and status.role == "leader")
    return {member.address: member for status in leading for member in status.members}


def clusters_of(found: ClusterReport) -> Mapping[str, Sequence[str]]:
    """Returns the addresses of the controllers that know their cluster, by its id: there should be one."""
    clusters: dict[str, list[str]] = {}
    for address, status in found.controllers.items():
        if status is not None and status.cluster:
            clusters.setdefault(status.cluster, []).append(address)
    return clusters


def document(found: ClusterReport) -> Any:
    """Returns the same as one JSON object."""
    return msgspec.to_builtins({**found._asdict(), "troubles": troubles(found)}, str_keys=True)


def show(found: ClusterReport, console: Console | None = None) -> None:
    """Prints the report as text."""
    console = console or _console()
    show_controllers(found, console)
    console.print(_groups(found))
    for trouble in troubles(found):
        console.print(f"[red]{escape(trouble)}[/]", highlight=False, soft_wrap=True)
    queues = sum(len(topic.queues) for topic in found.topics)
    draining = [str(queue) for topic in found.topics for queue in topic.closed]
    console.print(
        f"cluster {', '.join(sorted(clusters_of(found)))}; topics: {len(found.topics)}, with {queues} queues"
        + (f"; being drained: {', '.join(draining)}" if draining else ""),
        highlight=False,
    )


def troubles(found: ClusterReport) -> Sequence[str]:
    """Returns the faults, a line each: controllers first, then groups that refuse writes, then single replicas."""
    members = members_of(found.controllers)
    ids = {member.id for member in members.values()}
    silent, lost = [], []
    clusters = clusters_of(found)
    if len(clusters) > 1:
        where = ", ".join(f"{cluster} at {' and '.join(addresses)}" for cluster, addresses in sorted(clusters.items()))
        lost.append(
            f"the controllers are of several clusters, {where}: one has the directory of another cluster, or the "
            "configuration names the controllers of both; the rest of this is of one of them"
        )
    for address, status in found.controllers.items():
        if status is None:
            unknown = bool(members) and address not in members
            named = ", and is not in the cluster: the configuration names it" if unknown else ""
            silent.append(f"controller at {address} does not answer{named}")
        elif status.leader is None:
            unknown = bool(ids) and status.id not in ids
            why = "is not in the cluster: stop it" if unknown else "knows no leader: it is not part of a majority"
            lost.append(f"controller {status.id} at {address} {why}")
        if status is not None and status.full:
            lost.append(f"controller {status.id} at {address} has a full disk: it takes no entries until there is room")
    groups = [group_health(group, found.routes.get(group.number)) for group in found.groups]
    return [
        *silent,
        *lost,
        *(refusal for group in groups for refusal in group.refusals),
        *(warning for group in groups for warning in group.warnings),
    ]


def show_controllers(found: ClusterReport, console: Console | None = None) -> None:
    """Prints the controllers alone."""
    table = _table("controllers", "id", "address", "role", "term", "applied", "commit", "votes")
    members = [member for status in found.controllers.values() if status is not None for member in status.members]
    votes = {member.address: "no" if member.learner else "yes" for member in members}
    ids = {member.address: str(member.id) for member in members}
    for address, status in found.controllers.items():
        if status is None:
            table.add_row(ids.get(address, ""), address, "[red]does not answer[/]", "", "", "", votes.get(address, ""))
            continue
        role = f"[bold]{status.role}[/]" if status.role == "leader" else status.role
        numbers = (str(status.term), str(status.applied), str(status.commit))
        knows_itself = any(member.id == status.id for member in status.members)
        counts = votes.get(address, "") if knows_itself or not votes.get(address) else "no"  # its directory is empty
        table.add_row(str(status.id), address, role, *numbers, counts)
    (console or _console()).print(table)


def _console() -> Console:
    """Returns a terminal as it is; elsewhere lines are as long as they have to be."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _groups(found: ClusterReport) -> Table:
    table = _table("store groups", "group", "epoch", "replica", "node", "address", "role", "confirmed", "lag")
    for group in found.groups:
        route = found.routes.get(group.number)
        replicas = {} if route is None else {one.id: one for one in route.replicas}
        furthest = _furthest(group, replicas)
        for i, replica in enumerate(group.replicas):
            said = replicas.get(replica.id)
            alive = said is not None and said.alive
            lag = _lag(group, said, furthest) if said is not None and said.confirmed else ""
            table.add_row(
                f"{group.number}" if not i else "",
                f"{group.master_epoch} (set {group.sync_epoch})" if not i else "",
                str(replica.id),
                replica.node,
                replica.address,
                _role(group, replica.id, alive=alive) + _complaints(group, replica.id, route) + _damage(said),
                str(said.confirmed) if said is not None else "",
                lag if alive else "",
            )
        if not group.replicas:
            table.add_row(str(group.number), "", "", "no replica has registered yet", "", "", "", "")
    return table


def _furthest(group: Group, replicas: Mapping[int, RouteReplica]) -> int:
    """Returns the end that readers may see: the master's, or that of the replica that is furthest."""
    alive = {id_: one.confirmed for id_, one in replicas.items() if one.alive}
    master = None if group.master is None else alive.get(group.master)
    return max(alive.values(), default=0) if master is None else master


def _lag(group: Group, said: RouteReplica, furthest: int) -> str:
    """Returns the bytes that a replica lacks, or has and the group lacks since an unclean election."""
    if said.confirmed > furthest and said.id not in group.sync_set:
        return f"[red]{said.confirmed - furthest} ahead[/]"
    return str(max(furthest - said.confirmed, 0))


def _role(group: Group, replica: int, *, alive: bool) -> str:
    found = group.replica(replica)
    if replica == group.master:
        role = "[bold]master[/]"
    elif found is not None and found.learner:
        role = "learner"
    else:
        role = "in sync" if replica in group.sync_set else "[yellow]behind[/]"
    return role if alive else f"{role} [red]no heartbeats[/]"


def _complaints(group: Group, replica: int, route: GroupRoute | None) -> str:
    """Returns how many nodes cannot reach the master, whether its disk is slow, and why it stays."""
    trouble = None if route is None or replica != group.master else route.trouble
    if trouble is None:
        return ""
    since = f" [red]unreachable for {trouble.whom} since {trouble.silent_ms / 1000:.0f} s[/]" if trouble.whom else ""
    slow = " [red]its disk is slow[/]" if trouble.slow else ""
    return since + slow + (f" [red]stays: {trouble.stays}[/]" if trouble.stays else "")


def _damage(said: RouteReplica | None) -> str:
    """Returns the damage of a replica's log, as of its last heartbeat."""
    if said is None or not said.damages:
        return ""
    lost = f", {said.lost_bytes} of them on no replica" if said.lost_bytes else ""
    source = f", repairing from replica {said.repairing_from}" if said.repairing_from else ""
    return f" [red]damaged: {said.damages} ranges, {said.damaged_bytes} bytes{lost}{source}[/]"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table
