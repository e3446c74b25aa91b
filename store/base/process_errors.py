"""The errors of every process of Headgate: their root, and the error of a server that cannot start."""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

_BY_ASYNCIO: Final = "error while attempting to bind"  # it names the address once more, as Python writes it


class HeadgateError(Exception):
    """The root of everything that the gateway raises on purpose."""


class ConfigError(HeadgateError):
    """A configuration that cannot be used; the text names the key and a value to write instead."""


class NothingAnswers(HeadgateError):
    """Raised where nothing answers at the address that a command asks."""


class ServerFailed(HeadgateError):
    """A server cannot start, or cannot go on: a port is taken, a directory is locked, its disk has failed."""


@contextlib.contextmanager
def listening_on(section: str, host: str, port: int, *, key: str = "port") -> Iterator[None]:
    """Says of a port that is refused which setting it comes from. Raises `ServerFailed`."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise ServerFailed(cannot_listen(section, f"{host}:{port}", error, key=key)) from error


def cannot_listen(section: str, where: str, error: OSError | RuntimeError, *, key: str = "port") -> str:
    """Returns the sentence about an address ("host:port") that is refused, with the settings that name it."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.errno and why.startswith(_BY_ASYNCIO):
        why = os.strerror(error.errno)
    name = section.removeprefix("listeners.")
    return f"{name} cannot listen on {where}: {why}; write another {section}.{key} or {section}.host"
