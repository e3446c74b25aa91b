"""Requests that wait for something, and that end early where nobody waits for their answer any more."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Connected(Protocol):
    """A connection."""

    @property
    def gone(self) -> bool:
        """Returns whether the connection has ended, so that no answer can be sent."""

    @property
    def ended(self) -> bool:
        """Returns whether the peer has closed its half: it may be gone, and is not waited for."""


class Waits:
    """The waiting requests of connections, each by the number that its connection has given it.

    A request may be given up before its work has begun, as by a client of HTTP/2 that resets its stream at once. So
    those that do not wait here are remembered until `answered` is called for them.
    """

    def __init__(self) -> None:
        self._woken: dict[tuple[Connected, int | None], asyncio.Event] = {}
        self._given_up: set[tuple[Connected, int | None]] = set()

    @contextmanager
    def waiting(self, connection: Connected, number: int | None, woken: asyncio.Event) -> Iterator[Callable[[], bool]]:
        """Yields a function that returns whether the answer is wanted; `woken` is set when it is not any more."""
        key = connection, number
        if key in self._given_up:
            woken.set()
            yield lambda: False
            return
        self._woken[key] = woken
        try:
            yield lambda: self._woken.get(key) is woken and not connection.gone
        finally:
            if self._woken.get(key) is woken:
                del self._woken[key]

    def give_up(self, connection: Connected, number: int) -> None:
        """Ends the wait of a request that is not answered, now or when it begins."""
        woken = self._woken.pop((connection, number), None)
        if woken is not None:
            woken.set()
        else:
            self._given_up.add((connection, number))

    def answered(self, connection: Connected, number: int) -> None:
        """Forgets a request that was given up."""
        self._given_up.discard((connection, number))
