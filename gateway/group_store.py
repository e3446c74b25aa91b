"""Consumer groups as they are read: their keys from the store, their queues from the controller."""

from collections.abc import Sequence

from controller.client import ControllerClient
from gateway.errors import Cause, Refusal
from gateway.group_state import Group, group_range, read_group
from store.client import StoreClient

__all__ = ["load_group", "queues_of"]

ENTRIES_COUNT_MAX = 4_096  # of a group: a thousand members, a thousand queues, and more than there can be


async def load_group(store: StoreClient, name: str) -> Group:
    """All of a group at one revision; one that is not there has no header. Raises `StoreError`."""
    page = await store.kv_range(*group_range(name), limit=ENTRIES_COUNT_MAX)
    if page.more:
        raise Refusal(Cause.QUOTA, f"the group {name!r} has more members and queues than can be read at once")
    return read_group(name, page)


def queues_of(controller: ControllerClient, topic: str) -> Sequence[int]:
    """The queues of a topic that a group reads, closed ones included; none where there is no topic yet."""
    found = controller.topic(topic)
    return () if found is None else found.queues
