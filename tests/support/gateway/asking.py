"""Requests of the port, answered without a hub: by the table of the gateway, and what a test has of the gateway."""

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Request, Token
from gateway.runtime.requests import RequestContext, served_by

ANYBODY = Principal(name="")


def ask(
    connection: Any, request: Request[Any], *, who: Principal = ANYBODY, token: Token | None = None, **parts: Any
) -> Awaitable[Any]:
    """Answers a request; `parts` are those parts of the hub that it needs: `keys`, `groups`, `queues`."""
    hub: Any = SimpleNamespace(**parts)
    return served_by(request).answer(RequestContext(hub, connection, who, token), request)


async def refusal_of(work: Awaitable[Any]) -> Refusal:
    """Returns the refusal that some work ends with."""
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value


async def refused(cause: Cause, work: Awaitable[Any]) -> str:
    """Returns the words of the refusal that some work ends with, which has this cause."""
    refusal = await refusal_of(work)
    assert refusal.cause is cause
    return refusal.detail
