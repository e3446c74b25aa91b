"""Leases by their handles: what whoever has a handle may do with one message, from any process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from store.errors import LeaseLost, StoreError
from store.handle import Grant, LeaseHandle
from store.leases import Claim, LeaseQueue
from store.lending import Lending, check_invisible
from store.ranges import ranges_of

__all__ = ["LeaseHandles"]


class LeaseHandles:
    """Settles, gives back and extends by handle. `key` is what handles are signed with, `steady_ms` never goes back."""

    def __init__(self, lending: Lending, *, key: Callable[[], Awaitable[bytes]], steady_ms: Callable[[], int]) -> None:
        self._lending = lending
        self._key = key
        self._now_ms = steady_ms

    async def settle(self, handles: Sequence[str]) -> list[StoreError | None]:
        """See `StoreClient.settle_handles`."""
        key = await self._key()
        answers: list[StoreError | None] = [None] * len(handles)
        taken: dict[LeaseQueue, list[int]] = {}
        for n, text in enumerate(handles):
            try:
                leases, handle = await self._opened(text, key)
                if self._claim(leases, handle):
                    taken.setdefault(leases, []).append(handle.offset)
            except StoreError as error:
                answers[n] = error
        outcomes = await asyncio.gather(
            *(
                self._lending.settle_ranges(leases, ranges_of(offsets), delivered=True)
                for leases, offsets in taken.items()
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return answers

    async def requeue(self, handles: Sequence[str], delay_ms: int | None) -> list[StoreError | None]:
        """See `StoreClient.requeue_handles`."""
        key = await self._key()
        answers: list[StoreError | None] = []
        for text in handles:
            try:
                leases, handle = await self._opened(text, key)
                grant = self._current(leases, handle)
            except StoreError as error:
                answers.append(error)
                continue
            leases.requeue(grant.owner, (handle.offset,), delivered=True, delay_ms=delay_ms, now_ms=self._now_ms())
            self._lending.give_up(leases)
            answers.append(None)
        return answers

    async def extend(self, handles: Sequence[str], invisible_ms: int) -> list[str | StoreError]:
        """See `StoreClient.extend_handles`."""
        check_invisible(invisible_ms)
        key = await self._key()
        answers: list[str | StoreError] = []
        for text in handles:
            try:
                leases, handle = await self._opened(text, key)
                grant = self._current(leases, handle)
            except StoreError as error:
                answers.append(error)
                continue
            longer = grant.until(self._now_ms() + invisible_ms)
            leases.extend(grant.owner, (handle.offset,), longer)
            answers.append(longer.handle(handle.offset, handle.deliveries))
        return answers

    async def _opened(self, text: str, key: bytes) -> tuple[LeaseQueue, LeaseHandle]:
        handle = LeaseHandle.decode(text, key)
        leases, _ = await self._lending.leases(handle.queue, handle.group)
        return leases, handle

    def _claim(self, leases: LeaseQueue, handle: LeaseHandle) -> bool:
        """Take a message to settle it; False when it is settled already. Raises `LeaseLost`."""
        match leases.claim(handle.offset, handle.lease):
            case Claim.TAKEN:
                return True
            case Claim.SETTLED:
                return False
            case _:
                raise _lost(handle)

    def _current(self, leases: LeaseQueue, handle: LeaseHandle) -> Grant:
        grant = leases.grant(handle.offset)
        if grant is None or grant.lease != handle.lease:
            raise _lost(handle)
        return grant


def _lost(handle: LeaseHandle) -> LeaseLost:
    return LeaseLost(f"message {handle.offset} of queue {handle.queue} was given back, or is lent to somebody else")
