"""Consumer groups: the offsets that each has committed."""

from collections.abc import Mapping
from typing import Protocol

from store.format.frame import QueueNumber


class GroupCalls(Protocol):
    """The cursors of consumer groups; of a cluster those of its home group."""

    async def commit(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """Stores the offset of a consumer group in each queue, without a comparison: the last call counts."""

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """Returns the offsets that a consumer group has committed, by queue."""

    async def delete(self, group: str) -> None:
        """Deletes a consumer group: its offsets, settlements and lease policies, in all store groups."""
