"""One fleet in a process of its own: `python -m deploy.demo.fleet NAME --run RUN`.

It is told what to do on standard input, a word a line, and says how far it is on standard output, a JSON object a line:

    starting -> ready, then "go" -> publishing, then "stop" -> stopped (nothing is in flight), then "end"

Its readers go on reading until "end", or until whoever started it is gone.
"""

import argparse
import asyncio
import contextlib
import importlib
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from deploy.demo.plan import FLEETS, RATES, Readings, Seen, Target
from deploy.demo.session_seen import SessionSeen

REPORT_S = 0.5
TICK_S = 0.05


class Report(msgspec.Struct, kw_only=True):
    """The progress of a fleet."""

    phase: str = "starting"
    acked: int = 0  # acknowledged by the gateway
    unknown: int = 0  # sent, and no answer came: may be in the log or not
    refused: int = 0  # answered with a refusal: not in the log
    read: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)  # reader -> fleet -> distinct messages
    missed: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)  # the same, QoS 0, lost to its absences
    error: str = ""


class Fleet:
    """The state that the clients of a fleet share. Its counters may be used from any thread."""

    def __init__(self, name: str, run: str, target: Target, rate: float) -> None:
        self.name, self.run, self.target, self.rate = name, run, target, rate
        self.readings = Readings(name, run)
        self.go, self.stop, self.end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.phase = "starting"
        self._counts = {"acked": 0, "unknown": 0, "refused": 0}
        self._readers: dict[str, Seen] = {}
        self._lock = threading.Lock()

    def count(self, what: str, n: int = 1) -> None:
        """Counts messages as "acked", "unknown" or "refused"."""
        with self._lock:
            self._counts[what] += n

    def reader(self, name: str) -> Seen:
        """Begins the record of what a reader, by its name in the summary, has seen."""
        seen = self._readers[name] = Seen(self.run)
        return seen

    def session_reader(self, name: str) -> SessionSeen:
        """Returns the same of a reader that goes away and comes back."""
        seen = self._readers[name] = SessionSeen(self.run)
        return seen

    async def due(self) -> AsyncIterator[int]:
        """Yields how many messages are due now, from "go" until "stop". A fleet that cannot keep up falls behind."""
        self.phase = "ready"
        await self.go.wait()
        if self.stop.is_set():
            return
        self.phase = "publishing"
        loop = asyncio.get_running_loop()
        last, owed = loop.time(), 0.0
        while not self.stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self.stop.wait()
                    return
            now = loop.time()
            owed = min(owed + (now - last) * self.rate, self.rate)
            last = now
            if owed >= 1:
                yield int(owed)
                owed -= int(owed)

    def report(self, error: str = "") -> Report:
        """Returns the report as of now."""
        with self._lock:
            counts = dict(self._counts)
        read = {name: dict(seen.by_fleet) for name, seen in self._readers.items()}
        missed = {name: seen.missed_by_fleet for name, seen in self._readers.items() if isinstance(seen, SessionSeen)}
        return Report(phase=self.phase, read=read, missed=missed, error=error, **counts)


async def _listen(fleet: Fleet) -> None:
    """Reads words from standard input; its end is an "end"."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    words = {b"go": fleet.go, b"stop": fleet.stop}
    while (word := (await reader.readline()).strip()) not in {b"end", b""}:
        if event := words.get(word):
            event.set()
    for event in (fleet.stop, fleet.go, fleet.end):  # in this order: what waits for "go" then finds it has to stop
        event.set()


async def _report(fleet: Fleet) -> None:
    while True:
        _say(fleet.report())
        await asyncio.sleep(REPORT_S)


def _say(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


async def _run(fleet: Fleet) -> None:
    module: Any = importlib.import_module(f"deploy.demo.{fleet.name}_clients")
    helpers = [asyncio.create_task(_listen(fleet)), asyncio.create_task(_report(fleet))]
    try:
        await module.run(fleet)
    finally:
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    _say(fleet.report())


def main() -> int:
    """Runs one fleet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=FLEETS)
    parser.add_argument("--run", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port-offset", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1.0, help="times the fleet's own rate")
    args = parser.parse_args()
    target = Target(args.host, args.port_offset)
    fleet = Fleet(args.name, args.run, target, RATES[args.name] * args.rate)
    try:
        asyncio.run(_run(fleet))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        _say(fleet.report(error=f"{type(error).__name__}: {error}"))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
