"""Connects commands to the controllers of a cluster."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from gateway.config.cluster_settings import ClusterConfig

T = TypeVar("T")

UNIX = "unix:"  # in front of a socket's path
DEFAULT_ADDRESS = "127.0.0.1:8082"

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="A node's TOML file: names the controllers.")]
ControllersOption = Annotated[
    str | None, typer.Option("--controllers", help="host:port,... instead of a file.", show_default=DEFAULT_ADDRESS)
]


def ask(config: Path | None, controllers: str | None, work: Callable[[Any], Awaitable[T]]) -> T:
    """Does something with the controllers that a command names. Raises `ControllerError`, `ConfigError`."""
    from gateway.config.config import load  # noqa: PLC0415 - here and below: imports of such commands alone
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    cluster = None if config is None else load(config).cluster
    if cluster is not None and not cluster.controllers and controllers is None:
        raise ConfigError(f"{config}: cluster.controllers is empty; write the addresses of the controllers")
    return ask_of(cluster, controllers, work)


def ask_of(cluster: "ClusterConfig | None", controllers: str | None, work: Callable[[Any], Awaitable[T]]) -> T:
    """Does something with the controllers of a cluster's settings, or those that `controllers` names.

    Raises `ControllerError`, `ConfigError`.
    """
    import asyncio  # noqa: PLC0415

    from gateway.operating.asking import asked  # noqa: PLC0415

    if controllers is not None:
        addresses = _named(controllers)
    else:
        addresses = [DEFAULT_ADDRESS] if cluster is None else list(cluster.controllers.values())
    return asyncio.run(asked(addresses, work, credentials=_credentials(cluster)))


def _named(controllers: str) -> Sequence[str]:
    """Returns the addresses in a text. Raises `ConfigError`."""
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    named = [one.strip() for one in controllers.split(",") if one.strip()]
    if not named:
        raise ConfigError("--controllers: names none; write host:port,...")
    for one in named:
        if not one.startswith(UNIX) and not _is_address(one):
            raise ConfigError(f"--controllers: {one!r} is not host:port; write host:port,...")
    return named


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

    return None if config is None else _credentials(load(config).cluster)


def _credentials(cluster: "ClusterConfig | None") -> Any:
    from gateway.config.nodes import node_credentials  # noqa: PLC0415

    return None if cluster is None else node_credentials(cluster, host="localhost", key="cluster").channel
