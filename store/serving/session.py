"""A session: the calls of one client, and its leases, held states and watches until it goes away.

Calls begin in the order in which they came and end in any. Owners of leases are the session's own: two clients that
name the same owner do not meet. When the session ends, its leases are given back, except for those that end by their
time: clients have handles of them, which any session takes. Its held states are released, its watches closed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from controller.api.client import KnownMetadata
from store.api.client import StoreClient
from store.api.keys import Changes
from store.api.timers import TimersHeld
from store.base.errors import ForeignCluster, NotMaster, RemoteFailure, StoreClosed, StoreError, StoreOverloaded
from store.format.frame import LogOffset, Position, QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.rpc import arguments, calls, wire
from store.rpc.budget import Budget, Share
from store.rpc.calls import ERROR, VALUE, CallAnswer, CallAnswers, Notice, SessionGreeting, TimerAdmission, encode
from store.rpc.frames import FramesSent
from store.serving.dropped import check_rows
from store.serving.method import VALUE_BYTES, Method
from store.serving.queue_waiters import QueueWaiters

logger = logging.getLogger(__name__)

CALLS_COUNT_MAX = 1 << 13  # of one session in flight: those that wait for something included
WATCHES_COUNT_MAX = 1 << 12  # of one session
OWNERS_COUNT_MAX = 1 << 16  # of one session that have leased messages and were not released
ANSWERS_BYTES = 32 << 20  # of answers read for one session and not yet sent: beyond, calls that read wait
READ_BYTES_MAX = 4 << 20  # that one call reads at most, a single frame excepted
MESSAGE_BYTES = 1 << 20  # a message of answers is sent when it has so many

_VOID = encode(None)


class ServingTerms(NamedTuple):
    """The terms of a node's service: its store, whether it is the group's master, its timer limits, and its cluster."""

    store: StoreClient
    master: bool
    hint: str | None  # the address of the master, if another node is and it is known
    admission: TimerAdmission
    cluster: str = ""
    dropped: Callable[[], frozenset[int]] = frozenset  # the queues that are no more
    known: Callable[[], KnownMetadata] = KnownMetadata  # of the cluster's metadata


class _Outgoing(NamedTuple):
    answer: CallAnswer
    share: Share | None


class _Watch:
    """A watch, and the task that waits for its next changes."""

    def __init__(self, changes: AsyncGenerator[Changes, None]) -> None:
        self.changes = changes
        self.task: asyncio.Task[Any] | None = None

    async def close(self) -> None:
        """Ends it."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])
        await self.changes.aclose()


