"""The connection of a client to its group's master: made again whenever it breaks, or the master is another."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from controller.api.client import KnownMetadata
from store.api.log import TailListener
from store.api.queues import QueuesListener
from store.api.timers import TimersHeld
from store.base.errors import CorruptFrame, ForeignCluster, NotMaster, StoreError, StoreUnreachable
from store.base.listeners import Listeners
from store.base.rhythm import pause, until_next_s
from store.base.streams import Backoff, keep_connected, until_one_ends
from store.format.frame import Frame, LogOffset, QueueNumber, origin_of
from store.remoting.appender import Appender
from store.remoting.caller import Caller, nothing
from store.remoting.node_streams import NodeStreams
from store.rpc import arguments, calls
from store.rpc.calls import SessionGreeting
from store.rpc.frames import FramesKept, decode_acks, parse_tailed
from store.rpc.table import SESSION

logger = logging.getLogger(__name__)

BUDGET_S: Final = 10.0  # how long appends and calls wait for a master
CONNECT_S = 2.0  # for one attempt
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 0.25  # between attempts
STEADY_S = 1.0  # a connection that lasted so long was a good one
PING_S = 1.0  # a client says something at least that often
SILENCE_S = 4.0  # a node from which nothing came for so long is given up
LEAVE_S = 0.5  # for answers in flight, when the node says that it is no master any more
POLL_S = 0.005
EXPIRE_MIN_S, EXPIRE_MAX_S = 0.05, 0.5  # between two looks for requests that have waited too long
EXPIRE_PARTS = 20  # a look each twentieth of the time that they may wait

Resolve = Callable[[], str | None]
Agree = Callable[[KnownMetadata], Awaitable[None]]


class _Listener:
    """A follower of the log, and where it begins; None: where the log is at the first connection."""

    def __init__(self, call: TailListener, since: LogOffset | None) -> None:
        self.call = call
        self.since = since


class StoreConnection:
    """Keeps a client connected. Belongs to the thread of the event loop, which has to be running.

    `resolve` returns the supposed address of the master, host and port, or None. With `reading` a replica will do.
    `lost` is called when the session is over, and returns the queues with messages to lease again. `agree` compares the
    metadata that a node knows with ours before anything is asked of it, and raises `StoreError` where ours lacks some;
    it may take so long that the master is another then.
    """

    def __init__(
        self,
        group: int,
        resolve: Resolve,
        *,
        credentials: Any,
        budget_s: float,
        pending_bytes_max: int,
        reading: bool,
        lost: Callable[[], Sequence[QueueNumber]],
        cluster: Callable[[], str],
        agree: Agree,
    ) -> None:
        self._cluster = cluster
        self._agree = agree
        self._loop = asyncio.get_running_loop()
        self._group = group
        self._resolve = resolve
        self._credentials = credentials
        self._reading = reading
        self._expire_s = min(max(budget_s / EXPIRE_PARTS, EXPIRE_MIN_S), EXPIRE_MAX_S)
        self._session_lost = lost
        self._to_send, self._to_append = asyncio.Event(), asyncio.Event()
        self.caller = Caller(self._loop, wake=self._to_send.set, budget_s=budget_s, follows=not reading)
        self.appender = Appender(
            soon=self._loop.call_soon,
            after=self._loop.call_later,
            now_s=self._loop.time,
            wake=self._to_append.set,
            budget_s=budget_s,
            pending_bytes_max=pending_bytes_max,
        )
        self.frames = FramesKept()  # of the session
        self.sessions = 0  # how many there were: leases and watches end with theirs
        self.confirmed = origin_of(group)
        self.timers = TimersHeld(0, 0)
        self.admission: calls.TimerAdmission | None = None  # None: never connected
        self.target: str | None = None  # of the connection, or of the newest attempt
        self.up = asyncio.Event()  # connected
        self._streams: NodeStreams | None = None  # while it stands
        self._last_received: tuple[str | None, float] = (None, 0.0)  # by the one before, or by a refusal
        self._left: StoreError | None = None  # why this connection is to be given up
        self._leave, self._retry = asyncio.Event(), asyncio.Event()
        self._listeners: dict[int, _Listener] = {}
        self._queue_listeners = Listeners[Sequence[QueueNumber]]("queues")
        self._listener_count = 0
        self._tail_wanted = asyncio.Event()
        self._tail_running = False
        self._tailed: LogOffset | None = None  # how far the log was delivered to the listeners
        self._leased_from: dict[QueueNumber, None] = {}  # queues that were asked for messages to lease
        self._hint: str | None = None  # where the newest refusal says that the master is
        self._backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        kept = keep_connected(
            self._attempt,
            self._backoff,
            name=lambda: f"not connected to store group {group} at {self.target}",
            logger=logger,
            lost=StoreError,
            refusals=ForeignCluster,
            wake=self._retry,
        )
        self._tasks = [
            self._loop.create_task(kept, name=f"connection to store group {group}"),
            self._loop.create_task(self._expire(), name=f"deadlines of store group {group}"),
        ]

    async def close(self, why: StoreError) -> None:
        """Ends the connection. Calls in flight fail with `why`, or as unknown."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self.appender.close(why)
        self.caller.close(why)

    @property
    def busy(self) -> bool:
        """Returns whether something is in flight that is worth waiting for."""
        return self.appender.pending_bytes > 0 or self.caller.busy

    @property
    def last_received(self) -> tuple[str | None, float]:
        """The node from which something came last, and when."""
        return self._last_received if self._streams is None else (self._streams.target, self._streams.received_s)

    def moved(self) -> None:
        """Asks `resolve` again, which may answer something else than before."""
        self._retry.set()
        target = self._resolve()
        if self.up.is_set() and target not in {None, self.target}:
            self._give_up(StoreUnreachable(f"the master of store group {self._group} is at {target} now"))

    # ---- listeners

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `LogCalls.tail`."""
        since = self.confirmed if self.sessions else None
        if not self._listeners and not self._tail_running:
            self._tailed = since
        number = self._listener_count
        self._listener_count += 1
        self._listeners[number] = _Listener(listener, since)
        self._tail_wanted.set()

        def stop() -> None:
            self._listeners.pop(number, None)
            if not self._listeners:
                self._tail_wanted.clear()

        return stop

    def watch_queues(self, listener: QueuesListener) -> Callable[[], None]:
        """See `QueueCalls.watch`."""
        return self._queue_listeners.add(listener)

    def note_leasing(self, queue: QueueNumber) -> None:
        """Notes a queue that is asked for messages to lease: on another connection its callers may ask again."""
        self._leased_from[queue] = None

    def forget(self, queue: QueueNumber) -> None:
        """Forgets a queue that is deleted."""
        self._leased_from.pop(queue, None)

    @property
    def leased_from_count(self) -> int:
        """Returns how many queues were asked for messages to lease."""
        return len(self._leased_from)

    def forget_gone(self, is_gone: Callable[[QueueNumber], bool]) -> None:
        """Forgets deleted queues."""
        self._leased_from = {queue: None for queue in self._leased_from if not is_gone(queue)}

    def _notify_queues(self, queues: Sequence[QueueNumber]) -> None:
        if queues:
            self._queue_listeners.tell(queues)

    def advance_confirmed(self, confirmed: int) -> None:
        """Raises the confirmed offset, which readers may read up to."""
        if confirmed > self.confirmed:
            self.confirmed = LogOffset(confirmed)

    # ---- connecting

    async def _attempt(self) -> None:
        """Connects to the address that the last refusal named, or to the known master, and stays connected."""
        began_s, sessions = self._loop.time(), self.sessions
        self._retry.clear()
        target, self._hint = self._hint or self._resolve(), None
        try:
            await self._connect(target)
        except StoreError as error:
            self.caller.failed(error)
            if isinstance(error, NotMaster) and error.master != self.target:
                self._hint = error.master
            raise
        finally:
            if self.sessions > sessions and self._loop.time() - began_s > STEADY_S:
                self._backoff.reset()

    async def _connect(self, target: str | None) -> None:
        """Connects to a node, and stays connected. Raises `StoreError`: why that is over."""
        if target is None:
            raise StoreUnreachable(f"store group {self._group} has no master that is known")
        self.target, resolved = target, self._resolve()
        try:
            streams = self._streams = await self._open(target)
        except StoreError as error:
            if not isinstance(error, StoreUnreachable):
                self._last_received = target, self._loop.time()
            raise
        try:
            await self._agree(streams.greeting.known)
            if self._resolve() not in {None, target, resolved}:
                raise self._moved_from(target)
            await self._stay(streams)
        finally:
            self._last_received, self._streams = self.last_received, None
            await streams.close()

    async def _open(self, target: str) -> NodeStreams:
        """Connects to a node, unless the master turns out to be another meanwhile."""
        hello = arguments.Hello(self._group, self._reading, self._cluster())
        opened = NodeStreams.open(target, hello, credentials=self._credentials, timeout_s=CONNECT_S)
        opening = asyncio.ensure_future(opened)
        try:
            while not opening.done():
                told = asyncio.ensure_future(self._retry.wait())
                await asyncio.wait({opening, told}, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                self._retry.clear()
                if not opening.done() and self._resolve() not in {None, target}:
                    raise self._moved_from(target)
            return await opening
        except BaseException:
            opening.cancel()
            (streams,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(streams, NodeStreams):  # it was open before it learned that
                await streams.close()
            raise

    def _moved_from(self, target: str) -> StoreUnreachable:
        return StoreUnreachable(f"the master of store group {self._group} is not at {target} any more")

    async def _stay(self, streams: NodeStreams) -> None:
        """Runs all parts of a connection until the first of them fails."""
        parts: list[Coroutine[Any, Any, None]] = [
            self._receive_answers(streams),
            self._send_calls(streams),
            self._beside(self._follow_tail(streams)),
            self._keep_alive(streams),
            self._leaving(),
        ]
        if not self._reading:
            parts += [self._beside(self._send_frames(streams)), self._beside(self._receive_acks(streams))]
        self._greet(streams.greeting)
        try:
            await until_one_ends(*parts)  # none ends without an error
        except (Exception, asyncio.CancelledError) as error:
            self._lose()
            if self._left is not None and isinstance(error, StoreError):
                raise self._left from None  # the reason why the connection was given up, whatever broke then
            raise

    def _greet(self, greeting: SessionGreeting) -> None:
        """Begins a session."""
        if self.sessions and greeting.confirmed < self.confirmed:
            if not self._reading:  # a replica may be a little behind another one
                logger.error("store group %d has lost confirmed frames from %d on", self._group, greeting.confirmed)
            self.confirmed = LogOffset(greeting.confirmed)
            self._tailed = None if self._tailed is None else min(self._tailed, self.confirmed)
            for listener in self._listeners.values():
                listener.since = None if listener.since is None else min(listener.since, self.confirmed)
        self.advance_confirmed(greeting.confirmed)
        self.timers, self.admission = greeting.timers, greeting.admission
        self.frames = FramesKept()
        self._left = None
        self._leave.clear()
        for listener in self._listeners.values():
            if listener.since is None:
                listener.since = self.confirmed
        if self._tailed is None:
            self._tailed = self.confirmed
        self.sessions += 1
        self.up.set()
        self.appender.connected()
        self.caller.connected()
        if self.sessions > 1:
            self._notify_queues(list(self._leased_from))  # messages may have come while there was no session

    def _lose(self) -> None:
        """Ends the session."""
        self.up.clear()
        self.appender.lost()
        self.caller.lost()
        self._notify_queues(self._session_lost())

    def _give_up(self, why: StoreError) -> None:
        if self._left is None:
            self._left = why
            self._leave.set()

    # ---- parts of a connection

    async def _receive_answers(self, streams: NodeStreams) -> None:
        while True:
            message = calls.decode_answers(await streams.session.read())
            self.advance_confirmed(message.confirmed)
            leave = self.caller.answered(message.answers)
            if message.news is not None:
                self.timers = message.news.timers or self.timers
                self._notify_queues([QueueNumber(queue) for queue in message.news.queues])
                if message.news.leave is not None:
                    gone = f"{streams.target} is about to be the master of store group {self._group} no more"
                    leave = leave or NotMaster(gone, message.news.leave or None)
            if leave is not None:
                if not isinstance(leave, NotMaster):
                    logger.warning("a session with a store node has ended: %s", leave)
                self._give_up(leave)

    async def _send_calls(self, streams: NodeStreams) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            while self._left is None and (message := self.caller.take_message()) is not None:
                await streams.session.write(message)

    async def _send_frames(self, streams: NodeStreams) -> None:
        while True:
            await self._to_append.wait()
            self._to_append.clear()
            while self._left is None and (message := self.appender.take_message()) is not None:
                await streams.appends.write(message)

    async def _receive_acks(self, streams: NodeStreams) -> None:
        while True:
            message = decode_acks(await streams.appends.read())
            self.advance_confirmed(message.confirmed)
            self.timers = message.timers or self.timers
            leave = self.appender.answered(message.acks)
            if leave is not None:
                self._give_up(leave)

    async def _keep_alive(self, streams: NodeStreams) -> None:
        """Notices that the other side is dead although the connection is not."""
        while True:
            before_s, pause_s = self._loop.time(), until_next_s(PING_S)
            self.caller.begin("ping", arguments.Ping(), nothing, SESSION).future.add_done_callback(_ignore)
            await asyncio.sleep(pause_s)
            late_s = self._loop.time() - before_s - pause_s
            if late_s > PING_S:  # this process stood still: that says nothing of the other
                streams.received_s += late_s
            if self._loop.time() - streams.received_s > SILENCE_S:
                raise StoreUnreachable(f"nothing came from {streams.target} for {SILENCE_S:g} s")

    async def _beside(self, part: Coroutine[Any, Any, None]) -> None:
        """Runs a stream beside the calls': its end gives up the connection, and calls in flight are answered still."""
        try:
            await part
        except StoreError as error:
            self._give_up(error)
            await self._loop.create_future()  # until that is over

    async def _leaving(self) -> None:
        """Waits until the connection is to be given up, and for the answers that are worth it."""
        await self._leave.wait()
        assert self._left is not None
        if isinstance(self._left, NotMaster | StoreUnreachable):
            await self.wait_while(lambda: self.appender.unsure or self.caller.unsure, LEAVE_S)
        raise self._left

    async def wait_while(self, still: Callable[[], bool], timeout_s: float) -> None:
        """Waits until a condition ends, for a limited time."""
        deadline_s = self._loop.time() + timeout_s
        while still():
            if self._loop.time() >= deadline_s:
                return
            await asyncio.sleep(POLL_S)

    async def _follow_tail(self, streams: NodeStreams) -> None:
        """Follows the log as long as there are listeners."""
        while True:
            await self._tail_wanted.wait()
            assert self._tailed is not None
            at = self._tailed
            stream = streams.tail(at)
            self._tail_running = True
            try:
                while self._listeners:
                    tailed = parse_tailed(await stream.read(), after=at)
                    self.advance_confirmed(tailed.confirmed)
                    at = self._tailed = tailed.following
                    self._hand(tailed.frames)
            except CorruptFrame:
                logger.exception("a frame of the tail is damaged; it is asked for again")
                raise
            finally:
                self._tail_running = False
                stream.cancel()

    def _hand(self, frames: Sequence[Frame]) -> None:
        for listener in list(self._listeners.values()):
            since = listener.since
            assert since is not None
            some = frames if not frames or frames[0].start >= since else [one for one in frames if one.start >= since]
            if not some:
                continue
            try:
                listener.call(some)
            except Exception:
                logger.exception("a listener on the log's tail has failed")

    async def _expire(self) -> None:
        while True:
            await pause(self._expire_s)
            if self.up.is_set():
                self.caller.expire_sent()
                self.appender.expire_held()
            else:
                self.caller.expire()
                self.appender.expire()


def _ignore(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()
