"""One epoll object for all plain sockets of a process, inside the event loop's own.

The event loop sees a single file descriptor. When it is readable, one turn reads every socket that has something, once.
The reads of sockets that have a reader are handed over in one call for all of them, those of others each to its
protocol: before them those of sockets that peers have closed. Their messages then go to the log in the same batch.
"""

import asyncio
import select
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.sockets import calls
from gateway.sockets.batches import CALLS, BatchCalls
from store.base import logs

SOCKETS_A_TURN: Final = 1_024  # then others of the event loop have their turn
LOOKS_A_TURN: Final = 4  # for input that came while the reads of the look before were handed over: it joins their frame
LOOK_AGAIN_BYTES: Final = 1 << 10  # of a read of the turn on average; beyond, a frame is large enough as it is
TOGETHER_BYTES: Final = 1 << 20  # of reads that are handed over together; the other sockets of a look are read alone

# Edge-triggered: else the kernel looks at each socket once more after it was read, some 5 % of a turn of 2,000 sockets.
# So a reader that leaves something unread, or sees that a socket is broken, looks again (epoll(7)).
_ON_CHANGE: Final = select.EPOLLET

# A peer that has closed may have connected again, and said so in the same look: its last words come before that.
_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

log = logs.get(__name__)


class PolledSocket(Protocol):
    """A user of a socket."""

    def ready(self, events: int) -> None:
        """Acts on a socket that can be read or written, or has failed."""

    def look_again(self) -> None:
        """Makes the poller report the socket again in its next look, if it can be read then."""

    def abort(self) -> None:
        """Removes the socket from the poller and closes it, whatever waits to be written."""


class Poller:
    """The sockets of one event loop. Lives as long as that.

    `received` takes the reads of a turn: of each the reader of its socket, which can `abort`, and the bytes. `batches`
    are the calls that read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        received: Callable[[Sequence[tuple[Any, bytes]]], None],
        *,
        batches: BatchCalls = CALLS,
    ) -> None:
        self._epoll = select.epoll()
        self._receive = batches.receive
        self.sockets: dict[int, PolledSocket] = {}
        self.readers: dict[int, Any] = {}  # receivers of reads in a common call; other sockets are read by `ready`
        self._loop = loop
        self._received = received
        loop.add_reader(self._epoll.fileno(), self._turn)

    def add(self, number: int, socket: PolledSocket, events: int) -> None:
        """Looks at a socket from now on. Raises OSError."""
        self._epoll.register(number, events | _ON_CHANGE)
        self.sockets[number] = socket

    def change(self, number: int, events: int) -> None:
        """Looks at it for other events, or for the same again: input that is there already counts as new."""
        self._epoll.modify(number, events | _ON_CHANGE)

    def remove(self, number: int) -> None:
        """Looks at it no more. It may be closed in the next turn of the event loop, not in this."""
        self.readers.pop(number, None)
        if self.sockets.pop(number, None) is not None:
            self._epoll.unregister(number)

    def close(self) -> None:
        """Looks at nothing any more. Sockets that are still there are aborted."""
        for socket in list(self.sockets.values()):
            socket.abort()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _turn(self) -> None:
        left, size_bytes = SOCKETS_A_TURN, 0
        for _ in range(LOOKS_A_TURN):
            count, size = self._look(left)
            left -= count
            size_bytes += size
            if not size or left <= 0 or size_bytes > LOOK_AGAIN_BYTES * (SOCKETS_A_TURN - left):
                return

    def _look(self, count_max: int) -> tuple[int, int]:
        """Reads each socket that has something, once; returns how many had, and the bytes that were handed over."""
        sockets = self.sockets
        try:
            reads, full, others, size_bytes = self._receive(
                self._epoll, count_max, self.readers, calls.READ_BYTES, TOGETHER_BYTES
            )
        except Exception:
            log.exception("sockets cannot be read: all their connections end, as input may be lost")
            for socket in list(sockets.values()):
                socket.abort()
            return 0, 0
        ended = [one for one in others if one[1] & _ENDED]
        self._serve(ended)
        if reads:
            self._hand_over(reads)
        for number in full:  # perhaps there is more
            if number in sockets:  # else removed in this very turn
                sockets[number].look_again()
        self._serve([one for one in others if not one[1] & _ENDED] if ended else others)
        return len(reads) + len(others), size_bytes

    def _serve(self, others: Sequence[tuple[int, int]]) -> None:
        sockets = self.sockets
        for number, events in others:
            if number in sockets:
                try:
                    sockets[number].ready(events)
                except Exception:  # our own bug, whatever it is, must not reach other connections
                    log.exception("a socket cannot be served")

    def _hand_over(self, reads: Sequence[tuple[Any, bytes]]) -> None:
        try:
            self._received(reads)
        except Exception:  # as above; it is unknown which connections were served, and a stream must have no gap
            log.exception("the reads of a turn cannot be served")
            for protocol, _ in reads:
                protocol.abort()
