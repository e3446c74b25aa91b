"""Many peers in one process, each with one request under way: the next leaves when the answer before it has come.

Reads and writes sockets as epoll names them, so one core of Python sets its own limit, near 160,000 answers a second
where the answer is a few bytes.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tests.bench.load.base import SILENCE_S, LoadError, Measured, percentile
from tests.bench.procfs import cpu_s

READY_MAX = 1_024  # sockets of one look
READ_BYTES = 1 << 16
AGAIN_S = 2.0  # a datagram that was not answered by then is sent again (RFC 7252, 4.8: ACK_TIMEOUT)

# A socket; the bytes of its first request; and a function that is given what came, and returns the bytes of the next
# request, empty while the answer is not whole. It raises `LoadError`.
Peer: TypeAlias = tuple[socket.socket, bytes, Callable[[bytes], bytes]]


def one_each(peers: Sequence[Peer], *, duration_s: float, pid: int, again: bool = False) -> Measured:
    """Returns the answers a second, and the microseconds of processor that the session of `pid` took for each.

    `again`: datagrams may be lost, and are sent again. Raises `LoadError`, OSError.
    """
    with select.epoll() as poller:
        driven = _Driven(poller, peers)
        used_s = cpu_s(pid) if pid else 0.0
        driven.run(duration_s, again_s=AGAIN_S if again else 0.0)
        used_s = cpu_s(pid) - used_s if pid else 0.0
    found = measured(driven.waits, driven.elapsed_s, used_s)
    if again:
        found.also["sent_again"] = float(driven.sent_again)
    return found


def measured(waits: list[float], elapsed_s: float, used_s: float) -> Measured:
    """Returns the figures of answers that took so many seconds each, and of the server, which used a processor so long.

    Raises `LoadError` where there was no answer.
    """
    if not waits:
        raise LoadError("nothing was answered")
    waits.sort()
    also = {
        "mean_ms": sum(waits) / len(waits) * 1000,
        "p99_ms": percentile(waits, 0.99) * 1000,
        "max_ms": waits[-1] * 1000,
        "server_us": used_s / len(waits) * 1e6,
    }
    return Measured(value=len(waits) / elapsed_s, elapsed_s=elapsed_s, done=len(waits), also=also)


class _Driven:
    """The peers of one run, and what has come of it."""

    def __init__(self, poller: select.epoll, peers: Sequence[Peer]) -> None:
        self.waits: list[float] = []  # seconds, of each answer
        self.elapsed_s = 0.0
        self.sent_again = 0
        self._poller = poller
        self._peers = {one.fileno(): (one, answered) for one, _, answered in peers}
        self._under_way = {one.fileno(): first for one, first, _ in peers}
        self._sent_s: dict[int, float] = {}

    def run(self, duration_s: float, *, again_s: float) -> None:
        """Asks and reads for so long."""
        clock, peers, under_way, sent_s, waits = (
            time.perf_counter,
            self._peers,
            self._under_way,
            self._sent_s,
            self.waits,
        )
        for number, (one, _) in peers.items():
            one.setblocking(False)
            self._poller.register(number, select.EPOLLIN)
            sent_s[number] = clock()
            one.send(under_way[number])
        began_s = clock()
        ends_s, look_s = began_s + duration_s, began_s + again_s
        while (now_s := clock()) < ends_s:
            ready = self._poller.poll(again_s or SILENCE_S, READY_MAX)
            if again_s and now_s >= look_s:
                look_s = now_s + again_s / 4
                self._send_again(now_s - again_s)
            elif not ready and not again_s:
                raise LoadError(f"nothing came for {SILENCE_S} s")
            for number, _ in ready:
                one, answered = peers[number]
                data = one.recv(READ_BYTES)
                if not data:
                    raise LoadError("closed by the server")
                following = answered(data)
                if following:
                    now_s = clock()
                    waits.append(now_s - sent_s[number])
                    sent_s[number] = now_s
                    under_way[number] = following
                    one.send(following)
        self.elapsed_s = clock() - began_s

    def _send_again(self, before_s: float) -> None:
        """Sends again what has had no answer since then; its wait goes on from its first time."""
        for number, at_s in self._sent_s.items():
            if at_s < before_s:
                self.sent_again += 1
                self._peers[number][0].send(self._under_way[number])
