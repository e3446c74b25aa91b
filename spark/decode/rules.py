"""Rules for bodies of some addresses: their format, and which of their fields are metrics."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from spark.errors import BadOption
from store.api.devices import DeviceRule

__all__ = ["DecodeRule", "Rules", "load_rules"]

Format = Literal["auto", "json", "senml", "senml-cbor", "cbor", "sparkplug", "number", "text", "none"]


class DecodeRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way to read bodies of some addresses. Paths are fields joined by dots, a number being an array's element."""

    filter: str = "#"  # of addresses, with + and #
    format: Format = "auto"  # none: the body is no telemetry
    each: str = ""  # the path of an array, each element of which is read by itself
    time: str = ""  # the path of the time: ISO 8601, or seconds, ms, us or ns since 1970
    metrics: dict[str, str] = {}  # metric -> path; none: every field
    metric: str = ""  # the path of the metric's name, where each element is one value
    value: str = "value"  # and of its value
    unit: str = ""  # and of its unit
    ignore: tuple[str, ...] = ()  # paths, and everything below them

    def matches(self, levels: Sequence[str]) -> bool:
        """Returns whether it is for an address of these levels."""
        pattern = self.filter.split("/")
        for n, wanted in enumerate(pattern):
            if wanted == "#":
                return True
            if n >= len(levels) or wanted not in ("+", levels[n]):
                return False
        return len(pattern) == len(levels)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a job: which device a message is of, and what its body says. The first that matches applies."""

    devices: tuple[DeviceRule, ...] = ()
    decode: tuple[DecodeRule, ...] = ()

    def encode(self) -> str:
        """The rules as a text, for an option of the data source."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def parse(cls, text: str) -> "Rules":
        """The inverse of `encode`. Raises ValueError."""
        return msgspec.json.decode(text, type=cls) if text.strip() else cls()


def load_rules(path: Path) -> Rules:
    """The tables `[[devices]]` and `[[decode]]` of a TOML file; what else it holds is passed over.

    Raises `BadOption`.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        chosen = {name: tables[name] for name in Rules.__struct_fields__ if name in tables}
        return msgspec.convert(chosen, Rules)
    except OSError as error:
        raise BadOption("rules", f"cannot be {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadOption("rules", f"cannot be {path}: {error}") from error
