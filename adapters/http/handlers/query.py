"""The parameters of a request's query, as its handler knows them."""

from collections.abc import Mapping

from adapters.cloudevents import AttributeRefusal
from adapters.http.wire.request import HttpError, HttpRequest

DIGITS_MAX = 19  # of 64 bits


def read_query(request: HttpRequest, *known: str) -> dict[str, str]:
    """Returns the parameters by name. Raises `HttpError` for one that is not known, `AttributeRefusal` for a repeat."""
    query: dict[str, str] = {}
    for name, text in request.query():
        if name not in known:
            are = f"{', '.join(known)} are" if known else "there are none"
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
