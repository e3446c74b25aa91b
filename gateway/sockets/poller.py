"""One epoll object for all plain sockets of a process, inside the event loop's own.

The event loop sees a single file descriptor. When it is readable, one turn reads every socket that has something, once.
The reads of sockets that have a `together` are handed over in one call for all of them, those of others each to its
protocol. What all of them have to be stored for then goes to the log in the same batch.
"""

import asyncio
import select
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.sockets import calls
from store.base import logs

SOCKETS_A_TURN: Final = 1_024  # then others of the event loop have their turn
LOOKS_A_TURN: Final = 4  # for what has come while the reads of the look before were handed over: it joins their frame
LOOK_AGAIN_BYTES: Final = 1 << 10  # of a read of the turn on average; beyond, a frame is large enough as it is
TOGETHER_BYTES: Final = 1 << 20  # of reads that wait for the others of their turn; beyond, they are handed over

_READABLE: Final = select.EPOLLIN
# Edge-triggered: else the kernel looks at each socket once more after it was read, some 5 % of a turn of 2,000 sockets.
# So whoever leaves something unread, or sees that a socket is broken, looks again (epoll(7)).
_ON_CHANGE: Final = select.EPOLLET

log = logs.get(__name__)


class PolledSocket(Protocol):
    """A user of a socket."""

    together: Any  # the receiver of this socket's reads in a common call; None: `ready` reads

    def ready(self, events: int) -> None:
        """The socket can be read or written, or has failed."""

    def look_again(self) -> None:
        """Makes the poller report the socket again in its next look, if it can be read then."""

    def abort(self) -> None:
        """Removes the socket from the poller and closes it, whatever waits to be written."""


class Poller:
    """The sockets of one event loop. Lives as long as that.

    `received` takes the reads of a turn: of each the `together` of its socket, which can `abort`, and the bytes.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, received: Callable[[Sequence[tuple[Any, bytes]]], None]
    ) -> None:
        self._epoll = select.epoll()
        self.sockets: dict[int, PolledSocket] = {}
        self._loop = loop
        self._received = received
        loop.add_reader(self._epoll.fileno(), self._turn)

    def add(self, number: int, socket: PolledSocket, events: int) -> None:
        """Looks at a socket from now on. Raises OSError."""
        self._epoll.register(number, events | _ON_CHANGE)
        self.sockets[number] = socket

    def change(self, number: int, events: int) -> None:
        """Looks at it for other events, or for the same again: what is there already counts as new."""
        self._epoll.modify(number, events | _ON_CHANGE)

    def remove(self, number: int) -> None:
        """Looks at it no more. It may be closed in the next turn of the event loop, not in this."""
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
        sockets, receive, buffer, size_max = self.sockets, calls.receive, calls.BUFFER, calls.READ_BYTES
        together: list[tuple[Any, bytes]] = []
        size_bytes = handed_over = 0
        found = self._epoll.poll(0, count_max)
        for number, events in found:
            socket = sockets.get(number)
            if socket is None:  # removed in this very turn
                continue
            if (
                events == _READABLE
                and (protocol := socket.together) is not None
                and (size := receive(number, buffer, size_max, 0)) > 0
            ):
                together.append((protocol, buffer[:size]))
                size_bytes += size
                if size == size_max:  # perhaps there is more
                    socket.look_again()
                if size_bytes >= TOGETHER_BYTES:
                    self._hand_over(together)
                    together, size_bytes, handed_over = [], 0, handed_over + size_bytes
                continue
            try:
                socket.ready(events)
            except Exception:  # our own bug, whatever it is, must not reach other connections
                log.exception("a socket cannot be served")
        if together:
            self._hand_over(together)
        return len(found), handed_over + size_bytes

    def _hand_over(self, reads: Sequence[tuple[Any, bytes]]) -> None:
        try:
            self._received(reads)
        except Exception:  # as above; nobody knows who was served, and a stream may have no hole
            log.exception("the reads of a turn cannot be served")
            for protocol, _ in reads:
                protocol.abort()
