"""`headgate dashboard`: pages in a browser over the telemetry tables and the admin API."""

import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.remote.options import ADMIN_PORT, HTTP_PORT, moved
from gateway.cli.spark import OUTPUT, SparkFailed, pair

DASHBOARD_PORT = 8050


def register(app: typer.Typer, load: Callable[..., Any]) -> None:
    """Adds the command; `load` reads a configuration."""

    @app.command()
    def dashboard(
        *,
        tables: Annotated[
            str, typer.Option("--tables", "-t", help="Where the tables are: a directory, or s3://bucket/path.")
        ] = OUTPUT,
        storage_option: Annotated[
            list[str] | None, typer.Option("--storage-option", help="Of the object store, NAME=VALUE; may be repeated.")
        ] = None,
        admin: Annotated[
            str | None, typer.Option("--admin", help="The gateway's admin URL.", show_default="http://127.0.0.1:8088")
        ] = None,
        gateway: Annotated[
            str | None,
            typer.Option("--gateway", help="The gateway's HTTP URL.", show_default="http://127.0.0.1:8080"),
        ] = None,
        host: Annotated[
            str, typer.Option("--host", help="Where it listens; off loopback --config is needed.")
        ] = "127.0.0.1",
        port: Annotated[int, typer.Option("--port", help="0: any free one.", min=0, max=65_535)] = DASHBOARD_PORT,
        port_offset: Annotated[int, typer.Option("--port-offset", help="Added to the ports, its own too.", min=0)] = 0,
        config: Annotated[
            Path | None, typer.Option("--config", "-c", help="The gateway's TOML file, whose \\[auth.users] log in.")
        ] = None,
        rules: Annotated[
            Path | None,
            typer.Option(
                "--rules",
                help="A TOML file with the job's \\[\\[devices]] and \\[\\[decode]], by which messages are shown.",
                show_default="--config",
            ),
        ] = None,
    ) -> None:
        """Show fleet, devices, data quality and SQL over the tables in a browser, until SIGTERM or SIGINT."""
        check = None if config is None else check_of(config, load)
        try:
            from spark import errors  # noqa: PLC0415 - an extra, and slow to load
            from spark.dashboard import server  # noqa: PLC0415
        except ImportError as error:
            why = f"The dashboard is not installed ({error.name}); pip install 'headgate[dashboard]'"
            raise SparkFailed(why) from error
        options = server.DashboardOptions(
            tables=tables,
            storage_options=dict(pair(text) for text in storage_option or ()),
            admin=admin or f"http://127.0.0.1:{moved(ADMIN_PORT, port_offset)}",
            gateway=gateway or f"http://127.0.0.1:{moved(HTTP_PORT, port_offset)}",
            host=host,
            port=moved(port, port_offset) if port else 0,
            check=check,
            rules=rules or config,
        )
        try:
            server.run(options, ready=lambda url: typer.echo(f"dashboard: {url}"))
        except errors.SparkError as error:
            raise SparkFailed(str(error)) from error


def check_of(config: Path, load: Callable[..., Any]) -> Callable[[str, bytes], bool]:
    """Returns the comparison with passwords of a configuration's users. Raises `SparkFailed` when there are none."""
    from gateway.security.passwords import hash_password, is_match  # noqa: PLC0415 - imports of this command alone

    users = load(config, None, None, None).auth.users
    hashes = {}
    for name, user in users.items():
        if user.password_hash is not None:
            hashes[name] = user.password_hash.reveal()
        elif user.password is not None:  # hashed here, so that all comparisons take the same time
            hashes[name] = hash_password(user.password.reveal().encode())
    if not hashes:
        raise SparkFailed(f"{config} has no [auth.users] with a password: no user could log in to the dashboard")
    nobodys = functools.partial(is_match, hash_password(secrets.token_hex(16).encode()))

    def check(name: str, password: bytes) -> bool:
        hashed = hashes.get(name)
        if hashed is None:
            nobodys(password)  # an unknown name takes as long
            return False
        return is_match(hashed, password)

    return check
