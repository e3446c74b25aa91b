"""Begins a gateway of a single node anew where the views of its store are damaged, as they are made anew then.

Replicas make theirs anew while another one is the master. A store alone has none in its place: the gateway ends in
order, with its workers, as it does when it is stopped, opens its store again and begins. Clients connect again.
"""

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

import msgspec

from gateway.config.config import Config
from gateway.runtime.reloading import RELOADED
from store.base import logs
from store.base.rhythm import pause

LOOK_S = 1.0
AGAIN_S = 600.0  # from one time to the next: a disk that damages views all the time must not stop the gateway as often

log = logs.get(__name__)


class Renewable(Protocol):
    """The part of a gateway's backend that tells when the gateway is to begin anew."""

    @property
    def ended(self) -> "asyncio.Future[Any] | None":
        """Returns a future that is set when the process has to stop; None: the backend has views of its own."""

    @property
    def makes_views_anew(self) -> bool:
        """Returns whether the store has damaged views that are made anew when it is opened again."""


class Renewing:
    """Decides when a gateway begins anew. `now_s` counts seconds, as `time.monotonic` does."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._last_s = -math.inf

    async def due(self, backend: Renewable) -> None:
        """Waits until the gateway is to begin anew, or has to end."""
        if backend.ended is not None:  # it has no views of its own
            await asyncio.wait([backend.ended])
            return
        while not self.is_due(backend):
            await pause(LOOK_S)

    def is_due(self, backend: Renewable) -> bool:
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

    def with_reloaded(self, new: Config) -> Config:
        """Returns it with the reloaded sections of another configuration."""
        return msgspec.structs.replace(self.config, **{name: getattr(new, name) for name in RELOADED})

    def take(self, new: Config) -> None:
        """Takes over the reloaded sections of a configuration that has been applied."""
        self.config = self.with_reloaded(new)
