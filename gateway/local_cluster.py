"""A whole cluster on this machine, for trying and testing: which processes, with which configuration, in which order.

Everything lies in one directory: a TOML file and a log for each process, and what it keeps below `data`. Started again
in the same directory it is the same cluster. Ports are fixed, so that clients find it again:

    controllers  8082, 8092, 8102 ...    admin 8582, 8592, 8602 ...
    stores       9100 + 10 a group + 1 a replica    admin 9600 and on
    proxies      as `headgate serve`, 100 further for each one more
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.errors import HeadgateError

__all__ = ["LocalCluster", "Node", "NodeFailed", "Plan", "nodes"]

PROXY_STEP = 100
STOP_S = 20.0  # from SIGTERM to SIGKILL
READY_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class NodeFailed(HeadgateError):
    """A process of the cluster has ended, or does not become ready."""


class Plan(NamedTuple):
    """How large a cluster is to be."""

    directory: Path
    controllers: int = 3
    groups: int = 2
    replicas: int = 3  # of each group
    min_in_sync: int = 2
    proxies: int = 2
    port_offset: int = 0

    @property
    def addresses(self) -> Mapping[int, str]:
        """Where the controllers are."""
        return {n + 1: f"127.0.0.1:{8082 + 10 * n + self.port_offset}" for n in range(self.controllers)}


class Node(NamedTuple):
    """One process."""

    name: str
    role: str  # the sub-command
    config: str  # TOML
    admin_port: int
    port: int  # gRPC, of a proxy MQTT


def nodes(plan: Plan) -> Sequence[Node]:
    """All processes, in the order in which they are started: controllers, stores, proxies."""
    return [*_controllers(plan), *_stores(plan), *_proxies(plan)]


def _controllers(plan: Plan) -> Iterator[Node]:
    for n in range(plan.controllers):
        name, port, admin = f"controller-{n + 1}", 8082 + 10 * n + plan.port_offset, 8582 + 10 * n + plan.port_offset
        own = f'[controller]\nid = {n + 1}\nport = {port}\ndata_dir = "{plan.directory / "data" / name}"\n'
        yield Node(name, "controller", _config(plan, name, own, admin), admin, port)


def _stores(plan: Plan) -> Iterator[Node]:
    for group in range(plan.groups):
        for replica in range(plan.replicas):
            name, at = f"store-{group}-{replica + 1}", 10 * group + replica + plan.port_offset
            store = f'[store]\ndata_dir = "{plan.directory / "data" / name}"\ngroup = {group}\n'
            own = f"{store}\n[rpc]\nport = {9100 + at}\n"
            yield Node(name, "store", _config(plan, name, own, 9600 + at), 9600 + at, 9100 + at)


def _proxies(plan: Plan) -> Iterator[Node]:
    for n in range(plan.proxies):
        name, offset = f"proxy-{n + 1}", PROXY_STEP * n + plan.port_offset
        own = f"port_offset = {offset}\n"
        yield Node(name, "proxy", own + _config(plan, name, "", 8088), 8088 + offset, 1883 + offset)


def _config(plan: Plan, name: str, own: str, admin_port: int) -> str:
    controllers = ", ".join(f'{id_} = "{address}"' for id_, address in plan.addresses.items())
    cluster = f'[cluster]\nnode = "{name}"\ncontrollers = {{ {controllers} }}\n'
    return f"{cluster}\n{own}\n[admin]\nport = {admin_port}\n"


class LocalCluster:
    """The processes. They end with this one, however it ends."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.nodes = nodes(plan)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def write(self) -> None:
        """Write every process's configuration. Raises OSError."""
        (self.plan.directory / "data").mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            self._file(node.name, "toml").write_text(node.config)

    def start(self, name: str) -> None:
        """Start a process that is not running."""
        node = self.node(name)
        assert not self.running(name)
        with self._file(name, "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "gateway.cli", node.role, "--config", str(self._file(name, "toml"))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, and no thread is running yet
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def stop(self, name: str, *, kill: bool = False) -> None:
        """End a process: politely and, when that does not help, or with `kill`, at once."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        if not kill:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                kill = True
        if kill:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """End everything, whoever depends on others first."""
        for role in ("proxy", "store", "controller"):
            some = [node.name for node in self.nodes if node.role == role and node.name in self._processes]
            for name in some:
                self._processes[name].send_signal(signal.SIGCONT)
                self._processes[name].terminate()
            for name in some:
                self.stop(name)

    def pid(self, name: str) -> int:
        """The process's id."""
        return self._processes[name].pid

    def running(self, name: str) -> bool:
        """Whether a process was started and has not ended."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def node(self, name: str) -> Node:
        """A process's place in the plan."""
        return next(node for node in self.nodes if node.name == name)

    def ready(self, name: str) -> bool:
        """Whether a process says that it can serve."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.node(name).admin_port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def until_ready(self, names: Sequence[str], *, timeout_s: float = 60.0) -> Iterator[str]:
        """The names of processes as they become ready. Raises `NodeFailed`."""
        left = dict.fromkeys(names)
        deadline = time.monotonic() + timeout_s
        while left:
            for name in list(left):
                if not self.running(name):
                    raise NodeFailed(f"{name} has ended: {self.last_words(name)}")
                if self.ready(name):
                    del left[name]
                    yield name
            if left and time.monotonic() > deadline:
                raise NodeFailed(
                    f"not ready in {timeout_s:g} s: {', '.join(left)}; see {self._file(next(iter(left)), 'log')}"
                )
            if left:
                time.sleep(READY_POLL_S)

    def last_words(self, name: str) -> str:
        """The last line that a process wrote."""
        lines = self._file(name, "log").read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _file(self, name: str, suffix: str) -> Path:
        return self.plan.directory / f"{name}.{suffix}"


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
