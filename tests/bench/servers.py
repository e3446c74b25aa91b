"""Servers under measurement: each in a session and a directory of its own, on free ports, stopped by its id."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.procfs import cpu_s

HOST = "127.0.0.1"
START_S = 60.0
TERM_S = 20.0  # from SIGTERM to SIGKILL
IDLE_SHARE = 0.05  # of a core: below this a server is taken to be idle
IDLE_LOOK_S = 0.25
IDLE_WAIT_S = 15.0
BASES = (20_000, 24_000)  # with the offsets below what the system gives to clients
COAP_PING = b"\x40\x00\x12\x34"  # an empty confirmable message: answered with a reset (RFC 7252, 4.3)


class StartFailed(Exception):
    """A server that should run does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The way to start a server: its command, its ports (by protocol), and how to end it completely."""

    command: Sequence[str]
    ports: Mapping[str, int]
    environ: Mapping[str, str] = field(default_factory=dict)
    clean_up: Sequence[str] = ()  # a command for what outlives the server


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A server that can be measured. `keeps` says what an acknowledgement of its means for the disk, by protocol."""

    name: str
    keeps: Mapping[str, str]
    missing: Callable[[], str | None]  # why it cannot be started here
    version: Callable[[], str]
    launch: Callable[[Path], Launch] | None  # in an empty directory; None: the load brings along what it measures


class Running:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[bytes], ports: Mapping[str, int]) -> None:
        self._process = process
        self.ports = ports

    @property
    def pid(self) -> int:
        """Its process, which leads its session."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Returns whether the process has not ended."""
        return self._process.poll() is None

    def settle(self) -> None:
        """Waits until the server is at rest, within limits: work that it still does would slow the next run."""
        until = time.monotonic() + IDLE_WAIT_S
        used = cpu_s(self.pid)
        while time.monotonic() < until:
            time.sleep(IDLE_LOOK_S)
            before, used = used, cpu_s(self.pid)
            if used - before <= IDLE_SHARE * IDLE_LOOK_S:
                return


@contextlib.contextmanager
def running(spec: ServerSpec, directory: Path) -> Iterator[Running]:
    """Starts a server, waits until it listens, and ends it afterwards. Raises `StartFailed`."""
    assert spec.launch is not None
    directory.mkdir(parents=True)
    launch = spec.launch(directory)
    log = directory / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_end_with_us(), *launch.command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=Path.cwd(),
            env={**os.environ, **launch.environ},
            start_new_session=True,
        )
    try:
        _await_ports(process, launch.ports, log)
        yield Running(process, launch.ports)
    finally:
        _stop(process)
        if launch.clean_up:
            environ = {**os.environ, **launch.environ}
            subprocess.run(launch.clean_up, env=environ, capture_output=True, timeout=TERM_S, check=False)


def free_port() -> int:
    """Returns a port that no process listens on, over TCP or UDP."""
    return free_base([0])


def free_base(offsets: Iterable[int]) -> int:
    """Returns a number that gives a free port with each of the offsets added."""
    wanted = list(offsets)
    for _ in range(1_000):
        base = random.randrange(*BASES)
        if all(_free(base + offset) for offset in wanted):
            return base
    raise StartFailed("no free ports")


def _end_with_us() -> Sequence[str]:
    """Returns a prefix that ends a program when this process ends, however it does (prctl(2), PR_SET_PDEATHSIG)."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "TERM", "--") if setpriv else ()


def _free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
    return True


def _await_ports(process: subprocess.Popen[bytes], ports: Mapping[str, int], log: Path) -> None:
    until = time.monotonic() + START_S
    for protocol, port in ports.items():
        while not (_answers_coap(port) if protocol == "coap" else _accepts(port)):
            if process.poll() is not None or time.monotonic() > until:
                lines = log.read_text("utf-8", "replace").strip().splitlines()
                raise StartFailed(f"{protocol} does not answer: {lines[-1] if lines else 'no output'}")
            time.sleep(0.1)


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def _answers_coap(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.5)
        probe.connect((HOST, port))
        probe.send(COAP_PING)
        return bool(probe.recv(64))
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TERM_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # it, or what it left behind
    process.wait()
