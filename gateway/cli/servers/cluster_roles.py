"""`headgate controller` and `headgate proxy`: nodes that have one role in a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.servers.mains import run_main

Load = Callable[[Path | None, Path | None, int | None, str | None], Any]


def _settings(load: Load, config: Path | None, data_dir: Path | None, id_: int | None, port_offset: int | None) -> Any:
    """Returns the configuration of a controller, with the options of the command line."""
    import msgspec  # noqa: PLC0415

    settings = load(config, None, port_offset, None)
    mine = settings.controller
    mine = msgspec.structs.replace(mine, id=id_ or mine.id, data_dir=data_dir or mine.data_dir)
    return msgspec.structs.replace(settings, controller=mine)


def register(app: typer.Typer, load: Load) -> None:
    """Adds the commands. `load` reads the configuration: file, data directory, port offset, host."""

    controllers = typer.Typer()
    app.add_typer(controllers, name="controller")

    @controllers.callback(invoke_without_command=True)
    def controller(
        context: typer.Context,
        config: Annotated[Path | None, typer.Option("--config", "-c", help="The TOML file.")] = None,
        data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Overrides controller.data_dir.")] = None,
        port_offset: Annotated[int | None, typer.Option("--port-offset", min=0, help="Added to every port.")] = None,
        id_: Annotated[int | None, typer.Option("--id", min=1, help="Overrides controller.id.")] = None,
        *,
        join: Annotated[
            bool,
            typer.Option("--join", help="Become a new member of the running cluster that cluster.controllers names."),
        ] = False,
    ) -> None:
        """Run one of the cluster's controllers in this process until SIGTERM or SIGINT."""
        if context.invoked_subcommand is not None:
            return
        from gateway.process.nodes import serve_controller  # noqa: PLC0415 - here and below: imports of servers alone

        settings = _settings(load, config, data_dir, id_, port_offset)
        run_main(settings, lambda it: serve_controller(it, join=join))

    @controllers.command()
    def recover(
        config: Annotated[Path | None, typer.Option("--config", "-c", help="The controller's TOML file.")] = None,
        data_dir: Annotated[Path | None, typer.Option("--dir", help="Overrides controller.data_dir.")] = None,
        id_: Annotated[int | None, typer.Option("--id", min=1, help="Overrides controller.id.")] = None,
        address: Annotated[
            str | None, typer.Option("--address", help="host:port where it will be reached, if not as configured.")
        ] = None,
        *,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ) -> None:
        """Make a cluster of this controller alone, when a majority of the controllers is lost for good.

        It has to be stopped, and so have the others. Commands that only they knew are lost.
        """
        from gateway.cli.servers.recover import recover as recovered  # noqa: PLC0415

        recovered(_settings(load, config, data_dir, id_, None), address, confirmed=yes)

    @app.command(hidden=True)
    def worker() -> None:
        """Be one of the processes that `headgate serve --workers` starts and directs."""
        from gateway.process.worker import serve  # noqa: PLC0415

        raise typer.Exit(serve())

    @app.command()
    def proxy(
        config: Annotated[Path | None, typer.Option("--config", "-c", help="The TOML file.")] = None,
        port_offset: Annotated[int | None, typer.Option("--port-offset", min=0, help="Added to every port.")] = None,
        host: Annotated[
            str | None,
            typer.Option("--host", help="Where the protocols listen (0.0.0.0: everywhere); admin and rpc do not."),
        ] = None,
    ) -> None:
        """Run a gateway that keeps nothing itself, over the store groups of a cluster, until SIGTERM or SIGINT.

        SIGHUP has users and access rules read again.
        """
        from gateway.ops.banner import announce  # noqa: PLC0415
        from gateway.process.app import serve_proxy  # noqa: PLC0415

        def again() -> Any:
            return load(config, None, port_offset, host)

        settings = again()
        where = ", ".join(settings.cluster.controllers.values())
        run_main(
            settings,
            lambda it: serve_proxy(it, load=again, on_ready=lambda one: announce(one.listening, data_dir=where)),
        )
