"""PUT requests that wait to hear whether their address has a value.

A PUT that creates is answered 2.01, one that changes 2.04 (RFC 7252, 5.8.3), so the gateway is asked before the message
is published. An address that had a value is not asked for again for `KNOWN_MS`. While it is asked for, whatever else
is published to it waits behind, so that messages keep their order.
"""

from typing import NamedTuple

from adapters.coap.exchanges import Exchange
from adapters.coap.registry import CHANGED, CREATED, DELETED
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Token
from store.api.message import Message

__all__ = ["Lookups"]

KNOWN_MS = 10_000  # what was found is taken for granted: values go by retention and by other protocols, too
KNOWN_ADDRESSES_MAX = 16_384  # addresses known to have a value


class _Lookup(NamedTuple):
    """One address that is asked for, and what is published to it meanwhile."""

    address: str
    messages: list[Message]
    exchanges: list[Exchange]


class Lookups:
    """The addresses that are asked for, and those that had a value of late."""

    def __init__(self) -> None:
        self.waiting: dict[str, Token] = {}  # by address
        self._lookups: dict[Token, _Lookup] = {}  # those of `waiting`
        self._known: dict[str, int] = {}  # addresses that had a value, and until when that counts

    def must_wait(self, exchange: Exchange, address: str, now_ms: int) -> bool:
        """Returns True for a PUT to an address of which nothing is known, and for what comes behind one."""
        if address in self.waiting:
            return True
        if exchange.head[1] == DELETED:
            self._known.pop(address, None)
        return exchange.head[1] == CHANGED and self._known.get(address, 0) <= now_ms

    def add(self, token: Token, exchange: Exchange, message: Message) -> list[Exchange]:
        """Lets a request wait for the lookup of this token; returns all that do."""
        lookup = self._lookups.get(token)
        if lookup is None:
            lookup = self._lookups[token] = _Lookup(message.address, [], [])
            self.waiting[message.address] = token
        lookup.messages.append(message)
        lookup.exchanges.append(exchange)
        return lookup.exchanges

    def answered(
        self, token: Token, *, value: Message | None, error: Refusal | None, now_ms: int
    ) -> list[Message] | None:
        """Settles the codes of the responses, and returns what to publish now; None for a token of something else.

        A peer that may not read the address is not told whether there was a value, and is not asked for again at once:
        each time counts as a denied read.
        """
        lookup = self._lookups.pop(token, None)
        if lookup is None:
            return None
        del self.waiting[lookup.address]
        exists = error is not None or value is not None
        denied = error is not None and error.cause is Cause.FORBIDDEN
        if denied or (value is not None and value.expires_at_ms is None):
            if len(self._known) >= KNOWN_ADDRESSES_MAX:
                self._known.clear()
            self._known[lookup.address] = now_ms + KNOWN_MS
        for exchange in lookup.exchanges:
            if exchange.head[1] == CHANGED and not exists:
                exchange.head = bytes((exchange.head[0], CREATED))
            exists = error is not None or exchange.head[1] != DELETED
            if not exists:
                self._known.pop(lookup.address, None)
        return lookup.messages
