"""The words for messages that damage has taken, for `/readyz` and `/status`: their topics, queues and offsets."""

from collections.abc import Callable, Mapping, Sequence

from store.api.lost import LostMessages, LostOffsets
from store.api.lost_status import LostList, LostStatus

LOST_SHOWN = 20  # ranges of lost messages in a warning; /status has more

Topics = Callable[[], Mapping[int, str]]  # names of topics by queue


def lost_list(found: LostMessages, topics: Topics) -> LostList:
    """Returns lost messages as `/status` lists them."""
    return LostList(_named(found.ranges, topics), found.more)


def lost_words(found: LostMessages, topics: Topics) -> str:
    """Returns which messages are lost, the first `LOST_SHOWN` ranges of them, and how many more there are."""
    if not found.ranges and not found.unfollowed_bytes:
        return "no message of a queue is in them"
    ranges = [
        f"{one.topic or 'no topic'}, queue {one.queue}, offsets {one.first} to {one.next - 1}"
        for one in _named(found.ranges[:LOST_SHOWN], topics)
    ]
    listed = len(found.ranges) - len(ranges)
    if found.more:
        ranges.append(f"{listed + found.more} more, {listed} of them in /status")
    elif listed:
        ranges.append(f"{listed} more in /status")
    if found.unfollowed_bytes:
        ranges.append(f"which messages are in {found.unfollowed_bytes} bytes of them no queue knows")
    return "; ".join(ranges)


def _named(found: Sequence[LostOffsets], topics: Topics) -> Sequence[LostStatus]:
    names = topics() if found else {}
    return [LostStatus(topic=names.get(queue, ""), queue=queue, first=first, next=end) for queue, first, end in found]
