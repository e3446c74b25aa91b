"""Begins a gateway of a single node anew where the views of its store are damaged, as they are made anew then.

Replicas make theirs anew while another one is the master. A store alone has none in its place: the gateway ends in
order, as it does when it is stopped, opens its store again and begins. Clients connect again.
"""

import asyncio
import math
from collections.abc import Callable
from time import monotonic

import msgspec

from gateway.config.config import Config
from gateway.process.backend import Backend
from gateway.runtime.reloading import RELOADED
from store.base import logs
from store.base.rhythm import pause

LOOK_S = 1.0
AGAIN_S = 600.0  # from one time to the next: a disk that damages views all the time must not stop the gateway as often

log = logs.get(__name__)


class Renewing:
    """Decides when a gateway begins anew. `now_s` counts seconds, as `time.monotonic` does."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._last_s = -math.inf

    async def due(self, backend: Backend) -> None:
        """Waits until the gateway is to begin anew, or has to end."""
        if backend.ended is not None:  # it has no views of its own
            await asyncio.wait([backend.ended])
            return
        while not self.is_due(backend):
            await pause(LOOK_S)

    def is_due(self, backend: Backend) -> bool:
        """Returns whether the gateway is to begin anew now; then it counts as done."""
        now_s = self._now_s()
        if not backend.makes_views_anew or now_s - self._last_s < AGAIN_S:
            return False
        self._last_s = now_s
        log.error("the gateway begins anew, as the views of its store are damaged: they are made from the log")
        return True


class NewestConfig:
    """The configuration of the start, with the newest users and access rules, for a gateway that begins anew."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def take(self, new: Config) -> None:
        """Takes over the reloaded sections of a configuration that has been applied."""
        sections = {name: getattr(new, name) for name in RELOADED}
        self.config = msgspec.structs.replace(self.config, **sections)
