"""The credit for bodies that arrive: bytes of incomplete bodies that all connections of a process may hold together.

A content header announces the size of its body. One that is longer than `FREE_BYTES` reserves all of it before any of
it is taken, and gives it back when it is whole or given up: a body that has begun can end. While there is no credit,
the connection is not read, so that TCP holds the sender back. One body alone has credit, however long it is. A body
that is stored in parts as it comes reserves its window only.

A connection that holds credit does not wait for more, or two could wait for each other: it is refused. While others
wait, a body that takes too long is given up.
"""

from typing import Final

from adapters.amqp.options import AmqpOptions
from store.format.body_parts import UPLOAD_MS_MAX

FREE_BYTES: Final = 128 << 10  # a body that needs no credit: about a frame, which a read may hold anyhow
RETRY_MS: Final = 50  # until credit is asked for again
BODY_TIME_MS: Final = 30_000  # that a body may take while others wait, and
BODY_BYTES_PER_MS: Final = 64  # of its bytes within each ms more


class BodyCredit:
    """The credit that all connections of a process hold, and those that wait for some."""

    __slots__ = ("reserved_bytes", "waiting_count")

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self.waiting_count = 0  # connections that are not read until there is credit


class Credit:
    """The outcomes of asking for credit."""

    GRANTED: Final = "granted"
    LATER: Final = "later"  # the connection is not read until then
    REFUSED: Final = "refused"  # the connection holds some, and there is no more


class ConnectionCredit:
    """The credit that one connection holds or waits for."""

    __slots__ = ("_all", "_max_bytes", "_until_ms", "_waiting", "reserved_bytes", "retry_ms")

    def __init__(self, together: BodyCredit, options: AmqpOptions) -> None:
        self._all = together
        self._max_bytes = options.arriving_bytes_max
        self._until_ms = 0  # when the reserved body should have come
        self._waiting = False
        self.reserved_bytes = 0
        self.retry_ms: int | None = None  # when to ask again, or to look for other waiting bodies

    def reserve(self, size_bytes: int, *, now_ms: int, body_bytes: int = 0) -> str:
        """Asks for the credit of a body; one of `Credit`. `body_bytes` come where that is more than is held of it."""
        together = self._all
        if size_bytes > FREE_BYTES:
            if together.reserved_bytes and together.reserved_bytes + size_bytes > self._max_bytes:
                if self.reserved_bytes:
                    return Credit.REFUSED
                self._wait(now_ms)
                return Credit.LATER
            together.reserved_bytes += size_bytes
            since_ms = self._until_ms if self.reserved_bytes else now_ms + BODY_TIME_MS
            self._until_ms = since_ms + min(max(size_bytes, body_bytes) // BODY_BYTES_PER_MS, UPLOAD_MS_MAX)
            self.reserved_bytes += size_bytes
            self._rest()
            self.retry_ms = self._until_ms
        return Credit.GRANTED

    def release(self, size_bytes: int) -> None:
        """Gives back the credit of a body that is whole or given up."""
        if size_bytes > FREE_BYTES:
            self._all.reserved_bytes -= size_bytes
            self.reserved_bytes -= size_bytes
            if not self.reserved_bytes:
                self.retry_ms = None

    def close(self) -> None:
        """Gives everything back, and waits for nothing."""
        self._rest()
        self.release(self.reserved_bytes)

    def overdue(self, now_ms: int) -> bool:
        """Returns whether others wait, and the body reserved here should have come by now; sets the next retry."""
        if not self.reserved_bytes or now_ms < self._until_ms:
            return False
        self.retry_ms = now_ms + RETRY_MS
        return self._all.waiting_count > 0

    def _wait(self, now_ms: int) -> None:
        self.retry_ms = now_ms + RETRY_MS
        if not self._waiting:
            self._waiting = True
            self._all.waiting_count += 1

    def _rest(self) -> None:
        self.retry_ms = None
        if self._waiting:
            self._waiting = False
            self._all.waiting_count -= 1
