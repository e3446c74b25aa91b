"""`headgate cluster replicas`: those that leave a group for good, or are to look for damage."""

from typing import Annotated

import typer

from gateway.cli.cluster.controllers import ConfigOption, ControllersOption, ask, channel

app = typer.Typer(help="The replicas of a store group.", no_args_is_help=True)

GroupArgument = Annotated[int, typer.Argument(min=0, help="The store group's number.")]
ReplicaArgument = Annotated[int, typer.Argument(min=1, help="The replica's id, as cluster status shows it.")]


@app.command("retire")
def retire(
    group: GroupArgument,
    replica: ReplicaArgument,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also where fewer than min_in_sync are left: then writes wait for another.")
    ] = False,
) -> None:
    """Take a replica out of its group for good, dead, damaged or alive. Its id is never given again."""
    from gateway.operating import replicas  # noqa: PLC0415 - an import of this command alone

    found = ask(config, controllers, lambda controller: replicas.retire(controller, group, replica, forced=force))
    typer.echo(f"store group {group}: replica {replica} is retired; in sync are {_ids(found.sync_set)}")
    missing = found.config.replicas - len(found.voters)
    if missing > 0:
        typer.echo(f"{missing} fewer than it is meant to have: start a node of the group on an empty directory")


@app.command("forget")
def forget(
    group: GroupArgument,
    replica: ReplicaArgument,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Forget a replica that is gone: one that sends no heartbeats, and is not in sync. Its id is never given again."""
    from gateway.operating import replicas  # noqa: PLC0415

    ask(config, controllers, lambda controller: replicas.forget(controller, group, replica))
    typer.echo(f"store group {group}: replica {replica} is forgotten")


@app.command("repair")
def repair(
    group: GroupArgument,
    replica: ReplicaArgument,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
) -> None:
    """Verify the whole log of a replica now; it repairs damaged ranges from another one."""
    from gateway.operating import replicas  # noqa: PLC0415

    found = ask(config, controllers, lambda controller: replicas.verify(controller, group, replica, channel(config)))
    damaged = f"{found.damages} damaged ranges are being repaired" if found.damages else "nothing is damaged"
    typer.echo(f"store group {group}: replica {replica} has read {found.end - found.first} bytes of its log: {damaged}")
    if found.repaired:
        typer.echo(f"repaired so far: {found.repaired}")


def _ids(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids)) or "none"
