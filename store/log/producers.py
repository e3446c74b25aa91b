"""Idempotent producers: which sequences of which producer are stored, and where.

Producers of a single frame (`ONCE_PRODUCER` in their id), as of a will, are remembered apart: a thousand wills at a
time must not make the log forget who publishes all the time.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from store.base.errors import SequenceOutOfOrder
from store.format.frame import ONCE_PRODUCER, LogOffset

PRODUCERS_MAX = 1024  # the ones that wrote last are remembered
ONCE_MAX = 4096  # likewise of those of a single frame
SEQUENCES_KEPT = 1024  # of each producer: how far back a repeat is recognised


class _Producer:
    __slots__ = ("frames", "last")

    def __init__(self, last: int, frames: Iterable[LogOffset]) -> None:
        self.last = last  # the newest sequence stored
        self.frames = deque(frames, SEQUENCES_KEPT)  # where the newest ones are; frames[-1] is that of `last`


class _Added(NamedTuple):
    """The effect of one `add`, with which it can be taken back."""

    producer_id: int
    dropped: LogOffset | None  # the producer's oldest frame, when it had as many as are kept
    forgotten: tuple[int, _Producer] | None  # the producer that had to go for a new one


class ProducerTable:
    """Decides for each frame of an idempotent producer whether it is new, stored already, or out of order.

    Sequences count up by one. The first one that is seen of an unknown producer is accepted whatever it is.
    """

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()  # by newest frame; at most PRODUCERS_MAX
        self._once: OrderedDict[int, _Producer] = OrderedDict()  # likewise; at most ONCE_MAX
        self._added: list[_Added] = []  # since `keep`

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(number, p.last) for table in (self._producers, self._once) for number, p in table.items()])

    def _table(self, producer_id: int) -> OrderedDict[int, _Producer]:
        return self._once if producer_id & ONCE_PRODUCER else self._producers

    def find(self, producer_id: int, sequence: int) -> LogOffset | None:
        """Returns where the frame is stored, None when it is new. Raises `SequenceOutOfOrder`."""
        producer = self._table(producer_id).get(producer_id)
        if producer is None or sequence == producer.last + 1:
            return None
        if sequence > producer.last:
            raise SequenceOutOfOrder(f"producer {producer_id:x}: {sequence} follows {producer.last}")
        back = producer.last - sequence + 1
        if back > len(producer.frames):
            raise SequenceOutOfOrder(
                f"producer {producer_id:x}: {sequence} is {back} before the newest, too old to know"
            )
        return producer.frames[-back]

    def add(self, producer_id: int, sequence: int, frame: LogOffset) -> None:
        """Remembers where a new frame went."""
        table = self._table(producer_id)
        producer = table.get(producer_id)
        if producer is None:
            self._added.append(_Added(producer_id, None, self.restore(producer_id, sequence, [frame])))
            return
        assert sequence == producer.last + 1
        frames = producer.frames
        self._added.append(_Added(producer_id, frames[0] if len(frames) == frames.maxlen else None, None))
        producer.last = sequence
        frames.append(frame)
        table.move_to_end(producer_id)

    def follow(self, producer_id: int, sequence: int, frame: LogOffset) -> None:
        """Remembers where a frame is that is in the log already; one that does not follow begins the producer anew."""
        producer = self._table(producer_id).pop(producer_id, None)
        goes_on = producer is not None and sequence == producer.last + 1
        self.restore(producer_id, sequence, [*producer.frames, frame] if producer is not None and goes_on else [frame])

    def keep(self) -> None:
        """Keeps the additions, as they are stored: they are not taken back any more."""
        self._added.clear()

    def take_back(self) -> None:
        """Undoes the additions since the last `keep`, and the removals they caused: it was not stored after all."""
        for producer_id, dropped, forgotten in reversed(self._added):
            table = self._table(producer_id)
            producer = table[producer_id]
            producer.frames.pop()
            producer.last -= 1
            if dropped is not None:
                producer.frames.appendleft(dropped)
            if not producer.frames:
                del table[producer_id]
            if forgotten is not None:
                table[forgotten[0]] = forgotten[1]
        self._added.clear()
        self._producers, self._once = _in_order(self._producers), _in_order(self._once)

    def restore(self, producer_id: int, last: int, frames: Iterable[LogOffset]) -> tuple[int, _Producer] | None:
        """Puts a producer in as the one used last; the one that is forgotten for it."""
        table = self._table(producer_id)
        table[producer_id] = _Producer(last, frames)
        limit = ONCE_MAX if producer_id & ONCE_PRODUCER else PRODUCERS_MAX
        return table.popitem(last=False) if len(table) > limit else None


def _in_order(table: OrderedDict[int, _Producer]) -> OrderedDict[int, _Producer]:
    return OrderedDict(sorted(table.items(), key=lambda item: item[1].frames[-1]))
