"""The processes of the demonstration: each in a group of its own, its errors in a file, gone when we are gone."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from deploy.demo.fleet import Report
from deploy.demo.plan import Target

__all__ = ["Child", "FleetChild", "wait_until"]

TERM_S = 20.0  # from SIGTERM to SIGKILL
# What a process runs: a module, and SIGTERM when the process that started it ends, however it ends (prctl(2),
# PR_SET_PDEATHSIG). Said by itself, because whatever of this process ran between fork and exec could meet a lock that a
# thread holds here.
_PROGRAM = (
    "import ctypes, runpy, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


class Child:
    """One process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    @classmethod
    async def start(cls, name: str, module: str, *args: str, logs: Path, pipes: bool = False) -> "Child":
        """Start `python -m MODULE ARGS`; its words go to `{logs}/{name}.log`, with `pipes` only its standard error."""
        log = logs / f"{name}.log"
        pipe = asyncio.subprocess.PIPE
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, module),
                *args,
                stdin=pipe if pipes else asyncio.subprocess.DEVNULL,
                stdout=pipe if pipes else errors,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        return cls(name, process, log)

    @property
    def running(self) -> bool:
        """Returns whether it has not ended."""
        return self.process.returncode is None

    def last_words(self) -> str:
        """The last line it wrote."""
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"{self.name} ended with {self.process.returncode}"

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to its whole group when that does not help."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TERM_S):
                    await self.process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it, or what it left behind
        await self.process.wait()


class FleetChild:
    """One fleet's process, with its newest report."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.report = Report()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, run: str, target: Target, *, rate: float, logs: Path) -> "FleetChild":
        """Start a fleet."""
        options = ("--host", target.host, "--port-offset", str(target.port_offset), "--rate", str(rate), "--run", run)
        return cls(await Child.start(name, "deploy.demo.fleet", name, *options, logs=logs, pipes=True))

    def tell(self, word: str) -> None:
        """Send a word; one that has gone does not hear it."""
        stdin = self.child.process.stdin
        assert stdin is not None
        if not stdin.is_closing():
            stdin.write(f"{word}\n".encode())

    async def stop(self) -> None:
        """End it."""
        self.tell("end")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERM_S):
                await self.child.process.wait()
        await self.child.stop()
        await self._reading

    async def _read(self) -> None:
        stdout = self.child.process.stdout
        assert stdout is not None
        while line := await stdout.readline():
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
