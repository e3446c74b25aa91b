"""The messages that are being forwarded: in the log's order, and settled when the upstream has confirmed them.

Messages leave in order. One that the upstream has refused (basic.nack, or returned) is sent again before any that has
not been sent; nothing else leaves before it. When the connection is gone, all that is not settled waits again. Where
the upstream has ended the channel, the messages in flight are suspects: they are sent one by one, so that the next end
tells which one it was. Without input or output.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from gateway.bridges.amqp.places import UpstreamRoute
from gateway.domain.cursor import Cursor, cursor_of
from store.api.message import Message
from store.format.frame import Position, group_of


class UpstreamMessage(msgspec.Struct, eq=False, kw_only=True):
    """A message on its way upstream."""

    number: int  # in the order of the window
    position: Position
    route: UpstreamRoute
    message: Message
    size: int


class Window:
    """A window of at most `count_max` messages and about `bytes_max` bytes that are not settled."""

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._number = 0
        self._waiting: deque[UpstreamMessage] = deque()  # ascending by number
        self._in_flight: dict[int, UpstreamMessage] = {}
        self._refused: list[UpstreamMessage] = []
        self._held: dict[int, dict[int, Position]] = {}  # by group and number: all that is not settled
        self._suspects_up_to = -1  # messages up to this number are sent alone
        self.held_count = 0
        self.held_bytes = 0

    @property
    def full(self) -> bool:
        """Returns whether nothing more should be taken."""
        return self.held_count >= self._count_max or self.held_bytes >= self._bytes_max

    @property
    def refused(self) -> bool:
        """Returns whether a message was refused and nothing is in flight: `next` returns it again."""
        return bool(self._refused) and not self._in_flight

    @property
    def accused(self) -> UpstreamMessage | None:
        """Returns the suspect that was in flight alone."""
        if len(self._in_flight) != 1:
            return None
        (one,) = self._in_flight.values()
        return one if one.number <= self._suspects_up_to else None

    def take(self, position: Position, route: UpstreamRoute, message: Message, size: int) -> None:
        """Takes a message behind those that it has."""
        one = UpstreamMessage(number=self._number, position=position, route=route, message=message, size=size)
        self._number += 1
        self._waiting.append(one)
        self._held.setdefault(group_of(position.frame), {})[one.number] = position
        self.held_count += 1
        self.held_bytes += size

    def next(self) -> UpstreamMessage | None:
        """Returns the message to be sent now; None: there is none, or it has to wait for those in flight."""
        if self._refused:
            if self._in_flight:
                return None
            self._wait_again(self._refused)
            self._refused = []
        if not self._waiting:
            return None
        if self._in_flight:
            alone = self._waiting[0].number <= self._suspects_up_to
            if alone or next(iter(self._in_flight)) <= self._suspects_up_to:
                return None
        one = self._waiting.popleft()
        self._in_flight[one.number] = one
        return one

    def put_back(self, one: UpstreamMessage) -> None:
        """Takes back the message that `next` has returned last."""
        del self._in_flight[one.number]
        self._waiting.appendleft(one)

    def settled(self, one: UpstreamMessage) -> None:
        """Notes that a message was confirmed, or is skipped."""
        if self._in_flight.pop(one.number, None) is None:
            return  # its connection ended before, and it waits again
        held = self._held[group_of(one.position.frame)]
        del held[one.number]
        self.held_count -= 1
        self.held_bytes -= one.size

    def was_refused(self, one: UpstreamMessage) -> None:
        """Notes that the upstream did not take a message."""
        if self._in_flight.pop(one.number, None) is not None:
            self._refused.append(one)

    def lost(self, *, suspicious: bool = False) -> None:
        """Notes the end of the connection; `suspicious`: a message in flight may be why."""
        if suspicious and self._in_flight:
            self._suspects_up_to = max(self._suspects_up_to, *self._in_flight)
        self._wait_again([*self._in_flight.values(), *self._refused])
        self._in_flight, self._refused = {}, []

    def oldest(self) -> Cursor:
        """Returns the oldest message that is not settled, of each log that has one."""
        return cursor_of({group: min(held.values()) for group, held in self._held.items() if held})

    def _wait_again(self, some: Iterable[UpstreamMessage]) -> None:
        self._waiting.extendleft(sorted(some, key=lambda one: -one.number))
