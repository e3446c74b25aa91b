"""The messages in damaged ranges of a log, by queue and offsets, as the views remember them."""

from collections.abc import Sequence
from typing import NamedTuple

from store.format.frame import FIRST_QUEUE, QueueNumber, QueueOffset
from store.integrity.ledger import Damage
from store.views import Views

LOST_RANGES_COUNT_MAX = 1_000  # in one list


class LostOffsets(NamedTuple):
    """Messages of a queue that cannot be read: the first offset and the one behind the last."""

    queue: QueueNumber
    first: QueueOffset
    next: QueueOffset


def lost_ranges(views: Views, damages: Sequence[Damage]) -> list[LostOffsets]:
    """Returns the messages in some damages, by queue and offset; the first `LOST_RANGES_COUNT_MAX` ranges.

    Takes some searches for each queue and damage. Frames that were never confirmed, or that the views have not followed
    yet, are in no queue.
    """
    found: list[LostOffsets] = []
    with views.reading() as txn:
        for queue in views.queues.queues(txn):
            if queue < FIRST_QUEUE:
                continue
            for damage in damages:
                _add(found, queue, views, txn, damage)
                if len(found) > LOST_RANGES_COUNT_MAX:
                    return found[:LOST_RANGES_COUNT_MAX]
    return found


def _add(found: list[LostOffsets], queue: QueueNumber, views: Views, txn: object, damage: Damage) -> None:
    queues = views.queues
    for chunk in queues.chunks(txn, queue, queues.search(txn, queue, lambda chunk: chunk.frame >= damage.start)):
        if chunk.frame >= damage.end:
            break
        last = found[-1] if found else None
        if last is not None and (last.queue, last.next) == (queue, chunk.first):
            found[-1] = last._replace(next=chunk.next)
        else:
            found.append(LostOffsets(queue, chunk.first, chunk.next))
