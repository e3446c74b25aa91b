"""A store group over the network: `StoreClient` over pipes to whoever is the group's master.

There is one connection at a time. When it breaks, or the node it leads to is no master any more, another one is made
to where `resolve` says the master is; meanwhile appends and calls wait, for `budget_s` at most
(`store.remoting.appender`, `store.remoting.caller`). Leases end with the connection: what was held is lost, which
`settle` says and watchers of queues are told of. A tail and watches of keys go on where they were.

What is answered at once is answered from what was heard last: `confirmed` is never behind an answer or an
acknowledgement that this client has got, nor behind what its tail has delivered; timers are admitted by what was
pending then, and the store has the last word; `queue_config` knows what this client has set or asked for.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

from store.api.client import OnAppended, QueuesListener, StoreClient, TailListener, TimerEntry, TimersHeld
from store.base.errors import FrameTooLarge, StoreClosed, StoreUnreachable, TimersFull, TimerTooFar
from store.format.frame import UnplacedFrame
from store.remoting.appender import PENDING_BYTES_MAX
from store.remoting.caller import AGAIN, ONCE
from store.remoting.connection import BUDGET_S, Connection, Resolve
from store.remoting.core import decoder
from store.remoting.held import Held
from store.remoting.keys import RemoteKeys
from store.remoting.leasing import RemoteLeases
from store.remoting.reads import RemoteReads
from store.rpc import arguments

__all__ = ["RemoteStore"]

CLOSE_S = 5.0  # that appends under way have when the client is closed
DAY_MS = 24 * 3600 * 1000


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


_a_bool: Callable[[Any], bool] = decoder(bool)
_timers: Callable[[Any], list[TimerEntry]] = decoder(list[TimerEntry])


class RemoteStore(RemoteKeys, RemoteReads, RemoteLeases):
    """A `StoreClient` of one group over the network. `async with await RemoteStore.open(group, resolve) as store: ...`

    `resolve` says where the group's master is thought to be ("host:port", None: nobody knows). It is asked before each
    attempt to connect; call `moved` when its answer has changed. `credentials` are `grpc.ChannelCredentials`
    (`store.rpc.credentials`). With `reading` a replica will do, and only what a replica answers can be asked. `cluster`
    says of which cluster the store has to be, if that is known.
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
        now_ms: Callable[[], int] = _clock_ms,
        cluster: Callable[[], str] = str,
    ) -> None:
        """Begin to connect; the event loop has to be running."""
        self._group = group
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._held = Held()
        self._connection = Connection(
            group,
            resolve,
            credentials=credentials,
            budget_s=budget_s,
            pending_bytes_max=pending_bytes_max,
            reading=reading,
            lost=self._held.lose,
            cluster=cluster,
        )
        self._budget_s = budget_s
        self._queue_configs = {}
        self._unknown_configs = {}
        self._closed = StoreClosed("the client is closed")
        self._closing = None

    @classmethod
    async def open(cls, group: int, resolve: Resolve, **options: Any) -> "RemoteStore":
        """Connect. Options as of the class. Raises `StoreUnreachable` when that takes longer than `budget_s`."""
        store = cls(group, resolve, **options)
        try:
            await store.connected()
        except BaseException:
            await store.close()
            raise
        return store

    async def __aenter__(self) -> "RemoteStore":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait a moment for what is under way, and disconnect; leases end. Again waits for the first call."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        connection = self._connection
        connection.caller.refuse(self._closed)
        connection.appender.refuse(self._closed)
        await connection.wait_while(lambda: connection.up.is_set() and connection.busy, CLOSE_S)
        await connection.close(self._closed)

    def moved(self) -> None:
        """Looks at what `resolve` answers, which may have changed, and connects to there if it has."""
        self._connection.moved()

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self._group

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return MappingProxyType({self._group: self})

    @property
    def target(self) -> str | None:
        """Returns the address that it is connected to, or tried last."""
        return self._connection.target

    @property
    def trouble(self) -> str:
        """Returns why the master does not take what it was sent; empty: it does, as far as is known."""
        return self._connection.appender.trouble

    # ---- the log

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """See `StoreClient.append`. Raises nothing; `AppendOutcomeUnknown` is told where retrying was not safe."""
        self._connection.appender.append(frame, done)

    @property
    def pending_bytes(self) -> int:
        """See `StoreClient.pending_bytes`."""
        return self._connection.appender.pending_bytes

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `StoreClient.tail`: every frame from `confirmed` on, also over broken connections."""
        return self._connection.tail(listener)

    # ---- timers

    def admit_timer(self, due_ms: int, size_bytes: int) -> None:
        """See `StoreClient.admit_timer`: by what was pending when the store was heard last, which decides again."""
        limits, held = self._connection.admission, self.timers_held
        if limits is None:
            raise StoreUnreachable(f"store group {self._group} was not reached yet")
        if held.timers >= limits.timers:
            raise TimersFull(f"{held.timers} timers are pending already")
        if held.size_bytes + size_bytes > limits.size_bytes:
            raise TimersFull(f"the pending timers hold {held.size_bytes} bytes of {limits.size_bytes} already")
        if size_bytes > limits.timer_bytes:
            raise FrameTooLarge(f"{size_bytes} bytes in one timer, which may have {limits.timer_bytes}")
        if due_ms - self._now_ms() > limits.horizon_ms:
            raise TimerTooFar(f"a timer is due in {limits.horizon_ms // DAY_MS} days at most")

    @property
    def timers_held(self) -> TimersHeld:
        """See `StoreClient.timers_held`: as it was heard last."""
        return self._connection.timers

    async def cancel_timer(self, timer: str) -> bool:
        """See `StoreClient.cancel_timer`."""
        return await self._call("cancel_timer", arguments.CancelTimer(timer), _a_bool, ONCE)

    async def timers(self, *, after: str = "", limit: int = 1000) -> Sequence[TimerEntry]:
        """See `StoreClient.timers`."""
        return await self._call("timers", arguments.Timers(after, limit), _timers, AGAIN)

    def watch_queues(self, listener: QueuesListener) -> Callable[[], None]:
        """See `StoreClient.watch_queues`. Told of what was lost with a connection too, and, after it, of all queues."""
        return self._connection.watch_queues(listener)
