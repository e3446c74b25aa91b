"""The messages in damaged ranges of a log, by queue and offsets, as the views remember them."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from store.api.lost import LOST_RANGES_COUNT_MAX, LostMessages, LostOffsets
from store.format.chunks import Chunk
from store.format.frame import FIRST_QUEUE, LogOffset, QueueNumber, QueueOffset
from store.format.ranges import RangeSet
from store.integrity.ledger import Damage
from store.log.retention import ALL, ReadableRange
from store.views import Views

LEAP_CHUNKS = 64  # sound ones that are passed one by one: a search for the next damaged one costs about as much
READ_CHUNKS = 8_192  # in one transaction: the map of the views waits for its end to grow


def lost_messages(
    views: Views,
    damages: Sequence[Damage],
    check: Callable[[], None],
    kept: Callable[[QueueNumber], ReadableRange] = lambda _queue: ALL,
) -> LostMessages:
    """Returns the messages in some damages, which are disjoint and by log offset. Blocks.

    One pass over each queue: it goes through the chunks around damages, and leaps to the next one where many are
    sound. Frames that were never confirmed, or that the views have not followed, are in no queue. Messages that the
    limits of a queue (`kept`) have dropped are none. `check` is called again and again, and its error ends the pass.
    """
    found, unfollowed_bytes = _Found(damages, kept), _unfollowed_bytes(views, damages)
    queue, offset = QueueNumber(FIRST_QUEUE - 1), None
    while True:
        check()
        with views.reading() as txn:
            if offset is None:
                following = next(views.queues.queues(txn, behind=queue), None)
                if following is None:
                    return found.messages(unfollowed_bytes)
                queue = following
            offset = _look(found, views, txn, queue, offset or QueueOffset(0))


def _look(found: "_Found", views: Views, txn: object, queue: QueueNumber, offset: QueueOffset) -> QueueOffset | None:
    """Takes in some chunks of a queue from an offset on; returns where to go on, None where the queue is done."""
    sound = 0
    readable: Callable[[Chunk], bool] | None = None
    for n, chunk in enumerate(views.queues.chunks(txn, queue, offset)):
        if n == READ_CHUNKS:
            return chunk.first
        damage = found.damage_from(chunk)
        if damage is None:
            return None
        if damage.start <= chunk.frame:
            if readable is None:
                readable = found.kept(queue).test(views.queues.end(txn, queue).size_bytes)
            if readable(chunk):
                found.add(queue, chunk)
            sound = 0
            continue
        sound += 1
        if sound == LEAP_CHUNKS:
            return views.queues.search(txn, queue, partial(_is_from, damage.start))
    return None


def _unfollowed_bytes(views: Views, damages: Sequence[Damage]) -> int:
    """Returns the bytes of damages that the views have passed over, or not come to yet."""
    followed = RangeSet((one.start, min(one.end, views.dispatched)) for one in damages)
    for start, end in views.passed:
        followed.remove(start, end)
    return sum(one.end - one.start for one in damages) - sum(end - start for start, end in followed)


def _is_from(start: LogOffset, chunk: Chunk) -> bool:
    return chunk.frame >= start


class _Found:
    """The ranges that were found so far, by queue and offset."""

    def __init__(self, damages: Sequence[Damage], kept: Callable[[QueueNumber], ReadableRange]) -> None:
        self.kept = kept
        self._damages = damages
        self._ends = [one.end for one in damages]
        self._ranges: list[LostOffsets] = []  # len <= LOST_RANGES_COUNT_MAX
        self._last: LostOffsets | None = None
        self._count = self._messages = 0

    def damage_from(self, chunk: Chunk) -> Damage | None:
        """Returns the damage that a chunk's frame is in, or the next one behind it."""
        i = bisect_right(self._ends, chunk.frame)
        return self._damages[i] if i < len(self._ends) else None

    def add(self, queue: QueueNumber, chunk: Chunk) -> None:
        """Adds a chunk that is lost."""
        self._messages += chunk.next - chunk.first
        last = self._last
        if last is not None and (last.queue, last.next) == (queue, chunk.first):
            self._last = last._replace(next=chunk.next)
        else:
            self._last = LostOffsets(queue, chunk.first, chunk.next)
            self._count += 1
        if self._count <= LOST_RANGES_COUNT_MAX:
            self._ranges[self._count - 1 :] = [self._last]

    def messages(self, unfollowed_bytes: int) -> LostMessages:
        """Returns all of them."""
        return LostMessages(
            damages=len(self._damages),
            size_bytes=sum(one.end - one.start for one in self._damages),
            messages=self._messages,
            ranges=tuple(self._ranges),
            more=self._count - len(self._ranges),
            unfollowed_bytes=unfollowed_bytes,
        )
