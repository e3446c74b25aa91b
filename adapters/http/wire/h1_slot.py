"""The responses of an HTTP/1.1 connection, in the order of their requests (RFC 9112, 9.3.2)."""

from collections import deque
from collections.abc import Sequence

from adapters.http.wire.response import EMPTY_STATUSES, Response, date_header, reason_phrase
from adapters.http.wire.transport import Exchange


class Slot:
    """One response, or those to a run of requests that are answered together."""

    __slots__ = ("chunked", "complete", "exchange", "head_only", "http_1_1", "keep_alive", "out", "requests")

    def __init__(
        self, exchange: Exchange, *, head_only: bool, keep_alive: bool, http_1_1: bool, requests: int = 1
    ) -> None:
        self.exchange = exchange
        self.requests = requests
        self.head_only = head_only
        self.keep_alive = keep_alive  # False: the connection ends behind it
        self.http_1_1 = http_1_1
        self.chunked = False
        self.complete = False
        self.out = bytearray()  # output that waits for earlier responses to be complete

    def head(self, response: Response, now_ms: int, *, last: bool = True) -> bytes:
        """Returns the head of a response, without the empty line behind it.

        `last`: no other response of this slot follows. Only that one says that the connection ends.
        """
        status = response.status
        lines = [
            b"HTTP/1.1 %d %b\r\n" % (status, reason_phrase(status).encode()),
            b"date: %b\r\n" % date_header(now_ms // 1000),
        ]
        lines += [b"%b: %b\r\n" % header for header in response.headers]
        if not self.keep_alive and last:
            lines.append(b"connection: close\r\n")
        elif not self.http_1_1:
            lines.append(b"connection: keep-alive\r\n")
        return b"".join(lines)

    def whole(self, response: Response, now_ms: int, *, last: bool = True) -> bytes:
        """Returns a response whose body is all there."""
        head, body = self.head(response, now_ms, last=last), response.body
        if response.status in EMPTY_STATUSES:
            return head + b"\r\n"
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), b"" if self.head_only else body)

    def run(self, responses: Sequence[Response], now_ms: int) -> bytes:
        """Returns the responses to a run of requests."""
        *others, last = responses
        return b"".join([self.whole(one, now_ms, last=False) for one in others]) + self.whole(last, now_ms)


class Slots:
    """The responses that are not all written, the oldest first."""

    __slots__ = ("_by_exchange", "_order", "held_bytes", "requests")

    def __init__(self) -> None:
        self._order: deque[Slot] = deque()
        self._by_exchange: dict[Exchange, Slot] = {}
        self.held_bytes = 0  # of output that waits for earlier responses
        self.requests = 0  # that they answer

    def __bool__(self) -> bool:
        return bool(self._order)

    def __contains__(self, exchange: Exchange) -> bool:
        return exchange in self._by_exchange

    def get(self, exchange: Exchange) -> Slot | None:
        """Returns a slot; None where it is written, or given up."""
        return self._by_exchange.get(exchange)

    def append(self, slot: Slot) -> None:
        """Keeps the slot of the next request."""
        self._order.append(slot)
        self._by_exchange[slot.exchange] = slot
        self.requests += slot.requests

    def add(self, slot: Slot, data: bytes) -> None:
        """Adds output to one of them."""
        slot.out += data
        self.held_bytes += len(data)

    def end_with_last(self) -> None:
        """Lets the connection end behind the last one."""
        if self._order:
            self._order[-1].keep_alive = False

    def write(self, out: bytearray) -> bool:
        """Moves what is due into `out`: the oldest, and those behind it when it is complete.

        Returns False behind the one that ends the connection.
        """
        order = self._order
        while order:
            slot = order[0]
            if slot.out:
                out += slot.out
                self.held_bytes -= len(slot.out)
                slot.out = bytearray()
            if not slot.complete:
                break
            order.popleft()
            self.requests -= slot.requests
            del self._by_exchange[slot.exchange]
            if not slot.keep_alive:
                return False
        return True

    def clear(self) -> None:
        """Gives all of them up."""
        self._order.clear()
        self._by_exchange.clear()
        self.held_bytes = self.requests = 0
