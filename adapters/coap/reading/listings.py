"""Requests for links that wait for the gateway's list of addresses.

A list costs more than any other request of its size, so a socket asks for one at a time. Requests for the same links
that have come by then share the answer; a request that comes while such a list is being read waits for the next one, so
that it sees everything published before it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from adapters.coap.messages.request import CoapRequest
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, Effect, Request, Token
from gateway.port.reads import ListAddresses

LISTS_WAITING_MAX = 64  # different lists that requests wait for; more are refused

_Links: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]  # path and query: the links that a request asks for


class _WaitingListings(NamedTuple):
    """The question to the gateway for some requests, and their tokens."""

    question: ListAddresses
    tokens: list[Token]


class Listings:
    """The requests that wait for lists."""

    def __init__(self) -> None:
        self._waiting: dict[_Links, _WaitingListings] = {}  # the one that waits longest first
        self._under_way: list[Token] = []  # the requests whose list the gateway has been asked for

    def check_room(self, question: Request[Any], request: CoapRequest) -> None:
        """Raises `Refusal` (OVERLOAD) for a list where too many different lists are waited for already."""
        if not isinstance(question, ListAddresses):
            return
        if len(self._waiting) >= LISTS_WAITING_MAX and (request.path, request.query) not in self._waiting:
            raise Refusal(Cause.OVERLOAD, "too many lists at once")

    def ask(self, question: Request[Any], request: CoapRequest, token: Token) -> Sequence[Effect]:
        """Returns the call that asks the gateway; a request for a list waits for it instead."""
        if not isinstance(question, ListAddresses):
            return (Call(request=question, token=token),)
        self._waiting.setdefault((request.path, request.query), _WaitingListings(question, [])).tokens.append(token)
        return ()

    def next(self) -> Sequence[Effect]:
        """Returns the call for the list that requests have waited for longest, unless one is on its way.

        `answered` takes its token.
        """
        if self._under_way or not self._waiting:
            return ()
        question, self._under_way = self._waiting.pop(next(iter(self._waiting)))
        return (Call(request=question, token=self._under_way[0]),)

    def answered(self, token: Token) -> list[Token]:
        """Returns the requests that an answer is for: the one of that token, and with a list all that share it."""
        if not self._under_way or self._under_way[0] != token:
            return [token]
        tokens, self._under_way = self._under_way, []
        return tokens
