"""A child process: started so that it ends with this one, waited for, and ended with a limit.

As `python -m gateway.process.child SIGNAL PARENT MODULE ARGUMENTS` this file is the child's beginning: it has the
kernel send that signal when the parent ends, however it ends (prctl(2), PR_SET_PDEATHSIG), and becomes the module. The
child says it by itself, because whatever of the parent ran between fork and exec could meet a lock that a thread of
gRPC holds there.
"""

import asyncio
import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from store.base.process_errors import HeadgateError

_PR_SET_PDEATHSIG = 1
LAST_WORDS_BYTES = 64 * 1024  # of the end of a log, in which the last line is looked for


class ChildFailed(HeadgateError):
    """A child process cannot be started, has ended, or does not become ready."""


def module_command(module: str, *args: str, at_our_end: signal.Signals = signal.SIGKILL) -> list[str]:
    """Returns the command that runs a module as a child, which gets a signal when the thread that starts it ends."""
    return [sys.executable, "-m", "gateway.process.child", str(int(at_our_end)), str(os.getpid()), module, *args]


class Child:
    """One child process, the leader of a session of its own: signals of a terminal go to its parent alone."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path | None) -> None:
        self.name, self.process, self.log = name, process, log

    @classmethod
    def start(cls, name: str, command: Sequence[str], *, log: Path | None = None, pipes: bool = False) -> "Child":
        """Starts a command. Its output goes to a file, or without `log` to where ours goes.

        With `pipes`, its standard input is a pipe, and with a log its standard output too. Raises `ChildFailed`.
        """
        out = None
        try:
            out = None if log is None else log.open("ab")
            process = subprocess.Popen(  # noqa: S603 - a command of our own
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes and log else out,
                stderr=out,
                start_new_session=True,
                env=None if log is None else {**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            raise ChildFailed(f"{name} cannot be started: {error.strerror}") from error
        finally:
            if out is not None:
                out.close()
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Returns whether it has not ended."""
        return self.process.poll() is None

    def describe_end(self) -> str:
        """Returns the sentence about a child that has ended: its last line or, without a log, its status."""
        if self.log is None:
            return f"{self.name} has ended with status {self.process.poll()}"
        return f"{self.name} has ended: {self.last_words()}"

    def last_words(self) -> str:
        """Returns the last line that it wrote; of a line of the structured log its event."""
        assert self.log is not None
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return _event_of(lines[-1]) if lines else "it said nothing"

    async def ended(self) -> int:
        """Returns the exit status, when the child has ended."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def wait() -> None:
            self.process.wait()
            with suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(over.set)

        threading.Thread(target=wait, name=f"waits for {self.name}", daemon=True).start()
        await over.wait()
        return self.process.wait()


def _event_of(line: str) -> str:
    try:
        logged = json.loads(line)
    except ValueError:
        return line
    return str(logged["event"]) if isinstance(logged, dict) and "event" in logged else line


def end(children: Sequence[Child], limit_s: float) -> Sequence[Child]:
    """Ends children together: by SIGTERM, and by SIGKILL those that run after `limit_s`; without a limit, at once.

    Blocks until all have ended. Returns those that were killed.
    """
    until_s = time.monotonic() + limit_s
    running = [child.process for child in children if child.running]
    if limit_s > 0:
        for process in running:
            process.send_signal(signal.SIGCONT)  # one that is paused goes on for that
            process.terminate()
    killed = [child for child in children if not _ends_by(child.process, until_s)]
    for child in killed:
        child.process.kill()
    for child in killed:
        child.process.wait()
    return killed


def _ends_by(process: subprocess.Popen[bytes], until_s: float) -> bool:
    try:
        process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _main() -> None:
    how, parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(how))
    if os.getppid() != int(parent):  # it has ended before we could ask to end with it
        sys.exit(1)
    sys.argv[:] = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
