"""A bare ASGI application: reads a request's body, answers 204, keeps nothing. Servers that are peers run it."""

from collections.abc import Awaitable, Callable
from typing import Any

START = {"type": "http.response.start", "status": 204, "headers": []}
BODY = {"type": "http.response.body"}


async def take(
    _scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Reads the body and answers."""
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send(BODY)
