"""The service of a store node to proxies: `store.remoting`'s three streams, over any `StoreClient`.

    Calls    a session: everything that is asked and answered (store.rpc.calls)
    Append   frames to the store, acknowledgements back (store.rpc.frames)
    Tail     the log as it is confirmed (store.rpc.frames)

`serve` names the store and whether the node is its group's master; a replica answers reads of confirmed frames.
When a role ends, `stand_down` refuses new calls with `NotMaster`, lets the appends in flight be answered and ends all
streams: leases, held states and watches end with them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import grpc
import grpc.aio
import msgspec

from controller.api.client import KnownMetadata
from store.api.client import StoreClient
from store.base.errors import CorruptFrame, NotMaster, StoreError, StoreOverloaded
from store.base.listening import admit
from store.base.streams import Silence, until_one_ends
from store.format.frame import Frame, LogOffset, Position
from store.rpc import wire
from store.rpc.budget import Budget
from store.rpc.calls import TimerAdmission
from store.rpc.frames import encode_tailed
from store.rpc.paths import APPEND, CALLS, TAIL, TailRequest
from store.serving.intake import PENDING_BYTES, Intake
from store.serving.methods import METHODS
from store.serving.queue_waiters import QueueWaiters
from store.serving.session import ServingSession, ServingTerms
from store.timers.timers import TIMER_BYTES_MAX, TimerLimits

logger = logging.getLogger(__name__)

STREAMS_COUNT_MAX = 512  # of each kind, at the same time
SILENCE_S = 15.0  # a session whose client says nothing for so long is over: clients say something every second
TAIL_BYTES = 512 << 10  # of frames in one message of a tail
NEWS_INTERVAL_S = 0.005  # between two messages that say nothing but how far the log is
CLOSE_S = 1.0  # that sessions may take to give back their leases
LEAVE_S = 0.5  # that clients have to disconnect by themselves, once they know that the node stands down
GRACE_S = 0.5  # that appends in flight may take when the node stands down
FIRST_OWNER = 1 << 48  # owners of leases that sessions name; those of the node's own process are smaller


class _GrowthSignal:
    """Wakes all streams when the log has grown."""

    def __init__(self) -> None:
        self._events: dict[asyncio.Event, None] = {}  # in order: the first to be woken is the first to send

    @contextmanager
    def wakes(self, event: asyncio.Event) -> Iterator[None]:
        """Sets an event every time."""
        self._events[event] = None
        try:
            yield
        finally:
            self._events.pop(event, None)

    def grew(self, _frames: object) -> None:
        """Signals that the log has grown."""
        for event in self._events:
            event.set()


class _Term:
    """One role of a node, from `serve` to `stand_down`."""

    def __init__(self, terms: ServingTerms) -> None:
        self.terms = terms
        self.growth = _GrowthSignal()
        self.waiters = QueueWaiters()
        self.over: asyncio.Future[NotMaster] = asyncio.get_running_loop().create_future()
        self.refusal: NotMaster | None = None  # set first: nothing more is begun
        self.intakes: set[Intake] = set()
        self.sessions: dict[ServingSession, None] = {}  # in the order in which they began
        self.unlisten = terms.store.log.tail(self._grown)

    def _grown(self, frames: Sequence[Frame]) -> None:
        self.growth.grew(frames)
        self.waiters.appended(frames)

    def refuse(self, refusal: NotMaster) -> None:
        """Begins nothing any more."""
        self.refusal = refusal
        for session in self.sessions:
            session.stand_down(refusal)

    @property
    def busy(self) -> bool:
        """Returns whether something is in flight, or answered but not sent, whose outcome a client could not know."""
        return any(intake.pending or intake.news.is_set() for intake in self.intakes) or any(
            session.busy for session in self.sessions
        )

    def end(self, refusal: NotMaster) -> None:
        """Ends all streams."""
        self.unlisten()
        if not self.over.done():
            self.over.set_result(refusal)


class NodeService:
    """The handlers of a node. They serve nothing before `serve`."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.cluster = ""  # set before the first role: clients of another one are refused
        self.dropped: frozenset[int] = frozenset()  # queues to which nothing is written any more, as controllers say
        self.known: Callable[[], KnownMetadata] = KnownMetadata  # the cluster's metadata, as much as was seen here
        self._term: _Term | None = None
        self._hint: str | None = None
        self._owners = count(FIRST_OWNER)
        self._streams = {CALLS: 0, APPEND: 0, TAIL: 0}  # with a first message; <= STREAMS_COUNT_MAX each
        self.budget = Budget(PENDING_BYTES)
        self._closing: set[asyncio.Task[None]] = set()

    # ---- roles

    def serve(
        self,
        store: StoreClient,
        *,
        master: bool = True,
        hint: str | None = None,
        timers: TimerLimits | None = None,
        retired: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        """Serves a store from now on; `hint` is the master's address where this node is a replica.

        `retired` are queues that take nothing more, as the store says. `timers` are the store's limits on timers, so
        that clients can refuse one without asking.
        """
        assert self._term is None, "a role ends before the next one begins"
        limits = timers or TimerLimits()
        admission = TimerAdmission(limits.timers, limits.size_bytes, limits.horizon_ms, TIMER_BYTES_MAX)
        self._hint = hint

        def dropped() -> frozenset[int]:
            return self.dropped | retired()

        self._term = _Term(ServingTerms(store, master, hint, admission, self.cluster, dropped, self.known))

    async def stand_down(self, hint: str | None = None, *, grace_s: float = GRACE_S) -> None:
        """Serves nothing any more; `hint` is the address of the new master. Returns when all sessions are over.

        Clients learn it, and their calls in flight are answered: first those received, then those on their way, until
        they go. All that has `grace_s` seconds; closing the store answers the rest.
        """
        term, self._term = self._term, None
        self._hint = hint
        if term is None:
            return
        term.refuse(_not_master(self.group, hint))
        now_s = asyncio.get_running_loop().time
        deadline, leave_by = now_s() + grace_s, now_s() + min(grace_s, LEAVE_S)
        while term.busy or (term.sessions and now_s() < leave_by):
            if now_s() >= deadline:
                break
            await asyncio.sleep(0.005)
        term.end(_not_master(self.group, hint))
        deadline = asyncio.get_running_loop().time() + CLOSE_S
        while term.sessions or term.intakes or self._closing:
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(0.005)

    def point_to(self, hint: str | None) -> None:
        """Sends clients that come now to another master, while this node is a replica."""
        self._hint = hint
        if self._term is not None and not self._term.terms.master:
            self._term.terms = self._term.terms._replace(hint=hint)

    @property
    def sessions(self) -> int:
        """Clients that are connected."""
        return self._streams[CALLS]

    def handlers(self) -> dict[str, Any]:
        """Returns handlers by method name; bytes go in and out as they are."""
        return {
            CALLS: grpc.stream_stream_rpc_method_handler(self._calls),
            APPEND: grpc.stream_stream_rpc_method_handler(self._append),
            TAIL: grpc.unary_stream_rpc_method_handler(self._tail),
        }

    @asynccontextmanager
    async def _stream(self, kind: str, context: Any) -> AsyncIterator[tuple[_Term, Callable[[], None]]]:
        """Makes an error of a stream its status.

        The second value counts the stream, as its first message has come: a silent one takes no place of others. It
        raises `StoreOverloaded`.
        """
        counted = False

        def begun() -> None:
            nonlocal counted
            if self._streams[kind] >= STREAMS_COUNT_MAX:
                raise StoreOverloaded(f"{STREAMS_COUNT_MAX} streams are open")
            self._streams[kind] += 1
            counted = True

        try:
            term = self._term
            if term is None:
                raise _not_master(self.group, self._hint)
            try:
                yield term, begun
            finally:
                self._streams[kind] -= counted
        except StoreError as error:
            await wire.ERRORS.refuse(context, error)

    # ---- streams

    async def _calls(self, _requests: object, context: Any) -> None:
        async with self._stream(CALLS, context) as (term, begun):
            session = ServingSession(term.terms, self._owners, METHODS, term.waiters)
            silence, grown = Silence(SILENCE_S), asyncio.Event()
            term.sessions[session] = None
            try:
                with term.growth.wakes(grown):
                    await _while_serving(
                        term.over,
                        _read(context, session.received, silence, begun),
                        _send_messages(context, session),
                        _send_confirmed(session, grown),
                        _check_silence(silence),
                    )
            finally:
                term.sessions.pop(session, None)
                closing = asyncio.create_task(session.close(), name="end of a session")
                self._closing.add(closing)
                closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.error("a session could not be closed cleanly", exc_info=error)

    async def _append(self, _requests: object, context: Any) -> None:
        async with self._stream(APPEND, context) as (term, begun):
            if not term.terms.master:
                raise _not_master(self.group, term.terms.hint)
            intake = Intake(term.terms.store, self.budget, lambda: term.refusal, term.terms.dropped)
            term.intakes.add(intake)
            try:
                await _while_serving(term.over, _take_in(context, intake, begun), _acknowledge(context, intake))
            finally:
                term.intakes.discard(intake)

    async def _tail(self, request: bytes, context: Any) -> None:
        async with self._stream(TAIL, context) as (term, begun):
            try:
                asked = msgspec.msgpack.decode(request, type=TailRequest)
            except msgspec.MsgspecError as error:
                raise wire.BadRequest(str(error)) from error
            begun()
            admit(context)
            grown = asyncio.Event()
            with term.growth.wakes(grown):
                await _while_serving(term.over, _follow(context, term.terms.store, LogOffset(asked.start), grown))


def _not_master(group: int, master: str | None) -> NotMaster:
    return NotMaster(f"this node is not the master of store group {group}", master)


# ---- one direction of a stream each


async def _read(context: Any, received: Callable[[bytes], None], silence: Silence, begun: Callable[[], None]) -> None:
    first = True
    while (message := await context.read()) is not grpc.aio.EOF:
        silence.received()
        if first:
            begun()
        received(message)
        if first:
            admit(context)
            first = False


async def _send_messages(context: Any, session: ServingSession) -> None:
    while True:
        await session.news.wait()
        while (taken := session.take_message()) is not None:
            message, sent = taken
            try:
                await context.write(message)
            finally:
                sent()
        session.news.clear()  # behind the last: until then it is busy


async def _send_confirmed(session: ServingSession, grown: asyncio.Event) -> None:
    """Sends the confirmed offset at intervals: every answer carries it too, so it is not worth a message per commit."""
    while True:
        await grown.wait()
        await asyncio.sleep(NEWS_INTERVAL_S)
        grown.clear()
        session.news.set()


async def _check_silence(silence: Silence) -> None:
    await silence.lasts()
    raise wire.BadRequest(f"nothing was heard from the client for {silence.limit_s:g} s")


async def _take_in(context: Any, intake: Intake, begun: Callable[[], None]) -> None:
    first = True
    while (message := await context.read()) is not grpc.aio.EOF:
        if first:
            begun()
        await intake.received(message)
        if first:
            admit(context)
            first = False


async def _acknowledge(context: Any, intake: Intake) -> None:
    while True:
        await intake.news.wait()
        while (message := intake.take_message()) is not None:
            await context.write(message)
        intake.news.clear()


async def _follow(context: Any, store: StoreClient, at: LogOffset, grown: asyncio.Event) -> None:
    """Sends the log from an offset on.

    Frames that a slow reader has not taken are read again from the log, not kept for it.
    """
    while True:
        grown.clear()
        confirmed = store.log.confirmed
        while at < confirmed:
            try:
                frames, following = await store.log.scan(Position(at, 0), None, max_bytes=TAIL_BYTES)
            except CorruptFrame as error:  # no replica has it: a reader of the tail must not wait there forever
                if error.end is None:
                    raise
                logger.error("a damaged range is left out of a tail", extra={"start": at, "end": error.end})
                frames, following = (), LogOffset(error.end)
            await context.write(encode_tailed(frames, following, store.log.confirmed))
            at = following
        await grown.wait()


async def _while_serving(over: "asyncio.Future[NotMaster]", *parts: Any) -> None:
    """Runs the parts of a stream until one of them ends or fails, or the node's role is over."""
    try:
        await until_one_ends(*parts, until=over)
    except (grpc.aio.BaseError, asyncio.InvalidStateError):  # the client went away while something was sent to it
        logger.debug("a stream has broken", exc_info=True)
        return
    if over.done():
        raise over.result()
