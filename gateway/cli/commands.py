"""The command line: `headgate serve`, `check-config` and `version`, and the place where all other commands are added.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration, 3 nothing answers or goes on answering, 130
interrupted. An error that was to be expected is one line on standard error (a configuration's: one for each mistake),
never a traceback.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.api.client import ControllerError
from gateway.cli import dashboard as cli_dashboard
from gateway.cli import generating as cli_generating
from gateway.cli import spark as cli_spark
from gateway.cli.cluster import access as cli_access
from gateway.cli.cluster import cluster as cli_cluster
from gateway.cli.cluster import passwords as cli_passwords
from gateway.cli.protocols import amqp as cli_amqp
from gateway.cli.protocols import coap as cli_coap
from gateway.cli.remote import groups as cli_groups
from gateway.cli.remote import kv as cli_kv
from gateway.cli.remote import messages as cli_remote
from gateway.cli.servers import cluster_roles as cli_cluster_roles
from gateway.cli.servers import store as cli_store
from gateway.cli.servers.mains import run_main
from store.base.errors import StoreError
from store.base.process_errors import ConfigError, HeadgateError, NothingAnswers

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 3, 130
WORKERS_MAX = 64  # processes of one gateway
_EXPECTED = (
    HeadgateError,
    StoreError,
    ControllerError,
    OSError,
)  # said in one line; anything else is a bug and keeps its traceback

app = typer.Typer(
    name="headgate",
    help="MQTT, CoAP, HTTP, AMQP and CloudEvents into one durable log.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_spark.app, name="spark")
app.add_typer(cli_store.app, name="store")
app.add_typer(cli_kv.app, name="kv")
app.add_typer(cli_groups.app, name="groups")
app.add_typer(cli_cluster.app, name="cluster")
app.add_typer(cli_access.app, name="access")
app.add_typer(cli_amqp.app, name="amqp")
app.add_typer(cli_coap.app, name="coap")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The TOML file.", show_default="headgate.toml, if it is there")
]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Overrides store.data_dir.")]
OffsetOption = Annotated[int | None, typer.Option("--port-offset", min=0, help="Added to every port.")]
HostOption = Annotated[
    str | None,
    typer.Option("--host", help="Where the protocols listen (0.0.0.0: everywhere); admin and rpc stay as configured."),
]


@app.command()
def serve(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    port_offset: OffsetOption = None,
    host: HostOption = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=WORKERS_MAX, help="So many processes for connections, on the same ports."),
    ] = None,
) -> None:
    """Run the whole gateway in this process until SIGTERM or SIGINT; a second signal stops it at once.

    SIGHUP has users and access rules read again.
    """
    from gateway.ops.banner import announce  # noqa: PLC0415 - here and below: imports of servers alone
    from gateway.process.app import serve as run_gateway  # noqa: PLC0415

    def load() -> Any:
        return _load(config, data_dir, port_offset, host)

    settings = load()
    where = str(settings.store.data_dir)

    def ready(server: Any) -> None:
        announce(server.listening, data_dir=where)

    if workers is None:
        run_main(settings, lambda it: run_gateway(it, load=load, on_ready=ready))
    from gateway.process.workers import serve as run_workers  # noqa: PLC0415

    run_main(settings, lambda it: run_workers(it, workers, load=load, on_ready=ready))


@app.command("check-config")
def check_config(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    port_offset: OffsetOption = None,
    host: HostOption = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", help="For headgate serve, controller, store or proxy; not said: for all it may be."),
    ] = None,
    *,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=WORKERS_MAX, help="For headgate serve with so many workers.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Every key, its value, and what it means.")] = False,
) -> None:
    """Say whether the configuration is usable, and list its mistakes."""
    from gateway.process.roles import ROLES, opened_by, refusals, roles_of  # noqa: PLC0415

    settings = _load(config, data_dir, port_offset, host)
    for role in roles or ():
        if role not in ROLES:
            raise ConfigError(f"--role: {role!r} is none of {', '.join(ROLES)}")
    if refused := refusals(settings, roles or roles_of(settings), workers=workers is not None):
        raise ConfigError("\n".join(refused))
    if keys:
        from gateway.config.listing import listing  # noqa: PLC0415

        for line in listing(settings):
            typer.echo(line)
        return
    for line in opened_by(settings, roles or roles_of(settings)):
        typer.echo(line)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed  # noqa: PLC0415 - an import of this command alone

    typer.echo(installed("headgate"))


cli_remote.register(app)
cli_passwords.register(app)


def main() -> None:
    """Runs the console script."""
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has closed it
        sys.exit(EXIT_FAILED)
    except _EXPECTED as error:
        sys.exit(_explain([error]))
    except UnicodeEncodeError:
        if "".join(sys.argv).isprintable():  # bytes that are not UTF-8 are lone surrogates in arguments (PEP 383)
            raise
        sys.exit(_explain([ConfigError("an argument is not UTF-8")]))
    except BaseExceptionGroup as group:
        expected, bugs = group.split(_EXPECTED)
        if expected is None or bugs is not None:
            raise
        sys.exit(_explain(list(_leaves(expected))))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _explain(errors: list[BaseException]) -> int:
    """Prints expected errors, a line each, and returns the exit code of the first."""
    for error in errors:
        for line in _sentence(error).splitlines():
            print(f"headgate: {line}", file=sys.stderr)  # noqa: T201 - the one way out of every command
    if isinstance(errors[0], ConfigError):
        return EXIT_USAGE
    return EXIT_UNREACHABLE if isinstance(errors[0], NothingAnswers) else EXIT_FAILED


def _sentence(error: BaseException) -> str:
    """Returns an error's message, with the meaning of its class in front where the message only names something."""
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    if " " in text.strip():
        return text
    meaning = (type(error).__doc__ or type(error).__name__).splitlines()[0].rstrip(".")
    return f"{meaning}: {text}" if text else meaning


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _load(config: Path | None, data_dir: Path | None, port_offset: int | None, host: str | None) -> Any:
    """Returns the configuration with the command line laid over it."""
    from gateway.config.config import adapter_factories, load  # noqa: PLC0415

    factories = adapter_factories()
    overrides: dict[str, Any] = {}
    if data_dir is not None:
        overrides["store"] = {"data_dir": str(data_dir)}
    if port_offset is not None:
        overrides["port_offset"] = port_offset
    if host is not None:
        names = [listener.name for factory in factories.values() for listener in factory.listeners]
        overrides["listeners"] = {name: {"host": host} for name in names}
    return load(config, overrides=overrides, factories=factories)


cli_cluster_roles.register(app, _load)
cli_store.register(_load)
cli_dashboard.register(app, _load)
cli_generating.register(cli_spark.app)
