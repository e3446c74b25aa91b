"""`headgate cluster`: start one on this machine, look at one, change it."""

import json
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from controller.api.client import Acknowledge as _Acknowledge
from controller.api.commands import CloseGroup, CloseQueue, GrowTopic, MoveQueue, RemoveGroup
from controller.api.requests import RemoveMember, Transfer
from gateway.cli.cluster import queues as cli_queues
from gateway.cli.cluster import replicas as cli_replicas
from gateway.cli.cluster import users as cli_users
from gateway.cli.cluster.controllers import ConfigOption, ControllersOption, ask, channel

app = typer.Typer(help="Start a cluster on this machine, look at one, change it.", no_args_is_help=True)
members = typer.Typer(help="The controllers.", no_args_is_help=True)
groups = typer.Typer(help="The store groups.", no_args_is_help=True)
topics = typer.Typer(help="Where topics' queues lie.", no_args_is_help=True)
app.add_typer(members, name="members")
app.add_typer(groups, name="groups")
app.add_typer(cli_users.app, name="users")
app.add_typer(cli_replicas.app, name="replicas")
app.add_typer(topics, name="topics")
cli_queues.register(topics)

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object.")]
GroupArgument = Annotated[int, typer.Argument(min=0, help="The store group's number.")]


@app.command()
def up(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=5, help="Controllers, and replicas of each group.")] = 3,
    groups: Annotated[int, typer.Option("--groups", min=1, max=8, help="Store groups.")] = 2,
    proxies: Annotated[int, typer.Option("--proxies", min=1, max=8, help="Proxies.")] = 2,
    directory: Annotated[Path, typer.Option("--dir", help="Holds everything; the same one, the same cluster.")] = Path(
        "headgate-cluster"
    ),
    port_offset: Annotated[int, typer.Option("--port-offset", min=0, max=50_000, help="Added to every port.")] = 0,
) -> None:
    """Start a whole cluster as processes on this machine, and stop it with Ctrl-C."""
    from functools import partial  # noqa: PLC0415 - here and below: imports of this command alone

    from rich.console import Console  # noqa: PLC0415

    from gateway.config.config import LogConfig  # noqa: PLC0415
    from gateway.operating.starting import run_cluster  # noqa: PLC0415
    from gateway.process.local_cluster import ClusterPlan, LocalCluster  # noqa: PLC0415
    from store.base import logs  # noqa: PLC0415
    from store.base.runner import run_server  # noqa: PLC0415

    plan = ClusterPlan(directory.resolve(), nodes, groups, nodes, nodes // 2 + 1, proxies, port_offset)
    console = Console(stderr=True)
    styles = {"progress": None, "waiting": "dim", "ended": "red"}

    def show(line: str, kind: str) -> None:
        console.print(line, style=styles[kind], highlight=False, markup=False, soft_wrap=True)

    logs.configure(LogConfig(level="warning"))
    run_server(partial(run_cluster, cluster=LocalCluster(plan), show=show))


# ---- looking


@app.command()
def status(config: ConfigOption = None, controllers: ControllersOption = None, *, as_json: JsonOption = False) -> None:
    """Controllers, groups, masters, epochs, SyncStateSets and how far each replica is."""
    from gateway.operating import report as cluster_report  # noqa: PLC0415

    found = ask(config, controllers, cluster_report.gathered)
    if as_json:
        typer.echo(json.dumps(cluster_report.document(found)))
    else:
        cluster_report.show(found)


# ---- changing


@app.command()
def elect(
    group: GroupArgument,
    replica: Annotated[int | None, typer.Option("--replica", min=1, help="Whom; the best one if not said.")] = None,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
    *,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="When nobody in sync is left, or all of them have lost the end of their logs: what it lacks is lost.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before an unclean election.")] = False,
) -> None:
    """Make another replica a group's master, at once: one that is in sync, in the place of one that hangs, too."""
    from gateway.operating import electing  # noqa: PLC0415

    if unclean:
        risk = ask(config, controllers, lambda controller: electing.at_risk(controller, group))
        typer.echo(
            f"store group {group}, epoch {risk.group.master_epoch}: an unclean election loses what the new master lacks"
        )
        for line in risk.lines:
            typer.echo(f"  {line}")
        if not yes:
            typer.confirm("Elect one that lacks acknowledged writes?", abort=True)
        found = ask(config, controllers, lambda controller: electing.elect_unclean(controller, risk, replica))
    else:
        found = ask(config, controllers, lambda controller: electing.elect(controller, group, replica))
    typer.echo(f"store group {group}: replica {found.master} is master of epoch {found.master_epoch}")
    if unclean:
        typer.echo(
            "replicas that come back with more than it has stand still: let them begin anew on empty directories, or "
            f"with headgate cluster groups configure {group} --unclean-election"
        )


