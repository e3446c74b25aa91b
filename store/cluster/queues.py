"""The queues of a cluster: each in the group that it lies in."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

from store.api.lost import LOST_RANGES_COUNT_MAX, LostMessages
from store.api.queues import QueueCalls, QueuesListener
from store.cluster.store_groups import StoreGroups, routed
from store.format.frame import QueueNumber
from store.format.queue_config import QueueConfig


@routed("queues")
class ClusterQueues(QueueCalls):
    """`QueueCalls` of all groups."""

    def __init__(self, stores: StoreGroups) -> None:
        self._stores = stores

    async def configure(self, configs: Sequence[QueueConfig]) -> None:
        """See `QueueCalls.configure`."""
        by_group: dict[int, list[QueueConfig]] = {}
        for config in configs:
            by_group.setdefault(self._stores.store_group(QueueNumber(config.queue)), []).append(config)
        log = self._stores.log
        await asyncio.gather(*(log(group).queues.configure(some) for group, some in by_group.items()))

    def config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `QueueCalls.config`."""
        return self._stores.of(queue).queues.config(queue)

    async def lost(self, limit: int = LOST_RANGES_COUNT_MAX) -> LostMessages:
        """See `QueueCalls.lost`: of all groups, which all have to answer."""
        found = await self._stores.all(lambda store: store.queues.lost(limit))
        return LostMessages(
            damages=sum(one.damages for one in found),
            size_bytes=sum(one.size_bytes for one in found),
            messages=sum(one.messages for one in found),
            ranges=tuple(chain.from_iterable(one.ranges for one in found)),
            more=sum(one.more for one in found),
            unfollowed_bytes=sum(one.unfollowed_bytes for one in found),
        ).first(limit)

    def watch(self, listener: QueuesListener) -> Callable[[], None]:
        """See `QueueCalls.watch`."""
        return self._stores.listen(lambda store: store.queues.watch(listener))

    async def delete(self, queue: QueueNumber) -> None:
        """See `QueueCalls.delete`. A queue that the controllers no longer know is deleted in all groups."""
        if self._stores.is_known(queue):
            await self._stores.of(queue).queues.delete(queue)
        else:
            await self._stores.all(lambda store: store.queues.delete(queue))
