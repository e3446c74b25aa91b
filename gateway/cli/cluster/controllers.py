"""Connects commands to the controllers of a cluster."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")

UNIX = "unix:"  # in front of a socket's path

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="A node's TOML file: names the controllers.")]
ControllersOption = Annotated[
    str | None, typer.Option("--controllers", help="host:port,... instead of a file.", show_default="127.0.0.1:8082")
]


def ask(config: Path | None, controllers: str | None, work: Callable[[Any], Awaitable[T]]) -> T:
    """Does something with the controllers that a command names. Raises `ControllerError`, `ConfigError`."""
    import asyncio  # noqa: PLC0415 - here and below: imports of such commands alone

    from gateway.operating.asking import asked  # noqa: PLC0415

    return asyncio.run(asked(_addresses(config, controllers), work, credentials=channel(config)))


def _addresses(config: Path | None, controllers: str | None) -> Sequence[str]:
    """Returns the addresses of the controllers."""
    from gateway.config.config import load  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    if controllers is not None:
        named = [one.strip() for one in controllers.split(",") if one.strip()]
        if not named:
            raise ConfigError("--controllers: names none; write host:port,...")
        for one in named:
            if not one.startswith(UNIX) and not _is_address(one):
                raise ConfigError(f"--controllers: {one!r} is not host:port; write host:port,...")
        return named
    if config is None:
        return ["127.0.0.1:8082"]
    found = list(load(config).cluster.controllers.values())
    if not found:
        raise ConfigError(f"{config}: cluster.controllers is empty; write the addresses of the controllers")
    return found


def _is_address(text: str) -> bool:
    from gateway.config.cluster_settings import NodeAddress  # noqa: PLC0415

    try:
        NodeAddress.parse(text)
    except ValueError:
        return False
    return True


def channel(config: Path | None) -> Any:
    """Returns the credentials of the configuration, if it has any."""
    from gateway.config.config import load  # noqa: PLC0415
    from gateway.config.nodes import node_credentials  # noqa: PLC0415

    if config is None:
        return None
    return node_credentials(load(config).cluster, host="localhost", key="cluster").channel
