"""`headgate controller recover`: the questions to the operator, and the place of the directory."""

from pathlib import Path

import typer

from controller.api.client import ControllerError
from controller.incarnations.recovery import DirectoryContent, StoppedController
from gateway.config.cluster_settings import NodeAddress
from gateway.config.config import Config
from gateway.config.nodes import controller_start
from store.base.process_errors import ConfigError, ServerFailed


def recover(config: Config, address: str | None, *, confirmed: bool) -> None:
    """Recovers the cluster from one controller's directory, when that is confirmed.

    Raises `ConfigError`, `ServerFailed`, `typer.Abort`.
    """
    named = config.cluster.addresses
    joined = bool(named) and config.controller.id not in named  # later, so that its file may name the others alone
    mine = controller_start(config, join=joined)
    where = mine.address if address is None else _checked(address)
    try:
        survivor = StoppedController(mine.directory, config.controller.id)
    except ControllerError as error:
        raise ServerFailed(_of_directory(mine.directory, error)) from error
    except OSError as error:
        raise ServerFailed(f"{error.filename or mine.directory}: {error.strerror or error}") from error
    try:
        typer.echo(_shown(survivor.found, where))
        if not confirmed:
            typer.confirm("Make it the only controller?", abort=True)
        survivor.recover(where, config.cluster.node_name)
    except ControllerError as error:
        raise ServerFailed(_of_directory(mine.directory, error)) from error
    finally:
        survivor.close()
    typer.echo("done: start this controller, then the others with empty directories, and then look at the store groups")


def _of_directory(directory: Path, error: ControllerError) -> str:
    """Returns an error's sentence, which names the directory."""
    return str(error) if str(directory) in str(error) else f"{directory}: {error}"


def _checked(address: str) -> str:
    try:
        return str(NodeAddress.parse(address))
    except ValueError as error:
        raise ConfigError(f"--address: {error}") from error


def _shown(found: DirectoryContent, address: str) -> str:
    others = ", ".join(str(id_) for id_ in found.controllers if id_ != found.id) or "none"
    return (
        f"controller {found.id} of cluster {found.cluster or '(without an id)'}: entries up to {found.last_index} of "
        f"term {found.last_term}, {found.topics} topics, {found.groups} store groups; other controllers: {others}\n"
        f"It will be the only controller, at {address}. Entries that the others have committed after it are lost: of "
        "two survivors take the one with the greater term, or the greater entry of the same term. The others have to "
        "be stopped; empty their directories before they are started again."
    )
