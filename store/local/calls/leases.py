"""Leases: lending the messages of queues, and who is told when there is something to lend."""

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

from store.api.client import Lease, QueuesListener
from store.api.handle import KEY_BYTES
from store.base.errors import NotMaster, RevisionConflict, StoreError
from store.format.frame import QueueNumber, QueueOffset
from store.format.policy import LeasePolicy
from store.format.ranges import Range
from store.local.calls.core import check_messages_queue
from store.local.calls.keys import KeyCalls
from store.local.lease_handles import LeaseHandles
from store.local.lending import Lending, StoredLeases
from store.local.reader import Located
from store.views.kv import check_key

__all__ = ["LeaseCalls"]

logger = logging.getLogger(__name__)

_LEASES = "$leases"  # the KV's namespace of the key that handles are signed with


class LeaseCalls(KeyCalls):
    """Lending."""

    _lending: Lending
    _handles: LeaseHandles
    _lease_key: bytes
    _listener_count: int
    _queue_listeners: dict[int, QueuesListener]

    def watch_queues(self, listener: QueuesListener) -> Callable[[], None]:
        """See `StoreClient.watch_queues`."""
        number = self._listener_count
        self._listener_count += 1
        self._queue_listeners[number] = listener

        def stop() -> None:
            self._queue_listeners.pop(number, None)

        return stop

    def _awakened(self, queues: Sequence[QueueNumber]) -> None:
        for listener in list(self._queue_listeners.values()):
            try:
                listener(queues)
            except Exception:
                logger.exception("a listener on queues has failed")

    async def _stored_leases(self, queue: QueueNumber, group: str) -> StoredLeases:
        def stored() -> StoredLeases:
            views = self._engine.views
            with views.reading() as txn:
                settled, policy = views.settled.get(txn, queue, group), views.settled.policy(txn, queue, group)
                gone = (0, views.queues.first_offset(txn, queue))
                deleted_at = views.settled.deleted_at(txn, queue, group)
                return StoredLeases([gone, *settled], policy, views.queues.next_offset(txn, queue), deleted_at)

        await self._queue(queue)
        forgotten = self._recent.group(group)
        if group and forgotten is not None and forgotten.cleared:  # the view may still have what it had settled
            await self._until_dispatched(self._recent.confirmed)
        return await self._blocking(stored)

    def _look_for_trimmed(self, queues: Sequence[QueueNumber]) -> None:
        """Find where some queues begin now; on a thread of the pool."""
        views = self._engine.views
        with views.reading() as txn:
            firsts = [(queue, views.queues.first_offset(txn, queue)) for queue in queues]
        self._post(self._trim_leases, firsts)

    def _trim_leases(self, firsts: Sequence[tuple[QueueNumber, QueueOffset]]) -> None:
        for queue, first in firsts:
            self._recent.leases.trim(queue, first)

    async def _handle_key(self) -> bytes:
        """Returns the key that handles are signed with, made once for the store group and kept in its KV."""
        while not self._lease_key:
            entry = await self.kv_get("handles", namespace=_LEASES)
            if entry is not None:
                self._lease_key = entry.value
                break
            with suppress(RevisionConflict):  # somebody else was faster
                await self.kv_put("handles", secrets.token_bytes(KEY_BYTES), expected_revision=0, namespace=_LEASES)
        return self._lease_key

    async def _locate(self, queue: QueueNumber, ranges: Sequence[Range], *, max_bytes: int) -> Located:
        return await self._read(self._reader.locate, queue, ranges, self._recent.chunks(queue), max_bytes=max_bytes)

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
        """See `StoreClient.take`. Raises `NotMaster` on a replica."""
        if self._engine.role == "replica":
            raise NotMaster("a replica lends nothing")
        check_messages_queue(queue)
        await self._queue(queue)
        return await self._lending.take(
            queue, owner, max_count=max_count, max_bytes=max_bytes, group=check_key(group), invisible_ms=invisible_ms
        )

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `StoreClient.settle`. When it raises, the messages will be lent again."""
        self._check_open()
        await self._lending.settle(queue, owner, offsets, group)

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
        """See `StoreClient.forward`. When it raises, the messages will be lent again."""
        self._check_open()
        await self._lending.forward(queue, owner, offsets, rows, payload, group=group)

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """See `StoreClient.reject`. When it raises, the messages will be lent again."""
        self._check_open()
        await self._lending.reject(queue, owner, offsets, reason=reason, group=group)

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
        self._lending.requeue(queue, owner, offsets, delivered=delivered, delay_ms=delay_ms, group=group)

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `StoreClient.extend`."""
        self._check_open()
        key = await self._handle_key()
        return self._lending.extend(queue, owner, offsets, invisible_ms=invisible_ms, group=group, key=key)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `StoreClient.release`."""
        return self._lending.release(owner)

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `StoreClient.settle_handles`."""
        self._check_open()
        return await self._handles.settle(handles)

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `StoreClient.requeue_handles`."""
        self._check_open()
        return await self._handles.requeue(handles, delay_ms)

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `StoreClient.extend_handles`."""
        self._check_open()
        return await self._handles.extend(handles, invisible_ms)

    async def set_lease_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `StoreClient.set_lease_policy`."""
        check_messages_queue(queue)
        await self._queue(queue)
        await self._lending.set_policy(queue, policy, check_key(group))

    async def lease_policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """See `StoreClient.lease_policy`."""
        await self._queue(queue)
        return await self._lending.policy(queue, check_key(group))

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.waiting`."""
        await self._queue(queue)
        return await self._lending.waiting(queue, check_key(group))

    async def first_waiting(self, queue: QueueNumber, *, group: str = "") -> QueueOffset | None:
        """See `StoreClient.first_waiting`."""
        await self._queue(queue)
        return await self._lending.first_waiting(queue, check_key(group))

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.purge`."""
        await self._queue(queue)
        return await self._lending.purge(queue, check_key(group))
