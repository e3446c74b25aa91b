"""`headgate amqp vhosts` and the commands that make, limit and delete virtual hosts."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.cli.protocols.amqp_listing import add_listing, remote_amqp, table_of
from gateway.cli.remote.options import at_admin_port
from gateway.domain.vhosts import DEFAULT_VHOST
from gateway.ops.amqp_report import LimitVhost, VhostReport
from gateway.remote.amqp import RemoteAmqp

DELETE_TIMEOUT_S = 150.0

NameArgument = Annotated[str, typer.Argument(help="The name of the virtual host.")]
LimitedOption = Annotated[str, typer.Option("--vhost", "-p", help="The virtual host.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    add_listing(
        app,
        "vhosts",
        "List the virtual hosts: queues, connections of the gateway that is asked, and limits.",
        RemoteAmqp.vhosts,
        columns=("vhost", "queues", "connections", "max connections", "max queues", "declared"),
        row=_row,
        numbers=("queues", "connections", "max connections", "max queues"),
    )
    app.command("add-vhost")(add_vhost)
    app.command("delete-vhost")(delete_vhost)
    app.command("set-vhost-limits")(set_vhost_limits)
    app.command("clear-vhost-limits")(clear_vhost_limits)


def _row(one: VhostReport) -> Sequence[str]:
    limits = ["" if limit < 0 else str(limit) for limit in (one.max_connections, one.max_queues)]
    return one.vhost, str(one.queues), str(one.connections), *limits, "configured" if one.configured else ""


@at_admin_port
def add_vhost(name: NameArgument, *, at: str) -> None:
    """Make a virtual host, unless it is there."""
    with remote_amqp(at) as amqp:
        amqp.add_vhost(name)
    typer.echo(f"virtual host {name} is there")


@at_admin_port
def delete_vhost(name: NameArgument, *, at: str) -> None:
    """Delete a virtual host: its queues with their messages, exchanges, bindings, policies, limits and rights.

    Its connections are closed with 320 CONNECTION_FORCED.
    """
    with remote_amqp(at, timeout_s=DELETE_TIMEOUT_S) as amqp:
        amqp.delete_vhost(name)
    typer.echo(f"virtual host {name} is deleted")


@at_admin_port
def set_vhost_limits(
    definition: Annotated[str, typer.Argument(help='JSON, such as {"max-connections": 100, "max-queues": 50}.')],
    *,
    at: str,
    vhost: LimitedOption = DEFAULT_VHOST,
) -> None:
    """Limit a virtual host, in the place of the limits that it has; -1 is none."""
    limits = LimitVhost(vhost=vhost, limits=table_of(definition))
    with remote_amqp(at) as amqp:
        amqp.set_limits(limits)
    typer.echo(f"virtual host {vhost} is limited")


@at_admin_port
def clear_vhost_limits(*, at: str, vhost: LimitedOption = DEFAULT_VHOST) -> None:
    """Remove the limits of a virtual host."""
    with remote_amqp(at) as amqp:
        amqp.clear_limits(vhost)
    typer.echo(f"virtual host {vhost} has no limits")
