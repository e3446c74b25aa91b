"""Leases: message-level consumption of one queue."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from store.api.handle import Grant
from store.base.errors import StoreError
from store.format.frame import Frame, QueueNumber, QueueOffset
from store.format.policy import LeasePolicy


class Lease(NamedTuple):
    """A message leased to a consumer: `deliveries` is how often it had been leased before, and counted.

    The count begins with the start of the master; leases of an earlier master count as one, or as none. `earlier`
    says that the message is older than the master, so that an earlier one may have leased it.
    """

    offset: QueueOffset
    deliveries: int
    frame: Frame
    row: int
    grant: Grant | None = None  # of a lease that ends by itself
    earlier: bool = False

    @property
    def delivered(self) -> int:
        """Returns `deliveries`, and 1 for a message that an earlier master may have leased: 0 is "never" for sure."""
        return self.deliveries or int(self.earlier)

    def handle(self) -> str:
        """Returns the text by which its holder can settle, give back or extend this lease, from any proxy.

        Signed when it is asked for. Raises ValueError for a lease that lasts as long as its owner.
        """
        if self.grant is None:
            raise ValueError("only a lease that was taken for a time has a handle")
        return self.grant.handle(self.offset, self.deliveries)


class LeaseCalls(Protocol):
    """Leases, by queue and consumer group.

    A consumer group has leases of its own for each queue; "" is the group of a named queue's consumers. Leases are
    known to the master alone, and end with it; settlements are in the log. See `store.format.policy` for the kinds of
    consumer groups. Of a cluster each call goes to the store group that its queue lies in.
    """

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
        """Leases up to `max_count` messages that are not settled and not leased, lowest offset first.

        A lease lasts until it is settled or requeued, and at most `invisible_ms` (None: as the policy says, 0: until
        its owner is released). After that the message can be leased again. No more are leased for a time than
        `store.format.policy.TIMED_LEASES_MAX`. In an ordered group at most one message of a key is leased at a time,
        and those behind it wait. Who is given none, as with a `max_count` of 0, is told of the queue by
        `QueueCalls.watch` when there may be some.
        """

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """Settles these for good, durably; offsets that `owner` does not hold are skipped.

        `range(first, end)` is a sequence of offsets too.
        """

    def settle_soon(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = ""
    ) -> "asyncio.Future[None]":
        """Settles these as `settle` does, a few ms later maybe: with the next frame, without a sync of its own.

        From now on they are not leased again, unless the future fails, with `StoreError`.
        """

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
        """Settles these, and append some rows and the payload they point into, both or neither.

        Raises `LeaseLost` when `owner` does not hold all of them; then nothing is done.
        """

    async def commit(
        self, owner: int, settled: Sequence[tuple[QueueNumber, Sequence[QueueOffset]]], rows: bytes, payload: bytes
    ) -> None:
        """Does the same for several queues, each once: all of them are settled and the rows appended, or nothing is.

        Of a cluster all queues lie in one store group. The group of consumers is "".
        """

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """Gives these up: they go where the policy has dead letters go, durably, and are settled; else only settled."""

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
        """Gives these back; `delivered` says whether the attempt counts.

        They are leased again after `delay_ms` (None: as the policy says), or given up by the policy.
        """

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """Lets the leases of these end `invisible_ms` from now; returns those of them that `owner` holds."""

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """Gives back all that an owner holds, except for what was leased for a time: that ends by its time alone.

        Returns the queues it held something of.
        """

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """Settles by `Lease.handle`; returns for each handle None, `BadHandle` or `LeaseLost`.

        A lease that has ended can still be settled until the message is leased again. Raises when the settlements could
        not be stored; some may have been.
        """

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """Gives back by handle; returns for each None, `BadHandle` or `LeaseLost`."""

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """Lets leases end `invisible_ms` from now; returns for each the new handle or the error.

        The old handle stays good.
        """

    async def set_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """Sets, durably, the policy of a group's leases of a queue from now on."""

    async def policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """Returns the policy of a group's leases of a queue."""

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """Returns how many messages of a queue are neither settled nor leased."""

    async def retire(self, queue: QueueNumber) -> bool:
        """Closes a queue for good: rows for it are refused from now on, those of new timers too, as `QueueDropped`.

        Returns whether nothing is left of it: no message is unsettled by the group "", and no timer that was set before
        will put one there. Of a queue for which it has returned True `QueueCalls.delete` loses nothing.
        """

    async def is_retired(self, queue: QueueNumber) -> bool:
        """Returns whether a queue was retired."""

    async def unsettled(self, queue: QueueNumber, *, group: str = "") -> int:
        """Returns how many messages of a queue are not settled: those that wait, and those that are leased."""

    async def first_waiting(self, queue: QueueNumber, *, group: str = "") -> QueueOffset | None:
        """Returns the lowest offset that is neither settled nor leased, None where there is none; does not lease it."""

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """Settles all messages that are not leased; returns how many they were."""
