"""Leases of a cluster: each in the group of its queue."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from store.api.client import Lease, StoreClient
from store.api.handle import queue_of
from store.base.errors import BadHandle, StoreError
from store.cluster.groups import Groups
from store.format.frame import ROW, QueueNumber, QueueOffset
from store.format.policy import LeasePolicy

__all__ = ["ClusterLeases"]

T = TypeVar("T")


class ClusterLeases(Groups):
    """Leases."""

    async def take(
        self,
        queue: QueueNumber,
        owner: int,
        *,
        max_count: int,
        max_bytes: int = 1 << 20,
        group: str = "",
        invisible_ms: int | None = None,
    ) -> Sequence[Lease]:
        """See `StoreClient.take`."""
        return await self._of(queue).take(
            queue, owner, max_count=max_count, max_bytes=max_bytes, group=group, invisible_ms=invisible_ms
        )

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `StoreClient.settle`."""
        await self._of(queue).settle(queue, owner, offsets, group=group)

    async def forward(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        rows: bytes,
        payload: bytes,
        *,
        group: str = "",
    ) -> None:
        """See `StoreClient.forward`. Raises ValueError for rows of queues in another group: a frame is in one log."""
        here = self._group(queue)
        if any(self._group(QueueNumber(row[0])) != here for row in ROW.iter_unpack(rows)):
            raise ValueError(f"messages of queue {queue} are forwarded within their store group, {here}")
        await self._log(here).forward(queue, owner, offsets, rows, payload, group=group)

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """See `StoreClient.reject`."""
        await self._of(queue).reject(queue, owner, offsets, reason=reason, group=group)

    def requeue(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        delivered: bool = True,
        delay_ms: int | None = None,
        group: str = "",
    ) -> None:
        """See `StoreClient.requeue`."""
        log = self._logs.get(self._group(queue))
        if log is not None:  # otherwise the leases are gone with the group
            log.requeue(queue, owner, offsets, delivered=delivered, delay_ms=delay_ms, group=group)

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `StoreClient.extend`."""
        return await self._of(queue).extend(queue, owner, offsets, invisible_ms=invisible_ms, group=group)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `StoreClient.release`: in all groups."""
        return [queue for log in self._logs.values() for queue in log.release(owner)]

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `StoreClient.settle_handles`."""
        return await self._by_handle(handles, lambda log, some: log.settle_handles(some))

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `StoreClient.requeue_handles`."""
        return await self._by_handle(handles, lambda log, some: log.requeue_handles(some, delay_ms=delay_ms))

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `StoreClient.extend_handles`."""
        return await self._by_handle(handles, lambda log, some: log.extend_handles(some, invisible_ms=invisible_ms))

    async def _by_handle(
        self, handles: Sequence[str], ask: Callable[[StoreClient, Sequence[str]], Awaitable[Sequence[T]]]
    ) -> list[T | StoreError]:
        """Ask the group of each handle; the answers in the order of the handles."""
        answers: list[T | StoreError] = [BadHandle("a handle that was not made here")] * len(handles)
        by_group: dict[int, list[int]] = {}
        for n, handle in enumerate(handles):
            queue = queue_of(handle)
            if queue is not None:
                by_group.setdefault(self._group(queue), []).append(n)
        groups = [(self._log(group), numbers) for group, numbers in by_group.items()]
        asked = [ask(log, [handles[n] for n in numbers]) for log, numbers in groups]
        for (_, numbers), found in zip(groups, await asyncio.gather(*asked), strict=True):
            for n, answer in zip(numbers, found, strict=True):
                answers[n] = answer
        return answers

    async def set_lease_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `StoreClient.set_lease_policy`. Raises ValueError when dead letters would go to another group."""
        target = policy.target
        if target is not None and self._group(target) != self._group(queue):
            raise ValueError(f"dead letters of queue {queue} go to a queue of the same store group, not to {target}")
        await self._of(queue).set_lease_policy(queue, policy, group=group)

    async def lease_policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """See `StoreClient.lease_policy`."""
        return await self._of(queue).lease_policy(queue, group=group)

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.waiting`."""
        return await self._of(queue).waiting(queue, group=group)

    async def first_waiting(self, queue: QueueNumber, *, group: str = "") -> QueueOffset | None:
        """See `StoreClient.first_waiting`."""
        return await self._of(queue).first_waiting(queue, group=group)

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.purge`."""
        return await self._of(queue).purge(queue, group=group)

    async def delete_queue(self, queue: QueueNumber) -> None:
        """See `StoreClient.delete_queue`. One that nobody knows any more is deleted wherever it may have been."""
        if self._routes.get(queue) is None and self._controller.group_of_queue(queue) is None:
            await self._all(lambda log: log.delete_queue(queue))
        else:
            await self._of(queue).delete_queue(queue)
