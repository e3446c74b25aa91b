"""`headgate groups`: the consumer groups of a running gateway."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.remote.options import GatewayLocation, at_gateway
from gateway.remote.http import RemoteGateway

if TYPE_CHECKING:
    from gateway.remote.groups import GatewayGroups

app = typer.Typer(help="Consumer groups of a running gateway.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="Its name.")]


@app.command("list")
@at_gateway
def list_(*, at: GatewayLocation) -> None:
    """Print groups, one a line, by name: the topic of each, and how it is read."""
    with _groups(at) as groups:
        for one in groups.names():
            typer.echo(f"{one.group}\t{one.topic}\t{one.strategy}")


@app.command()
@at_gateway
def show(group: GroupArgument, *, at: GatewayLocation) -> None:
    """Print where a group is in each queue, how much is left, and who reads it."""
    with _groups(at) as groups:
        found = groups.describe(group)
    lag = sum(one.lag for one in found.queues)
    typer.echo(f"{found.group} reads {found.topic} ({found.strategy}): {len(found.members)} members, {lag:,} behind")
    from rich.console import Console  # noqa: PLC0415 - here and below: imports of such commands alone
    from rich.table import Table  # noqa: PLC0415

    table = Table("queue", "offset", "end", "lag", "member", box=None)
    for one in found.queues:
        table.add_row(str(one.queue), f"{one.offset:,}", f"{one.end:,}", f"{one.lag:,}", one.member or "-")
    if found.queues:
        Console().print(table)


@app.command()
@at_gateway
def reset(
    group: GroupArgument,
    *,
    at: GatewayLocation,
    to: Annotated[str | None, typer.Option("--to", help="earliest or latest.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", help="The first message stored then or later: RFC 3339, or ms of 1970.")
    ] = None,
    offset: Annotated[list[str] | None, typer.Option("--offset", help="QUEUE=OFFSET; again for others.")] = None,
    queue: Annotated[list[int] | None, typer.Option("--queue", help="Only this queue; again for others.")] = None,
) -> None:
    """Move a group's offsets; its members lose the messages that they have read and not committed."""
    if sum(given is not None for given in (to, time, offset or None)) != 1:
        raise typer.BadParameter("one of --to, --time and --offset says where it goes on")
    with _groups(at) as groups:
        if offset:
            done = groups.reset(group, to="offset", offsets=dict(map(_offset, offset)), queues=queue or ())
        elif time is not None:
            done = groups.reset(group, to="timestamp", timestamp=time, queues=queue or ())
        else:
            done = groups.reset(group, to=to or "", queues=queue or ())
    for number, position in sorted(done.items()):
        typer.echo(f"{number}\t{position}")


@app.command()
@at_gateway
def delete(group: GroupArgument, *, at: GatewayLocation) -> None:
    """Forget a group that has no members."""
    with _groups(at) as groups:
        groups.delete(group)


@contextmanager
def _groups(at: GatewayLocation) -> "Iterator[GatewayGroups]":
    from gateway.remote.groups import GatewayGroups  # noqa: PLC0415 - slow to load

    with RemoteGateway(at.url, ca_file=at.ca_file) as gateway:
        yield GatewayGroups(gateway)


def _offset(text: str) -> tuple[int, int]:
    queue, separator, at = text.partition("=")
    if not (separator and queue.isascii() and queue.isdigit() and at.isascii() and at.isdigit()):
        raise typer.BadParameter(f"{text!r} is not QUEUE=OFFSET")
    return int(queue), int(at)
