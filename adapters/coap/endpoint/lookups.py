"""Requests that wait for the last value of their address.

A PUT that creates is answered 2.01, one that changes 2.04 (RFC 7252, 5.8.3), and a request with If-Match or
If-None-Match is done or not (5.10.8), so the gateway is asked before the message is published. An address that had a
value is not looked up again for `KNOWN_MS`, unless there is a condition. While an address is looked up, later requests
to it wait behind, so that messages keep their order. Where one of them had a condition, that lasts until all of them
are stored: of two requests of one socket with the same condition one alone is done.
"""

from collections.abc import Callable
from typing import NamedTuple

from adapters.coap.codec.registry import CHANGED, CREATED, DELETED
from adapters.coap.exchanges.exchanges import Exchange
from adapters.coap.messages.request import Condition
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Token
from store.api.message import Message

KNOWN_MS = 10_000  # a found address counts as known for so long: retention and other protocols remove values, too
KNOWN_ADDRESSES_MAX = 16_384  # addresses known to have a value


class _Waiting(NamedTuple):
    """One request that waits."""

    exchange: Exchange
    message: Message
    condition: Condition | None


class Settlement(NamedTuple):
    """The requests of one lookup, settled: `messages` are to be published for `exchanges`; `failed` are not done."""

    address: str
    messages: list[Message]
    exchanges: list[Exchange]
    failed: list[Exchange]


class Lookups:
    """The addresses that are asked for, and those that had a value of late."""

    def __init__(self) -> None:
        self.waiting: dict[str, Token] = {}  # by address: the lookup in flight, or the publish that it led to
        self._lookups: dict[Token, list[_Waiting]] = {}
        self._behind: dict[str, list[_Waiting]] = {}  # requests that came while the lookup's messages are being stored
        self._known: dict[str, int] = {}  # addresses that had a value, and until when that counts

    def must_wait(self, exchange: Exchange, address: str, condition: Condition | None, now_ms: int) -> bool:
        """Returns True for a PUT to an unknown address, for a condition, and for requests behind those."""
        if condition is not None or address in self.waiting:
            return True
        if exchange.head[1] == DELETED:
            self._known.pop(address, None)
        return exchange.head[1] == CHANGED and self._known.get(address, 0) <= now_ms

    def add(self, exchange: Exchange, message: Message, condition: Condition | None, token: Token) -> bool:
        """Lets a request wait; returns whether the gateway is to be asked now, with this token."""
        waiting = _Waiting(exchange, message, condition)
        address = message.address
        under_way = self.waiting.get(address)
        if under_way is None:
            self.waiting[address] = token
            self._lookups[token] = [waiting]
            return True
        asked = self._lookups.get(under_way)
        if asked is None:
            self._behind.setdefault(address, []).append(waiting)
        else:
            asked.append(waiting)
        return False

    def answered(
        self,
        token: Token,
        *,
        value: Message | None,
        error: Refusal | None,
        etags: Callable[[], frozenset[bytes]],
        now_ms: int,
    ) -> Settlement | None:
        """Settles the codes of the responses, and returns the requests to publish now; None for another's token.

        A peer that may not read the address is not told whether there was a value, and is not asked for again at once:
        each time counts as a denied read. Where the gateway cannot say, no condition holds.
        """
        waiting = self._lookups.pop(token, None)
        if waiting is None:
            return None
        address = waiting[0].message.address
        exists = error is not None or value is not None
        denied = error is not None and error.cause is Cause.FORBIDDEN
        if denied or (value is not None and value.expires_at_ms is None):
            if len(self._known) >= KNOWN_ADDRESSES_MAX:
                self._known.clear()
            self._known[address] = now_ms + KNOWN_MS
        settlement = Settlement(address, [], [], [])
        present: frozenset[bytes] | None = None  # the ETags of the representation when the next request's turn comes
        conditional = False
        for exchange, message, condition in waiting:
            if condition is not None:
                conditional = True
                present = etags() if present is None else present
                if error is not None or not condition.holds(present):
                    settlement.failed.append(exchange)
                    continue
            if exchange.head[1] == CHANGED and not exists:
                exchange.head = bytes((exchange.head[0], CREATED))
            exists = error is not None or exchange.head[1] != DELETED
            present = _UNNAMED if exists else frozenset()
            if not exists:
                self._known.pop(address, None)
            settlement.messages.append(message)
            settlement.exchanges.append(exchange)
        if not conditional or not settlement.messages:
            del self.waiting[address]
        return settlement

    def stored(self, address: str, token: Token) -> list[Exchange]:
        """Ends a settlement whose messages are stored, or refused.

        Returns the requests that came behind it, for which the gateway is to be asked now with this token.
        """
        behind = self._behind.pop(address, None)
        if behind is None:
            del self.waiting[address]
            return []
        self.waiting[address] = token
        self._lookups[token] = behind
        return [waiting.exchange for waiting in behind]


_UNNAMED = frozenset((b"",))
"""The ETags of a representation that is not stored yet: no client can know its ETag."""
