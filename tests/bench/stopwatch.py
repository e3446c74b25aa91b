"""Measures where time goes: steps that may nest, each counted without the steps inside it."""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Spent:
    """The time of a step: by the clock, and of a processor."""

    wall_ns: int = 0
    cpu_ns: int = 0


class Stopwatch:
    """Any thread may time steps; a step belongs to one thread. A step costs about a microsecond to time."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, Spent] = defaultdict(Spent)
        self._local = threading.local()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Counts the time of this block, without the steps within it."""
        running: list[str] = self._local.__dict__.setdefault("running", [])
        self._add(running[-1] if running else None)
        running.append(name)
        try:
            yield
        finally:
            self._add(running.pop())

    def timed(self, name: str, work: Callable[P, T]) -> Callable[P, T]:
        """Returns a callable whose time counts as a step."""

        @functools.wraps(work)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.step(name):
                return work(*args, **kwargs)

        return wrapped

    def _add(self, name: str | None) -> None:
        """Adds the time since the last change of step to `name`."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        if name is not None:
            spent = self.spent[name]
            spent.wall_ns += wall - self._local.wall
            spent.cpu_ns += cpu - self._local.cpu
        self._local.wall, self._local.cpu = wall, cpu
