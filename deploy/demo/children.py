"""The processes of the demonstration: their words in files, gone when we are gone."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from deploy.demo.fleet import Report
from deploy.demo.plan import Target
from gateway.process.child import Child, end, module_command

TERM_S = 20.0  # from SIGTERM to SIGKILL


def launch(name: str, module: str, *args: str, logs: Path, pipes: bool = False) -> Child:
    """Starts `python -m MODULE ARGS`, whose words go to `{logs}/{name}.log`. Raises `ChildFailed`."""
    log = logs / f"{name}.log"
    log.unlink(missing_ok=True)
    return Child.start(name, module_command(module, *args, at_our_end=signal.SIGTERM), log=log, pipes=pipes)


async def stop(child: Child) -> None:
    """Ends a process, and the processes that it has started."""
    await asyncio.to_thread(end, [child], TERM_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


class FleetChild:
    """One fleet's process, with its newest report."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.report = Report()
        self._words: asyncio.WriteTransport | None = None
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, run: str, target: Target, *, rate: float, logs: Path) -> "FleetChild":
        """Starts a fleet."""
        options = ("--host", target.host, "--port-offset", str(target.port_offset), "--rate", str(rate), "--run", run)
        fleet = cls(launch(name, "deploy.demo.fleet", name, *options, logs=logs, pipes=True))
        loop, stdin = asyncio.get_running_loop(), fleet.child.process.stdin
        fleet._words, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, stdin)
        return fleet

    def tell(self, word: str) -> None:
        """Sends a word; one that has gone does not hear it."""
        if self._words is not None and not self._words.is_closing():
            self._words.write(f"{word}\n".encode())

    async def stop(self) -> None:
        """Ends it."""
        self.tell("end")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERM_S):
                await self.child.ended()
        await stop(self.child)
        await self._reading

    async def _read(self) -> None:
        reader = asyncio.StreamReader()
        loop, stdout = asyncio.get_running_loop(), self.child.process.stdout
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdout)
        while line := await reader.readline():
            self.report = msgspec.json.decode(line, type=Report)


async def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for something that other processes bring about; returns whether it came to pass in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not condition():
        if loop.time() >= until:
            return False
        await asyncio.sleep(0.1)
    return True
