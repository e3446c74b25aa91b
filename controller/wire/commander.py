"""Requests to the controllers' present leader: sent again until there is an answer, or no time.

Every request may be sent again, because every command may (see `ControllerClient`). Only a deletion's second answer can
differ from its first, and the caller knows what that means.
"""

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.api.client import (
    ControllerClosed,
    ControllerError,
    ControllerOverloaded,
    ControllerRequest,
    ControllerUnreachable,
    UnknownTopic,
)
from controller.api.commands import DeleteTopic
from controller.disk.driver import OutcomeUnknown
from controller.raft import ProposalDropped
from controller.wire.wire import (
    ASKED_MAX,
    COMMAND,
    COMMAND_BYTES_MAX,
    ERRORS,
    MESSAGE_BYTES,
    SILENCE_S,
    Answers,
    BadAnswer,
    BadRequest,
    CommandGreeting,
    CommandHello,
    NotLeading,
    NumberedAnswer,
    NumberedRequest,
    decode,
    decode_answer,
    encode,
    open_streams,
    path,
    revive,
)
from store.base.streams import Backoff, Stream, opened, until_one_ends
from store.base.streams.event_wait import wait_at_most

logger = logging.getLogger(__name__)

BUDGET_S = 10.0  # how long a request may take, elections of the controllers included
CONNECT_S = 2.0  # for one attempt
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 0.3  # between attempts
AGAIN_S = 0.05  # until a request that was dropped is sent again
IDLE_S = 15.0  # an idle connection is closed after so long
_TRANSIENT = (NotLeading, OutcomeUnknown, ProposalDropped, ControllerClosed)


@dataclass(slots=True, eq=False)
class _Pending:
    number: int
    request: ControllerRequest[Any]
    body: bytes
    future: "asyncio.Future[tuple[int, Any]]"
    unsure: bool = False  # it was sent, and may have happened


