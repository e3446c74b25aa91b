"""Reads JSON bodies of requests."""

from typing import Any, TypeVar

import msgspec

from adapters.http.wire.coding import decoded
from adapters.http.wire.request import HttpError, HttpRequest

T = TypeVar("T")


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
