"""A store group over the network: `StoreClient` over pipes to the group's master.

There is one connection at a time. When it breaks, or the node it leads to is no master any more, another one is made to
where `resolve` says the master is; meanwhile appends and calls wait, for `budget_s` at most (`store.remoting.appender`,
`store.remoting.caller`). Leases end with the connection: leases are lost: `settle` raises, and watchers of queues are
told. A tail and watches of keys go on where they were.

Calls that do not wait return the values heard last: `confirmed` is never behind an answer or an acknowledgement that
this client has got, nor behind the frames that its tail has delivered; timers are admitted by the count pending then,
and the store decides; `queue_config` knows the configurations that this client has set or asked for.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from controller.api.client import KnownMetadata
from store.api.client import StoreClient
from store.base.clock import now_ms
from store.base.closing import AsyncClosing
from store.format.frame import QueueNumber
from store.remoting.appender import PENDING_BYTES_MAX
from store.remoting.connection import BUDGET_S, Agree, Resolve, StoreConnection
from store.remoting.core import Remote
from store.remoting.groups import RemoteGroups
from store.remoting.held import HeldLeases
from store.remoting.keys import RemoteKeys
from store.remoting.leases import RemoteLeases
from store.remoting.log import RemoteLog
from store.remoting.queues import RemoteQueues
from store.remoting.timers import RemoteTimers

CLOSE_S = 5.0  # that appends in flight have when the client is closed
GONE_COUNT_MIN = 1_024  # queues that are remembered although they may be gone: so many do no harm


async def agreed(_known: KnownMetadata) -> None:
    """Believes a node, whatever metadata it knows: for clients that do not change metadata."""


class RemoteStore(AsyncClosing):
    """A `StoreClient` of one group over the network. `async with await RemoteStore.open(group, resolve) as store: ...`

    `resolve` returns the supposed address of the group's master ("host:port", None: unknown). It is asked before each
    attempt to connect; call `moved` when its answer has changed. `credentials` are
    `store.rpc.credentials`'. With `reading` a replica will do, and only calls that a replica answers are allowed.
    `cluster` is the cluster that the store must belong to, if that is known. `agree` is `StoreConnection`'s.
    """

    def __init__(
        self,
        group: int,
        resolve: Resolve,
        *,
        credentials: Any = None,
        budget_s: float = BUDGET_S,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        reading: bool = False,
        now_ms: Callable[[], int] = now_ms,
        cluster: Callable[[], str] = str,
        agree: Agree = agreed,
    ) -> None:
        """Begins to connect; the event loop has to be running."""
        held = HeldLeases()
        self.connection = StoreConnection(
            group,
            resolve,
            credentials=credentials,
            budget_s=budget_s,
            pending_bytes_max=pending_bytes_max,
            reading=reading,
            lost=held.lose,
            cluster=cluster,
            agree=agree,
        )
        remote = self._remote = Remote(group, self.connection, held, budget_s=budget_s)
        # mypy does not see the methods that `stubs` makes from the table of calls
        self.log = RemoteLog(remote)  # type: ignore[abstract]
        self.queues = RemoteQueues(remote)  # type: ignore[abstract]
        self.keys = RemoteKeys(remote)  # type: ignore[abstract]
        self.groups = RemoteGroups(remote)  # type: ignore[abstract]
        self.leases = RemoteLeases(remote)  # type: ignore[abstract]
        self.timers = RemoteTimers(remote, now_ms)  # type: ignore[abstract]
        self._queues_count = 0  # that were remembered behind the last look for those that are gone

    @classmethod
    async def open(cls, group: int, resolve: Resolve, **options: Any) -> "RemoteStore":
        """Connects. Options as of the class. Raises `StoreUnreachable` when that takes longer than `budget_s`."""
        store = cls(group, resolve, **options)
        try:
            await store.connected()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Waits a moment for calls in flight, and disconnects; leases end. Again waits for the first call."""
        if self._remote.closing is None:
            self._remote.closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._remote.closing)

    async def _close(self) -> None:
        connection = self.connection
        connection.caller.refuse(self._remote.closed)
        connection.appender.refuse(self._remote.closed)
        await connection.wait_while(lambda: connection.up.is_set() and connection.busy, CLOSE_S)
        await connection.close(self._remote.closed)

    def moved(self) -> None:
        """Asks `resolve` again, and connects to the new address if it has changed."""
        self.connection.moved()

    def forget_gone(self, is_gone: Callable[[QueueNumber], bool]) -> None:
        """Forgets deleted queues, once half of the remembered ones may be deleted: other clients delete queues, too."""
        if self._remembered_count > 2 * self._queues_count + GONE_COUNT_MIN:
            self.queues.forget_gone(is_gone)
            self.connection.forget_gone(is_gone)
            self._queues_count = self._remembered_count

    @property
    def _remembered_count(self) -> int:
        return max(self.queues.configured_count, self.connection.leased_from_count)

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self._remote.group

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return MappingProxyType({self._remote.group: self})

    @property
    def target(self) -> str | None:
        """Returns the address that it is connected to, or tried last."""
        return self.connection.target

    @property
    def trouble(self) -> str:
        """Returns why the master refuses writes; empty: it does, as far as is known."""
        return self.connection.appender.trouble

    async def connected(self) -> None:
        """Waits until a connection stands. Raises `StoreUnreachable` after `budget_s`."""
        await self._remote.connected()

    @property
    def is_connected(self) -> bool:
        """Returns whether a connection stands."""
        return self.connection.up.is_set()

    @property
    def last_received(self) -> tuple[str | None, float]:
        """The node from which something came last, refusals included, and when that was by the loop's clock."""
        return self.connection.last_received
