"""Compares what proxies say of themselves with what their clients get, at every sample of a run."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Readiness", "WrongWord"]

SAMPLE_S = 0.25
SERVED_NOTHING_S = 8.0  # a client that is refused for so long while its proxy says that it is ready was told a lie


class WrongWord(NamedTuple):
    """A proxy that said it was ready to a client that got nothing, and for how long."""

    proxy: str
    seconds: float
    refusals: int


class Readiness(threading.Thread):
    """Asks every proxy for its readiness, again and again, and remembers since when it has said so without a break.

    Clients report with `served` and `refused`, by the name of their proxy. `wrong` is what did not fit.
    """

    def __init__(self, proxies: Sequence[str], ready: Callable[[str], bool]) -> None:
        super().__init__(name="readiness", daemon=True)
        self._ready = ready
        self._lock = threading.Lock()
        self._since: dict[str, float | None] = dict.fromkeys(proxies)  # since when it says that it is ready
        self._served: dict[str, float] = {}
        self._refused: dict[str, list[float]] = {name: [] for name in proxies}  # when, since it was ready and served
        self._done = threading.Event()
        self.wrong: list[WrongWord] = []
        self.samples = 0

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            for name in self._since:
                self._look(name, self._ready(name))

    def stop(self) -> None:
        self._done.set()
        self.join()

    def _look(self, name: str, ready: bool) -> None:
        now = time.monotonic()
        with self._lock:
            self.samples += 1
            since = self._since[name]
            if not ready:
                self._since[name] = None
                self._refused[name].clear()
                return
            if since is None:
                self._since[name] = now
            # Clients may have gone to another proxy: only those that came again and again were told something wrong.
            refused = self._refused[name]
            if refused and refused[-1] - refused[0] >= SERVED_NOTHING_S:
                self.wrong.append(WrongWord(name, refused[-1] - refused[0], len(refused)))
                refused.clear()  # said once

    def served(self, name: str) -> None:
        """A client of this proxy was acknowledged something."""
        with self._lock:
            self._served[name] = time.monotonic()
            self._refused[name].clear()

    def refused(self, name: str) -> None:
        """A client of this proxy was told no, or lost its connection."""
        with self._lock:
            if self._since[name] is not None:
                self._refused[name].append(time.monotonic())

    def report(self) -> Mapping[str, int]:
        """For people."""
        return {"samples": self.samples, "wrong": len(self.wrong)}
