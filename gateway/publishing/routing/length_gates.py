"""Queues that take nothing more when they are full: the gates that ingest asks before it puts a message there.

A gate counts the messages that it lets in, and gets the true length now and then. It knows which messages of this
process are on their way to the log. It does not know the messages that other processes have on their way: a queue
may exceed its limit by their number.

Messages that consumers have room for do not wait, as in RabbitMQ, which gives each to them before the next one comes.
"""

from collections import deque
from collections.abc import Callable

from gateway.port.bodies import body_size
from store.api.message import Message


class LengthGate:
    """The gate of one queue. `touched` is called when a message comes, `refused` with one that may not enter.

    `room` says how many messages its consumers take at once.
    """

    __slots__ = (
        "_admitted",
        "_bytes",
        "_count",
        "_landed",
        "_refused",
        "_room",
        "_touched",
        "_way",
        "bytes_max",
        "count_max",
    )

    def __init__(
        self, *, touched: Callable[[], object], refused: Callable[[Message], object], room: Callable[[], int]
    ) -> None:
        self.count_max: int | None = None
        self.bytes_max: int | None = None
        self._count = 0  # of messages, as far as is known, with those on their way
        self._bytes = 0
        self._admitted = 0  # ever
        self._landed = 0  # of those
        self._way: deque[int] = deque()  # sizes of messages on their way; len == _admitted - _landed
        self._touched = touched
        self._refused = refused
        self._room = room

    def limit(self, count_max: int | None, bytes_max: int | None) -> None:
        """Sets the limits; with neither it lets in whatever comes, and knows no counts until it has limits again."""
        if self.count_max is None and self.bytes_max is None:
            self._count, self._bytes = len(self._way), sum(self._way)
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
            self._way.popleft()
            self._landed += 1

    @property
    def settled(self) -> int:
        """Returns how many messages have landed: the argument of `counted`, from before the queue was counted."""
        return self._landed

    def counted(self, settled: int, count: int, size_bytes: int) -> bool:
        """Corrects the counts; returns False where something has landed meanwhile: then it is to be counted again."""
        if settled != self._landed:
            return False
        self._count = count + len(self._way)
        self._bytes = size_bytes + sum(self._way)
        return True
