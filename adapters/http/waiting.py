"""What of a connection's requests waits, and for what."""

from collections.abc import Callable
from typing import Any, NamedTuple

from adapters.http.actions import Stored
from adapters.http.credentials import Credentials
from adapters.http.request import Request
from adapters.http.response import Response
from adapters.http.routes import Found
from adapters.http.transport import Exchange

__all__ = ["Asked", "Part", "Pending"]


class Pending(NamedTuple):
    """A request that has a handler and waits for its turn, or for its sender to be known."""

    exchange: Exchange
    request: Request
    found: Found
    credentials: Credentials


class Part(NamedTuple):
    """The messages of one request among those of a `Publish`."""

    exchange: Exchange
    request: Request
    start: int
    size: int
    reply: Callable[[Stored], Response]


class Asked(NamedTuple):
    """A question that the gateway has been asked for a request."""

    exchange: Exchange
    request: Request
    reply: Callable[[Any], Response]
