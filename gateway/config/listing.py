"""A configuration as lines: every key with the value in force and its meaning. Secrets stay secrets."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.base.config_reader import Secret, describe
from gateway.config.config import DECLARED, Config, ListenerConfig


def listing(config: Config) -> Iterator[str]:
    """Yields a line for each key: `gateway.connections_max = 50000  # open connections, over all listeners`."""
    yield from _lines(config, "")


def _lines(section: msgspec.Struct, path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(section):
        if isinstance(section, ListenerConfig) and field.name in DECLARED:
            continue
        yield from _line(getattr(section, field.name), f"{path}{field.name}", describe(field))


def _line(value: Any, key: str, meaning: str) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        yield from _lines(value, f"{key}.")
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _line(inner, f"{key}.{name}", meaning)
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        for i, inner in enumerate(value):
            yield from _line(inner, f"{key}[{i}]", meaning)
    else:
        yield f"{key} = {_shown(value)}" + (f"  # {meaning}" if meaning else "")


def _shown(value: Any) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, Secret):
        return "***"
    return msgspec.json.encode(str(value) if isinstance(value, Path) else value).decode()
