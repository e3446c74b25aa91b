"""`headgate kv`: the keys and values of a running gateway."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.remote.options import GatewayLocation, at_gateway
from gateway.domain.keys import DEFAULT_NAMESPACE
from gateway.remote.http import RemoteGateway
from store.api.keys import Entry

if TYPE_CHECKING:
    from gateway.remote.kv import GatewayKeys

EXIT_ABSENT = 1

app = typer.Typer(help="Keys and values of a running gateway.", no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(help="Such as config/site1.")]
PrefixArgument = Annotated[str, typer.Argument(help="Keys that begin so; all of them by default.")]
SpaceOption = Annotated[str, typer.Option("--ns", help="The namespace.", envvar="HEADGATE_NAMESPACE")]
IfOption = Annotated[
    int | None, typer.Option("--if-revision", min=0, help="Only if the key is at this revision; 0: is not there.")
]
FileArgument = Annotated[Path, typer.Argument(help="The file.")]


@app.command()
@at_gateway
def get(
    key: KeyArgument,
    *,
    at: GatewayLocation,
    ns: SpaceOption = DEFAULT_NAMESPACE,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Revision, version and expiry in front.")] = False,
) -> None:
    """Print a value as it is."""
    with _keys(at, ns) as keys:
        entry = keys.get(key)
    out = sys.stdout.buffer
    if verbose:
        out.write(f"{_described(entry)}\t".encode())
    out.write(entry.value)
    if verbose or sys.stdout.isatty():
        out.write(b"\n")
    out.flush()


@app.command()
@at_gateway
def put(
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="The value; - reads it from standard input.")] = "-",
    *,
    at: GatewayLocation,
    ns: SpaceOption = DEFAULT_NAMESPACE,
    ttl: Annotated[float | None, typer.Option("--ttl", min=0.001, help="Seconds until it expires.")] = None,
    if_revision: IfOption = None,
) -> None:
    """Store a value; prints its revision once it is on disk."""
    data = sys.stdin.buffer.read() if value == "-" else value.encode("utf-8", "surrogateescape")
    with _keys(at, ns) as keys:
        typer.echo(keys.put(key, data, ttl_s=ttl, if_revision=if_revision))


@app.command()
@at_gateway
def delete(
    key: KeyArgument,
    *,
    at: GatewayLocation,
    ns: SpaceOption = DEFAULT_NAMESPACE,
    if_revision: IfOption = None,
) -> None:
    """Remove a key; exit code 1 where it was not there."""
    with _keys(at, ns) as keys:
        if not keys.delete(key, if_revision=if_revision):
            raise typer.Exit(EXIT_ABSENT)


@app.command("list")
@at_gateway
def list_(
    prefix: PrefixArgument = "",
    *,
    at: GatewayLocation,
    ns: SpaceOption = DEFAULT_NAMESPACE,
    count: Annotated[bool, typer.Option("--count", help="Only how many.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Revision, version and expiry behind.")] = False,
) -> None:
    """Print keys, one a line, in order."""
    with _keys(at, ns) as keys:
        if count:
            typer.echo(keys.count(prefix=prefix))
            return
        for entry in keys.entries(prefix=prefix, values=False):
            typer.echo(f"{entry.key}\t{_described(entry)}" if verbose else entry.key)


@app.command()
@at_gateway
def watch(
    prefix: PrefixArgument = "",
    *,
    at: GatewayLocation,
    ns: SpaceOption = DEFAULT_NAMESPACE,
    start: Annotated[int | None, typer.Option("--from", min=0, help="The first revision; from now by default.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many changes.")] = None,
) -> None:
    """Print changes as they are made, one a line, until interrupted: revision, operation, key, value."""
    out = sys.stdout.buffer
    with suppress(KeyboardInterrupt), _keys(at, ns) as keys:
        for seen, (change, _) in enumerate(keys.watch(from_revision=start, prefix=prefix), 1):
            out.write(f"{change.revision}\t{change.kind}\t{change.key}\t".encode() + change.value + b"\n")
            out.flush()
            if seen == count:
                break


@app.command()
@at_gateway
def export(file: FileArgument, *, at: GatewayLocation, ns: SpaceOption = DEFAULT_NAMESPACE) -> None:
    """Write a namespace, as it is at one revision, to a file that `import` and other stores load."""
    with _keys(at, ns) as keys:
        done = keys.export_to(file)
    typer.echo(f"{done.entries:,} keys at revision {done.revision} in {file}")


@app.command("import")
@at_gateway
def import_(file: FileArgument, *, at: GatewayLocation, ns: SpaceOption = DEFAULT_NAMESPACE) -> None:
    """Store the entries of a file, over those of the same keys; a damaged file is refused whole.

    After an interruption, do it again: entries that are there already are skipped.
    """
    with _keys(at, ns) as keys:
        done = keys.import_from(file)
    typer.echo(f"{done.stored:,} keys stored, {done.unchanged:,} as they were, {done.expired:,} expired")


@contextmanager
def _keys(at: GatewayLocation, namespace: str) -> "Iterator[GatewayKeys]":
    from gateway.remote.kv import GatewayKeys  # noqa: PLC0415 - slow to load

    with RemoteGateway(at.url, ca_file=at.ca_file) as gateway:
        yield GatewayKeys(gateway, namespace)


def _described(entry: Entry) -> str:
    expires = "never" if entry.expires_at_ms is None else _time(entry.expires_at_ms)
    return f"{entry.revision}\t{entry.version}\t{expires}"


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return f"{ms} ms"
