"""The leases of a `LocalStore`: leasing the messages of queues, by owner or by handle."""

import asyncio
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec

from store.api.handle import KEY_BYTES
from store.api.keys import KeyCalls
from store.api.kv_rules import check_key
from store.api.leases import Lease
from store.base.clock import SteadyClock
from store.base.errors import NotMaster, NotWritable, RevisionConflict, StoreError
from store.base.futures import failed
from store.format.frame import QueueNumber, QueueOffset
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig
from store.format.ranges import Range
from store.format.timer_key import TimerKey
from store.leases.look_ahead import LookAhead
from store.local.core import Core, check_messages_queue
from store.local.lease_handles import LeaseHandles
from store.local.leasing import Leasing, StoredLeases
from store.local.log import LocalLog
from store.local.queues import LocalQueues
from store.local.reader import Located, NotInMemory
from store.timers.awaiting import Awaited, AwaitedTimers

TIMERS_COUNT, TIMERS_BYTES = 2_048, 4 << 20  # that are looked at in one read of the view
_LEASES = "$leases"  # the KV's namespace of the key that handles are signed with


class LocalLeases:
    """`LeaseCalls` of one group in this process."""

    def __init__(self, core: Core, log: LocalLog, queues: LocalQueues, keys: KeyCalls, steady_ms: SteadyClock) -> None:
        self._core = core
        self._keys = keys
        self._key = b""  # that handles are signed with; not looked up yet
        self._leased_from = core.recent.first  # leases from before this position are void
        self._retired: set[QueueNumber] = set()  # queues for which all is confirmed that came before they were closed
        timers = core.recent.timers
        self._awaited = AwaitedTimers(
            held=lambda: timers.held,
            is_pending=lambda key: timers.size_bytes(key) is not None,
            look=self._look_at_timers,
            now_s=core.loop.time,
        )
        self._ahead = LookAhead()
        self._leasing = Leasing(
            core.recent,
            locate=self._locate,
            stored=self._stored,
            record=core.recorder.record,
            append=log.append,
            key=self._handle_key,
            steady_ms=steady_ms,
            on_available=queues.wake,
            begun=core.predecessor_end,
        )
        self._handles = LeaseHandles(self._leasing, key=self._handle_key, steady_ms=steady_ms, on_available=queues.wake)

    def expire(self) -> int | None:
        """Ends the leases and delays whose time has come; in how many milliseconds the next one ends."""
        return self._leasing.expire()

    async def close(self) -> None:
        """Waits for the dead letters that are being moved."""
        await self._leasing.close()

    async def _stored(self, queue: QueueNumber, group: str) -> StoredLeases:
        def stored() -> StoredLeases:
            views = self._core.engine.views
            with views.reading() as txn:
                settled, policy = views.settled.get(txn, queue, group), views.settled.policy(txn, queue, group)
                gone = (0, views.queues.first_offset(txn, queue))
                deleted_at = views.settled.deleted_at(txn, queue, group)
                return StoredLeases([gone, *settled], policy, views.queues.next_offset(txn, queue), deleted_at)

        core = self._core
        await core.check_queue(queue)
        if core.recent.start < core.predecessor_end:  # no leases were loaded when its settlements came
            await core.until_dispatched(core.predecessor_end)
        forgotten = core.recent.group(group)
        if group and forgotten is not None and forgotten.cleared:  # the view may still have its settlements
            await core.until_dispatched(core.recent.confirmed)
        return await core.blocking(stored)

    def trim(self) -> None:
        """Ends the leases of messages that retention has removed, once it is known where the queues begin."""
        core = self._core
        if core.engine.views.first > self._leased_from and core.closing is None:
            self._leased_from = core.engine.views.first
            core.pool.submit(self._look_for_trimmed, core.recent.leases.queues)

    def _look_for_trimmed(self, queues: Sequence[QueueNumber]) -> None:
        """Finds where some queues begin now; on a thread of the pool."""
        views = self._core.engine.views
        with views.reading() as txn:
            firsts = [(queue, views.queues.first_offset(txn, queue)) for queue in queues]
        self._core.post(self._trim_leases, firsts)

    def _trim_leases(self, firsts: Sequence[tuple[QueueNumber, QueueOffset]]) -> None:
        for queue, first in firsts:
            self._core.recent.leases.trim(queue, first)

    async def _handle_key(self) -> bytes:
        """Returns the key that handles are signed with, made once for the store group and kept in its KV."""
        while not self._key:
            entry = await self._keys.get("handles", namespace=_LEASES)
            if entry is not None:
                self._key = entry.value
                break
            with suppress(RevisionConflict):  # another process was faster
                await self._keys.put("handles", secrets.token_bytes(KEY_BYTES), expected_revision=0, namespace=_LEASES)
        return self._key

    async def _locate(self, queue: QueueNumber, ranges: Sequence[Range], *, max_bytes: int) -> Located:
        core = self._core
        kept = self._ahead.take(queue, ranges, max_bytes, core.reader.log.first)
        if kept is not None:
            return Located(kept, ())
        chunks = core.recent.chunks(queue)
        with suppress(NotInMemory):
            return core.reader.locate(queue, ranges, chunks, max_bytes=max_bytes, in_memory=True)
        wide, end = self._ahead.widened(ranges, core.recent.next_offset(queue)), ranges[-1][1]
        located = await core.blocking(core.reader.locate, queue, wide, chunks, max_bytes=max_bytes, ahead=end)
        if not located.unreadable:
            return Located(self._ahead.keep(queue, ranges, located.records, max_bytes), ())
        return located._replace(records=[one for one in located.records if one[0] < end])

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
        """See `LeaseCalls.take`. Raises `NotMaster` on a replica, `NotWritable` where too few replicas answer."""
        if self._core.cut_off():  # another master may lease messages
            raise NotWritable("too few replicas confirm that this is still the master: no messages are leased")
        if self._core.engine.role == "replica":
            raise NotMaster("a replica leases no messages")
        check_messages_queue(queue)
        await self._core.check_queue(queue)
        return await self._leasing.take(
            queue, owner, max_count=max_count, max_bytes=max_bytes, group=check_key(group), invisible_ms=invisible_ms
        )

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `LeaseCalls.settle`. When it raises, the messages will be leased again."""
        self._core.check_open()
        await self._leasing.settle(queue, owner, offsets, group)

    def settle_soon(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = ""
    ) -> "asyncio.Future[None]":
        """See `LeaseCalls.settle_soon`. When it fails, the messages will be leased again."""
        try:
            self._core.check_open()
            return self._leasing.settle_soon(queue, owner, offsets, group)
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
        """See `LeaseCalls.forward`. When it raises, the messages will be leased again."""
        self._core.check_open()
        await self._leasing.forward(queue, owner, offsets, rows, payload, group=group)

    async def commit(
        self, owner: int, settled: Sequence[tuple[QueueNumber, Sequence[QueueOffset]]], rows: bytes, payload: bytes
    ) -> None:
        """See `LeaseCalls.commit`. When it raises, the messages will be leased again."""
        self._core.check_open()
        await self._leasing.commit(owner, settled, rows, payload)

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """See `LeaseCalls.reject`. When it raises, the messages will be leased again."""
        self._core.check_open()
        await self._leasing.reject(queue, owner, offsets, reason=reason, group=group)

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
        self._leasing.requeue(queue, owner, offsets, delivered=delivered, delay_ms=delay_ms, group=group)

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `LeaseCalls.extend`."""
        self._core.check_open()
        key = await self._handle_key()
        return self._leasing.extend(queue, owner, offsets, invisible_ms=invisible_ms, group=group, key=key)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `LeaseCalls.release`."""
        return self._leasing.release(owner)

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `LeaseCalls.settle_handles`."""
        self._core.check_open()
        return await self._handles.settle(handles)

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `LeaseCalls.requeue_handles`."""
        self._core.check_open()
        return await self._handles.requeue(handles, delay_ms)

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `LeaseCalls.extend_handles`."""
        self._core.check_open()
        return await self._handles.extend(handles, invisible_ms)

    async def set_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `LeaseCalls.set_policy`."""
        check_messages_queue(queue)
        await self._core.check_queue(queue)
        await self._leasing.set_policy(queue, policy, check_key(group))

    async def policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """See `LeaseCalls.policy`."""
        await self._core.check_queue(queue)
        return await self._leasing.policy(queue, check_key(group))

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `LeaseCalls.waiting`."""
        await self._core.check_queue(queue)
        return await self._leasing.waiting(queue, check_key(group))

    async def retire(self, queue: QueueNumber) -> bool:
        """See `LeaseCalls.retire`."""
        check_messages_queue(queue)
        core, known = self._core, self._core.recent.limits.get(queue)
        config = msgspec.structs.replace(known or QueueConfig(queue), closed=True)
        if known != config:
            await core.recorder.record(config)
        if queue not in self._retired:
            await core.recorder.record(config)  # confirmed, as is all that came before the queue was closed
            self._retired.add(queue)
        await core.until_dispatched(core.recent.confirmed)
        return not await self._awaited.is_awaited(queue) and not await self.unsettled(queue)

    @property
    def retired(self) -> frozenset[int]:
        """The queues that were retired."""
        return self._core.recent.limits.closed

    async def is_retired(self, queue: QueueNumber) -> bool:
        """See `LeaseCalls.is_retired`."""
        return queue in self.retired

    async def _look_at_timers(self, start: TimerKey | None, queues: Collection[int]) -> Awaited:
        def look() -> Awaited:
            views = self._core.engine.views
            with views.reading() as txn:
                return Awaited(*views.timers.awaited(txn, start, queues, count=TIMERS_COUNT, size_bytes=TIMERS_BYTES))

        return await self._core.blocking(look)

    async def unsettled(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `LeaseCalls.unsettled`."""
        await self._core.check_queue(queue)
        return await self._leasing.unsettled(queue, check_key(group))

    async def first_waiting(self, queue: QueueNumber, *, group: str = "") -> QueueOffset | None:
        """See `LeaseCalls.first_waiting`."""
        await self._core.check_queue(queue)
        return await self._leasing.first_waiting(queue, check_key(group))

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `LeaseCalls.purge`."""
        await self._core.check_queue(queue)
        return await self._leasing.purge(queue, check_key(group))
