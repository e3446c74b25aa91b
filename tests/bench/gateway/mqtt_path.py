"""Measures each step of a message from an MQTT PUBLISH to its PUBACK: the real code, timed in this process.

    python -m tests.bench profile

No socket and no event loop: connections are adapters, the clock is a counter, and the store is a real one in a
temporary directory, synced. One step runs at a time, so nothing waits for the interpreter lock; in a gateway the
store's threads work beside the event loop, and only `adapter` to `completed` without `commit`, `sync` and `index` are
the loop's. Two columns a run: us a message by the clock, and of a processor.
"""

import asyncio
import functools
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from adapters.mqtt import FACTORY
from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.domain.principal import Principal
from gateway.ops.metrics import Metrics
from gateway.port.adapter import Authenticate, Call, ConnectionInfo, Outcome, Publish, Token
from gateway.port.sessions import OpenedSession, OpenSession
from gateway.publishing.ingest import Ingest
from gateway.publishing.routing.router import Router
from store.disk.files import File, OsFile, OsFiles
from store.format.frame import UnplacedFrame
from store.local.local import LocalStore
from tests.bench.load.mqtt.mqtt_publish import MqttPublish
from tests.bench.load.mqtt.mqtt_wire import connect_packet
from tests.bench.stopwatch import Spent, Stopwatch

TOPICS = (4, 5_000)
CONNECTIONS = 4
READ = 100  # messages in one read of one connection
TURNS = 100  # of the event loop, every connection read once in each, before the views follow
GATHERINGS = 10
WARM_UP = 2  # gatherings not timed
WAIT_S = 60.0
T0_MS = 1_700_000_000_000
FIRST_LEVEL = "telemetry"  # the topic of every address of the load
ANSWERS = {
    Authenticate: Outcome(value=Principal(name="")),
    OpenSession: Outcome(value=OpenedSession(present=False)),
}
STEPS = {
    "adapter": "receive: bytes to messages",
    "ingest": "route, encode, rows; hand over; outcomes back",
    "frame": "build: join, body checksum",
    "commit": "place, header checksum, write, queue offsets",
    "sync": "fdatasync",
    "report": "in-memory index and cache",
    "completed": "outcome to PUBACK bytes",
    "index": "views: one transaction for a gathering",
}


class Loop:
    """As much of an event loop as ingest and the store need: what was asked for, in order."""

    def __init__(self) -> None:
        self._due: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def call_soon(self, work: Callable[..., object], *args: object) -> None:
        """Calls something on this loop, from any thread."""
        self._due.put(functools.partial(work, *args))

    call_soon_threadsafe = call_soon

    def time(self) -> float:
        """Returns the seconds of a clock that never goes back."""
        return time.monotonic()

    def call_later(self, _seconds: float, _work: Callable[[], object]) -> asyncio.Handle:
        """Schedules nothing: no timer is part of the path."""
        return mock.create_autospec(asyncio.Handle, instance=True)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Runs what is asked for, and waits for more, until a condition holds."""
        while not done():
            self._due.get(timeout=WAIT_S)()


class RepeatingPeer:
    """One connection, whose client sends the same blocks over and over."""

    principal: Principal | None = None

    def __init__(self, number: int, load: MqttPublish, watch: Stopwatch) -> None:
        info = ConnectionInfo(peer=("127.0.0.1", 40_000 + number), local=("127.0.0.1", 1883), loopback=True)
        self.adapter: Any = FACTORY.connect(info, FACTORY.options(), random=random.Random(number))
        self.blocks = load.blocks(number)
        self.acknowledged = 0  # messages
        self._watch = watch
        effects = list(self.adapter.receive(connect_packet(f"profile-{number}"), now_ms=T0_MS))
        while effects:
            call = effects.pop(0)
            assert isinstance(call, Call), call
            effects += self.adapter.completed(call.token, ANSWERS[type(call.request)], now_ms=T0_MS)
        assert self.adapter.take_output() == b"\x20\x02\x00\x00"

    def published(self, token: Token, outcome: Outcome, _size_bytes: int) -> None:
        """Notes an outcome of ingest: see `gateway.publishing.ingest.Publisher`."""
        assert outcome.error is None
        assert not outcome.refused
        with self._watch.step("completed"):
            self.adapter.completed(token, outcome, now_ms=T0_MS)
            acks = self.adapter.take_output()
        self.acknowledged += len(acks) // 4


class TimedFile(OsFile):
    """A file whose sync is a step of its own."""

    __slots__ = ("_watch",)

    def __init__(self, fd: int, watch: Stopwatch) -> None:
        super().__init__(fd)
        self._watch = watch

    def sync(self) -> None:
        """See `File`."""
        with self._watch.step("sync"):
            super().sync()


class TimedFiles(OsFiles):
    """The file system, with such files."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        opened = super().open(path, create=create)
        return TimedFile(os.dup(opened._fd), self._watch)  # the other one closes with its last user, which is here


