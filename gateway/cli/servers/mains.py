"""The end of every command that runs a server: logs as configured, the server, and its exit status.

Errors become sentences and exit codes where all commands end (`gateway.cli.commands`).
"""

from collections.abc import Callable
from typing import Any, NoReturn

import typer


def run_main(settings: Any, serve: Callable[[Any], int]) -> NoReturn:
    """Runs a server with its configuration. Raises `typer.Exit` with its exit status, and the errors of `serve`."""
    from store.base import logs  # noqa: PLC0415 - imports of servers alone are loaded by servers

    logs.configure(settings.log)
    raise typer.Exit(serve(settings))
