"""Tokens of an endpoint's effects, and when requests that wait for their outcomes are acknowledged meanwhile."""

from collections import deque
from collections.abc import Callable, Iterator

from adapters.coap.exchanges.exchanges import Exchange
from gateway.port.adapter import Token


class Tokens:
    """The tokens of one endpoint, each given out once."""

    def __init__(self, ack_delay_ms: int) -> None:
        self._ack_delay_ms = ack_delay_ms
        self._last = 0
        self._slow: deque[tuple[int, Token, Exchange | None]] = deque()  # when to acknowledge requests that wait

    def quick(self) -> Token:
        """Returns a new token that no request waits for."""
        self._last += 1
        return Token(self._last)

    def new(self, now_ms: int, alone: Exchange | None = None) -> Token:
        """Returns a new token. A request that waits too long for its outcome is acknowledged meanwhile.

        `alone`: a request that may come to wait for outcomes of other tokens, and is acknowledged by itself.
        """
        token = self.quick()
        self._slow.append((now_ms + self._ack_delay_ms, token, alone))
        return token

    def due(self, now_ms: int) -> Iterator[tuple[Token, Exchange | None]]:
        """Yields the tokens whose requests have waited too long, each once, with the request that is `alone`."""
        while self._slow and self._slow[0][0] <= now_ms:
            yield self._slow.popleft()[1:]

    def deadline_ms(self, waits: Callable[[Token, Exchange | None], bool]) -> int | None:
        """Returns when the next one is due, of those that a request still waits for."""
        while self._slow and not waits(*self._slow[0][1:]):
            self._slow.popleft()
        return self._slow[0][0] if self._slow else None
