"""One bridge at work: connect, read, store, acknowledge, and begin again when the connection ends.

Messages are acknowledged upstream when they are durable here, one batch at a time, in order. While the store takes
nothing, the batch is tried again and, as soon as that is known, nothing more is read: the upstream keeps the rest. A
message that the store will never take (too large, a reserved address) is acknowledged, counted and logged. A message
that it refuses because another process runs the bridge now is not acknowledged: the connection ends, and so does the
bridge here.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from gateway.bridges.shared.figures import Figures
from gateway.bridges.shared.machine_driver import MachineDriver
from gateway.bridges.shared.reconnecting import reconnecting
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.storing import BridgeStore, Store
from gateway.bridges.shared.upstream_stream import UpstreamError, UpstreamStream
from gateway.ownership.owners import Owned
from gateway.port.bridge import LOOPED, Upstream
from gateway.port.marks import Fence
from store.base import logs
from store.base.streams import until_one_ends

WRITE_S = 30.0  # in which the other end has to read our output
LAST_WORDS_S = 1.0  # for the last output on a connection that ends

log = logs.get(__name__)


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
        self._now_ms = now_ms
        self._chance = chance
        self._upstream = upstream()
        self._work: Final = asyncio.Event()  # there may be something to take
        self._room: Final = asyncio.Event()  # more may be read
        self._store = BridgeStore(name, self.figures, store, crowded=crowded, chance=chance, hold=self._room.clear)

    @property
    def fence(self) -> Fence | None:
        """Returns the fence of the owner for which it runs."""
        return self._store.fence

    # ---- as long as it is ours

    async def run(self, fence: Fence | None = None, _owned: Owned | None = None) -> None:
        """Reads until cancelled, and stores messages unless a later owner has raised the fence.

        Raises `OwnershipLost` when one has.
        """
        self._store.fence = fence
        self._upstream = self._new_upstream()
        self.figures.here = True
        try:
            await reconnecting(
                self.name, self._config, self._connection, failed=self._failed, uniform=self._chance.uniform
            )
        finally:
            self.figures.here = False
            self.figures.unacknowledged = 0

    def _failed(self, error: str) -> None:
        self.figures.error = error

    async def _connection(self) -> None:
        """Runs one connection to its end, which it raises: `UpstreamError`, `ProtocolError`."""
        upstream = self._upstream
        link = await self._dial()
        driver = MachineDriver(upstream, partial(_write, link), self._now_ms)
        self._room.set()
        try:
            upstream.connected(self._now_ms())
            await driver.flush()
            await until_one_ends(
                self._reading(link, driver), self._storing(driver), driver.tick(reading=self._room.is_set)
            )
        finally:
            self.figures.connected = False
            try:
                batch = await self._store.last_outcome()
                if batch is not None:  # its stored part can still be acknowledged, and its repetition be recognized
                    upstream.settled(batch.never, batch.left)
                    self._count_refused()
                upstream.leave()
                with contextlib.suppress(UpstreamError, TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await driver.flush()
            finally:
                upstream.lost()
                await link.close()

    # ---- concurrent parts of a connection

    async def _reading(self, link: UpstreamStream, driver: MachineDriver) -> None:
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
            await driver.flush()

    def _is_ready(self) -> None:
        figures = self.figures
        figures.connected, figures.error = True, ""
        figures.connects += 1
        log.info("bridge: connected", bridge=self.name, url=self._config.url)
        if self._upstream.lowered:
            log.warning(
                "bridge: the upstream grants a lower QoS than requested", bridge=self.name, qos=self._upstream.lowered
            )

    async def _storing(self, driver: MachineDriver) -> None:
        upstream, figures = self._upstream, self.figures
        while True:
            await self._work.wait()
            self._work.clear()
            while (messages := upstream.take()) is not None:
                refused = await self._store.stored(messages)
                upstream.settled(refused)
                figures.unacknowledged = upstream.unacknowledged
                self._count_refused()
                if not upstream.full:
                    self._room.set()
                await driver.flush()

    def _count_refused(self) -> None:
        now = self._upstream.passed_over
        for cause, count in now.items():
            if count > self.figures.refused.get(cause, 0):
                say = log.debug if cause == LOOPED else log.warning  # usual where gateways read each other
                say("bridge: messages are skipped", bridge=self.name, cause=cause, so_far=count)
        self.figures.refused = dict(now)


async def _write(link: UpstreamStream, data: bytes) -> None:
    try:
        async with asyncio.timeout(WRITE_S):
            await link.write(data)
    except TimeoutError as error:
        raise UpstreamError("the upstream does not read from the connection") from error
