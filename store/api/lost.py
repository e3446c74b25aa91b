"""Messages that damage has taken, as a store says them."""

from typing import Annotated, NamedTuple

import msgspec

from store.format.frame import QueueNumber, QueueOffset

LOST_RANGES_COUNT_MAX = 1_000  # in one list


class LostOffsets(NamedTuple):
    """Messages of a queue that cannot be read: the first offset and the one behind the last."""

    queue: QueueNumber
    first: QueueOffset
    next: QueueOffset


class LostMessages(msgspec.Struct, frozen=True, array_like=True):
    """The messages that are lost in `damages` ranges of one log, of `size_bytes` in all.

    `ranges` are the first of them, by queue and offset, and `more` the number of ranges that are left out; `messages`
    counts those of all ranges. Which messages are in `unfollowed_bytes` of the damages no queue knows: the views could
    not follow them, or have not yet. Fields are only ever added at the end, with a default.
    """

    damages: int = 0
    size_bytes: int = 0
    messages: int = 0
    ranges: Annotated[tuple[LostOffsets, ...], msgspec.Meta(max_length=LOST_RANGES_COUNT_MAX)] = ()
    more: int = 0
    unfollowed_bytes: int = 0

    def first(self, count: int) -> "LostMessages":
        """Returns the same with at most so many ranges."""
        left_out = len(self.ranges) - count
        if left_out <= 0:
            return self
        return msgspec.structs.replace(self, ranges=self.ranges[:count], more=self.more + left_out)


NOTHING_LOST = LostMessages()
