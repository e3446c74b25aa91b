"""Leases by their handles: operations of a handle's holder on one message, from any process."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from store.api.handle import Grant, LeaseHandle
from store.base.errors import LeaseLost, StoreError
from store.format.frame import QueueNumber
from store.format.ranges import ranges_of
from store.leases.leases import HandleClaim, LeaseQueue
from store.local.leasing import Leasing, check_invisible

T = TypeVar("T")
_Loaded: TypeAlias = Mapping[tuple[QueueNumber, str], LeaseQueue | StoreError]


class LeaseHandles:
    """Settles, gives back and extends by handle. `key` signs handles, `steady_ms` never goes back.

    `on_available` is called with queues that have available messages again.
    """

    def __init__(
        self,
        leasing: Leasing,
        *,
        key: Callable[[], Awaitable[bytes]],
        steady_ms: Callable[[], int],
        on_available: Callable[[Sequence[QueueNumber]], None],
    ) -> None:
        self._leasing = leasing
        self._key = key
        self._now_ms = steady_ms
        self._on_available = on_available

    async def settle(self, handles: Sequence[str]) -> list[StoreError | None]:
        """See `LeaseCalls.settle_handles`."""
        key = await self._key()
        answers: list[StoreError | None] = [None] * len(handles)
        left: dict[int, LeaseHandle] = {}
        for n, text in enumerate(handles):
            try:
                left[n] = LeaseHandle.decode(text, key)
            except StoreError as error:
                answers[n] = error
        while left:
            loaded = await self._loaded(left.values())
            left = await self._settle(left, loaded, answers)
        return answers

    async def _settle(
        self, handles: Mapping[int, LeaseHandle], loaded: _Loaded, answers: list[StoreError | None]
    ) -> dict[int, LeaseHandle]:
        """Settles messages, and puts the outcomes into `answers`, by number.

        Returns the handles of messages that another caller was settling, once that has ended: it may have failed.
        """
        taken: dict[LeaseQueue, list[int]] = {}
        pending: dict[int, LeaseHandle] = {}
        endings: list[asyncio.Future[Any]] = []
        # All that is claimed is recorded before the first await: a caller that goes away leaves no claim unowned.
        for n, handle in handles.items():
            leases = loaded[handle.queue, handle.group]
            if isinstance(leases, StoreError):
                answers[n] = leases
                continue
            if leases.gone:  # since it was loaded
                pending[n] = handle
                continue
            if handle.leased_at <= leases.deleted_at:
                answers[n] = _lost(handle)
                continue
            match leases.claim(handle.offset, handle.lease):
                case HandleClaim.TAKEN:
                    taken.setdefault(leases, []).append(handle.offset)
                case HandleClaim.PENDING:
                    pending[n] = handle
                    endings.append(leases.in_flight.settled(handle.offset))
                case HandleClaim.LOST:
                    answers[n] = _lost(handle)
        for leases, offsets in taken.items():
            ending = self._leasing.settlements.settling(leases, ranges_of(offsets), delivered=True)
            endings.append(asyncio.shield(ending))
        for outcome in await asyncio.gather(*endings, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return pending

    async def _loaded(self, handles: Iterable[LeaseHandle]) -> _Loaded:
        """Returns the leases of every queue and group that handles are of, or why there are none."""
        loaded: dict[tuple[QueueNumber, str], LeaseQueue | StoreError] = {}
        for queue, group in dict.fromkeys((handle.queue, handle.group) for handle in handles):
            try:
                loaded[queue, group], _ = await self._leasing.leases(queue, group)
            except StoreError as error:
                loaded[queue, group] = error
        return loaded

    async def requeue(self, handles: Sequence[str], delay_ms: int | None) -> list[StoreError | None]:
        """See `LeaseCalls.requeue_handles`."""
        queues: dict[QueueNumber, None] = {}

        def requeue(leases: LeaseQueue, handle: LeaseHandle, grant: Grant) -> None:
            leases.requeue(grant.owner, (handle.offset,), delivered=True, delay_ms=delay_ms, now_ms=self._now_ms())
            self._leasing.dead_letters.give_up(leases)
            queues[handle.queue] = None

        answers = await self._each(handles, requeue)
        self._on_available([*queues])
        return answers

    async def extend(self, handles: Sequence[str], invisible_ms: int) -> list[str | StoreError]:
        """See `LeaseCalls.extend_handles`."""
        check_invisible(invisible_ms)

        def extend(leases: LeaseQueue, handle: LeaseHandle, grant: Grant) -> str:
            longer = grant.until(self._now_ms() + invisible_ms)
            leases.extend(grant.owner, (handle.offset,), longer)
            return longer.handle(handle.offset, handle.deliveries)

        return await self._each(handles, extend)

    async def _each(
        self, handles: Sequence[str], change: Callable[[LeaseQueue, LeaseHandle, Grant], T]
    ) -> list[T | StoreError]:
        """Changes the lease of each handle; returns the results, or why a handle has no lease."""
        key = await self._key()
        answers: list[T | StoreError] = []
        for text in handles:
            try:
                handle = LeaseHandle.decode(text, key)
                leases, _ = await self._leasing.leases(handle.queue, handle.group)
                grant = self._current(leases, handle)
            except StoreError as error:
                answers.append(error)
                continue
            answers.append(change(leases, handle, grant))
        return answers

    def _current(self, leases: LeaseQueue, handle: LeaseHandle) -> Grant:
        grant = leases.grant(handle.offset)
        if grant is None or grant.lease != handle.lease or handle.leased_at <= leases.deleted_at:
            raise _lost(handle)
        return grant


def _lost(handle: LeaseHandle) -> LeaseLost:
    message = f"message {handle.offset} of queue {handle.queue}"
    return LeaseLost(f"{message} was settled or given back, or is leased to another")
