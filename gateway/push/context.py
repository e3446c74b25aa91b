"""The parts of a process that its subscriptions share: store, fan-out, limits, and the memory for events."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec

from gateway.delivery.fanout import Fanout
from gateway.domain.access import Identity
from gateway.port.push import SinkFactory
from gateway.push.guard import SinkGuard
from gateway.push.settings import SubscriptionsConfig
from gateway.push.trust import SinkTrust
from store.api.client import StoreClient
from store.api.message import Message


class EventHolder(Protocol):
    """A subscription that holds events."""

    def room(self) -> None:
        """Notes that there may be room where there was none."""


class HeldBudget:
    """The bytes of events that a process holds for all sinks. A subscription that holds none may have one event."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[EventHolder, int] = {}
        self._waiting: dict[EventHolder, None] = {}
        self.held_bytes = 0

    def take(self, holder: EventHolder, size: int, *, first: bool) -> bool:
        """Takes bytes; returns False where there is no room, and asks the holder again later."""
        if not first and self.held_bytes + size > self._bytes_max:
            self._waiting[holder] = None
            return False
        self._held[holder] = self._held.get(holder, 0) + size
        self.held_bytes += size
        return True

    def release(self, holder: EventHolder, size: int) -> None:
        """Gives bytes back, and asks those that wait again."""
        if holder in self._held:
            self._held[holder] -= size
            self._give_back(size)

    def forget(self, holder: EventHolder) -> None:
        """Gives back all that a holder has."""
        self._waiting.pop(holder, None)
        self._give_back(self._held.pop(holder, 0))

    def _give_back(self, size: int) -> None:
        self.held_bytes -= size
        if self._waiting and self.held_bytes < self._bytes_max:
            waiting, self._waiting = self._waiting, {}
            for one in waiting:
                one.room()


class AttemptLimit:
    """The attempts that a process makes at a time, to all sinks. One of each subscription is always among them.

    So sinks that do not answer, which may take all of the limit for as long as their time-outs last, hold up no other
    subscription: that one attempts one event at a time. Room goes to those that wait for it in turn.
    """

    def __init__(self, count_max: int) -> None:
        self._free = count_max  # for attempts of subscriptions that have one already
        self._running: dict[EventHolder, int] = {}
        self._waiting: dict[EventHolder, deque[asyncio.Future[None]]] = {}  # none is empty; the next in turn is first

    @contextlib.asynccontextmanager
    async def begun(self, holder: EventHolder) -> AsyncIterator[None]:
        """Waits until a subscription may make one more attempt, for as long as that lasts."""
        if not self._begin(holder):
            await self._turn(holder)
        try:
            yield
        finally:
            self._end(holder)

    def _begin(self, holder: EventHolder) -> bool:
        """Counts one more attempt; returns False where there is no room for it."""
        running = self._running.get(holder, 0)
        if running:
            if not self._free:
                return False
            self._free -= 1
        self._running[holder] = running + 1
        return True

    async def _turn(self, holder: EventHolder) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._end(holder)
            elif turn in (line := self._waiting.get(holder, deque())):
                line.remove(turn)
                if not line:
                    del self._waiting[holder]
            raise

    def _end(self, holder: EventHolder) -> None:
        """Counts one attempt less, and lets others begin."""
        running = self._running.pop(holder)
        if running > 1:
            self._running[holder] = running - 1
            self._free += 1
        else:
            self._let(holder)
        while self._free and self._waiting:
            self._let(next(iter(self._waiting)))

    def _let(self, holder: EventHolder) -> None:
        """Lets the first waiting attempt of a subscription begin; its others wait behind those of all others."""
        line = self._waiting.pop(holder, deque())
        while line:
            turn = line.popleft()
            if not turn.done():  # else it was cancelled
                self._begin(holder)
                turn.set_result(None)
                break
        if line:
            self._waiting[holder] = line


class Totals:
    """The figures of all subscriptions of a process, since it began."""

    def __init__(self) -> None:
        self.delivered = self.failed = self.dead = self.expired = self.looped = self.lost = 0

    def count(self, **counts: int) -> None:
        """Adds to the figures."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)


class PushContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that all subscriptions of a gateway share: its store, its limits, its counts and its clock."""

    store: StoreClient
    fanout: Fanout
    codec: SinkFactory
    config: SubscriptionsConfig
    guard: SinkGuard
    budget: HeldBudget
    totals: Totals
    attempts: AttemptLimit
    trust: SinkTrust
    origin: str  # of WebHook-Request-Origin
    publish: Callable[..., Any]  # `Ingest.publish`
    check_publisher: Callable[[Identity, Message], None]
    now_ms: Callable[[], int]
    chance: random.Random
