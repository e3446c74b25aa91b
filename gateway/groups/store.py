"""Consumer groups as they are read: their keys from the store, their queues from the controller."""

import asyncio
from collections.abc import Mapping, Sequence

from controller.api.client import ControllerClient
from gateway.domain.errors import Cause, Refusal
from gateway.groups.state import GroupState, group_range, read_group
from store.api.client import StoreClient
from store.format.frame import QueueNumber

ENTRIES_COUNT_MAX = 4_096  # of a group: a thousand members, a thousand queues, and more than there can be


async def load_group(store: StoreClient, name: str) -> GroupState:
    """Returns all of a group at one revision; one that is not there has no header. Raises `StoreError`."""
    page = await store.keys.range(*group_range(name), limit=ENTRIES_COUNT_MAX)
    if page.more:
        raise Refusal(Cause.QUOTA, f"the group {name!r} has more members and queues than can be read at once")
    return read_group(name, page)


def queues_of(controller: ControllerClient, topic: str) -> Sequence[int]:
    """Returns the queues of a topic that a group reads, closed ones included; none where there is no topic yet."""
    found = controller.topic(topic)
    return () if found is None else found.queues


async def without_successors(
    store: StoreClient, controller: ControllerClient, group: GroupState, positions: Mapping[int, int]
) -> dict[int, int]:
    """Returns the queues to read, without those in the place of one that the group has not committed all of.

    So a key's messages come in order, also where its queue was moved.
    """
    assert group.header is not None
    topic = controller.topic(group.header.record.topic)
    moved = [(old, new) for old, new in topic.moved.items() if new in positions] if topic is not None else []
    bounds = await asyncio.gather(*(store.queues.bounds(QueueNumber(old)) for old, _ in moved))
    waiting: set[int] = set()
    for (old, new), found in zip(moved, bounds, strict=True):
        held = group.queues.get(old)
        if max(held.record.offset if held is not None else 0, found.first) < found.next:
            waiting.add(new)
    return {queue: at for queue, at in positions.items() if queue not in waiting}
