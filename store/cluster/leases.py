"""Leases of a cluster: each in the store group of its queue."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import starmap
from typing import TypeVar

from store.api.client import StoreClient
from store.api.handle import queue_of
from store.api.leases import LeaseCalls
from store.base.errors import BadHandle, StoreError
from store.base.futures import failed
from store.cluster.store_groups import StoreGroups, routed
from store.format.frame import FIRST_QUEUE, ROW, QueueNumber, QueueOffset
from store.format.policy import LeasePolicy

T = TypeVar("T")


@routed("leases")
class ClusterLeases(LeaseCalls):
    """`LeaseCalls` of all store groups. `group` is a consumer group everywhere here."""

    def __init__(self, stores: StoreGroups) -> None:
        self._stores = stores

    def settle_soon(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = ""
    ) -> "asyncio.Future[None]":
        """See `LeaseCalls.settle_soon`."""
        try:
            return self._stores.of(queue).leases.settle_soon(queue, owner, offsets, group=group)
        except StoreError as error:
            return failed(error)

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
        """See `LeaseCalls.forward`. Raises ValueError for rows of other store groups: a frame is in one log."""
        here = self._stores.store_group(queue)
        if any(self._stores.store_group(QueueNumber(row[0])) != here for row in ROW.iter_unpack(rows)):
            raise ValueError(f"messages of queue {queue} are forwarded within their store group, {here}")
        await self._stores.log(here).leases.forward(queue, owner, offsets, rows, payload, group=group)

    async def commit(
        self, owner: int, settled: Sequence[tuple[QueueNumber, Sequence[QueueOffset]]], rows: bytes, payload: bytes
    ) -> None:
        """See `LeaseCalls.commit`. Raises ValueError unless all queues lie in one store group."""
        queues = [*(queue for queue, _ in settled), *(QueueNumber(row[0]) for row in ROW.iter_unpack(rows))]
        numbers = {self._stores.store_group(queue) for queue in queues if queue >= FIRST_QUEUE}
        if len(numbers) != 1:
            raise ValueError(f"a commit is of one store group, not of {sorted(numbers)}")
        await self._stores.log(numbers.pop()).leases.commit(owner, settled, rows, payload)

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
        """See `LeaseCalls.requeue`."""
        log = self._stores.logs.get(self._stores.store_group(queue))
        if log is not None:  # otherwise the leases are gone with the store group
            log.leases.requeue(queue, owner, offsets, delivered=delivered, delay_ms=delay_ms, group=group)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `LeaseCalls.release`: in all store groups."""
        return [queue for log in self._stores.logs.values() for queue in log.leases.release(owner)]

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `LeaseCalls.settle_handles`."""
        return await self._by_handle(handles, lambda log, some: log.leases.settle_handles(some))

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `LeaseCalls.requeue_handles`."""
        return await self._by_handle(handles, lambda log, some: log.leases.requeue_handles(some, delay_ms=delay_ms))

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `LeaseCalls.extend_handles`."""
        return await self._by_handle(
            handles, lambda log, some: log.leases.extend_handles(some, invisible_ms=invisible_ms)
        )

    async def _by_handle(
        self, handles: Sequence[str], ask: Callable[[StoreClient, Sequence[str]], Awaitable[Sequence[T]]]
    ) -> list[T | StoreError]:
        """Asks the store group of each handle; returns the answers in the order of the handles.

        Raises the error of the group where all handles are of one, as its store does. Of several groups the others are
        asked all the same, and may settle theirs: an error of one is the answer for its handles alone.
        """
        answers: list[T | StoreError] = [BadHandle("a handle that was not made here")] * len(handles)
        by_store_group: dict[int, list[int]] = {}
        for n, handle in enumerate(handles):
            queue = queue_of(handle)
            if queue is not None:
                by_store_group.setdefault(self._stores.store_group(queue), []).append(n)

        async def asking(number: int, asked: Sequence[int]) -> Sequence[T]:
            return await ask(self._stores.log(number), [handles[n] for n in asked])

        outcomes = await asyncio.gather(*starmap(asking, by_store_group.items()), return_exceptions=True)
        for asked, found in zip(by_store_group.values(), outcomes, strict=True):
            if isinstance(found, BaseException) and not (isinstance(found, StoreError) and len(outcomes) > 1):
                raise found
            some: Sequence[T | StoreError] = [found] * len(asked) if isinstance(found, StoreError) else found
            for n, answer in zip(asked, some, strict=True):
                answers[n] = answer
        return answers

    async def set_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `LeaseCalls.set_policy`. Raises ValueError when dead letters would go to another store group."""
        target = policy.target
        if target is not None and self._stores.store_group(target) != self._stores.store_group(queue):
            raise ValueError(f"dead letters of queue {queue} go to a queue of the same store group, not to {target}")
        await self._stores.of(queue).leases.set_policy(queue, policy, group=group)
