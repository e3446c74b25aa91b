"""Queues that take nothing more when they are full: the gates that ingest asks before it puts a message there.

A gate counts the messages that it lets in, and gets the true length now and then. It knows which messages of this
process are on their way to the log. Where other processes fill and drain the queue, too, a gate is sure of the length
for a moment after a count. Later it has the queue counted before it decides. It does not know the messages that others
have on their way, or have stored since: a queue may exceed its limit by their number.

Messages that consumers have room for do not wait, as in RabbitMQ, which gives each to them before the next one comes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.port.bodies import body_size
from store.api.message import Message

SURE_MS: Final = 10  # after a count: until then other processes have changed the length by few messages
SHARE: Final = 4  # of the room that a gate knows, a quarter at most is taken without another count


class LengthGate:
    """The gate of one queue. `touched` is called when a message comes, `refused` with one that may not enter.

    `room` says how many messages its consumers take at once. `count` counts the queue and calls `counted`, or `guess`;
    None where no other process fills and drains it.
    """

    __slots__ = (
        "_admitted",
        "_bytes",
        "_count",
        "_counted_ms",
        "_counting",
        "_exact",
        "_guesses",
        "_landed",
        "_landed_bytes",
        "_now_ms",
        "_refused",
        "_room",
        "_sure_ms",
        "_touched",
        "_way",
        "bytes_max",
        "count",
        "count_max",
        "lock",
    )

    def __init__(
        self,
        *,
        touched: Callable[[], object],
        refused: Callable[[Message], object],
        room: Callable[[], int],
        count: Callable[[], Coroutine[Any, Any, None]] | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.count_max: int | None = None
        self.bytes_max: int | None = None
        self._count = 0  # of messages, as far as is known, with those on their way
        self._bytes = 0
        self._admitted = 0  # ever
        self._landed = self._landed_bytes = 0  # of those
        self._way: deque[int] = deque()  # sizes of messages on their way; len == _admitted - _landed
        self._touched = touched
        self._refused = refused
        self._room = room
        self.count = count
        self.lock = asyncio.Lock()  # held by the one who counts
        self._now_ms = now_ms
        self._counted_ms = self._sure_ms = 0  # since then, and for so long, it knows the length
        self._guesses = False  # decides by the last count, however exact
        self._exact = True  # as of the last count; else a few messages are in `_count` twice
        self._counting: asyncio.Future[None] | None = None

    def limit(self, count_max: int | None, bytes_max: int | None) -> None:
        """Sets the limits; with neither it lets in whatever comes, and knows no counts until it has limits again."""
        if self.count_max is None and self.bytes_max is None:
            self._count, self._bytes = len(self._way), sum(self._way)
            self._sure_ms, self._guesses = 0, False
        self.count_max, self.bytes_max = count_max, bytes_max

    def admit(self, message: Message) -> bool:
        """Returns whether the queue takes one more message, and counts it."""
        self._touched()
        size = len(message.body) or body_size(message)
        if self._exceeds(self._count, self._bytes, size) and self._exceeds(*self._left(), size):
            self._refused(message)
            return False
        self._count += 1
        self._bytes += size
        self._admitted += 1
        self._way.append(size)
        return True

    def _exceeds(self, count: int, size_bytes: int, size: int) -> bool:
        """Returns whether a message is too much beside so many that wait."""
        if self.count_max is not None and count >= self.count_max:
            return True
        return self.bytes_max is not None and size_bytes + size > self.bytes_max

    def _left(self) -> tuple[int, int]:
        """Returns the messages that wait when consumers have taken what they have room for, and at most their bytes."""
        count = max(0, self._count - self._room())
        return count, self._bytes if count else 0

    @property
    def admitted(self) -> int:
        """Returns how many messages were ever admitted."""
        return self._admitted

    def landed(self, admitted: int) -> None:
        """Notes that the first so many messages are in the log, or never will be."""
        while self._landed < admitted:
            self._landed_bytes += self._way.popleft()
            self._landed += 1

    # ---- counts

    @property
    def settled(self) -> tuple[int, int]:
        """Returns the messages that have landed, and their bytes: an argument of `counted`, from before the count."""
        return self._landed, self._landed_bytes

    def counted(self, settled: tuple[int, int], count: int, size_bytes: int) -> bool:
        """Corrects the counts; returns False where something has landed meanwhile: then it is to be counted again.

        The count may have such messages or not. Beside other processes it is taken as if it had none.
        """
        landed, landed_bytes = self._landed - settled[0], self._landed_bytes - settled[1]
        if landed and self.count is None:
            return False
        self._count = count + landed + len(self._way)
        self._bytes = size_bytes + landed_bytes + sum(self._way)
        self._exact, self._guesses = not landed, False
        self._counted_ms, self._sure_ms = self._now_ms(), SURE_MS
        return self._exact

    def guess(self, for_ms: int) -> None:
        """Decides by the counts that there are for a while: the queue cannot be counted."""
        self._guesses = True
        self._counted_ms, self._sure_ms = self._now_ms(), for_ms

    @property
    def has_room(self) -> bool:
        """Returns whether the queue takes one more message in any case, by the last count."""
        return not self._exceeds(self._count, self._bytes, 1)

    def is_sure(self, count: int, size_bytes: int) -> bool:
        """Returns whether the last count is good enough to decide on so many messages."""
        if self.count is None or (self.count_max is None and self.bytes_max is None):
            return True
        if not 0 <= self._now_ms() - self._counted_ms < self._sure_ms:
            return False
        if self._guesses:
            return True
        if not self.has_room:
            return self._exact
        return not self._exceeds(self._count + SHARE * count - 1, self._bytes, SHARE * size_bytes)

    def recount(self) -> "asyncio.Future[None]":
        """Begins a count of the queue, unless one is under way; the future is done when it has ended."""
        assert self.count is not None
        if self._counting is None or self._counting.done():
            self._counting = asyncio.ensure_future(self.count())
        return self._counting
