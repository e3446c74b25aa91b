"""`headgate hash-password`: hashes for the configuration in place of passwords."""

from pathlib import Path
from typing import Annotated

import typer

from store.base.process_errors import ConfigError

PasswordFileOption = Annotated[
    Path | None, typer.Option("--password-file", help="Holds the password; asked for if not said.")
]


def hashed_password(password_file: Path | None) -> str:
    """Returns the hash of a password in a file, or asked for. Raises `ConfigError` for one that cannot be."""
    from gateway.security.passwords import hash_password  # noqa: PLC0415 - an import of this command alone

    if password_file is not None:
        password = password_file.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True).encode()
    try:
        return hash_password(password)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def print_hash(password_file: PasswordFileOption = None) -> None:
    """Print a password's hash for the configuration: `password_hash` of a user.

    It is argon2id's hash, and a verifier for SCRAM; either alone may be written too.
    """
    typer.echo(hashed_password(password_file))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("hash-password")(print_hash)
