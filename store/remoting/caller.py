"""The client's side of a session: calls in flight, which are sent again or fail when the connection breaks.

A call that was not sent yet waits for the next connection. One that was is sent again if that changes nothing
(`AGAIN`), or fails as perhaps done (`ONCE`). A refusal by a node that is no master any more, or takes nothing for now,
changed nothing, so both are sent again then. All of that for `budget_s`.

Two kinds belong to their session and are never sent in another one: `HELD`, of an owner's leases, is lost with it, and
`SESSION` is for the code that looks after those.

No input or output here: the owner asks for messages to send, and hands over those that come.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from store.base.errors import (
    AppendOutcomeUnknown,
    CorruptFrame,
    LeaseLost,
    NotMaster,
    NotWritable,
    StoreClosed,
    StoreError,
    StoreOverloaded,
    StoreUnreachable,
)
from store.rpc.arguments import Arguments, Cancel
from store.rpc.calls import VALUE, CallAnswer, encode
from store.rpc.table import AGAIN, HELD, ONCE, SESSION, Mode
from store.rpc.wire import BadAnswer, failure_of, revive

logger = logging.getLogger(__name__)

CALLS_COUNT_MAX = 8_000  # in flight, waiting ones included; less than a server refuses at
MESSAGE_BYTES = 1 << 20
MESSAGE_CALLS_COUNT_MAX = 4_096
PAUSE_S = 0.05  # before calls are sent again to a store that takes nothing for now


T = TypeVar("T")


class SessionLost(StoreError):
    """The session that the call belongs to is over."""

    retriable = True


_BOUND = frozenset({HELD, SESSION})


@dataclass(slots=True, eq=False)
class _Pending:
    """A call that is not answered; number 0: it will not be."""

    number: int
    method: str
    arguments: bytes
    mode: Mode
    decode: Callable[[Any], Any]
    future: "asyncio.Future[Any]"
    orphaned: Callable[[Any], None] | None = None  # takes a value whose caller has gone
    since: float | None = None  # when it first met trouble; None: all is well
    sent_s: float = 0.0  # when it was sent last


class Caller:
    """Calls of one client on their way. Belongs to the thread of the event loop.

    `wake`: there is something to send. A call that `follows` the master goes on with the next one.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, wake: Callable[[], None], budget_s: float, follows: bool
    ) -> None:
        self._loop = loop
        self._follows = follows
        self._wake = wake
        self._budget_s = budget_s
        self._number = 0
        self._waiting: deque[_Pending] = deque()  # not sent on this connection
        self.sent: dict[int, _Pending] = {}  # by number
        self._paused: list[_Pending] = []  # refused, to be sent again in a moment
        self._down_since: float | None = loop.time()  # None: connected
        self._last_error: StoreError | None = None
        self._closed: StoreError | None = None

    # ---- from the caller

    async def call(
        self,
        method: str,
        arguments: Arguments,
        decode: Callable[[Any], T],
        mode: Mode,
        *,
        orphaned: Callable[[T], None] | None = None,
    ) -> T:
        """Calls a method and waits for its answer, decoded. A caller that is cancelled lets go of it."""
        pending = self.begin(method, arguments, decode, mode, orphaned=orphaned)
        try:
            answer: T = await pending.future
        except asyncio.CancelledError:
            self._abandon(pending)
            raise
        return answer

    def begin(
        self,
        method: str,
        arguments: Arguments,
        decode: Callable[[Any], T],
        mode: Mode,
        *,
        orphaned: Callable[[T], None] | None = None,
    ) -> _Pending:
        """Calls a method without waiting. Raises `StoreError` when it cannot even wait, ValueError: bad arguments."""
        if self._closed is not None:
            raise self._closed
        if mode in _BOUND and self._down_since is not None:
            raise _session_lost(mode)
        now_s = self._loop.time()
        if self._down_since is not None and now_s - self._down_since > self._budget_s:
            raise self._unreachable()
        if len(self._waiting) + len(self.sent) >= CALLS_COUNT_MAX and method != "ping":
            raise StoreOverloaded(f"{CALLS_COUNT_MAX} calls are in flight")
        self._number += 1
        since = None if self._down_since is None else now_s
        future = self._loop.create_future()
        pending = _Pending(self._number, method, _encoded(arguments), mode, decode, future, orphaned, since)
        self._waiting.append(pending)
        self._wake()
        return pending

    def notify(self, method: str, arguments: Arguments) -> None:
        """Calls a method that is not answered; nothing happens when its session is over."""
        if self._closed is None and self._down_since is None:
            self._waiting.append(_Pending(0, method, _encoded(arguments), SESSION, nothing, self._loop.create_future()))
            self._wake()

    def _abandon(self, pending: _Pending) -> None:
        if self.sent.get(pending.number) is pending:
            if pending.mode not in {ONCE, HELD}:  # a call that changes something is done all the same
                self.notify("cancel", Cancel((pending.number,)))
        elif pending in self._waiting:
            self._waiting.remove(pending)

    # ---- to and from the store

    def connected(self) -> None:
        """Begins on a new session."""
        assert not self.sent
        self._down_since = None
        self._wake()

    def take_message(self) -> bytes | None:
        """Returns the next calls to send, None when there are none."""
        if not self._waiting or self._down_since is not None:
            return None
        taken: list[tuple[int, str, msgspec.Raw]] = []
        size, now_s = 0, self._loop.time()
        while self._waiting and size < MESSAGE_BYTES and len(taken) < MESSAGE_CALLS_COUNT_MAX:
            pending = self._waiting.popleft()
            if pending.number:
                pending.sent_s = now_s
                self.sent[pending.number] = pending
            taken.append((pending.number, pending.method, msgspec.Raw(pending.arguments)))
            size += len(pending.arguments)
        return encode(taken)

    def answered(self, answers: Sequence[CallAnswer]) -> StoreError | None:
        """Ends the calls of some answers; returns the reason to give up the connection, if any."""
        leave: StoreError | None = None
        paused = bool(self._paused)
        for answer in answers:
            pending = self.sent.pop(answer.number, None)
            if pending is None:
                return BadAnswer(f"call {answer.number} is answered, which is not in flight")
            if answer.kind == VALUE:
                leave = self._succeeded(pending, answer) or leave
                continue
            error = revive(answer.body) or failure_of(answer.body, pending.method)
            if isinstance(error, StoreClosed) or (isinstance(error, NotMaster) and self._follows):
                leave = error
            if leave is error or isinstance(error, NotWritable):
                if self._is_sent_again(pending):
                    self._paused.append(pending)
                    continue
                if leave is error and pending.mode is HELD:
                    error = _session_lost(HELD)
            self._fail(pending, error)
        if self._paused and not paused:
            self._loop.call_later(PAUSE_S, self._resume)
        return leave

    def _succeeded(self, pending: _Pending, answer: CallAnswer) -> StoreError | None:
        try:
            value = pending.decode(answer.body)
        except (BadAnswer, CorruptFrame) as error:
            self._fail(pending, error)
            return error
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            bad = BadAnswer(f"{pending.method}: {error}")
            self._fail(pending, bad)
            return bad
        if not pending.future.done():
            pending.future.set_result(value)
        elif pending.orphaned is not None:
            pending.orphaned(value)
        return None

    def _is_sent_again(self, pending: _Pending) -> bool:
        """Returns whether a call is to be sent again that was refused by a node that takes nothing."""
        return pending.mode not in _BOUND and not pending.future.done() and not self._is_late(pending)

    def _resume(self) -> None:
        """Sends refused calls again."""
        paused, self._paused = self._paused, []
        self._waiting.extend(paused)
        self._wake()

    def _is_late(self, pending: _Pending) -> bool:
        """Returns whether a call has been in trouble for too long. Its trouble begins when this is first asked."""
        now_s = self._loop.time()
        if pending.since is None:
            pending.since = now_s
        return now_s - pending.since > self._budget_s

    def lost(self) -> None:
        """Ends the session, as the connection has broken."""
        if self._down_since is None:
            self._down_since = self._loop.time()
        sent, self.sent = sorted(self.sent.values(), key=lambda one: one.number), {}
        waiting, self._waiting = self._waiting, deque()
        for pending in sent:
            if pending.mode is AGAIN and not pending.future.done():
                self._waiting.append(pending)
            elif pending.mode is SESSION:
                self._fail(pending, _session_lost(SESSION))
            else:
                self._fail(pending, AppendOutcomeUnknown(f"the connection to the store broke during {pending.method}"))
        for pending in waiting:
            if pending.mode in _BOUND:
                self._fail(pending, _session_lost(pending.mode))
            elif not pending.future.done():
                self._waiting.append(pending)
        self.expire()

    def expire(self) -> None:
        """Fails calls that have been in trouble for too long; to be called now and then while something is wrong."""
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            if self._is_late(pending):
                self._fail(pending, self._unreachable())
            else:
                self._waiting.append(pending)

    def expire_sent(self) -> None:
        """Fails changes that the store has not answered for too long; to be called while the connection stands.

        A change that the master wrote and that too few replicas have is neither done nor refused, perhaps forever. Its
        answer may still come, and is ignored then. The master does not lease the messages of such a settlement again
        before it knows whether they are settled.
        """
        limit = self._loop.time() - self._budget_s
        for pending in self.sent.values():
            if pending.mode in {ONCE, HELD} and pending.sent_s < limit and not pending.future.done():
                within = f"written, and not confirmed by enough replicas within {self._budget_s:g} s"
                self._fail(pending, AppendOutcomeUnknown(f"{pending.method}: {within}"))

    def failed(self, error: StoreError) -> None:
        """Records why the last attempt to connect has failed."""
        self._last_error = error

    def _unreachable(self) -> StoreUnreachable:
        why = f": {self._last_error}" if self._last_error is not None else ""
        return StoreUnreachable(f"the store group had no master within reach for {self._budget_s:g} s{why}")

    def refuse(self, why: StoreError) -> None:
        """Takes nothing any more."""
        self._closed = why

    def close(self, why: StoreError) -> None:
        """Fails everything."""
        self.refuse(why)
        pending_calls = [*self.sent.values(), *self._waiting, *self._paused]
        self.sent, self._waiting, self._paused = {}, deque(), []
        for pending in pending_calls:
            self._fail(pending, why)

    @property
    def unsure(self) -> bool:
        """Returns whether the outcome of something would be unknown if the connection broke now."""
        return any(pending.mode in {ONCE, HELD} for pending in self.sent.values())

    @property
    def busy(self) -> bool:
        """Returns whether something that changes something has no answer."""
        return self.unsure or any(pending.mode in {ONCE, HELD} for pending in self._waiting)

    def _fail(self, pending: _Pending, error: Exception) -> None:
        if pending.number and not pending.future.done():
            pending.future.set_exception(error)


def _session_lost(mode: Mode) -> StoreError:
    if mode is HELD:
        return LeaseLost("the leases were given back when the connection to the store broke")
    return SessionLost("the connection to the store broke")


def nothing(_body: object) -> None:
    """Decodes the answer to a call that returns nothing."""


def _encoded(arguments: Arguments) -> bytes:
    try:
        return encode(arguments)
    except (OverflowError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error
