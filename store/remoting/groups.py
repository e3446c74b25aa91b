"""The cursors of consumer groups over the network."""

from collections.abc import Callable, Mapping
from typing import Any

from store.format.frame import QueueNumber
from store.remoting.caller import AGAIN, nothing
from store.remoting.core import Remote, decoder
from store.rpc import arguments

__all__ = ["RemoteGroups"]

_cursors: Callable[[Any], dict[QueueNumber, int]] = decoder(dict[QueueNumber, int])


class RemoteGroups:
    """`GroupCalls` over the network."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def commit(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """See `GroupCalls.commit`."""
        await self._remote.call(
            "commit_offsets",
            arguments.CommitOffsets(group, {int(queue): at for queue, at in offsets.items()}),
            nothing,
            AGAIN,
        )

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """See `GroupCalls.offsets`."""
        return await self._remote.call("offsets", arguments.OfGroup(group), _cursors, AGAIN)

    async def delete(self, group: str) -> None:
        """See `GroupCalls.delete`."""
        await self._remote.call("delete_group", arguments.OfGroup(group), nothing, AGAIN)
