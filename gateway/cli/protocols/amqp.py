"""`headgate amqp`: the queues, bindings and connections of a running gateway."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.remote.options import ADMIN_PORT, HostOption, OffsetOption, gateway_url
from gateway.ops.amqp_report import BindingReport, CloseConnections, ConnectionReport, QueueReport
from gateway.remote.amqp import RemoteAmqp
from gateway.remote.http import RemoteGateway
from store.base.process_errors import ConfigError

EXIT_NOTHING = 1
TIMEOUT_S, IMPORT_TIMEOUT_S = 30.0, 150.0  # for one answer

app = typer.Typer(help="Queues, bindings and connections of AMQP.", no_args_is_help=True)

PortOption = Annotated[int, typer.Option("--admin-port", help="Its admin port.", min=1, max=65_535)]
VhostOption = Annotated[str | None, typer.Option("--vhost", help="Only those of this virtual host.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def _listing(
    name: str,
    summary: str,
    ask: Callable[[RemoteAmqp, str | None], Iterable[Any]],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    *,
    numbers: Sequence[str] = (),
) -> None:
    """Adds a command that lists what a gateway has in a virtual host, or in all of them.

    `numbers` are the columns whose texts stand at the right of a table.
    """

    @app.command(name, help=summary)
    def listing(
        *,
        vhost: VhostOption = None,
        as_json: JsonOption = False,
        host: HostOption = "127.0.0.1",
        port: PortOption = ADMIN_PORT,
        port_offset: OffsetOption = 0,
    ) -> None:
        with _amqp(host, port + port_offset) as amqp:
            _show(ask(amqp, vhost), columns, row, as_json=as_json, numbers=numbers)


def _queue_row(one: QueueReport) -> Sequence[str]:
    kinds = (("durable", one.durable), ("exclusive", one.exclusive), ("auto-delete", one.auto_delete))
    declared = " ".join(name for name, is_so in kinds if is_so)
    return one.vhost, one.name, str(one.messages), str(one.consumers), declared, _table(one.arguments)


def _binding_row(one: BindingReport) -> Sequence[str]:
    to = f"{one.destination_type} {one.destination}"
    return one.vhost, one.source, to, one.routing_key, _table(one.arguments)


def _connection_row(one: ConnectionReport) -> Sequence[str]:
    counts = (one.channels, one.consumers, one.unacknowledged)
    return one.id, one.user, one.vhost, one.peer, one.listener, *map(str, counts)


_listing(
    "queues",
    "List the queues: messages that wait, consumers, and how they were declared.",
    RemoteAmqp.queues,
    ("vhost", "queue", "messages", "consumers", "declared", "arguments"),
    _queue_row,
    numbers=("messages", "consumers"),
)
_listing(
    "bindings",
    "List the bindings that were made; every queue is bound to the default exchange besides.",
    RemoteAmqp.bindings,
    ("vhost", "exchange", "bound", "key", "arguments"),
    _binding_row,
)
_listing(
    "connections",
    "List the connections of the gateway that is asked; of several proxies each has its own.",
    RemoteAmqp.connections,
    ("connection", "user", "vhost", "peer", "listener", "channels", "consumers", "unacknowledged"),
    _connection_row,
    numbers=("channels", "consumers", "unacknowledged"),
)


@app.command()
def close(
    ids: Annotated[list[str] | None, typer.Argument(help="As `headgate amqp connections` shows them.")] = None,
    *,
    user: Annotated[str | None, typer.Option("--user", help="Those of this user.")] = None,
    vhost: VhostOption = None,
    reason: Annotated[str, typer.Option("--reason", help="What the clients are told.")] = "closed by an operator",
    host: HostOption = "127.0.0.1",
    port: PortOption = ADMIN_PORT,
    port_offset: OffsetOption = 0,
) -> None:
    """Close connections: their clients are told 320 CONNECTION_FORCED. Prints which; they may come again."""
    if not ids and user is None and vhost is None:
        raise typer.BadParameter("connections, --user or --vhost say which are closed")
    with _amqp(host, port + port_offset) as amqp:
        closed = amqp.close(CloseConnections(ids=ids or None, user=user, vhost=vhost, reason=reason))
    for one in closed:
        typer.echo(one)
    missing = sorted(set(ids or ()) - set(closed))
    if missing:
        typer.echo(f"headgate: no such connection is open: {', '.join(missing)}", err=True)
        raise typer.Exit(EXIT_NOTHING)


@app.command("import-definitions")
def import_definitions(
    file: Annotated[Path, typer.Argument(help="RabbitMQ's definitions.json; - reads it from standard input.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    policies: Annotated[
        Path | None, typer.Option("--policies", help="Where to write policies, for the configuration.")
    ] = None,
    as_json: JsonOption = False,
    host: HostOption = "127.0.0.1",
    port: PortOption = ADMIN_PORT,
    port_offset: OffsetOption = 0,
) -> None:
    """Make the virtual hosts, exchanges, queues, bindings and users of RabbitMQ's definitions that are not there.

    What cannot be taken is said, a line each. It may be repeated: what is there stays. Policies belong into the
    configuration: they are printed as TOML, or written to a file.
    """
    data = _definitions(file)
    with _amqp(host, port + port_offset, timeout_s=IMPORT_TIMEOUT_S) as amqp:
        report = amqp.import_definitions(data, dry_run=dry_run)
    if policies is not None:
        policies.write_text(report.configuration, "utf-8")
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
    if report.configuration and policies is None:
        typer.echo(f"\n# for the configuration:\n\n{report.configuration}")


@app.command("remove-user")
def remove_user(
    name: Annotated[str, typer.Argument(help="The name.")],
    *,
    host: HostOption = "127.0.0.1",
    port: PortOption = ADMIN_PORT,
    port_offset: OffsetOption = 0,
) -> None:
    """Remove a user that was imported, and close the connections of that user."""
    with _amqp(host, port + port_offset) as amqp:
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


@contextmanager
def _amqp(host: str, port: int, *, timeout_s: float = TIMEOUT_S) -> Iterator[RemoteAmqp]:
    with RemoteGateway(gateway_url(None, host, port), timeout_s=timeout_s) as gateway:
        yield RemoteAmqp(gateway)


def _table(arguments: Any) -> str:
    return json.dumps(arguments, default=str, ensure_ascii=False) if arguments else ""


def _show(
    found: Iterable[Any],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    *,
    as_json: bool,
    numbers: Sequence[str] = (),
) -> None:
    """Prints a listing: JSON, a table, or columns with tabs where it is no terminal."""
    if as_json:
        for one in found:
            typer.echo(msgspec.json.encode(one))
        return
    if not sys.stdout.isatty():
        for one in found:
            typer.echo("\t".join(row(one)).rstrip())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    for one in found:
        table.add_row(*row(one))
    Console().print(table if table.row_count else "none")
