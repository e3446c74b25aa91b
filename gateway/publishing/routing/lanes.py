"""The lanes of named queues that are several queues of the store: one for each priority, and those of a former group.

A queue with priorities has a number for each priority, and a queue that is being moved to another store group has its
numbers there besides those in the former group. A message published to it goes to the lane of its priority in the group
of now. To its readers it is one queue whose offsets have the lane's place in their upper bits:
`gateway.queues.leasing.laned` says how it is read (docs/decisions/0051, 0063).
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from gateway.port.queues import PRIORITY
from store.api.message import Message
from store.format.frame import QueueNumber, QueueOffset

PLACE_SHIFT: Final = 54
PLACES_COUNT: Final = 512  # in a signed number of 64 bits: 256 priorities in two groups
OFFSET_MASK: Final = (1 << PLACE_SHIFT) - 1
_AMQP: Final = "amqp"


class QueueLanes(NamedTuple):
    """The lanes of one queue. A lane keeps its place as long as it is there: readers hold offsets with it."""

    written: tuple[QueueNumber, ...]  # the lowest priority first
    places: dict[int, QueueNumber]
    order: tuple[tuple[int, QueueNumber], ...]  # places and lanes, the one that is read first first
    next: int  # the place for a new lane; those before it were given


class Lanes:
    """The lanes of all queues of this process that have several, by the queue's own number."""

    __slots__ = ("_lanes", "streams")

    def __init__(self) -> None:
        self.streams: set[int] = set()  # queues whose messages are never settled
        self._lanes: dict[int, QueueLanes] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def set(self, number: int, lanes: Sequence[int], earlier: Sequence[int] = ()) -> None:
        """Sets the lanes of a queue, by priority, and those that are read before them; without any it is forgotten.

        A queue that had none until now keeps its own number's place, which is 0.
        """
        if not lanes:
            self._lanes.pop(number, None)
            return
        before = self._lanes.get(number) or QueueLanes((), {0: QueueNumber(number)}, (), 1)
        written, former = tuple(map(QueueNumber, lanes)), tuple(map(QueueNumber, earlier))
        there = dict.fromkeys((*written, *former))
        places = {place: lane for place, lane in before.places.items() if lane in there}
        new = [lane for lane in there if lane not in places.values()]
        free = (place for place in chain(range(before.next, PLACES_COUNT), range(before.next)) if place not in places)
        places.update(zip(free, new, strict=False))
        at = {lane: place for place, lane in places.items()}
        order = [lane for n in reversed(range(len(written))) for lane in (*former[n : n + 1], written[n])]
        following = max([before.next, *(at[lane] + 1 for lane in new)])
        self._lanes[number] = QueueLanes(written, places, tuple((at[lane], lane) for lane in order), following)

    def of(self, number: int) -> QueueLanes | None:
        """Returns the lanes of a queue, None for one that is one queue of the store."""
        return self._lanes.get(number)

    def read_in_order(self, number: int) -> Sequence[QueueNumber]:
        """Returns the numbers in which the messages of a queue are, the one that is read first first."""
        lanes = self._lanes.get(number)
        return (QueueNumber(number),) if lanes is None else [lane for _, lane in lanes.order]

    def pick(self, queues: Sequence[int], message: Message) -> Sequence[int]:
        """Returns the queues that a message for some queues goes to: of those with lanes, one of these."""
        known = self._lanes
        if known.keys().isdisjoint(queues):
            return queues
        priority = priority_of(message)
        picked: list[int] = []
        for one in queues:
            lanes = known.get(one)
            picked.append(one if lanes is None else lanes.written[min(priority, len(lanes.written) - 1)])
        return picked

    def split(
        self, number: QueueNumber, offsets: Sequence[QueueOffset]
    ) -> list[tuple[QueueNumber, Sequence[QueueOffset]]]:
        """Returns offsets of a queue to be settled as those of its lanes; none of a stream.

        Offsets in a lane that is gone are left out: there was nothing in it any more.
        """
        if number in self.streams:
            return []
        lanes = self._lanes.get(number)
        if lanes is None:
            return [(number, offsets)]
        found: dict[int, list[QueueOffset]] = {}
        for offset in offsets:
            found.setdefault(offset >> PLACE_SHIFT, []).append(QueueOffset(offset & OFFSET_MASK))
        return [(lanes.places[place], some) for place, some in found.items() if place in lanes.places]

    def by_lane(self, number: QueueNumber, offsets: Iterable[QueueOffset]) -> dict[QueueNumber, list[QueueOffset]]:
        """Returns offsets of a queue as they are, by their lane; those that `split` leaves out are left out."""
        lanes = self._lanes.get(number)
        if lanes is None:
            return {number: list(offsets)}
        found: dict[QueueNumber, list[QueueOffset]] = {}
        for offset in offsets:
            if (lane := lanes.places.get(offset >> PLACE_SHIFT)) is not None:
                found.setdefault(lane, []).append(offset)
        return found


def priority_of(message: Message) -> int:
    """Returns the priority of a message: 0 for one that says none, or came by another protocol."""
    own = None if message.native is None else message.native.get(_AMQP)
    priority = 0 if own is None else own.get(PRIORITY, 0)
    return priority if type(priority) is int and priority > 0 else 0
