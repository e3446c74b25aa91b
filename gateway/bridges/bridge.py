"""One bridge at work: connect, read, store, acknowledge, and begin again when the connection ends.

Messages are acknowledged upstream when they are durable here, one batch at a time, in order. While the store takes
nothing, the batch is tried again and, as soon as that is known, nothing more is read: the upstream keeps the rest. What
the store will never take (too large, a reserved address) is acknowledged, counted and logged. What it does not take
because another process runs the bridge by now is not acknowledged: the connection ends, and so does the bridge here.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from gateway.bridges.settings import BridgeConfig
from gateway.bridges.upstream_stream import UpstreamError, UpstreamStream
from gateway.domain.errors import ProtocolError, Refusal
from gateway.ownership.owners import OwnershipLost
from gateway.port.adapter import Outcome, Publish, Token
from gateway.port.bridge import LOOPED, Upstream
from gateway.port.marks import Fence
from store.api.message import Message
from store.base import logs
from store.base.streams import Backoff, until_one_ends

STEADY_S = 10.0  # a connection that has lasted so long makes the next attempt a first one
CROWDED_S = 0.05  # between two looks whether there is room again
AGAIN_S = 1.0  # until what the store did not take is tried again, where it does not say itself
LAST_OUTCOME_S = 30.0  # how long the outcome of what is under way is waited for when the connection is gone
WRITE_S = 30.0  # that the other end has to read what we say
LAST_WORDS_S = 1.0  # for what is still to be said on a connection that ends
TICK_S = 60.0

Store = Callable[["Bridge", Publish, int], None]  # `Ingest.publish`

log = logs.get(__name__)


class Figures:
    """The figures of a bridge; times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.here = False  # whether it is this process's to run
        self.connected = False
        self.connects = 0
        self.stored = 0
        self.refused: dict[str, int] = {}  # by cause
        self.unacknowledged = 0
        self.last_message_s: float | None = None
        self.error = ""  # why it is not connected, or does not go on


