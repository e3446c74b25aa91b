"""Gateways in processes of their own, on ports that are free."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.process.ports import PORTS, TLS_PORTS, free_offset

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 90


class GatewayProcess:
    """`headgate serve` on ports of its own; `kill` is kill -9."""

    host = "127.0.0.1"

    def __init__(self, data_dir: Path, *arguments: str, environ: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.arguments = arguments
        self.environ = environ or {}
        self.wrapper: tuple[str, ...] = ()  # a command that runs it and becomes the server itself, as `strace -D` does
        self.log = data_dir.with_suffix(".log")
        self.offset = free_offset(_ports)
        self.process: subprocess.Popen[bytes] | None = None

    def port(self, name: str) -> int:
        """Returns the port of a listener."""
        return {**PORTS, **TLS_PORTS}[name] + self.offset

    @property
    def url(self) -> str:
        """The HTTP listener."""
        return f"http://127.0.0.1:{self.port('http')}"

    @property
    def command(self) -> list[str]:
        """The words that start it."""
        return [
            *self.wrapper,
            *(sys.executable, "-m", "gateway.cli", "serve"),
            *("--data-dir", str(self.data_dir), "--port-offset", str(self.offset)),
            *self.arguments,
        ]

    def start(self) -> "GatewayProcess":
        """Starts the gateway, and waits until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environ},
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers("/readyz"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"the gateway did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)
        return self

    def admin(self, path: str) -> str:
        """Returns a page of the admin port. Raises for any status but 2xx."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port('admin')}{path}", timeout=90) as answer:
            return answer.read().decode()

    def answers(self, path: str) -> bool:
        """Returns whether a page of the admin port answers 2xx."""
        try:
            self.admin(path)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def kill(self) -> None:
        """Kills the process, as a loss of power would end it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks the process to stop, and returns its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """See that it is gone."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()


def restart(process: Any) -> None:
    """Starts a process that was killed, and tries again while other processes hold its ports."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            process.start()
            return
        except AssertionError as failed:
            if "already in use" not in str(failed).splitlines()[-1] or time.monotonic() > deadline:
                raise
            time.sleep(1)


def _ports(offset: int) -> list[int]:
    return [port + offset for port in (*PORTS.values(), *TLS_PORTS.values())]
