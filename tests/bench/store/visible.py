"""Measures the time from a call of append until readers have the frame: a listener, and one that fetches and waits."""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

from store.api.log import Appended
from store.base.errors import StoreError
from store.format.frame import FIRST_QUEUE, Frame, QueueNumber, QueueOffset, UnplacedFrame
from store.local.local import LocalStore
from tests.bench.store.store_append import WINDOW, build
from tests.bench.store.studies import Rows

QUEUE = QueueNumber(FIRST_QUEUE)
FETCH_BYTES = 1 << 20
WAIT_MS = 1_000
WARM_UP = 200  # frames whose times do not count, half of them at most


class Times:
    """The times at which each frame was handed to `append`, in order, and at which each of the three had it."""

    def __init__(self, store: LocalStore, frame: UnplacedFrame) -> None:
        self.store, self.frame = store, frame
        self.until = 0.0  # flat out: for each that is acknowledged another is sent until then
        self.begun: list[float] = []
        self.acknowledged: list[float] = []
        self.tailed: list[float] = []
        self.fetched: list[float] = []

    def append(self) -> None:
        self.begun.append(time.perf_counter())
        self.store.log.append(self.frame, self.done)

    def done(self, outcome: Appended | StoreError) -> None:
        assert isinstance(outcome, Appended), outcome
        now = time.perf_counter()
        self.acknowledged.append(now)
        if now < self.until:
            self.append()

    def listen(self, frames: Sequence[Frame]) -> None:
        self.tailed += [time.perf_counter()] * len(frames)

    async def fetch(self) -> None:
        """Follows the queue's end for ever, as a consumer does."""
        offset = QueueOffset(0)
        while True:
            found = await self.store.queues.fetch(QUEUE, offset, max_bytes=FETCH_BYTES, max_wait_ms=WAIT_MS)
            self.fetched += [time.perf_counter()] * len(found.frames)
            offset = found.next

    async def paced(self, rate: int, seconds: float) -> None:
        """Appends this many frames a second, each at its time."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        for i in range(int(rate * seconds)):
            await asyncio.sleep(max(started + i / rate - loop.time(), 0))
            self.append()

    async def flat_out(self, seconds: float) -> None:
        """Keeps `WINDOW` frames in flight all the time."""
        self.until = time.perf_counter() + seconds
        for _ in range(WINDOW):
            self.append()
        await asyncio.sleep(seconds)

    def summary(self) -> dict[str, float]:
        """Returns the figures: microseconds, and frames a second."""
        first = min(WARM_UP, len(self.begun) // 2)
        found = {"frames_per_s": (len(self.begun) - 1) / (self.fetched[-1] - self.begun[0])}
        for name in ("acknowledged", "tailed", "fetched"):
            ended = getattr(self, name)
            took = sorted(end - begun for begun, end in zip(self.begun[first:], ended[first:], strict=True))
            key = "tail" if name == "tailed" else name
            found |= {
                f"{key}_p50_us": took[len(took) // 2] * 1e6,
                f"{key}_p99_us": took[len(took) * 99 // 100] * 1e6,
                f"{key}_max_us": took[-1] * 1e6,
            }
        return found


async def measure_case(directory: Path, *, records: int, rate: int, seconds: float) -> Rows:
    """Measures frames of some records, at a rate or flat out (0)."""
    frame = build(records, 150, 1, 1_000, random.Random(1))
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        times = Times(store, frame)
        stop = store.log.tail(times.listen)
        fetching = asyncio.ensure_future(times.fetch())
        await (times.paced(rate, seconds) if rate else times.flat_out(seconds))
        while len(times.fetched) < len(times.begun) or len(times.acknowledged) < len(times.begun):
            assert not fetching.done()
            await asyncio.sleep(0.01)
        stop()
        fetching.cancel()
    load = f"{rate:,} frames/s" if rate else "flat out"
    return [(f"{records} record{'s' if records > 1 else ''} a frame, {load}", times.summary())]
