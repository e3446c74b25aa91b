"""Subscribers in processes of their own, which do nothing but count PUBLISH packets."""

import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from tests.bench.load.base import SILENCE_S, LoadError
from tests.bench.load.mqtt.mqtt_wire import PublishCounter, connect, subscribe

FILTER = b"telemetry/#"
QUIET_S = 10.0  # without a single delivery: the rest is lost
RECEIVE_BYTES = 1 << 20


class Seen(NamedTuple):
    """The messages of a subscriber, and the times of the first and the last (`time.perf_counter`, valid everywhere)."""

    count: int
    first: float
    last: float


class Readers:
    """All subscribers, subscribed when the block is entered."""

    def __init__(self, host: str, port: int, *, subs: int, processes: int, expected: int) -> None:
        context = multiprocessing.get_context("fork")  # before any thread
        self._pipes: list[Connection] = []
        self._processes = []
        for n in range(min(processes, subs)):
            ours, theirs = context.Pipe()
            share = subs // processes + (n < subs % processes)
            process = context.Process(target=_read, args=(theirs, host, port, share, expected), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> "Readers":
        for pipe in self._pipes:
            self._hear(pipe, SILENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def results(self) -> Sequence[Seen]:
        """Returns what each subscriber got, when the last has everything or nothing more comes. Raises `LoadError`."""
        return [Seen(*one) for pipe in self._pipes for one in self._hear(pipe, 600)]

    @staticmethod
    def _hear(pipe: Connection, seconds: float) -> list[Seen]:
        if not pipe.poll(seconds):
            raise LoadError("a reader says nothing")
        try:
            heard = pipe.recv()
        except EOFError:
            raise LoadError("a reader has ended") from None
        if isinstance(heard, str):
            raise LoadError(heard)
        return heard


def _read(pipe: Connection, host: str, port: int, subs: int, expected: int) -> None:
    try:
        connections = [connect(host, port, f"reader-{os.getpid()}-{n}") for n in range(subs)]
        for one in connections:
            subscribe(one, FILTER, qos=0)
            one.setblocking(False)
        pipe.send([])
        pipe.send(_count(connections, expected))
    except (LoadError, OSError) as error:
        pipe.send(f"a subscriber failed: {error}")


def _count(connections: Sequence[socket.socket], expected: int) -> list[Seen]:
    """Reads until every connection has received what is expected, or nothing has come for a while."""
    selector = selectors.DefaultSelector()
    counters = {one: PublishCounter() for one in connections}
    first: dict[socket.socket, float] = {}
    last: dict[socket.socket, float] = {}
    for one in connections:
        selector.register(one, selectors.EVENT_READ)
    waited_s = SILENCE_S  # publishers may take their time to begin
    while selector.get_map():
        ready = selector.select(waited_s)
        if not ready:
            break
        waited_s = QUIET_S
        for key, _ in ready:
            connection = key.fileobj
            data = connection.recv(RECEIVE_BYTES)
            now = time.perf_counter()
            if data:
                first.setdefault(connection, now)
                last[connection] = now
                counters[connection].feed(data)
            if not data or counters[connection].count >= expected:
                selector.unregister(connection)
    return [Seen(counters[one].count, first.get(one, 0.0), last.get(one, 0.0)) for one in connections]