@app.command("switch-over")
def switch_over(
    group: GroupArgument,
    replica: Annotated[int, typer.Argument(min=1, help="The replica that is to be master.")],
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Hand a group over to another replica without a failed write: the master drains, then steps back."""
    from gateway.operating.switching import switch_over as switch  # noqa: PLC0415

    found = ask(config, controllers, lambda controller: switch(controller, group, replica, channel(config)))
    typer.echo(f"store group {group}: replica {found.master} is master of epoch {found.master_epoch}")


@groups.command("add")
def add_group(
    group: GroupArgument,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=5, help="How many, learners not counted.")] = 3,
    min_in_sync: Annotated[
        int | None,
        typer.Option("--min-in-sync", min=1, help="Fewer, and nothing is written.", show_default="a majority"),
    ] = None,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
    *,
    acknowledge: Annotated[
        str, typer.Option("--acknowledge", help="Who has a write when it is answered: all_in_sync, quorum or master.")
    ] = "all_in_sync",
) -> None:
    """Add a store group, or say that it is there: its nodes wait for that. Topics made from now on use it too."""
    from controller.api.client import GroupConfig  # noqa: PLC0415
    from gateway.operating import configuring  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    if acknowledge not in get_args(_Acknowledge):
        raise ConfigError(f"--acknowledge: {acknowledge!r} is none of {', '.join(get_args(_Acknowledge))}")
    wanted = GroupConfig(
        replicas=replicas, min_in_sync=min_in_sync or replicas // 2 + 1, acknowledge=cast("_Acknowledge", acknowledge)
    )
    is_new = ask(config, controllers, lambda controller: configuring.add(controller, group, wanted))
    typer.echo(
        f"store group {group} {'is added' if is_new else 'was there already'}: replicas {wanted.replicas}, "
        f"min_in_sync {wanted.min_in_sync}, acknowledge {acknowledge}"
    )


@groups.command("configure")
def configure_group(
    group: GroupArgument,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
    *,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, max=5, help="How many are meant to be, learners not counted.")
    ] = None,
    min_in_sync: Annotated[
        int | None, typer.Option("--min-in-sync", min=1, help="Fewer, and nothing is written.")
    ] = None,
    acknowledge: Annotated[
        str | None,
        typer.Option("--acknowledge", help="Who has a write when it is answered: all_in_sync, quorum, master."),
    ] = None,
    unclean_election: Annotated[
        bool | None,
        typer.Option("--unclean-election/--no-unclean-election", help="Lose data rather than wait for one in sync."),
    ] = None,
) -> None:
    """Change the configuration of a store group while it runs. Options that are not given stay as they are."""
    from gateway.operating import configuring  # noqa: PLC0415

    before, after = ask(
        config,
        controllers,
        lambda controller: configuring.configure(
            controller,
            group,
            replicas=replicas,
            min_in_sync=min_in_sync,
            acknowledge=acknowledge,
            unclean_election=unclean_election,
        ),
    )
    for sentence in configuring.effects(before, after):
        typer.echo(f"store group {group}: {sentence}")


@groups.command("open")
def open_group(group: GroupArgument, config: ConfigOption = None, controllers: ControllersOption = None) -> None:
    """Place new queues on a group again that was closed."""
    ask(config, controllers, lambda controller: controller.do(CloseGroup(number=group, closed=False)))
    typer.echo(f"store group {group} gets new queues again")


@groups.command("close")
def close_group(group: GroupArgument, config: ConfigOption = None, controllers: ControllersOption = None) -> None:
    """Place no new queues on a group."""
    ask(config, controllers, lambda controller: controller.do(CloseGroup(number=group)))
    typer.echo(f"store group {group} gets no new queues")


@groups.command("remove")
def remove_group(group: GroupArgument, config: ConfigOption = None, controllers: ControllersOption = None) -> None:
    """Forget a group that has no queues any more."""
    ask(config, controllers, lambda controller: controller.do(RemoveGroup(number=group)))
    typer.echo(f"store group {group} is removed")


@groups.command("forget-replica")
def forget_replica(
    group: GroupArgument,
    replica: Annotated[int, typer.Argument(min=1, help="A replica that will not come back.")],
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Forget a replica that is gone for good: the same as replicas forget."""
    cli_replicas.forget(group, replica, config, controllers)


@members.command("list")
def list_members(config: ConfigOption = None, controllers: ControllersOption = None) -> None:
    """The controllers, and who leads."""
    from gateway.operating import report as cluster_report  # noqa: PLC0415

    cluster_report.show_controllers(ask(config, controllers, cluster_report.gathered))


@members.command("add")
def add_member(
    id_: Annotated[int, typer.Argument(metavar="ID", min=1, help="A number that no controller ever had.")],
    address: Annotated[str, typer.Argument(help="host:port of the new controller, started with --join.")],
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Add a controller; it votes when it has caught up."""
    from gateway.operating.members import add  # noqa: PLC0415

    before = ask(config, controllers, lambda controller: add(controller, id_, address))
    there = before if before in {None, address} else f"{before}, and is asked for at {address} from now on"
    typer.echo(f"controller {id_} is added" if there is None else f"controller {id_} was there already, at {there}")


@members.command("remove")
def remove_member(
    id_: Annotated[int, typer.Argument(metavar="ID", min=1)],
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Remove a controller, dead or alive."""
    ask(config, controllers, lambda controller: controller.do(RemoveMember(id=id_)))
    typer.echo(f"controller {id_} is removed")


@members.command("transfer")
def transfer(
    id_: Annotated[int, typer.Argument(metavar="ID", min=1)],
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Transfer the leadership to another controller."""
    ask(config, controllers, lambda controller: controller.do(Transfer(to=id_)))
    typer.echo(f"controller {id_} is asked to lead")


@topics.command("move")
def move_queue(
    queue: Annotated[int, typer.Argument(min=16, help="The number of a topic's queue.")],
    group: GroupArgument,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Write to a new queue, in another group, in a queue's place; the old one can be read until it is dropped."""
    found = ask(config, controllers, lambda controller: controller.do(MoveQueue(number=queue, group=group)))
    successor = found.moved.get(queue)
    if successor is None:
        typer.echo(f"{found.name}: queue {queue} lies in store group {group} already")
    else:
        typer.echo(f"{found.name}: queue {queue} is closed, {successor} in store group {group} takes its place")


@topics.command("close")
def close_queue(
    queue: Annotated[int, typer.Argument(min=16)],
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Write no more to a topic's queue; it can be read until it is dropped."""
    found = ask(config, controllers, lambda controller: controller.do(CloseQueue(number=queue)))
    typer.echo(f"{found.name}: queue {queue} is closed")


@topics.command("grow")
def grow_topic(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    queues: Annotated[int, typer.Argument(min=1, max=1024, help="How many queues it is to write to.")],
    group: Annotated[
        int | None,
        typer.Option("--group", min=0, help="Where the new ones lie.", show_default="the groups with fewest queues"),
    ] = None,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Write to more queues. A key's new messages may lie in another queue: readers may see them before its old ones."""
    command = GrowTopic(name=topic, queues=queues, group=group)
    found = ask(config, controllers, lambda controller: controller.do(command))
    already = ", and their number never falls" if len(found.open) > queues else ""
    typer.echo(f"{found.name}: {len(found.open)} queues are written to{already}: {', '.join(map(str, found.open))}")
