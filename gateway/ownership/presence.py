"""The proxies that are present: each has a key that expires unless it is refreshed.

A proxy that could not refresh its key in time considers itself gone before the others do: it counts its time to live
from when it asked, the store from when the request arrived.

Keys expire by the clock of the store, also while no proxy can reach it. So a proxy that finds its own key gone puts it
back, unless another proxy has become its successor: a transaction over both keys decides. A proxy that could not renew
its own key for a while becomes no successor: the others could not renew theirs either, and come back like it.
"""

import time
from collections.abc import Callable

from gateway.domain.keys import kv_key
from gateway.port.adapter import Random
from store.api.client import StoreClient
from store.api.keys import EXISTS, Put
from store.base import logs
from store.base.errors import RevisionConflict, StoreError

ALIVE, SUCCESSORS = "proxies/alive", "proxies/heirs"
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
        self.expires_s = 0.0  # from then on other proxies may take the key for expired
        self.until_s = 0.0  # the presence ends; later than `expires_s` under `gateway.ownership.outage_lease`
        self._renewed_since_s: float | None = None  # without a break
        self.interval_s = ttl_s / BEATS
        self._choose_id()

    def _choose_id(self) -> None:
        self.id = f"{self._random.getrandbits(64):016x}"

    async def enter(self) -> None:
        """Creates the presence key, as of one that was never there before. Raises `StoreError`."""
        self._choose_id()
        asked_s = self._clock()
        await self._store.keys.put(kv_key(ALIVE, self.id), b"", ttl_ms=self._ttl_ms)
        self.expires_s = self.until_s = asked_s + self._ttl_s
        self.present = True
        self._renewed_since_s = self._clock()

    async def renew(self) -> None:
        """Renews the presence key. Raises `StoreError`, `RevisionConflict` when another proxy is the successor."""
        asked_s = self._clock()
        since_s, self._renewed_since_s = self._renewed_since_s, None
        key = kv_key(ALIVE, self.id)
        try:
            await self._store.keys.put(key, b"", expected_revision=EXISTS, ttl_ms=self._ttl_ms)
        except RevisionConflict:
            if not self.present:
                raise
            await self._store.keys.transact(
                {key: 0, kv_key(SUCCESSORS, self.id): 0}, [Put(key, b"", ttl_ms=self._ttl_ms)]
            )
            log.warning("the key of this proxy had expired and is restored", proxy=self.id)
            since_s = None
        renewed_s = self._clock()
        late = renewed_s - asked_s > self.interval_s / 2
        self._renewed_since_s = renewed_s if since_s is None or late else since_s
        self.expires_s = self.until_s = asked_s + self._ttl_s

    async def take_over(self, proxy: str, *, expected_revision: int) -> None:
        """Becomes the successor of a proxy that is gone. Raises `RevisionConflict` if it is there or has one."""
        successor = kv_key(SUCCESSORS, proxy)
        await self._store.keys.transact(
            {successor: expected_revision, kv_key(ALIVE, proxy): 0}, [Put(successor, self.id.encode())]
        )

    async def taken_over(self, proxy: str) -> None:
        """Notes that all of a proxy's names are taken over. It cannot return while it may believe to be present."""
        await self._store.keys.put(kv_key(SUCCESSORS, proxy), self.id.encode(), ttl_ms=2 * self._ttl_ms)

    @property
    def renewed(self) -> bool:
        """Returns whether the store has confirmed our last refresh; False while a refresh is in flight."""
        return self._renewed_since_s is not None

    @property
    def settled(self) -> bool:
        """Returns whether we have been present for long enough that other proxies would be as well."""
        since_s = self._renewed_since_s
        return self.present and since_s is not None and self._clock() - since_s >= self.interval_s

    @property
    def _ttl_ms(self) -> int:
        return max(1, int(self._ttl_s * 1_000))

    @property
    def waning(self) -> bool:
        """Returns whether we are present, but our last confirmed refresh is older than it should be between two."""
        return self.remaining_s > 0 and self.expires_s - self._clock() < self._ttl_s / 2

    def go_on(self, until_s: float, *, at_most_s: float) -> None:
        """Extends the presence, as no other proxy can take our names: `at_most_s` longer than the others were told."""
        if self.remaining_s > 0:
            self.until_s = max(self.until_s, min(until_s, self.expires_s + at_most_s))

    @property
    def remaining_s(self) -> float:
        """Returns how long we are present at least."""
        return self.until_s - self._clock() if self.present else 0.0

    async def leave(self) -> None:
        """Removes the presence key; whatever the store says, times will do it."""
        if not self.present:
            return
        self.present = False
        try:
            await self._store.keys.delete(kv_key(ALIVE, self.id), expected_revision=EXISTS)
        except RevisionConflict:
            pass
        except StoreError as error:
            log.warning(
                "the presence key could not be removed: the other proxies take over when it expires", error=str(error)
            )

    async def is_there(self, proxy: str) -> bool:
        """Returns whether a proxy is present. Raises `StoreError`."""
        if proxy == self.id:
            return self.present
        return await self._store.keys.get(kv_key(ALIVE, proxy)) is not None
