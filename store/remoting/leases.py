"""Lending messages over the network."""

from collections.abc import Callable, Sequence
from typing import Any

from store.api.leases import Lease
from store.base.errors import LeaseLost, StoreError
from store.format.frame import QueueNumber, QueueOffset
from store.format.policy import LeasePolicy
from store.remoting.caller import AGAIN, HELD, ONCE, nothing
from store.remoting.core import Remote, decoder
from store.rpc import arguments
from store.rpc.frames import TakenAnswer, leases_of
from store.rpc.wire import failure_of, revive

__all__ = ["RemoteLeases"]

_a_taken: Callable[[Any], TakenAnswer] = decoder(TakenAnswer)
_an_int: Callable[[Any], int] = decoder(int)
_an_offset: Callable[[Any], QueueOffset | None] = decoder(QueueOffset | None)
_a_policy: Callable[[Any], LeasePolicy] = decoder(LeasePolicy)
_offsets: Callable[[Any], list[QueueOffset]] = decoder(list[QueueOffset])
_handled: Callable[[Any], list[tuple[str | None, bytes | None]]] = decoder(list[tuple[str | None, bytes | None]])


class RemoteLeases:
    """`LeaseCalls` over the network."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

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
        """See `LeaseCalls.take`. Owners are this client's own: another one's with the same number is somebody else."""
        self._remote.connection.lends(queue)
        asked = arguments.Take(queue, owner, max_count, max_bytes, group, invisible_ms)

        def taken(body: Any) -> Sequence[Lease]:
            answer: TakenAnswer = _a_taken(body)
            return leases_of(answer, self._remote.connection.frames, queue=queue, group=group, owner=owner)

        def give_back(leases: Sequence[Lease]) -> None:
            self._requeue(queue, owner, [lease.offset for lease in leases], group)

        take = self._remote.held.begin_take(owner, queue)
        leases: Sequence[Lease] = ()
        kept = False
        try:
            leases = await self._remote.call("take", asked, taken, AGAIN, orphaned=give_back)
        finally:
            kept = self._remote.held.end_take(take, owner, queue, group, leases)
        return (leases or ()) if kept else []

    def _requeue(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], group: str) -> None:
        """Gives back messages that nobody waits for any more."""
        if offsets:
            self.requeue(queue, owner, offsets, delivered=False, group=group)

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `LeaseCalls.settle`. Raises `LeaseLost` when some were lost with a connection; others are settled."""
        ranges, lost = self._remote.held.drop(owner, queue, group, offsets)
        if ranges:
            await self._remote.call("settle", arguments.Settle(queue, owner, tuple(ranges), group), nothing, HELD)
        _check_lost(queue, lost)

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
        """See `LeaseCalls.forward`."""
        ranges, lost = self._remote.held.known(owner, queue, group, offsets)
        _check_lost(queue, lost)
        asked = arguments.Forward(queue, owner, tuple(ranges), rows, payload, group)
        await self._remote.call("forward", asked, nothing, HELD)
        self._remote.held.drop(owner, queue, group, offsets)

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """See `LeaseCalls.reject`. Raises `LeaseLost` as `settle` does."""
        ranges, lost = self._remote.held.drop(owner, queue, group, offsets)
        if ranges:
            await self._remote.call(
                "reject", arguments.Reject(queue, owner, tuple(ranges), reason, group), nothing, HELD
            )
        _check_lost(queue, lost)

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
        """See `LeaseCalls.requeue`. What was lost with a connection was given back by that."""
        ranges, _ = self._remote.held.drop(owner, queue, group, offsets)
        if ranges:
            self._remote.tell("requeue", arguments.Requeue(queue, owner, tuple(ranges), delivered, delay_ms, group))

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `LeaseCalls.extend`."""
        ranges, _ = self._remote.held.known(owner, queue, group, offsets)
        asked = arguments.Extend(queue, owner, tuple(ranges), invisible_ms, group)
        try:
            return await self._remote.call("extend", asked, _offsets, HELD)
        except LeaseLost:
            return ()

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `LeaseCalls.release`."""
        if self._remote.held.has_taken(owner):
            self._remote.tell("release", arguments.Release(owner))
        return self._remote.held.release(owner)

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `LeaseCalls.settle_handles`."""
        found = await self._remote.call("settle_handles", arguments.SettleHandles(tuple(handles)), _handled, ONCE)
        return [_error(described) if described is not None else None for _, described in found]

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `LeaseCalls.requeue_handles`."""
        found = await self._remote.call(
            "requeue_handles", arguments.RequeueHandles(tuple(handles), delay_ms), _handled, ONCE
        )
        return [_error(described) if described is not None else None for _, described in found]

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `LeaseCalls.extend_handles`."""
        found = await self._remote.call(
            "extend_handles", arguments.ExtendHandles(tuple(handles), invisible_ms), _handled, AGAIN
        )
        return [_error(described) if described is not None else text or "" for text, described in found]

    async def set_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `LeaseCalls.set_policy`."""
        await self._remote.call("set_lease_policy", arguments.SetLeasePolicy(queue, policy, group), nothing, AGAIN)

    async def policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """See `LeaseCalls.policy`."""
        asked = arguments.OfQueueGroup(queue, group)
        return await self._remote.call("lease_policy", asked, _a_policy, AGAIN)

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `LeaseCalls.waiting`."""
        return await self._remote.call("waiting", arguments.OfQueueGroup(queue, group), _an_int, AGAIN)

    async def first_waiting(self, queue: QueueNumber, *, group: str = "") -> QueueOffset | None:
        """See `LeaseCalls.first_waiting`."""
        return await self._remote.call("first_waiting", arguments.OfQueueGroup(queue, group), _an_offset, AGAIN)

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `LeaseCalls.purge`."""
        return await self._remote.call("purge", arguments.OfQueueGroup(queue, group), _an_int, ONCE)


def _check_lost(queue: QueueNumber, lost: Sequence[int]) -> None:
    if lost:
        raise LeaseLost(f"{len(lost)} messages of queue {queue} were given back when the connection broke")


def _error(described: bytes) -> StoreError:
    """Returns the error that a handle led to."""
    error = revive(described)
    return error if isinstance(error, StoreError) else failure_of(described, "a handle")
