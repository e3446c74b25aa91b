"""Leasing messages over the network."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from store.api.leases import Lease, LeaseCalls
from store.base.errors import LeaseLost, StoreError
from store.format.frame import QueueNumber, QueueOffset
from store.format.ranges import Range
from store.remoting.caller import nothing
from store.remoting.core import Remote, decoder
from store.remoting.stubs import stubs
from store.rpc import arguments
from store.rpc.frames import TakenAnswer, leases_of
from store.rpc.table import CALLS

_a_taken: Callable[[Any], TakenAnswer] = decoder(TakenAnswer)
_offsets: Callable[[Any], list[QueueOffset]] = decoder(list[QueueOffset])


@stubs
class RemoteLeases(LeaseCalls):
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
        """See `LeaseCalls.take`. Owners are this client's own: those of others with the same numbers are different."""
        self._remote.connection.note_leasing(queue)
        asked = arguments.Take(queue, owner, max_count, max_bytes, group, invisible_ms)

        def taken(body: Any) -> Sequence[Lease]:
            answer: TakenAnswer = _a_taken(body)
            leases = leases_of(answer, self._remote.connection.frames, queue=queue, group=group, owner=owner) or ()
            # Noted as they come: when the connection breaks before the caller goes on, they are lost with it.
            if not waits or held.end_take(take, owner, queue, group, leases):
                return leases
            give_back(leases)  # its owner was released meanwhile: perhaps while the store could not be told
            return []

        def give_back(leases: Sequence[Lease]) -> None:
            self._requeue(queue, owner, [lease.offset for lease in leases], group)

        held, waits = self._remote.held, True
        take = held.begin_take(owner, queue)
        try:
            return await self._remote.call("take", asked, taken, orphaned=give_back)
        finally:
            waits = False
            held.end_take(take, owner, queue, group, ())

    def _requeue(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], group: str) -> None:
        """Gives back messages that no caller waits for any more."""
        if offsets:
            self.requeue(queue, owner, offsets, delivered=False, group=group)

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `LeaseCalls.settle`. Raises `LeaseLost` when some were lost with a connection; others are settled."""
        ranges, lost = self._remote.held.drop(owner, queue, group, offsets)
        await self._settle(arguments.Settle(queue, owner, tuple(ranges), group), lost)

    def settle_soon(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = ""
    ) -> "asyncio.Future[None]":
        """See `LeaseCalls.settle_soon`. Fails as `settle` does."""
        ranges, lost = self._remote.held.drop(owner, queue, group, offsets)
        asked = arguments.Settle(queue, owner, tuple(ranges), group, urgent=False)
        return self._remote.loop.create_task(self._settle(asked, lost), name="settlement")

    async def _settle(self, asked: arguments.Settle, lost: Sequence[int]) -> None:
        if asked.offsets:
            await self._end("settle", asked)
        _check_lost(QueueNumber(asked.queue), lost)

    async def _end(self, method: str, asked: arguments.Settle | arguments.Reject) -> None:
        """Ends leases by a call. Where none can be made, the store leases the messages again, as after a session's end.

        Once it was made the messages are not given back: they may be leased again already, to the same owner.
        """
        try:
            call = self._remote.connection.caller.begin(method, asked, nothing, CALLS[method].mode)
        except StoreError:
            again = arguments.Requeue(asked.queue, asked.owner, asked.offsets, True, None, asked.group)
            self._remote.notify("requeue", again)
            raise
        await call.future

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
        await self._remote.call("forward", asked, nothing)
        self._remote.held.drop(owner, queue, group, offsets)

    async def commit(
        self, owner: int, settled: Sequence[tuple[QueueNumber, Sequence[QueueOffset]]], rows: bytes, payload: bytes
    ) -> None:
        """See `LeaseCalls.commit`."""
        held = self._remote.held
        asked: list[tuple[int, tuple[Range, ...]]] = []
        for queue, offsets in settled:
            ranges, lost = held.known(owner, queue, "", offsets)
            _check_lost(queue, lost)
            asked.append((queue, tuple(ranges)))
        await self._remote.call("commit", arguments.Commit(owner, tuple(asked), rows, payload), nothing)
        for queue, offsets in settled:
            held.drop(owner, queue, "", offsets)

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
            await self._end("reject", arguments.Reject(queue, owner, tuple(ranges), reason, group))
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
        """See `LeaseCalls.requeue`. Messages of a lost connection were given back by its end."""
        ranges, _ = self._remote.held.drop(owner, queue, group, offsets)
        if ranges:
            self._remote.notify("requeue", arguments.Requeue(queue, owner, tuple(ranges), delivered, delay_ms, group))

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `LeaseCalls.extend`."""
        ranges, _ = self._remote.held.known(owner, queue, group, offsets)
        asked = arguments.Extend(queue, owner, tuple(ranges), invisible_ms, group)
        try:
            return await self._remote.call("extend", asked, _offsets)
        except LeaseLost:
            return ()

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `LeaseCalls.release`."""
        if self._remote.held.has_taken(owner):
            self._remote.notify("release", arguments.Release(owner))
        return self._remote.held.release(owner)


def _check_lost(queue: QueueNumber, lost: Sequence[int]) -> None:
    if lost:
        raise LeaseLost(f"{len(lost)} messages of queue {queue} were given back when the connection broke")
