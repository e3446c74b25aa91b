"""What can go wrong with a cluster of processes: with the processes themselves, their network, their disks."""

import contextlib
import json
import os
import random
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from network import Network

from gateway.local_cluster import LocalCluster

__all__ = ["Fault", "Faults", "SmallDisk", "small_disk"]

HURT_S = (0.5, 4.0)  # how long something stays away
DISK_BYTES = 1 << 30
LOSS = 0.2
SLOW_MS = (1.0, 20.0)  # what packets take longer where the network is bad


class SmallDisk:
    """A file system of its own that can be filled to the last byte, and freed."""

    def __init__(self, directory: Path) -> None:
        self._filler = directory / "filler"

    def fill(self, *, leave: int = 0) -> None:
        """Let others have no more than so many bytes."""
        found = os.statvfs(self._filler.parent)
        size = found.f_bavail * found.f_frsize - leave
        with self._filler.open("wb") as file, contextlib.suppress(OSError):  # somebody else took some of it meanwhile
            while size > 0:
                step = min(size, 1 << 20)
                os.posix_fallocate(file.fileno(), file.tell(), step)
                size -= file.seek(step, os.SEEK_CUR) and step

    def free(self) -> None:
        """Give all of it back."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[SmallDisk | None]:
    """Put a disk of its own in a directory's place; None where this is not allowed."""
    directory.mkdir(parents=True, exist_ok=True)
    mount = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headgate-small-disk", str(directory))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(("umount", "--lazy", str(directory)), capture_output=True, check=False)


class Fault(NamedTuple):
    """One fault: what it is, how it begins and ends, how long it stays."""

    kind: str
    what: str
    begin: Callable[[], None]
    end: Callable[[], None]
    seconds: float


class Faults:
    """Every fault that is possible here. With a network those of networks, with small disks those of full disks."""

    def __init__(
        self, cluster: LocalCluster, seed: int, network: Network | None, disks: Mapping[str, SmallDisk]
    ) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._network = network
        self._disks = disks
        self.kinds: list[Callable[[], Fault]] = [self.killed, self.killed, self.frozen, self.restarted]
        if network is not None:
            self.kinds += [self.cut_off, self.one_way, self.lossy, self.leaderless, self.masterless, self.grey]
        if disks:
            self.kinds += [self.full]
        self._left: list[Callable[[], Fault]] = []

    def any(self) -> Fault:
        """One by chance; none is kept waiting for ever."""
        if not self._left:
            self._left = self._chance.sample(self.kinds, len(self.kinds))
        return self._left.pop()()

    # ---- processes

    def killed(self, name: str | None = None) -> Fault:
        """kill -9."""
        name, cluster = name or self._node(), self._cluster
        return self._fault("killed", name, lambda: cluster.stop(name, kill=True), lambda: cluster.start(name))

    def frozen(self, name: str | None = None) -> Fault:
        """A process that does nothing for a while, as a machine that is suspended."""
        name = name or self._node()
        pid = self._cluster.pid(name)
        return self._fault("frozen", name, lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT))

    def restarted(self, name: str | None = None) -> Fault:
        """A restart as an operator makes it."""
        name, cluster = name or self._node(), self._cluster
        return self._fault("restarted", name, lambda: cluster.stop(name), lambda: cluster.start(name), seconds=0.0)

    # ---- the network

    def cut_off(self, name: str | None = None) -> Fault:
        """A process that nobody reaches: a group's master, or any."""
        name = name or self._chance.choice([self._master(), self._node()])
        return self._torn("cut off", name, lambda network: network.cut([name]))

    def one_way(self) -> Fault:
        """A master that is heard and does not hear, or hears and is not heard."""
        master = self._master()
        others = [node.name for node in self._cluster.nodes if node.name != master]
        if self._chance.random() < 0.5:
            return self._torn("deaf", master, lambda network: network.cut(others, [master], back=False))
        return self._torn("mute", master, lambda network: network.cut([master], others, back=False))

    def lossy(self) -> Fault:
        """A bad network between all."""
        low, high = SLOW_MS
        return self._torn(
            "lossy", "network", lambda network: network.trouble(loss=LOSS, delay_ms=low, jitter_ms=high - low)
        )

    def leaderless(self) -> Fault:
        """The controllers' leader alone."""
        leader = self._leader()
        return self._torn("leader cut off", leader, lambda network: network.cut([leader]))

    def masterless(self) -> Fault:
        """A master that its replicas and controllers reach, and no proxy does."""
        master = self._master()
        proxies = [node.name for node in self._cluster.nodes if node.role == "proxy"]
        return self._torn("cut off from proxies", master, lambda network: network.cut([master], proxies))

    def grey(self) -> Fault:
        """A master that the controllers hear and nobody else, in one direction or both."""
        master = self._master()
        others = [node.name for node in self._cluster.nodes if node.role != "controller" and node.name != master]
        back = self._chance.random() < 0.5
        some, rest = ([master], others) if self._chance.random() < 0.5 else (others, [master])
        return self._torn("grey", master, lambda network: network.cut(some, rest, back=back))

    # ---- disks

    def full(self) -> Fault:
        """A disk with nothing left, or less than a store keeps in reserve."""
        name, disk = self._chance.choice(sorted(self._disks.items()))
        leave = self._chance.choice([0, 0, 100 << 20])
        return self._fault("disk full", name, lambda: disk.fill(leave=leave), disk.free)

    # ---- who is who

    def _torn(self, kind: str, name: str, begin: Callable[[Network], None]) -> Fault:
        network = self._network
        assert network is not None
        return self._fault(kind, name, lambda: begin(network), network.heal)

    def _fault(
        self, kind: str, name: str, begin: Callable[[], None], end: Callable[[], None], *, seconds: float | None = None
    ) -> Fault:
        seconds = self._chance.uniform(*HURT_S) if seconds is None else seconds
        return Fault(kind, f"{kind} {name} for {seconds:.1f} s", begin, end, seconds)

    def _node(self) -> str:
        return self._chance.choice(self._cluster.nodes).name

    def _master(self) -> str:
        """A group's master, by chance one of those there are."""
        return self._chance.choice(masters(self._cluster))

    def _leader(self) -> str:
        names = [node.name for node in self._cluster.nodes if node.role == "controller"]
        return next((name for name in names if status(self._cluster, name).get("role") == "leader"), names[0])


def masters(cluster: LocalCluster) -> Sequence[str]:
    """The stores that say they are a group's master; where none does, all of them."""
    names = [node.name for node in cluster.nodes if node.role == "store"]
    return [name for name in names if status(cluster, name).get("role") == "master"] or names


def status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """What a process says of itself; nothing when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{cluster.admin(name)}/status", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return {}