class Bridge:
    """One upstream, read by this process as long as `run` runs."""

    def __init__(
        self,
        name: str,
        config: BridgeConfig,
        upstream: Callable[[], Upstream],
        *,
        dial: Callable[[], Awaitable[UpstreamStream]],
        store: Store,
        crowded: Callable[[], bool],
        now_ms: Callable[[], int],
        chance: random.Random,
    ) -> None:
        self.name = name
        self.figures = Figures()
        self._config = config
        self._new_upstream = upstream
        self._dial = dial
        self._store = store
        self._crowded = crowded
        self._now_ms = now_ms
        self._chance = chance
        self._upstream = upstream()
        self._link: UpstreamStream | None = None
        self._work: Final = asyncio.Event()  # there may be something to take
        self._room: Final = asyncio.Event()  # more may be read
        self._written: Final = asyncio.Lock()  # what is taken to be sent first is sent first
        self._under_way: asyncio.Future[Outcome] | None = None
        self._tokens = 0
        self.fence: Fence | None = None  # of the owner for which it runs

    # ---- as long as it is ours

    async def run(self, fence: Fence | None = None) -> None:
        """Reads until cancelled; what is stored is stored unless a later owner has raised the fence.

        Raises `OwnershipLost` when one has.
        """
        self.fence = fence
        self._upstream = self._new_upstream()
        config = self._config
        backoff = Backoff(config.reconnect_min_s, config.reconnect_max_s, uniform=self._chance.uniform)
        self.figures.here = True
        try:
            while True:
                began_s = time.monotonic()
                try:
                    await self._connection()
                except (UpstreamError, ProtocolError) as error:
                    self.figures.error = str(error)
                    if time.monotonic() - began_s >= STEADY_S:
                        backoff.reset()
                    wait_s = backoff.next_s()
                    log.warning("bridge: not connected", bridge=self.name, error=str(error), retry_s=round(wait_s, 2))
                    await asyncio.sleep(wait_s)
        finally:
            self.figures.here = False
            self.figures.unacknowledged = 0

    async def _connection(self) -> None:
        """One connection, from its beginning to its end, which it raises: `UpstreamError`, `ProtocolError`."""
        upstream = self._upstream
        link = await self._dial()
        self._link = link
        self._room.set()
        try:
            upstream.connected(self._now_ms())
            await self._flush()
            await until_one_ends(self._reading(link), self._storing(), self._ticking())
        finally:
            self.figures.connected = False
            try:
                await self._last_outcome()
                upstream.leave()
                with contextlib.suppress(UpstreamError, TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await self._flush()
            finally:
                self._link = None
                upstream.lost()
                await link.close()

    async def _last_outcome(self) -> None:
        """Waits for what is being stored: if all of it is, that can still be said, and its repetition be recognized."""
        if self._under_way is None:
            return
        try:
            async with asyncio.timeout(LAST_OUTCOME_S):
                outcome = await self._under_way
            if outcome.error is None and not outcome.refused:
                self._upstream.settled({})
        except TimeoutError:
            log.warning("bridge: the outcome of messages in flight is unknown; they are sent again", bridge=self.name)
        finally:
            self._under_way = None

    # ---- what goes on at once on a connection

    async def _reading(self, link: UpstreamStream) -> None:
        upstream = self._upstream
        while True:
            await self._room.wait()
            data = await link.read()
            upstream.receive(data, self._now_ms())
            if upstream.ready and not self.figures.connected:
                self._is_ready()
            self.figures.unacknowledged = upstream.unacknowledged
            if upstream.full:
                self._room.clear()
            self._work.set()
            await self._flush()

    def _is_ready(self) -> None:
        figures = self.figures
        figures.connected, figures.error = True, ""
        figures.connects += 1
        log.info("bridge: connected", bridge=self.name, url=self._config.url)
        if self._upstream.lowered:
            log.warning(
                "bridge: the upstream grants a lower QoS than requested", bridge=self.name, qos=self._upstream.lowered
            )

    async def _ticking(self) -> None:
        upstream = self._upstream
        while True:
            due_ms = upstream.deadline_ms()
            wait_s = TICK_S if due_ms is None else max(0.01, (due_ms - self._now_ms()) / 1_000)
            await asyncio.sleep(min(wait_s, 1.0 if not upstream.ready else TICK_S))
            upstream.tick(self._now_ms(), reading=self._room.is_set())
            await self._flush()

    async def _storing(self) -> None:
        upstream, figures = self._upstream, self.figures
        while True:
            await self._work.wait()
            self._work.clear()
            while (messages := upstream.take()) is not None:
                refused = await self._stored(messages)
                upstream.settled(refused)
                figures.stored += len(messages) - len(refused)
                figures.unacknowledged = upstream.unacknowledged
                if messages:
                    figures.last_message_s = time.monotonic()
                self._count_refused()
                if not upstream.full:
                    self._room.set()
                await self._flush()

    def _count_refused(self) -> None:
        now = self._upstream.passed_over
        for cause, count in now.items():
            if count > self.figures.refused.get(cause, 0):
                say = log.debug if cause == LOOPED else log.warning  # usual where gateways read each other
                say("bridge: messages are passed over", bridge=self.name, cause=cause, so_far=count)
        self.figures.refused = dict(now)

    async def _flush(self) -> None:
        async with self._written:
            data = self._upstream.take_output()
            if not data or self._link is None:
                return
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._link.write(data)
            except TimeoutError as error:
                raise UpstreamError("the upstream does not read from the connection") from error

    # ---- storing

    async def _stored(self, messages: Sequence[Message]) -> Mapping[int, Refusal]:
        """Stores a batch, as often as that takes; those that never will be, by index."""
        left, never = list(range(len(messages))), dict[int, Refusal]()
        while left:
            while self._crowded():
                self._room.clear()
                await asyncio.sleep(CROWDED_S)
            outcome = await self._publish([messages[index] for index in left])
            refused = outcome.refused if outcome.error is None else dict.fromkeys(range(len(left)), outcome.error)
            again: list[int] = []
            for at, refusal in sorted(refused.items()):
                if refusal.retriable:
                    again.append(left[at])
                else:
                    never[left[at]] = refusal
            if again:
                await self._wait(next(one for one in refused.values() if one.retriable), len(again))
            elif self.figures.connected:
                self.figures.error = ""
            left = again
        return never

    async def _wait(self, refusal: Refusal, messages: int) -> None:
        self._room.clear()  # the upstream keeps the rest
        if self.figures.error != refusal.detail:
            log.warning("bridge: not stored yet", bridge=self.name, error=refusal.detail, messages=messages)
        self.figures.error = refusal.detail
        await asyncio.sleep((refusal.retry_after_ms / 1_000 or AGAIN_S) * self._chance.uniform(0.5, 1.0))

    async def _publish(self, messages: Sequence[Message]) -> Outcome:
        self._tokens += 1
        outcome = self._under_way = asyncio.get_running_loop().create_future()
        size = sum([len(message.body) for message in messages])
        self._store(self, Publish(messages, Token(self._tokens), fence=self.fence), size)
        found: Outcome = await asyncio.shield(outcome)
        self._under_way = None
        if isinstance(found.error, OwnershipLost):
            raise found.error
        return found

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """See `gateway.publishing.publishing.Publisher`."""
        if token == self._tokens and self._under_way is not None and not self._under_way.done():
            self._under_way.set_result(outcome)
