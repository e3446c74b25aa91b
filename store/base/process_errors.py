"""The errors of every process of Headgate: the root of what it raises on purpose, and settings that cannot be used."""

__all__ = ["ConfigError", "HeadgateError", "cannot_listen"]


class HeadgateError(Exception):
    """The root of everything that the gateway raises on purpose."""


class ConfigError(HeadgateError):
    """A configuration that cannot be used; the text names the key and says what to write instead."""


def cannot_listen(section: str, where: str, error: OSError | RuntimeError, *, key: str = "port") -> str:
    """Returns the sentence about an address ("host:port") that is refused, with the settings that name it."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    name = section.removeprefix("listeners.")
    return f"{name} cannot listen on {where}: {why}; write another {section}.{key} or {section}.host"
