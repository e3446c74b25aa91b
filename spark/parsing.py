"""Texts of options to values: the common part of every set of options. No part of Spark is needed to read them."""

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from spark.errors import BadOption

_TEXTS = msgspec.json.Decoder(tuple[str, ...])
TARGETS_MAX = 64  # of one option
_TIME_MS_END = 253_402_300_800_000  # the year 10000
_PORT_MAX = 65_535
_MEMORY = re.compile(r"([1-9][0-9]{0,9})([kmgt])b?", re.IGNORECASE)
_BLANK = re.compile(r"[\s\x00-\x20\x7f]")
_MEMORY_KIB_MIN = 512 << 10  # Spark does not start with less

OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


def parse_options(
    kind: type[OptionsT],
    options: Mapping[str, str],
    parsers: Mapping[str, Callable[[str], Any]],
    aliases: Mapping[str, str],
) -> OptionsT:
    """Returns options as Spark hands them over, whatever their case.

    Raises `BadOption`, naming the option and, for a typo, the right one.
    """
    known = {name.lower(): name for name in kind.__struct_fields__}
    values: dict[str, Any] = {}
    for given, text in options.items():
        name = known.get(aliases.get(given.lower(), given.lower()))
        if name is None:
            near = difflib.get_close_matches(given.lower(), known, 1)
            raise BadOption(given, "is not an option" + (f"; {known[near[0]]} is" if near else ""))
        if name in values:
            raise BadOption(given, f"says the same as {name}, which is given too")
        try:
            values[name] = parsers[name](text)
        except ValueError as error:
            shown = "what it is" if name in _SECRETS else repr(text)
            raise BadOption(name, f"cannot be {shown}: {error}") from error
    return kind(**values)


_SECRETS = frozenset({"password", "token"})


def names(text: str) -> tuple[str, ...]:
    """Returns names, comma-separated."""
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def texts(text: str) -> tuple[str, ...]:
    """Returns one text as it is, or several as a JSON array."""
    if not text:
        return ()
    return tuple(dict.fromkeys(_TEXTS.decode(text))) if text.startswith("[") else (text,)


def timestamp_ms(text: str) -> int:
    """Returns milliseconds since 1970, from such a number or ISO 8601 (without a zone: UTC). Raises ValueError."""
    word = text.strip()
    if word.isdecimal():
        found = int(word)
    else:
        when = datetime.fromisoformat(word)
        found = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= found < _TIME_MS_END:
        raise ValueError("it must be a time from 1970 to 9999")
    return found


def positive(text: str) -> int:
    """Returns a number from 1 on. Raises ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError("it must be at least 1")
    return number


def targets(text: str) -> str:
    """Returns hosts and ports, comma-separated. Raises ValueError."""
    found = names(text)
    if not found or len(found) > TARGETS_MAX:
        raise ValueError(f"it must be HOST:PORT, or up to {TARGETS_MAX} of them with commas between them")
    for one in found:
        host, _, port = one.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            raise ValueError("it must be HOST:PORT")
    return ",".join(found)


def seconds(text: str) -> float:
    """Returns a number of seconds. Raises ValueError."""
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError("it must be a number of seconds")
    return number


def memory(text: str) -> str:
    """Returns memory as Spark has it: `512m`, `2g`. Raises ValueError."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise ValueError("it must be a number and a unit, as 512m or 2g")
    if int(found[1]) << 10 * "kmgt".index(found[2].lower()) < _MEMORY_KIB_MIN:
        raise ValueError("it must be 512m at least")
    return text


def master(text: str) -> str:
    """Returns the master of a Spark cluster. Raises ValueError."""
    if text != "yarn" and not text.startswith(("spark://", "k8s://", "local")):
        raise ValueError("it must be as spark://host:7077")
    return text


def flag(text: str) -> bool:
    """Returns whether it is true. Raises ValueError."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("it must be true or false")
    return word == "true"


def urls(text: str) -> str:
    """Returns the URLs of gateways' HTTP listeners, comma-separated. Raises ValueError."""
    found = [word.rstrip("/") for word in names(text)]
    if not found or not all(is_url(word) and "/" not in word.partition("://")[2] for word in found):
        raise ValueError("it must be as http://127.0.0.1:8080")
    return ",".join(found)


def is_url(text: str) -> bool:
    """Returns whether a text is the URL of an HTTP listener, with or without a user and a path."""
    try:
        url = urlsplit(text)
        named = bool(url.hostname) and url.port != 0  # a port that is none raises
    except ValueError:
        return False
    return named and url.scheme in ("http", "https") and not (url.query or url.fragment or _BLANK.search(text))


def file(text: str) -> Path | None:
    """Returns the path of a file; none for an empty text."""
    return Path(text) if text else None
