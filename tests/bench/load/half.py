"""Half of what a server can do: first its most, with one request under way for each peer, then half of that, paced.

In the second part requests leave at their times, one peer after the other, whatever has become of those before. So the
percentiles are those of a server with room to spare, and each server is asked for half of its own most.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import msgspec

from tests.bench.load.base import LoadError, Measured
from tests.bench.load.one_each import READ_BYTES, READY_MAX, Peer, one_each
from tests.bench.load.paced import DRAIN_S, LATE_S, paced
from tests.bench.procfs import cpu_s


class Answers(NamedTuple):
    """The numbers of requests that were answered, and the bytes to send at once."""

    numbers: Sequence[int]
    urgent: bytes = b""


class Wire(Protocol):
    """The requests of one connection, numbered from 0, and their answers."""

    opening: bytes

    def request(self) -> bytes:
        """Returns the bytes of the next request."""

    def feed(self, data: bytes) -> Answers:
        """Takes bytes from the server. Raises `LoadError` where a request was refused."""


def half_load(
    connect: Callable[[], socket.socket],
    wire: Callable[[int], Wire],
    *,
    conns: int,
    probe_s: float,
    duration_s: float,
    pid: int,
    datagrams: bool = False,
) -> Measured:
    """Returns the p99, in ms, at half of the most that `conns` connections get; `wire` makes that of each.

    `rate` is that half, a second. `datagrams` may be lost: those of the first part are sent again. Raises `LoadError`,
    OSError.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(connect()) for _ in range(conns)]
        peers = [_peer(one, wire(n)) for n, one in enumerate(sockets)]
        most = one_each(peers, duration_s=probe_s, pid=pid, again=datagrams).value
    with ExitStack() as held:
        sockets = [held.enter_context(connect()) for _ in range(conns)]
        pacing = _Pacing([(one, wire(n)) for n, one in enumerate(sockets)], most / 2)
        used_s = cpu_s(pid) if pid else 0.0
        found = pacing.run(duration_s)
        used_s = cpu_s(pid) - used_s if pid else 0.0
    also = {"average_ms": found.value, **found.also, "rate": most / 2, "server_us": used_s / found.done * 1e6}
    return msgspec.structs.replace(found, value=also["p99_ms"], also=also)


def _peer(one: socket.socket, wire: Wire) -> Peer:
    def answered(data: bytes) -> bytes:
        numbers, urgent = wire.feed(data)
        if numbers:
            return urgent + wire.request()
        if urgent:
            one.send(urgent)
        return b""

    return one, wire.opening + wire.request(), answered


class _Pacing:
    """The second part of one run."""

    def __init__(self, peers: Sequence[tuple[socket.socket, Wire]], rate: float) -> None:
        self._peers = peers
        self._rate = rate
        self._sent_s: list[dict[int, float]] = [{} for _ in peers]  # of each connection, by the number of a request
        self._unsent = [bytearray() for _ in peers]  # that a socket had no room for
        self._taken_s: list[float] = []

    def run(self, duration_s: float) -> Measured:
        """Sends and reads for so long, and until the last answers."""
        total = int(self._rate * duration_s)
        sent = late = 0
        with select.epoll() as poller:
            by_file: dict[int, int] = {}
            for index, (one, wire) in enumerate(self._peers):
                one.setblocking(False)
                poller.register(one.fileno(), select.EPOLLIN)
                by_file[one.fileno()] = index
                self._send(index, wire.opening)
            started = time.perf_counter()
            end = started + duration_s + DRAIN_S
            while len(self._taken_s) < total and (now := time.perf_counter()) < end:
                due = started + sent / self._rate
                wait_s = (due if sent < total else end) - now
                if sent < total and wait_s <= 0:
                    late += -wait_s > LATE_S
                    self._ask(sent)
                    sent += 1
                select.select([poller], [], [], max(wait_s, 0.0))  # epoll's own time-out is in whole ms
                for number, _ in poller.poll(0, READY_MAX):
                    self._read(by_file[number])
        return paced(self._taken_s, total=total, late=late, elapsed_s=time.perf_counter() - started)

    def _ask(self, number: int) -> None:
        index, of_connection = number % len(self._peers), number // len(self._peers)
        self._sent_s[index][of_connection] = time.perf_counter()
        self._send(index, self._peers[index][1].request())

    def _send(self, index: int, data: bytes) -> None:
        """Sends bytes, behind those that had no room before."""
        waiting = self._unsent[index]
        waiting += data
        if not waiting:
            return
        try:
            done = self._peers[index][0].send(waiting)
        except BlockingIOError:
            done = 0
        del waiting[:done]

    def _read(self, index: int) -> None:
        one, wire = self._peers[index]
        try:
            data = one.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise LoadError("closed by the server")
        now = time.perf_counter()
        numbers, urgent = wire.feed(data)
        sent_s = self._sent_s[index]
        # A datagram's answer may come twice: from a server that was not told that it came.
        self._taken_s += [now - at for number in numbers if (at := sent_s.pop(number, None)) is not None]
        if urgent or self._unsent[index]:
            self._send(index, urgent)