class Pipeline:
    """The way in, put together as the gateway does it, every step timed."""

    def __init__(self, directory: Path, watch: Stopwatch, opened: ExitStack) -> None:
        self.watch = watch
        self.loop = Loop()
        loop: Any = self.loop
        controller = asyncio.run(_controller(directory / "controller"))
        # The dispatcher lingers until it is told to hurry: one transaction for each gathering.
        self.store = LocalStore(directory, loop=loop, now_ms=lambda: T0_MS, files=TimedFiles(watch), linger_s=WAIT_S)
        self.engine = self.store.core.engine
        opened.callback(self.store._close_blocking)
        committer = self.engine._committer
        committer._commit = watch.timed("commit", committer._commit)
        self.engine.views.apply = watch.timed("index", self.engine.views.apply)
        build = watch.timed("frame", UnplacedFrame.build)
        opened.enter_context(mock.patch.object(UnplacedFrame, "build", build))
        self.ingest = Ingest(
            self.store,
            Router(controller),
            Metrics(process=False),
            new_producer=itertools.count(1).__next__,
            message_bytes_max=1 << 20,
            soon=self._soon,
            clock=time.perf_counter,
            create_topic=_no_topic,
            appended_to=lambda _: None,
            drained=lambda: None,
            acknowledged=lambda _: None,
        )

    def _soon(self, work: Callable[[], None]) -> None:
        self.loop.call_soon(self.watch.timed("ingest", work))

    def turn(self, peers: Sequence[RepeatingPeer], number: int) -> None:
        """Reads every connection once, and acknowledges everything."""
        watch, wanted = self.watch, sum(peer.acknowledged for peer in peers) + READ * len(peers)
        for peer in peers:
            data = peer.blocks[number % len(peer.blocks)]
            with watch.step("adapter"):
                effects = peer.adapter.receive(data, now_ms=T0_MS + number)
            for effect in effects:
                assert isinstance(effect, Publish), effect
                with watch.step("ingest"):
                    self.ingest.publish(peer, effect, len(data))
        self.loop.run_until(lambda: sum(peer.acknowledged for peer in peers) >= wanted)

    def gather(self) -> None:
        """Waits until the views have followed."""
        end = self.engine.log.end
        self.engine.apply_views(end)
        self.loop.run_until(lambda: self.engine.views.dispatched >= end)


def measure(topics: int, directory: Path, *, turns: int = TURNS, gatherings: int = GATHERINGS) -> dict[str, Spent]:
    """Returns the time spent in each step, over all messages; the first gatherings do not count."""
    watch = Stopwatch()
    load = MqttPublish(conns=CONNECTIONS, window=2 * READ, topics=topics // CONNECTIONS)
    with ExitStack() as opened:
        pipeline = Pipeline(directory, watch, opened)
        # The store's reports are a step, too; the calls within them are timed on their own.
        pipeline.store.log._cache.put = watch.timed("report", pipeline.store.log._cache.put)
        pipeline.store.core.recent.add = watch.timed("report", pipeline.store.core.recent.add)
        pipeline.store.core.recent.follow = watch.timed("report", pipeline.store.core.recent.follow)
        outgoing = pipeline.ingest._outgoing
        outgoing._done = watch.timed("ingest", outgoing._done)
        peers = [RepeatingPeer(number, load, watch) for number in range(CONNECTIONS)]
        for gathering in range(WARM_UP + gatherings):
            if gathering == WARM_UP:
                watch.spent.clear()
            for number in range(turns):
                pipeline.turn(peers, gathering * turns + number)
            pipeline.gather()
        return dict(watch.spent)


async def _controller(directory: Path) -> LocalController:
    controller = LocalController.open(directory, now_ms=lambda: T0_MS)
    await controller.do(CreateTopic(name=FIRST_LEVEL))
    return controller


def _no_topic(name: str, _creator: str) -> None:
    raise AssertionError(f"the topic {name!r} should be there")


def main() -> int:
    """Measures, prints the table, and returns the exit status."""
    messages = CONNECTIONS * READ * TURNS * GATHERINGS
    found = {}
    for topics in TOPICS:
        with tempfile.TemporaryDirectory(prefix="profile-") as directory:
            found[topics] = measure(topics, Path(directory))
    assert set(found[TOPICS[0]]) == set(STEPS)
    table = Table(title=f"us a message, of {messages:,} (clock / processor)", title_justify="left", box=None)
    table.add_column("step")
    for topics in TOPICS:
        table.add_column(f"{topics:,} topics", justify="right")
    table.add_column("what it does")
    for step, text in STEPS.items():
        table.add_row(step, *(_cell([spent[step]], messages) for spent in found.values()), text)
    table.add_row("all", *(_cell(list(spent.values()), messages) for spent in found.values()), style="bold")
    Console().print(table)
    return 0


def _cell(spent: Sequence[Spent], messages: int) -> str:
    wall = sum(one.wall_ns for one in spent) / messages / 1e3
    cpu = sum(one.cpu_ns for one in spent) / messages / 1e3
    return f"{wall:.3f} / {cpu:.3f}"


if __name__ == "__main__":
    sys.exit(main())