class ServingSession:
    """One client's calls on a store. Belongs to the thread of the event loop."""

    def __init__(
        self,
        terms: ServingTerms,
        owners: Iterator[int],
        methods: Mapping[str, Method],
        waiters: QueueWaiters | None = None,
    ) -> None:
        """Begins a session. `methods` are run with it, by their names; a node's sessions share `waiters`."""
        self.store = terms.store
        self._terms = terms
        self._methods = methods
        self._loop = asyncio.get_running_loop()
        self._numbers = owners  # for owners of leases, unique in the node
        self._owners: dict[int, int] = {}  # the store's owner by the client's
        self._holds: Counter[int] = Counter()  # revisions
        self._watches: dict[int, _Watch] = {}  # by the number of the call that began it
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the call's number
        self._unanswered: set[asyncio.Task[None]] = set()  # calls that are not answered
        self._budget = Budget(ANSWERS_BYTES)
        self._outgoing: list[_Outgoing] = []
        self._frames = FramesSent()
        self._available: dict[QueueNumber, None] = {}
        self._waiters = waiters or QueueWaiters()
        self._timers_sent: TimersHeld | None = None
        self._confirmed_sent = LogOffset(-1)
        self._greeted = False
        self._waits = 0  # calls in flight that only wait for something
        self._standing_down: NotMaster | None = None  # set: new calls are refused
        self._leave: str | None = None  # to be sent once
        self.news = asyncio.Event()  # there may be something to send
        self._unlisten = self.store.queues.watch(self._wake_up) if terms.master else lambda: None

    # ---- in

    def stand_down(self, refusal: NotMaster) -> None:
        """Begins nothing any more, and lets the client know: its calls in flight are answered."""
        self._standing_down = refusal
        self._leave = refusal.master or ""
        self.news.set()

    @property
    def busy(self) -> bool:
        """Returns whether something is unanswered, or answered but not sent, whose outcome a client could not know."""
        return self.news.is_set() or len(self._tasks) + len(self._unanswered) > self._waits

    def received(self, message: bytes) -> None:
        """Begins the calls of a message. Raises `BadRequest` for one that ends the session."""
        for call in calls.decode_calls(message):
            number = call.number
            if number in self._tasks:
                raise wire.BadRequest(f"two calls with the number {number}")
            if number and len(self._tasks) >= CALLS_COUNT_MAX:
                self._put(number, StoreOverloaded(f"{CALLS_COUNT_MAX} calls are in flight"))
                continue
            task = self._loop.create_task(self._answer(call))
            if number:
                self._tasks[number] = task
            else:
                self._unanswered.add(task)
                task.add_done_callback(self._unanswered.discard)

    async def _answer(self, call: calls.StoreCall) -> None:
        """Runs a call, and puts the answer where the writer finds it."""
        share = Share(self._budget)
        outcome: bytes | Exception
        try:
            outcome = await self._call(call, share)
        except (StoreError, ValueError) as error:
            outcome = error
        except asyncio.CancelledError:
            share.release()
            raise
        except Exception as error:
            logger.exception("a call has failed", extra={"method": call.method})
            outcome = RemoteFailure(f"{call.method}: {type(error).__name__}: {error}")
        self._tasks.pop(call.number, None)
        if call.number:
            self._put(call.number, outcome, share)
        else:
            share.release()

    async def _call(self, call: calls.StoreCall, share: Share) -> bytes:
        method = self._methods.get(call.method)
        if method is None:
            raise wire.BadRequest(f"there is no method {call.method[:64]!r}")
        try:
            asked = method.decode(call.arguments)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise wire.BadRequest(f"{call.method}: {error}") from error
        if not self._greeted and call.method != "hello":
            raise wire.BadRequest("a session begins with hello")
        if self._standing_down is not None:
            raise self._standing_down
        if method.anywhere:
            return await method.run(self, asked, call.number, share)
        if not self._terms.master:
            raise self._not_master()
        self._waits += method.waits
        try:
            return await method.run(self, asked, call.number, share)
        finally:
            self._waits -= method.waits

    def _not_master(self) -> NotMaster:
        return NotMaster(f"this node is not the master of store group {self.store.group}", self._terms.hint)

    # ---- out

    def _put(self, number: int, outcome: bytes | Exception, share: Share | None = None) -> None:
        kind, body = (VALUE, outcome) if isinstance(outcome, bytes) else (ERROR, wire.describe(outcome))
        self._outgoing.append(_Outgoing(CallAnswer(number, kind, msgspec.Raw(body)), share))
        self.news.set()

    def _wake_up(self, queues: Sequence[QueueNumber]) -> None:
        self._available.update(dict.fromkeys(queues))
        self.news.set()

    def take_message(self) -> tuple[bytes, Callable[[], None]] | None:
        """Returns the next message to send and a function to call when it is sent; None if nothing is new."""
        confirmed = self.store.log.confirmed
        held = self.store.timers.held if self._terms.master else None
        said = held == self._timers_sent and self._leave is None
        if said and not (self._outgoing or self._available or confirmed > self._confirmed_sent):
            return None
        taken, size = 0, 0
        while taken < len(self._outgoing) and size < MESSAGE_BYTES:
            size += len(self._outgoing[taken].answer.body)
            taken += 1
        sent, self._outgoing = self._outgoing[:taken], self._outgoing[taken:]
        news = None
        if self._available or not said:
            news = Notice(tuple(self._available), held, self._leave)
            self._available, self._leave = {}, None
        self._confirmed_sent, self._timers_sent = confirmed, held
        shares = [share for _, share in sent if share is not None]
        return encode(CallAnswers(confirmed, [answer for answer, _ in sent], news)), lambda: _release(shares)

    # ---- the end

    async def close(self) -> None:
        """Releases everything that the client held, which has gone."""
        self._unlisten()
        self._waiters.leave(self._wake_up)
        tasks = [*self._tasks.values(), *self._unanswered]
        for task in tasks:
            task.cancel()
        self._release_all()
        if tasks:
            await asyncio.wait(tasks)
            self._release_all()  # messages that were leased while the tasks ended
        for watch in list(self._watches.values()):
            await watch.close()

    def _release_all(self) -> None:
        owners, self._owners = self._owners, {}
        for owner in owners.values():
            self._waiters.leasable(self.store.leases.release(owner))
        holds, self._holds = self._holds, Counter()
        for revision in holds.elements():
            self.store.keys.release(revision)

    # ---- methods that are more than the store's own

    async def hello(self, asked: arguments.Hello) -> bytes:
        """Begins the session."""
        store, terms = self.store, self._terms
        if asked.group != store.group:
            raise wire.BadRequest(f"this is store group {store.group}, not {asked.group}")
        if terms.cluster and asked.cluster not in {"", terms.cluster}:
            raise ForeignCluster(f"this is a store of cluster {terms.cluster}, not of {asked.cluster}")
        if not terms.master and not asked.reading:
            raise self._not_master()
        self._greeted = True
        held = self._timers_sent = store.timers.held if terms.master else TimersHeld(0, 0)
        greeting = SessionGreeting(store.group, store.log.confirmed, terms.master, held, terms.admission, terms.known())
        return encode(greeting)

    async def cancel(self, asked: arguments.Cancel) -> bytes:
        """Lets go of some calls."""
        for number in asked.numbers:
            task = self._tasks.get(number)
            if task is not None and task.cancel():
                task.add_done_callback(partial(self._cancelled, number))
        return _VOID

    def _cancelled(self, number: int, task: asyncio.Task[None]) -> None:
        """Answers the call that was cancelled, so that the client knows when there is no answer to wait for."""
        self._tasks.pop(number, None)
        if task.cancelled():
            self._put(number, RemoteFailure("cancelled"))

    async def scan(self, asked: arguments.Scan, share: Share) -> bytes:
        """See `LogCalls.scan`."""
        max_bytes = min(asked.max_bytes, READ_BYTES_MAX)
        await share.acquire(max_bytes)
        queues = None if asked.queues is None else [QueueNumber(queue) for queue in asked.queues]
        start = Position(LogOffset(asked.frame), asked.row)
        frames, following = await self.store.log.scan(start, queues, max_bytes=max_bytes)
        return self._frames.scanned(frames, following)

    async def fetch(self, asked: arguments.Fetch, share: Share) -> bytes:
        """See `QueueCalls.fetch`. Waiting reserves nothing: records are read when there is room."""
        queue, offset = QueueNumber(asked.queue), QueueOffset(asked.offset)
        max_bytes = min(asked.max_bytes, READ_BYTES_MAX)
        await share.acquire(max_bytes)
        fetched = await self.store.queues.fetch(queue, offset, max_bytes=max_bytes, max_rows=asked.max_rows)
        if fetched.next <= offset and asked.max_wait_ms > 0:
            share.release()
            waited = await self.store.queues.fetch(
                queue, offset, max_bytes=1, max_rows=1, max_wait_ms=asked.max_wait_ms
            )
            if waited.next > offset:
                await share.acquire(max_bytes)
                fetched = await self.store.queues.fetch(queue, offset, max_bytes=max_bytes, max_rows=asked.max_rows)
        return self._frames.fetched(fetched)

    async def configure_queues(self, asked: arguments.ConfigureQueues) -> bytes:
        """See `QueueCalls.configure`. Entries that are known already are not stored again."""
        known = self.store.queues.config
        new = [one for one in asked.configs if one != (known(QueueNumber(one.queue)) or QueueConfig(one.queue))]
        if new:
            await self.store.queues.configure(new)
        return _VOID

    async def kv_hold(self) -> bytes:
        """See `KeyCalls.hold`."""
        revision = await self.store.keys.hold()
        self._holds[revision] += 1
        return encode(revision)

    async def kv_release(self, asked: arguments.KvRelease) -> bytes:
        """See `KeyCalls.release`."""
        if self._holds[asked.revision] > 0:
            self._holds[asked.revision] -= 1
            self._holds += Counter()  # those that are 0 go
            self.store.keys.release(asked.revision)
        return _VOID

    async def kv_watch(self, asked: arguments.KvWatch, number: int) -> bytes:
        """See `arguments.KvWatch`."""
        if len(self._watches) >= WATCHES_COUNT_MAX or not number:
            raise StoreOverloaded(f"{WATCHES_COUNT_MAX} watches are open")
        changes = self.store.keys.watch(
            asked.start, asked.end, namespace=asked.namespace, from_revision=asked.from_revision
        )
        self._watches[number] = _Watch(changes)
        return _VOID

    async def kv_watched(self, asked: arguments.KvWatched, share: Share) -> bytes:
        """See `arguments.KvWatched`."""
        watch = self._watches.get(asked.watch)
        if watch is None:
            raise wire.BadRequest(f"there is no watch {asked.watch}")
        watch.task = asyncio.current_task()
        changes = await anext(watch.changes, None)
        if changes is None:
            raise StoreClosed("the watch has ended")
        await share.acquire(VALUE_BYTES + sum(len(one.value) for one in changes.changes))
        return encode(changes)

    async def kv_unwatch(self, asked: arguments.KvWatched) -> bytes:
        """Ends a watch."""
        watch = self._watches.pop(asked.watch, None)
        if watch is not None:
            await watch.close()
        return _VOID

    def owner(self, owner: int) -> int:
        """Returns the store's owner for one of the client's, which may never have leased anything."""
        return self._owners.get(owner, -1)

    def check_rows(self, rows: bytes, payload: bytes) -> None:
        """Raises `QueueDropped` for rows for queues that are no more, now or when a timer fires; see `check_rows`."""
        check_rows(rows, lambda: payload, self._terms.dropped())

    async def take(self, asked: arguments.Take, share: Share) -> bytes:
        """See `LeaseCalls.take`."""
        owner = self._owners.get(asked.owner)
        if owner is None:
            if len(self._owners) >= OWNERS_COUNT_MAX:
                raise StoreOverloaded(f"{OWNERS_COUNT_MAX} owners hold leases")
            owner = self._owners[asked.owner] = next(self._numbers)
        max_bytes = min(asked.max_bytes, READ_BYTES_MAX)
        await share.acquire(max_bytes)
        queue = QueueNumber(asked.queue)
        self._waiters.wait(queue, self._wake_up)  # first: messages that come meanwhile are not overlooked
        leases = await self.store.leases.take(
            queue,
            owner,
            max_count=asked.max_count,
            max_bytes=max_bytes,
            group=asked.group,
            invisible_ms=asked.invisible_ms,
        )
        if self._owners.get(asked.owner) != owner:  # released meanwhile
            self.store.leases.requeue(queue, owner, [lease.offset for lease in leases], group=asked.group)
            self.store.leases.release(owner)
            leases = ()
        if leases:
            self._waiters.served(queue, self._wake_up)
        return self._frames.taken(leases)

    async def release(self, asked: arguments.Release) -> bytes:
        """See `LeaseCalls.release`."""
        owner = self._owners.pop(asked.owner, None)
        if owner is not None:
            self._waiters.leasable(self.store.leases.release(owner))
        return _VOID

    def given_back(self, queue: QueueNumber) -> None:
        """Wakes other sessions that wait for messages that this one has given back."""
        self._waiters.leasable((queue,))


def _release(shares: Iterable[Share]) -> None:
    for share in shares:
        share.release()
