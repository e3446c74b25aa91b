"""The offsets that consumer groups have committed, of a `LocalStore`."""

from collections.abc import Mapping

from store.api.kv_rules import check_key
from store.format.frame import QueueNumber
from store.format.records import GroupDeleted, GroupOffsets
from store.local.core import Core


class LocalGroups:
    """`GroupCalls` of one group in this process."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def commit(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """See `GroupCalls.commit`. Raises `KeyTooLong`, and ValueError for an offset beyond 63 bits."""
        if any(abs(at) >> 63 for at in offsets.values()):
            raise ValueError(f"an offset of group {group!r} has more than 63 bits")
        record = GroupOffsets(check_key(group), {int(queue): at for queue, at in offsets.items()})
        await self._core.recorder.record(record)

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """See `GroupCalls.offsets`."""
        core = self._core
        core.check_open()
        change = core.recent.group(check_key(group))
        if change is not None and change.cleared:
            return dict(change.offsets)
        views = core.engine.views

        def stored() -> dict[QueueNumber, int]:
            with views.reading() as txn:
                return views.groups.get(txn, group)

        found = await core.blocking(stored)
        return {**found, **change.offsets} if change is not None else found

    async def delete(self, group: str) -> None:
        """See `GroupCalls.delete`."""
        await self._core.recorder.record(GroupDeleted(check_key(group)))
