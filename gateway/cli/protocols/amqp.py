"""`headgate amqp`: the queues, bindings, connections and policies of a running gateway."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.protocols import amqp_settings, amqp_vhosts
from gateway.cli.protocols.amqp_listing import JsonOption, VhostOption, add_listing, remote_amqp, table_text
from gateway.cli.protocols.amqp_settings import InVhostOption
from gateway.cli.remote.options import at_admin_port
from gateway.domain.vhosts import DEFAULT_VHOST
from gateway.ops.amqp_report import BindingReport, CloseConnections, ConnectionReport, MoveQueue, QueueReport
from gateway.remote.amqp import RemoteAmqp
from store.base.process_errors import ConfigError

EXIT_NOTHING = 1
IMPORT_TIMEOUT_S = 150.0  # for one answer

app = typer.Typer(help="Queues, bindings, connections, policies and virtual hosts of AMQP.", no_args_is_help=True)


def _queue_row(one: QueueReport) -> Sequence[str]:
    kinds = (("durable", one.durable), ("exclusive", one.exclusive), ("auto-delete", one.auto_delete))
    declared = " ".join(name for name, is_so in kinds if is_so)
    policies = ", ".join(name for name in (one.policy, one.operator_policy) if name is not None)
    counts = (str(one.messages), str(one.consumers))
    group = str(one.group) if one.former_group is None else f"{one.group}, before {one.former_group}"
    return one.vhost, one.name, *counts, group, declared, table_text(one.arguments), policies


def _binding_row(one: BindingReport) -> Sequence[str]:
    to = f"{one.destination_type} {one.destination}"
    return one.vhost, one.source, to, one.routing_key, table_text(one.arguments)


def _connection_row(one: ConnectionReport) -> Sequence[str]:
    counts = (one.channels, one.consumers, one.unacknowledged)
    return one.id, one.user, one.vhost, one.peer, one.listener, one.state, *map(str, counts)


add_listing(
    app,
    "queues",
    "List the queues: messages that wait, consumers, and how they were declared.",
    RemoteAmqp.queues,
    columns=("vhost", "queue", "messages", "consumers", "group", "declared", "arguments", "policies"),
    row=_queue_row,
    numbers=("messages", "consumers"),
)
add_listing(
    app,
    "bindings",
    "List the bindings that were made; every queue is bound to the default exchange besides.",
    RemoteAmqp.bindings,
    columns=("vhost", "exchange", "bound", "key", "arguments"),
    row=_binding_row,
)
add_listing(
    app,
    "connections",
    "List the connections of the gateway that is asked; of several proxies each has its own.",
    RemoteAmqp.connections,
    columns=("connection", "user", "vhost", "peer", "listener", "state", "channels", "consumers", "unacknowledged"),
    row=_connection_row,
    numbers=("channels", "consumers", "unacknowledged"),
)

amqp_settings.register(app)
amqp_vhosts.register(app)


@app.command()
@at_admin_port
def close(
    ids: Annotated[list[str] | None, typer.Argument(help="As `headgate amqp connections` shows them.")] = None,
    *,
    at: str,
    user: Annotated[str | None, typer.Option("--user", help="Those of this user.")] = None,
    vhost: VhostOption = None,
    reason: Annotated[str, typer.Option("--reason", help="The reason that the clients get.")] = "closed by an operator",
) -> None:
    """Close connections: their clients get 320 CONNECTION_FORCED, and may connect again. Prints which."""
    if not ids and user is None and vhost is None:
        raise typer.BadParameter("connections, --user or --vhost say which are closed")
    with remote_amqp(at) as amqp:
        closed = amqp.close(CloseConnections(ids=ids or None, user=user, vhost=vhost, reason=reason))
    for one in closed:
        typer.echo(one)
    missing = sorted(set(ids or ()) - set(closed))
    if missing:
        typer.echo(f"headgate: no such connection is open: {', '.join(missing)}", err=True)
        raise typer.Exit(EXIT_NOTHING)


@app.command("move-queue")
@at_admin_port
def move_queue(
    name: Annotated[str, typer.Argument(help="As `headgate amqp queues` shows it.")],
    group: Annotated[int, typer.Argument(min=0, help="The store group.")],
    *,
    at: str,
    vhost: InVhostOption = DEFAULT_VHOST,
) -> None:
    """Move a queue to another store group of a cluster: new messages go there, and older ones are consumed first.

    Its clients do not notice. `headgate amqp queues` shows when the former group holds nothing of it any more.
    """
    with remote_amqp(at) as amqp:
        moved = amqp.move_queue(MoveQueue(vhost=vhost, name=name, group=group))
    former = "" if moved.former_group is None else f"; what lies in store group {moved.former_group} is consumed first"
    typer.echo(f"queue {name} is written to in store group {moved.group}{former}")


@app.command("import-definitions")
@at_admin_port
def import_definitions(
    file: Annotated[Path, typer.Argument(help="RabbitMQ's definitions.json; - reads it from standard input.")],
    *,
    at: str,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the virtual hosts, policies, exchanges, queues, bindings and users of RabbitMQ's definitions.

    Definitions that cannot be taken over are listed, a line each. It may be repeated: existing definitions stay.
    """
    data = _definitions(file)
    with remote_amqp(at, timeout_s=IMPORT_TIMEOUT_S) as amqp:
        report = amqp.import_definitions(data, dry_run=dry_run)
    if as_json:
        typer.echo(msgspec.json.encode(report))
        return
    made = "would make" if dry_run else "made"
    words = {"made": made, "partly": "in part", "refused": "cannot take"}
    for step in report.steps:
        if step.outcome in words:
            typer.echo(f"{words[step.outcome]} {step.what}" + (f": {step.why}" if step.why else ""))
    counts = Counter(step.outcome for step in report.steps)
    taken = f"{made} {counts['made']}, {counts['kept']} there already"
    typer.echo(f"{taken}, {counts['partly']} in part, {counts['refused']} not taken")


@app.command("remove-user")
@at_admin_port
def remove_user(
    name: Annotated[str, typer.Argument(help="The name.")],
    *,
    at: str,
) -> None:
    """Remove a user that was imported, and close the connections of that user."""
    with remote_amqp(at) as amqp:
        amqp.remove_user(name)
    typer.echo(f"user {name} is removed")


def _definitions(file: Path) -> bytes:
    """Reads a file of definitions. Raises `ConfigError`, OSError."""
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: this is not a file of RabbitMQ's definitions: {error}") from error
    return data
