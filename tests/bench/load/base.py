"""The part that all loads share: their options, their measurements, and threads that begin together.

A load is a frozen struct: its fields are its options, `run` does the work and returns what it measured. It runs in a
process of its own (`python -m tests.bench.load JSON`) and talks to the server with packets that were encoded before
the clock started, so that the server is what is measured.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

SILENCE_S = 20.0  # a server that says nothing for so long has failed

Count: TypeAlias = Annotated[int, Meta(ge=1)]
T = TypeVar("T")


class LoadError(Exception):
    """The server did not do what was asked of it: the run counts as failed."""


class Silence(LoadError):
    """Nothing has come for as long as the socket waits."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one run. `value` is the figure, in the figure's unit; `also` holds other observations."""

    value: float
    elapsed_s: float
    done: int
    failed: int = 0  # lost, refused or not acknowledged
    also: dict[str, float] = msgspec.field(default_factory=dict)


class Load(msgspec.Struct, frozen=True, kw_only=True, tag_field="load"):
    """A load and the address of its server; `pid` leads the server's session, for loads that look at its memory."""

    host: str = "127.0.0.1"
    port: int = 0
    pid: int = 0

    def run(self) -> Measured:
        """Puts the load on the server. Raises `LoadError`, OSError."""
        raise NotImplementedError


def json_payload(size_bytes: int) -> bytes:
    """Returns a reading as a device sends it, padded with spaces to a size; cut when the size is smaller."""
    return b'{"temperature":21.5,"humidity":40}'.ljust(size_bytes)[:size_bytes]


def percentile(ordered: Sequence[float], part: float) -> float:
    """Returns the value that `part` of the ordered values do not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def together(work: Callable[[T], int], each: Sequence[T]) -> tuple[int, float]:
    """Runs `work` on each in its own thread, all beginning at once; returns the sum of what they did, and the
    seconds.

    The first error of a thread is raised when all have ended.
    """
    barrier = threading.Barrier(len(each) + 1)

    def begin(one: T) -> tuple[int, float]:
        barrier.wait()
        return work(one), time.perf_counter()

    with ThreadPoolExecutor(len(each)) as pool:
        futures = [pool.submit(begin, one) for one in each]
        barrier.wait()
        started = time.perf_counter()
    results = [future.result() for future in futures]
    return sum(done for done, _ in results), max(ended for _, ended in results) - started
