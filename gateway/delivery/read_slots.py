"""Slots for reading stored messages for answers: each message being read counts as the largest there is.

The size of a message is not known before it is read, and an answer counts as unread from when it is made. So the
gateway reads as many messages at a time as fit, at their largest, into the room that unread answers leave of their
limit; others wait for their turn. It always reads a few, so that clients that do not read hold up no others.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

READS_MIN: Final = 4  # at a time, whatever is unread

T = TypeVar("T")


class MessageReads:
    """The slots of a process: those of single messages, and those of pages, which take longer."""

    def __init__(self, bytes_max: int, message_bytes_max: int, unread_bytes: Callable[[], int]) -> None:
        self.single, self.pages = (
            ReadSlots(
                bytes_max=bytes_max // 2,
                message_bytes_max=message_bytes_max,
                unread_bytes=lambda: unread_bytes() // 2,
            )
            for _ in range(2)
        )


class ReadSlots:
    """Slots for one kind of reads. They belong to the event loop."""

    def __init__(self, *, bytes_max: int, message_bytes_max: int, unread_bytes: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self._message_bytes_max = message_bytes_max
        self._unread_bytes = unread_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._under_way = 0

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `work`, run in its turn; raises its errors."""
        if self._waiting or not self._has_room:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release()
                raise
        else:
            self._under_way += 1
        try:
            return await work()
        finally:
            self._release()

    @property
    def _has_room(self) -> bool:
        free = (self._bytes_max - self._unread_bytes()) // self._message_bytes_max
        return self._under_way < max(READS_MIN, free)

    def _release(self) -> None:
        """Gives a slot back, and begins whatever has room now."""
        self._under_way -= 1
        while self._waiting and self._has_room:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)