class Commander:
    """A client's requests. Belongs to the event loop.

    `addresses` says where there are controllers, "host:port", `cluster` of which cluster they are, once that is known,
    `applied` the index of the newest command that is known here, and the digest of all: the leader has them, or has
    forgotten them.
    """

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        *,
        cluster: Callable[[], str] = str,
        applied: Callable[[], tuple[int, bytes]] = lambda: (0, b""),
        credentials: Any = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._applied = applied
        self._addresses = addresses
        self._cluster = cluster
        self._credentials = credentials
        self._budget_s = budget_s
        self._client = secrets.token_hex(16)
        self._number = 0
        self._pending: dict[int, _Pending] = {}  # by number; len <= ASKED_MAX
        self._to_send: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._hint = ""  # where the leader is thought to be
        self._term = 0  # the newest one with a known leader
        self._greeted: int | None = None  # the term of the leader that we are connected to
        self._leave = asyncio.Event()  # set when another controller leads in a later term
        self._turn = random.randrange(1 << 16)
        self._error: Exception | None = None  # why there was no answer last
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, request: ControllerRequest[Any]) -> tuple[int, Any]:
        """Returns the answer, and the index in the log by which it is so.

        Raises the error that refused it, `ControllerUnreachable`, `ControllerOverloaded`, `ControllerClosed`.
        """
        if self._closed:
            raise ControllerClosed("the connection to the controllers is closed")
        if len(self._pending) >= ASKED_MAX:
            raise ControllerOverloaded(f"{ASKED_MAX} requests to the controllers are in flight")
        body = _encoded(request)
        loop = asyncio.get_running_loop()
        self._number += 1
        pending = self._pending[self._number] = _Pending(self._number, request, body, loop.create_future())
        self._send(pending)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="commands to the controllers")
        try:
            async with asyncio.timeout(self._budget_s):
                return await pending.future
        except TimeoutError as error:
            why = f": {self._error}" if self._error is not None else ""
            raise ControllerUnreachable(f"no controller has answered within {self._budget_s:g} s{why}") from error
        finally:
            self._pending.pop(pending.number, None)

    def led_by(self, address: str, term: int) -> None:
        """Notes the reported address of the leader of `term`. The leader of an earlier one cannot answer any more."""
        if not address or term < self._term:
            return
        self._term = term
        if self._greeted is None:
            self._hint = address
        elif self._greeted < term:
            self._hint = address
            self._leave.set()

    async def close(self) -> None:
        """Gives up the commands in flight."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(ControllerClosed("the connection to the controllers is closed"))

    # ---- connecting

    def _send(self, pending: _Pending) -> None:
        if pending.number in self._pending:
            self._to_send.append(pending)
            self._wake.set()

    async def _run(self) -> None:
        """Stays connected to the leader as long as there are requests."""
        backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        while self._pending:
            target = self._target()
            sent_before = self._number
            try:
                await self._connected(target)
            except NotLeading as error:
                self._error = error
                self._hint = error.address if error.address != target else ""
                if self._hint:
                    continue
            except ControllerError as error:
                self._error = error
                logger.debug("commands to %s: %s", target, error)
            finally:
                self._lose()
            if self._number > sent_before:
                backoff.reset()
            await backoff.pause()

    def _target(self) -> str:
        hint, self._hint = self._hint, ""
        if hint:
            return hint
        addresses = self._addresses()
        self._turn += 1
        return addresses[self._turn % len(addresses)] if addresses else ""

    def _lose(self) -> None:
        """Gives up the connection, which is over: requests already sent may have been executed."""
        waiting = set(map(id, self._to_send))
        for pending in self._pending.values():
            if id(pending) not in waiting:
                pending.unsure = True
        self._to_send = deque(self._pending.values())
        self._wake.set()

    async def _connected(self, target: str) -> None:
        """Asks a controller until the connection breaks, or is not needed. Raises `ControllerError`."""
        if not target:
            raise ControllerUnreachable("no controller is known")
        try:
            async with opened(open_streams(target, self._credentials)) as channel:
                stream = Stream(channel.stream_stream(path(COMMAND))(), ERRORS, target)
                async with stream.within(CONNECT_S):
                    await stream.write(encode(CommandHello(self._client, self._cluster(), *self._applied())))
                    greeting: CommandGreeting = decode(await stream.read(), CommandGreeting)
                self._hint = target  # after a break, here first: it may be the network
                self._greeted = greeting.term
                self._leave.clear()
                await until_one_ends(self._send_requests(stream), self._receive(stream), self._leaving())
        finally:
            self._greeted = None

    async def _leaving(self) -> None:
        await self._leave.wait()
        raise NotLeading(self._hint)

    async def _send_requests(self, stream: Stream) -> None:
        while True:
            self._wake.clear()
            while self._to_send:
                batch: list[NumberedRequest] = []
                size = 0
                while self._to_send and (not batch or size + len(self._to_send[0].body) <= MESSAGE_BYTES):
                    pending = self._to_send.popleft()
                    if pending.number in self._pending:
                        batch.append(NumberedRequest(pending.number, pending.body))
                        size += len(pending.body)
                if batch:
                    await stream.write(encode(batch))
            if not await wait_at_most(self._wake, IDLE_S) and not self._pending:
                return

    async def _receive(self, stream: Stream) -> None:
        while True:
            try:
                async with stream.within(SILENCE_S):
                    message = await stream.read()
            except ControllerUnreachable as error:
                if isinstance(error.__cause__, TimeoutError):
                    self._hint = ""  # rather another controller
                raise
            for answered in decode(message, Answers).answers:
                pending = self._pending.get(answered.number)
                if pending is not None and not pending.future.done():
                    self._answer(pending, answered)

    def _answer(self, pending: _Pending, answered: NumberedAnswer) -> None:
        if not answered.error:
            try:
                pending.future.set_result((answered.index, decode_answer(answered.answer)))
            except BadRequest as error:
                pending.future.set_exception(BadAnswer(str(error)))
            return
        refused = revive(answered.error)
        if isinstance(refused, _TRANSIENT):
            self._error = refused
            pending.unsure = pending.unsure or isinstance(refused, OutcomeUnknown)
            asyncio.get_running_loop().call_later(AGAIN_S, self._send, pending)
        elif settled(pending.request, refused, unsure=pending.unsure):
            pending.future.set_result((answered.index, None))
        else:
            pending.future.set_exception(refused)


def settled(request: ControllerRequest[Any], error: ControllerError, *, unsure: bool) -> bool:
    """Returns whether a refusal says that an earlier attempt, whose outcome is not known, has done it."""
    return unsure and isinstance(request, DeleteTopic) and isinstance(error, UnknownTopic)


def _encoded(request: ControllerRequest[Any]) -> bytes:
    try:
        body = encode(request)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ControllerError(f"a request cannot be encoded: {error}") from error
    if len(body) > COMMAND_BYTES_MAX:
        raise ControllerError(f"a request has at most {COMMAND_BYTES_MAX} bytes, not {len(body)}")
    return body
