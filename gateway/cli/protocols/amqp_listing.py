"""The parts that the commands of `headgate amqp` share: options, the gateway that is asked, and printed rows."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from gateway.cli.remote.options import at_admin_port
from gateway.remote.amqp import RemoteAmqp
from gateway.remote.http import RemoteGateway

TIMEOUT_S = 30.0  # for one answer

VhostOption = Annotated[str | None, typer.Option("--vhost", help="Only those of this virtual host.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@contextmanager
def remote_amqp(at: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[RemoteAmqp]:
    """Yields the AMQP side of the gateway whose admin port has this URL."""
    with RemoteGateway(at, timeout_s=timeout_s) as gateway:
        yield RemoteAmqp(gateway)


def add_listing(
    app: typer.Typer,
    name: str,
    summary: str,
    ask: Callable[[RemoteAmqp, str | None], Iterable[Any]],
    *,
    columns: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    numbers: Sequence[str] = (),
) -> None:
    """Adds a command that lists a gateway's objects in a virtual host, or in all of them.

    `numbers` are the columns whose texts stand at the right of a table.
    """

    @app.command(name, help=summary)
    @at_admin_port
    def listing(*, at: str, vhost: VhostOption = None, as_json: JsonOption = False) -> None:
        with remote_amqp(at) as amqp:
            show(ask(amqp, vhost), columns, row, as_json=as_json, numbers=numbers)


def table_of(text: str) -> dict[str, Any]:
    """Returns the object of the argument DEFINITION, JSON. Raises `BadParameter`."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"DEFINITION: {error}") from error


def table_text(arguments: Any) -> str:
    """Returns a table of arguments as JSON; nothing of an empty one."""
    return json.dumps(arguments, default=str, ensure_ascii=False) if arguments else ""


def _line_text(text: str) -> str:
    """Returns a name as it is shown in a line: it may hold tabs, line ends and control sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show(
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
            typer.echo("\t".join(map(_line_text, row(one))).rstrip())
        return
    from rich.console import Console  # noqa: PLC0415 - here and below: imports for terminals alone
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    for one in found:
        table.add_row(*(Text(_line_text(text)) for text in row(one)))
    Console().print(table if table.row_count else "none")
