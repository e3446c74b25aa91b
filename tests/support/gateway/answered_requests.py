"""The requests of users with rules that a gateway in this process begins to answer, by kind."""

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from gateway.port.adapter import Request
from gateway.runtime import access_requests, requests
from gateway.runtime.requests import RequestContext, Served


class AnsweredRequests:
    """Notes each request whose right was there, before it is answered."""

    def __init__(self, served: Mapping[type[Request[Any]], Served]) -> None:
        self._served = served
        self._noted: queue.SimpleQueue[type[Request[Any]]] = queue.SimpleQueue()

    def noting(self) -> dict[type[Request[Any]], Served]:
        """Returns the table of requests, with answers that note what they answer."""
        return {kind: one._replace(answer=partial(self._answer, one)) for kind, one in self._served.items()}

    async def _answer(self, one: Served, asked: RequestContext, request: Any) -> Any:
        if asked.permissions.access is not None:
            self._noted.put(type(request))
        return await one.answer(asked, request)

    def taken(self) -> tuple[set[str], set[str], set[str]]:
        """Returns the kinds noted since the last call: those on the grid of time, those about the asker's own state,
        and the rest.
        """
        grid, own, rest = set(), set(), set()
        while not self._noted.empty():
            kind = self._noted.get()
            one = self._served[kind]
            found = grid if one.on_grid else own if one.needs is access_requests.own else rest
            found.add(kind.__name__)
        return grid, own, rest


@contextmanager
def noting_requests() -> Iterator[AnsweredRequests]:
    """Lets gateways in this process note the requests that they answer, until the exit."""
    noted = AnsweredRequests(requests.REQUESTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "REQUESTS", noted.noting())
        yield noted
