"""Runs the state machine of our end of a connection: its output in order, and its clock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Protocol

TICK_S: Final = 60.0  # between two ticks of a machine that has no deadline
TICK_MIN_S: Final = 0.01
TICK_UNREADY_S: Final = 1.0  # while the peer has not accepted the connection


class Machine(Protocol):
    """A state machine (`gateway.port.bridge`: `Upstream`, `BrokerPublisher`)."""

    @property
    def ready(self) -> bool:
        """Returns whether the peer has accepted the connection."""

    def deadline_ms(self) -> int | None:
        """Returns the latest time to call `tick`."""

    def tick(self, now_ms: int, *, reading: bool) -> None:
        """Notes the time."""

    def take_output(self) -> bytes:
        """Returns bytes to be sent since the last call."""


class MachineDriver:
    """One connection of a machine. `write` waits while the peer does not read."""

    def __init__(self, machine: Machine, write: Callable[[bytes], Awaitable[None]], now_ms: Callable[[], int]) -> None:
        self._machine = machine
        self._write = write
        self._now_ms = now_ms
        self._writing: Final = asyncio.Lock()  # keeps the order: output taken first is written first

    async def flush(self) -> None:
        """Writes the machine's output. Raises the errors of `write`."""
        async with self._writing:
            if data := self._machine.take_output():
                await self._write(data)

    async def tick(self, *, reading: Callable[[], bool] = lambda: True) -> NoReturn:
        """Tells the machine the time until cancelled; `reading` says whether the peer's input is read.

        Raises the errors of the machine and of `write`.
        """
        machine = self._machine
        while True:
            due_ms = machine.deadline_ms()
            wait_s = TICK_S if due_ms is None else max(TICK_MIN_S, (due_ms - self._now_ms()) / 1_000)
            await asyncio.sleep(min(wait_s, TICK_S if machine.ready else TICK_UNREADY_S))
            machine.tick(self._now_ms(), reading=reading())
            await self.flush()
