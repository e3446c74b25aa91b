"""Consumer groups: the offsets that each has committed."""

from collections.abc import Mapping
from typing import Protocol

from store.format.frame import QueueNumber


class GroupCalls(Protocol):
    """The cursors of consumer groups; of a cluster those of its home group."""

    async def commit(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """Stores where a group is in each queue. Never goes through a compare: the last one counts."""

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """Returns the offsets that a group has committed, by queue."""

    async def delete(self, group: str) -> None:
        """Forgets a group: its offsets, settlements and lease policies, in all store groups."""
