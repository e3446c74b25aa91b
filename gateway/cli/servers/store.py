"""`headgate store`: a store node; and operations on a data directory that no process uses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.servers.mains import run_main

EXIT_DAMAGED = 1

app = typer.Typer()

Load = Callable[[Path | None, Path | None, int | None, str | None], Any]

DataDirArgument = Annotated[Path, typer.Argument(help="The directory of store.data_dir.", metavar="DATA_DIR")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object.")]
HERE = Path("headgate-data")


@app.command()
def verify(
    data_dir: DataDirArgument = HERE,
    *,
    views: Annotated[bool, typer.Option("--views", help="Compare the views with a rebuild, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check both checksums of every frame; exit code 1 where something is damaged."""
    from gateway.cli.servers import store_report as report  # noqa: PLC0415 - here and below: imports for stores alone
    from store.engine.repair import StoppedStore  # noqa: PLC0415

    compared = None
    with StoppedStore(data_dir, read=True) as store:
        report.print_unlocked(data_dir, store.unlocked)
        with report.progress("reading the log", store.end - store.first) as reached:
            found = store.verify(lambda at: reached(at - store.first))
        if views:
            with report.progress("rebuilding views", store.end - store.first) as reached:
                compared = store.verify_views(lambda at, _end: reached(at - store.first))
    if as_json:
        typer.echo(json.dumps(report.verified_document(found, compared)))
    else:
        report.print_verified(found, compared)
    if not found.is_sound or (compared is not None and not compared.is_sound):
        raise typer.Exit(EXIT_DAMAGED)


@app.command()
def dump(
    data_dir: DataDirArgument = HERE,
    *,
    start: Annotated[int | None, typer.Option("--from", min=0, help="The log offset of the first frame.")] = None,
    end: Annotated[int | None, typer.Option("--to", min=0, help="The log offset to stop at.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="Only records of this queue.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="At most so many records.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
) -> None:
    """Print every record, a line each, in the order of the log; exit code 1 where something is damaged."""
    from gateway.cli.servers import store_report as report  # noqa: PLC0415
    from store.engine.repair import StoppedStore  # noqa: PLC0415
    from store.format.frame import Frame, LogOffset  # noqa: PLC0415

    damaged, shown = False, 0
    with StoppedStore(data_dir, read=True) as store:
        report.print_unlocked(data_dir, store.unlocked)
        first = None if start is None else LogOffset(start)
        for item in store.items(first, None if end is None else LogOffset(end)):
            if not isinstance(item, Frame):
                damaged = True
                report.print_line({"damaged": item.start, "to": item.end, "why": item.why}, as_json=as_json)
                continue
            for line in report.records(item, queue):
                report.print_line(line, as_json=as_json)
                shown += 1
                if shown == count:
                    return
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


@app.command("rebuild-views")
def rebuild_views(
    data_dir: DataDirArgument = HERE,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Although they lose the data that the log does not hold any more.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Throw the views away and make them from the log. Interrupted, the next start goes on where it was."""
    from gateway.cli.servers import store_report as report  # noqa: PLC0415
    from gateway.process.store_options import naming_remedy  # noqa: PLC0415
    from store.engine.repair import StoppedStore  # noqa: PLC0415

    with (
        naming_remedy(data_dir),
        StoppedStore(data_dir) as store,
        report.progress("rebuilding views", store.end - store.first) as reached,
    ):
        dispatched = store.rebuild_views(lambda at, _end: reached(at - store.first), force=force)
    if as_json:
        typer.echo(json.dumps({"dispatched": dispatched}))
    else:
        typer.echo(f"the views have followed the log to {dispatched}")


@app.command()
def stats(data_dir: DataDirArgument = HERE, *, as_json: JsonOption = False) -> None:
    """Say how large the log and the views are, without reading them."""
    from gateway.cli.servers import store_report as report  # noqa: PLC0415
    from store.engine.repair import StoppedStore  # noqa: PLC0415

    with StoppedStore(data_dir, read=True) as store:
        report.print_unlocked(data_dir, store.unlocked)
        found = store.stats()
    if as_json:
        typer.echo(json.dumps({**found._asdict(), "views": [view._asdict() for view in found.views]}))
    else:
        report.print_stats(found)


# ---- a store node


def register(load: Load) -> None:
    """Adds the command `headgate store`. `load` reads the configuration: file, data directory, port offset."""

    @app.callback(invoke_without_command=True)
    def node(
        context: typer.Context,
        config: Annotated[Path | None, typer.Option("--config", "-c", help="The TOML file.")] = None,
        data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Overrides store.data_dir.")] = None,
        port_offset: Annotated[int | None, typer.Option("--port-offset", min=0, help="Added to every port.")] = None,
        group: Annotated[int | None, typer.Option("--group", min=0, help="Overrides store.group.")] = None,
    ) -> None:
        """Run a replica of a store group in this process until SIGTERM or SIGINT.

        The commands look into, verify and repair the data directory of a node or gateway that is stopped.
        """
        if context.invoked_subcommand is not None:
            return
        import msgspec  # noqa: PLC0415

        from gateway.process.nodes import serve_store  # noqa: PLC0415

        settings = load(config, data_dir, port_offset, None)
        if group is not None:
            settings = msgspec.structs.replace(settings, store=msgspec.structs.replace(settings.store, group=group))
        run_main(settings, serve_store)
