"""`headgate coap oscore`: the security contexts of CoAP's clients (RFC 8613), in the file of `auth.oscore_file`."""

from pathlib import Path
from typing import Annotated, Any

import typer

CLIENT_ID_BYTES = 2  # of an id that is made here
SECRET_BYTES = SALT_BYTES = 16
MADE_TRIES = 64

app = typer.Typer(help="CoAP's clients.", no_args_is_help=True)
oscore = typer.Typer(
    help="OSCORE's security contexts; a running gateway has a change within seconds.", no_args_is_help=True
)
app.add_typer(oscore, name="oscore")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The TOML file.", show_default="headgate.toml, if it is there")
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="The contexts' file.", show_default="auth.oscore_file of the configuration"),
]


@oscore.command("add")
def add(
    user: Annotated[str, typer.Argument(help="The user that the client is let in as, and its messages' owner.")],
    *,
    client_id: Annotated[
        str | None, typer.Option(help="The client's sender id, hexadecimal.", show_default="a new one")
    ] = None,
    server_id: Annotated[str, typer.Option(help="The server's sender id, hexadecimal.", show_default="empty")] = "",
    secret_file: Annotated[
        Path | None, typer.Option(help="Holds the master secret, hexadecimal.", show_default="a new one")
    ] = None,
    salt: Annotated[str | None, typer.Option(help="The master salt, hexadecimal.", show_default="a new one")] = None,
    context: Annotated[str | None, typer.Option(help="The ID Context, hexadecimal.", show_default="none")] = None,
    algorithm: Annotated[int, typer.Option(help="The AEAD algorithm, by its number in COSE.")] = 10,
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Add a context, and print what its client needs. It is shown this once."""
    import secrets  # noqa: PLC0415 - here and below: imports of this command alone

    import msgspec  # noqa: PLC0415

    from gateway.oscore.contexts_file import FileContext, check_context, write_contexts  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    path = _path(file, config)
    contexts = _contexts(path, missing_is_empty=True)
    if client_id is None:
        taken = {one.client_id.lower() for one in contexts} | {server_id.lower()}
        made = (secrets.token_hex(CLIENT_ID_BYTES) for _ in range(MADE_TRIES))
        client_id = next((one for one in made if one not in taken), "")
    secret = secrets.token_hex(SECRET_BYTES)
    if secret_file is not None:
        secret = secret_file.read_text("ascii").strip()
    fields: dict[str, Any] = {
        "user": user,
        "client_id": client_id.lower(),
        "server_id": server_id.lower(),
        "secret": secret.lower(),
        "salt": (secrets.token_hex(SALT_BYTES) if salt is None else salt).lower(),
        "context": None if context is None else context.lower(),
        "algorithm": algorithm,
    }
    try:
        added = msgspec.convert(fields, FileContext)
        check_context(added)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"the context cannot be added: {error}") from None
    if any(one.kid == added.kid for one in contexts):
        raise ConfigError(
            f"--client-id: {path} has a context of {added.client_id!r} already; remove it, or choose another"
        )
    write_contexts(path, [*contexts, added])
    for name in ("client_id", "server_id", "secret", "salt", "context", "algorithm"):
        if fields[name] is not None:
            typer.echo(f"{name} = {fields[name]}")


@oscore.command("list")
def list_contexts(file: FileOption = None, config: ConfigOption = None) -> None:
    """The contexts: client id, ID Context and user. Secrets are not shown."""
    for one in _contexts(_path(file, config)):
        context = "" if one.context is None else f" in context {one.context or '(empty)'}"
        typer.echo(f"{one.client_id or '(empty)'}{context} {one.user}")


@oscore.command("remove")
def remove(
    client_id: Annotated[str, typer.Argument(help="Of the context to remove, hexadecimal.")],
    *,
    context: Annotated[str | None, typer.Option(help="Its ID Context, hexadecimal.", show_default="none")] = None,
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a context: its client is refused from now on, and its observations end."""
    from gateway.oscore.contexts_file import write_contexts  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    path = _path(file, config)
    contexts = _contexts(path)
    wanted = client_id.lower(), None if context is None else context.lower()
    kept = [one for one in contexts if (one.client_id.lower(), one.context and one.context.lower()) != wanted]
    if len(kept) == len(contexts):
        raise ConfigError(f"{path} has no context of {client_id!r}; `headgate coap oscore list` shows those it has")
    write_contexts(path, kept)
    typer.echo(f"the context of {client_id} is removed")


def _path(file: Path | None, config: Path | None) -> Path:
    """Returns the file that a command means. Raises `ConfigError`."""
    from gateway.config.config import load  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    path = file or load(config).auth.oscore_file
    if path is None:
        raise ConfigError("auth.oscore_file is not set; write a path there, or name a file with --file")
    return path


def _contexts(path: Path, *, missing_is_empty: bool = False) -> list[Any]:
    """Returns the contexts of a file. Raises `ConfigError`, OSError."""
    from gateway.oscore.contexts_file import read_contexts  # noqa: PLC0415

    if missing_is_empty and not path.exists():
        return []
    return list(read_contexts(path))
