"""The lanes of queues with priorities: one queue of the store for each priority.

A queue with priorities has its number, which is that of its lane for priority 0, and one more number for each priority
above. A message published to it goes to the lane of its priority. To its readers it is one queue whose offsets have the
priority in their upper bits: `gateway.queues.leasing.laned` says how it is read (docs/decisions/0051).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.port.queues import PRIORITY
from store.api.message import Message
from store.format.frame import QueueNumber, QueueOffset

PRIORITY_SHIFT: Final = 54  # 256 priorities in a signed number of 64 bits
OFFSET_MASK: Final = (1 << PRIORITY_SHIFT) - 1
_AMQP: Final = "amqp"


class Lanes:
    """The numbers of all queues with priorities of this process, by their own number, the lowest priority first."""

    __slots__ = ("_numbers", "streams")

    def __init__(self) -> None:
        self.streams: set[int] = set()  # queues whose messages are never settled
        self._numbers: dict[int, tuple[QueueNumber, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def set(self, number: int, lanes: Iterable[int]) -> None:
        """Sets the lanes of a queue; without any it is forgotten."""
        numbers = tuple(QueueNumber(lane) for lane in lanes)
        if numbers:
            self._numbers[number] = numbers
        else:
            self._numbers.pop(number, None)

    def of(self, number: int) -> tuple[QueueNumber, ...]:
        """Returns the lanes of a queue, () for one without priorities."""
        return self._numbers.get(number, ())

    def pick(self, queues: Sequence[int], message: Message) -> Sequence[int]:
        """Returns the queues that a message for some queues goes to: of those with priorities, its lane."""
        numbers = self._numbers
        if numbers.keys().isdisjoint(queues):
            return queues
        priority = priority_of(message)
        return [lanes[min(priority, len(lanes) - 1)] if (lanes := numbers.get(one)) else one for one in queues]

    def split(
        self, number: QueueNumber, offsets: Sequence[QueueOffset]
    ) -> list[tuple[QueueNumber, Sequence[QueueOffset]]]:
        """Returns offsets of a queue to be settled as those of its lanes; none of a stream."""
        if number in self.streams:
            return []
        lanes = self._numbers.get(number)
        if lanes is None:
            return [(number, offsets)]
        found: dict[int, list[QueueOffset]] = {}
        for offset in offsets:
            found.setdefault(offset >> PRIORITY_SHIFT, []).append(QueueOffset(offset & OFFSET_MASK))
        return [(lanes[priority], some) for priority, some in found.items()]


def priority_of(message: Message) -> int:
    """Returns the priority of a message: 0 for one that says none, or came by another protocol."""
    own = None if message.native is None else message.native.get(_AMQP)
    priority = 0 if own is None else own.get(PRIORITY, 0)
    return priority if type(priority) is int and priority > 0 else 0
