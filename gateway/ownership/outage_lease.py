"""Leases of an outage: proxies go on while the owners' keys cannot be reached, as long as no other can take over.

A proxy cannot know whether others reach a store group that it does not. So it asks the controllers' leader: while the
leader says that the home group is not served (`AskService`), the proxy goes on for `OUTAGE_LEASE_MS` after each time
that it asked. A proxy that takes over a dead proxy's names asks first whether any proxy may still hold such a lease.
Both are bounded: no proxy goes on for more than `outage_s`, and a successor that no controller answers waits for as
long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from controller.api.client import OUTAGE_LEASE_MS, ControllerError, Service
from gateway.ownership.presence import Presence
from store.base import logs
from store.base.rhythm import pause

ASK_S = 1.0  # between two questions, while a proxy's key is not renewed, and for an answer

log = logs.get(__name__)


class OutageLease:
    """The outage lease of one proxy. `service` says whether the home group is served; without it no lease is given."""

    def __init__(
        self,
        presence: Presence,
        service: Callable[[], Awaitable[Service]] | None,
        *,
        outage_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._presence = presence
        self._service = service
        self._outage_s = outage_s
        self._clock = clock
        self._gone_s: dict[str, float] = {}  # proxy -> when it was first seen to be gone; no more than there were
        self._going_on = False

    async def run(self) -> None:
        """Asks whenever this proxy could not renew its key for a while. Returns only without controllers to ask."""
        while self._service is not None:
            await pause(ASK_S if self._going_on else self._presence.interval_s / 2)
            await self.look()

    async def look(self) -> None:
        """Asks now, if that is due."""
        presence = self._presence
        if not presence.waning:
            if self._going_on and presence.present:
                log.info("the home store group is reached again", proxy=presence.id)
            self._going_on = False
            return
        asked_s = self._clock()
        found = await self._ask()
        if found is None or found.served:
            return
        if not self._going_on:
            log.warning(
                "the home store group is not served: this proxy keeps what it owns (outage lease)",
                proxy=presence.id,
            )
        self._going_on = True
        presence.go_on(asked_s + OUTAGE_LEASE_MS / 1_000, at_most_s=self._outage_s)

    async def may_take_over(self, proxy: str) -> bool:
        """Returns whether a proxy whose key is gone has certainly stopped, if it has a successor already.

        Before it has a successor this is a courtesy: after an outage it has time to come back.
        """
        if self._service is None:
            return True
        gone_s = self._gone_s.setdefault(proxy, self._clock())
        found = await self._ask()
        return (found is not None and found.served and found.sure_ms >= OUTAGE_LEASE_MS) or (
            self._clock() - gone_s >= self._outage_s
        )

    def forget(self, proxy: str | None = None) -> None:
        """Forgets a proxy that is there again, or gone with all its names; None: all proxies."""
        if proxy is None:
            self._gone_s.clear()
        else:
            self._gone_s.pop(proxy, None)

    async def _ask(self) -> Service | None:
        assert self._service is not None
        try:
            async with asyncio.timeout(ASK_S):
                return await self._service()
        except (ControllerError, TimeoutError) as error:
            log.debug("the controllers do not say whether the home group is served", error=repr(error))
            return None
