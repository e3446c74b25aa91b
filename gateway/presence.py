"""Which proxies there are: each has a key that expires when it is not heard of.

A proxy whose key could not be refreshed in time takes itself for dead before the others do: the time to live that it
counts begins when it asked, the store's when it was heard.
"""

import time
from collections.abc import Callable

from gateway import logs
from gateway.keys import kv_key
from gateway.port import Random
from store.client import EXISTS, StoreClient
from store.errors import RevisionConflict, StoreError

__all__ = ["ALIVE", "Presence"]

ALIVE = "proxies/alive"
BEATS = 3  # in one time to live

log = logs.get(__name__)


class Presence:
    """This proxy's own key, and a look at those of others. `clock` counts seconds and never goes back."""

    def __init__(
        self, store: StoreClient, *, ttl_s: float, random: Random, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._random = random
        self._clock = clock
        self.id = ""
        self.present = False  # others know that we are there
        self._until_s = 0.0  # when that ends unless we are heard of
        self.interval_s = ttl_s / BEATS
        self._renew()

    def _renew(self) -> None:
        self.id = f"{self._random.getrandbits(64):016x}"

    async def enter(self) -> None:
        """Be there, as one that was never there before. Raises `StoreError`."""
        self._renew()
        asked_s = self._clock()
        await self._store.kv_put(kv_key(ALIVE, self.id), b"", ttl_ms=self._ttl_ms)
        self._until_s, self.present = asked_s + self._ttl_s, True

    async def beat(self) -> None:
        """Be heard of once more. Raises `StoreError`, `RevisionConflict` when the others take us for dead."""
        asked_s = self._clock()
        await self._store.kv_put(kv_key(ALIVE, self.id), b"", expected_revision=EXISTS, ttl_ms=self._ttl_ms)
        self._until_s = asked_s + self._ttl_s

    @property
    def _ttl_ms(self) -> int:
        return max(1, int(self._ttl_s * 1_000))

    @property
    def remaining_s(self) -> float:
        """How long we are there at least."""
        return self._until_s - self._clock() if self.present else 0.0

    async def leave(self) -> None:
        """Be gone; whatever the store says, time will do it."""
        if not self.present:
            return
        self.present = False
        try:
            await self._store.kv_delete(kv_key(ALIVE, self.id), expected_revision=EXISTS)
        except RevisionConflict:
            pass
        except StoreError as error:
            log.warning("the other proxies are not told that this one ends", error=str(error))

    async def is_there(self, proxy: str) -> bool:
        """Whether a proxy is there. Raises `StoreError`."""
        if proxy == self.id:
            return self.present
        return await self._store.kv_get(kv_key(ALIVE, proxy)) is not None
