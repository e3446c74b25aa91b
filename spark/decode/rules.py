"""The rules of a job, read from a TOML file, which may be the gateway's own."""

import tomllib
from pathlib import Path

import msgspec

from spark.errors import BadOption
from store.api.decoding import DecodeRule
from store.api.devices import DeviceRule


class DecodeRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a job: a message's device, and the format of its body. The first that matches applies."""

    devices: tuple[DeviceRule, ...] = ()
    decode: tuple[DecodeRule, ...] = ()

    def encode(self) -> str:
        """Returns the rules as a text, for an option of the data source."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def parse(cls, text: str) -> "DecodeRules":
        """Returns the inverse of `encode`. Raises ValueError."""
        return msgspec.json.decode(text, type=cls) if text.strip() else cls()


def load_rules(path: Path) -> DecodeRules:
    """Returns the tables `[[devices]]` and `[[decode]]` of a TOML file, and skips all others.

    Raises `BadOption`.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        chosen = {name: tables[name] for name in DecodeRules.__struct_fields__ if name in tables}
        return msgspec.convert(chosen, DecodeRules)
    except OSError as error:
        raise BadOption("rules", f"cannot be {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadOption("rules", f"cannot be {path}: {error}") from error
