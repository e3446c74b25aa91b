"""Output that peers do not read: how much of it a process holds, and when a peer that reads none is given up."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from store.base.listening import PeerBudget

UNREAD_FREE: Final = 2  # of a connection, in write buffers: event streams take as much in a burst, and do not count
IDLE_S: Final = 5.0  # that a peer has read nothing for, after which it makes way before those that read
CLOSE_TIMEOUT_S: Final = 5.0  # that a peer has to close its side once it has read everything
STALL_TIMEOUT_S: Final = 60.0  # a peer that reads less than READ_BYTES_MIN of its waiting output in it is cut off
READ_BYTES_MIN: Final = 4 << 10


class Written(Protocol):
    """A transport, as far as it reports the output that waits for its peer."""

    def get_write_buffer_size(self) -> int:
        """Returns how many bytes wait."""


class UnreadHolder(Protocol):
    """A connection whose peer does not read all that it has asked for."""

    def unread_now(self) -> int:
        """Returns the bytes that count, which are fewer once the peer has read some."""

    def cancel(self) -> object:
        """Cuts the connection off."""


def counted(unread_bytes: int, write_buffer_bytes_max: int) -> int:
    """Returns how many of the bytes that a peer has not read count in the budget."""
    return unread_bytes if unread_bytes > UNREAD_FREE * write_buffer_bytes_max else 0


class UnreadBudget(PeerBudget[UnreadHolder]):
    """The bytes of responses that peers do not read, of all connections of a process.

    A connection says how much it holds when a response is made, and no more while its peer reads. So before a
    connection is cut off, all are asked how much they hold now, and those make way first whose peers have read nothing
    for some seconds: the one that holds most, of the address that holds most.
    """

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(bytes_max)
        self._clock = clock
        self._read_s: dict[UnreadHolder, float] = {}  # when each was last seen to have read, or began to hold

    def hold(self, holder: UnreadHolder, origin: bytes, size_bytes: int) -> None:
        """See `PeerBudget.hold`."""
        self._note(holder, origin, size_bytes)
        if self.held_bytes <= self.bytes_max:
            return
        for one_origin, holders in list(self._held.items()):
            for one in list(holders):
                self._note(one, one_origin, one.unread_now())
        self._give_up_idle()
        while self.held_bytes > self.bytes_max:
            most = max(self._totals, key=self._totals.__getitem__)
            holders = self._held[most]
            self._give_up(max(holders, key=holders.__getitem__), most)

    def release(self, holder: UnreadHolder, origin: bytes) -> None:
        """See `PeerBudget.release`."""
        self._note(holder, origin, 0)

    def _give_up_idle(self) -> None:
        """Cuts off peers that do not read, as many as have to make way."""
        idle_before_s = self._clock() - IDLE_S
        idle = [
            (self._totals[origin], size, nth, origin, one)
            for origin, holders in self._held.items()
            for nth, (one, size) in enumerate(holders.items())
            if self._read_s[one] <= idle_before_s
        ]
        idle.sort(key=lambda found: found[:2], reverse=True)
        for _, _, _, origin, one in idle:
            if self.held_bytes <= self.bytes_max:
                return
            self._give_up(one, origin)

    def _give_up(self, holder: UnreadHolder, origin: bytes) -> None:
        self._note(holder, origin, 0)
        holder.cancel()

    def _note(self, holder: UnreadHolder, origin: bytes, size_bytes: int) -> None:
        before = self._held.get(origin, {}).get(holder, 0)
        if not size_bytes:
            self._read_s.pop(holder, None)
        elif size_bytes < before or not before:
            self._read_s[holder] = self._clock()
        self._set(holder, origin, size_bytes)


class WriteStall:
    """Gives up a peer that does not read its waiting output; one that reads slowly goes on.

    It looks once every `every_s`. In `looks_max` looks the peer has to have read READ_BYTES_MIN; where nothing waits
    any more it has until the next look to go.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], object]], asyncio.TimerHandle],
        transport: Written,
        give_up: Callable[[], object],
        *,
        every_s: float = STALL_TIMEOUT_S,
        looks_max: int = 1,
    ) -> None:
        self._later = later
        self._transport = transport
        self._give_up = give_up
        self._every_s = every_s
        self._looks_max = looks_max
        self._looks = 0  # since the peer has read enough
        self._left_bytes = transport.get_write_buffer_size()
        self._timer = later(every_s, self._look)

    @classmethod
    def of_closing(
        cls,
        later: Callable[[float, Callable[[], object]], asyncio.TimerHandle],
        transport: Written,
        give_up: Callable[[], object],
    ) -> "WriteStall":
        """Watches a connection that has said everything, until its peer has read that and gone."""
        looks_max = int(STALL_TIMEOUT_S / CLOSE_TIMEOUT_S)
        return cls(later, transport, give_up, every_s=CLOSE_TIMEOUT_S, looks_max=looks_max)

    def cancel(self) -> None:
        """Looks no more."""
        self._timer.cancel()

    def _look(self) -> None:
        left_bytes = self._transport.get_write_buffer_size()
        read_bytes = self._left_bytes - left_bytes
        if read_bytes >= READ_BYTES_MIN or (read_bytes > 0 and not left_bytes):
            self._looks, self._left_bytes = 0, left_bytes
        else:
            self._looks += 1
        if self._looks and (not left_bytes or self._looks >= self._looks_max):
            self._give_up()
        else:
            self._timer = self._later(self._every_s, self._look)
