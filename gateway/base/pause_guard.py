"""Noticing that this process was stopped, from the time that the event loop takes between two looks at a clock."""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from store.base import logs
from store.base.rhythm import pause

LOOK_S = 0.5  # between two looks
SLEPT_S = 1.5  # without a look: half of the time until another proxy takes a session by force
HELD_BYTES_MAX = 64 << 20  # of input, of all connections; beyond, it is read as ever

log = logs.get(__name__)


class PausedReader(Protocol):
    """A connection whose input waits."""

    def wake(self, data: bytes) -> None:
        """Reads the held input, and goes on reading."""


class PauseGuard:
    """Holds input after this process has slept, until it knows what it still owns.

    `confirm` renews its presence, or finds that it owns nothing any more; it ends soon, with either outcome.
    """

    def __init__(
        self, confirm: Callable[[], Awaitable[object]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._confirm = confirm
        self._clock = clock
        self._looked_s: float | None = None  # None: no task looks, and nothing is held
        self._confirming = False
        self._held: dict[PausedReader, bytes] = {}  # bytes that were read since; one read of each connection
        self._held_bytes = 0  # <= HELD_BYTES_MAX

    @property
    def slept(self) -> bool:
        """Returns whether this process was stopped, and has not renewed its presence since."""
        looked_s = self._looked_s
        return self._confirming or (looked_s is not None and self._clock() - looked_s > SLEPT_S)

    def holds(self, reader: PausedReader, data: bytes) -> bool:
        """Keeps input until `PausedReader.wake`, if this process has slept; returns whether it is kept."""
        if not self.slept or self._held_bytes + len(data) > HELD_BYTES_MAX:
            return False
        self._held[reader] = self._held.get(reader, b"") + data
        self._held_bytes += len(data)
        return True

    def give_back(self, reader: PausedReader) -> bytes:
        """Returns the input that is held of a connection that ends, and holds it no longer."""
        data = self._held.pop(reader, b"")
        self._held_bytes -= len(data)
        return data

    async def run(self) -> None:
        """Looks at the clock, forever."""
        self._looked_s = self._clock()
        while True:
            await pause(LOOK_S)
            if self.slept:
                await self._wake(self._clock() - self._looked_s)
            self._looked_s = self._clock()

    async def _wake(self, slept_s: float) -> None:
        log.warning(
            "this process did not run for a while (stopped, or the machine was overloaded)", for_s=round(slept_s, 1)
        )
        self._confirming = True
        try:
            await self._confirm()
        finally:
            self._confirming, self._looked_s = False, self._clock()
            for reader in list(self._held):
                reader.wake(self.give_back(reader))
