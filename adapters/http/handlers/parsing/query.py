"""The parameters and the JSON of a request, as its handler knows them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from adapters.cloudevents import AttributeRefusal
from adapters.http.wire.coding import decoded
from adapters.http.wire.request import HttpError, HttpRequest

DIGITS_MAX = 19  # of 64 bits

T = TypeVar("T")


def read_query(request: HttpRequest, *known: str, repeated: str = "") -> dict[str, str]:
    """Returns the parameters by name, but the one that may be `repeated`.

    Raises `HttpError` for one that is not known, `AttributeRefusal` for a repeat.
    """
    query: dict[str, str] = {}
    for name, text in request.query():
        if name == repeated:
            continue
        if name not in known:
            names = [*known, *([repeated] if repeated else [])]
            are = f"{', '.join(names)} are" if names else "there are none"
            raise HttpError(400, f"{name[:64]}: is no parameter here; {are}", attribute=name[:64])
        if name in query:
            raise AttributeRefusal(name, "is given more than once")
        query[name] = text
    return query


def read_number(query: Mapping[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    """Returns a whole number. Raises `AttributeRefusal` for a text that is none, or is out of range."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX or not least <= int(text) <= most:
        raise AttributeRefusal(name, f"is not a whole number from {least} to {most}")
    return int(text)


def read_json(request: HttpRequest, bytes_max: int, kind: type[T], fault: str) -> T:
    """Returns a body, decompressed, as a value of a type. Raises `HttpError`; a 400 begins with `fault`."""
    body = decoded(request, bytes_max)
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            return msgspec.convert(_whole_numbers(msgspec.json.decode(body)), kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"{fault}: {error}") from error


def _whole_numbers(value: Any) -> Any:
    """Returns JSON with numbers such as 1.0 as integers, which they are (JSON Schema 2020-12, Core 4.2.3)."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: _whole_numbers(one) for name, one in value.items()}
    return value
