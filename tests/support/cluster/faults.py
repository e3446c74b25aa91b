"""Faults of a cluster of processes: of the processes themselves, their network, their disks."""

import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.process.local_cluster import LocalCluster
from tests.support.cluster.damage import (
    CLOSED,
    DiskDamage,
    Repaired,
    copy,
    empty,
    empty_if_refused,
    put_back,
    read_log,
    segments,
)
from tests.support.cluster.lying_disk import LyingDisk, Mode
from tests.support.cluster.masters import masters, status
from tests.support.cluster.network import Network
from tests.support.cluster.small_disks import LITTLE_ROOM_BYTES, SmallDisk
from tests.support.cluster.topics import find_topic, make_topic
from tests.support.process.child import in_a_child
from tests.support.process.waiting import wait_until

RAFT = "/raft/"  # the log of a controller
HIT_S = 60.0  # in which a disk that lies is to be asked for something
Damage = Callable[[Path], None]
HURT_S = (0.5, 4.0)  # how long something stays away
LOSS = 0.2
SLOW_MS = (1.0, 20.0)  # added to packets where the network is bad
ASLEEP_S = (4.5, 8.0)  # a pause around the time after which others take over what a proxy has
GREY_S = (6.0, 9.0)  # longer than it takes to move a master that only some reach
SAMPLED_S = (10.0, 12.0)  # longer than /readyz of a node may be wrong (`readiness.WRONG_NODE_S`)
SLEPT_S = (7.0, 10.0)  # longer than `proxy.ttl_s`, 6 s: what the proxy owns is others' meanwhile


def _nothing() -> str:
    return ""


class Fault(NamedTuple):
    """One fault: what it is, how it begins and ends, how long it stays.

    `leaves`: the clients of this proxy go to another one as it begins. `serves`: clients are served while it lasts.
    `lasting` says what has to be repaired of it still, when its end has come; it may be asked again and again.
    """

    kind: str
    what: str
    begin: Callable[[], None]
    end: Callable[[], None]
    seconds: float
    leaves: str = ""
    serves: bool = False
    lasting: Callable[[], str] = _nothing


class Faults:
    """Every fault that is possible here. With a network those of networks, with small disks those of full disks."""

    def __init__(
        self,
        cluster: LocalCluster,
        seed: int,
        network: Network | None,
        disks: Mapping[str, SmallDisk],
        lying: Mapping[str, LyingDisk] | None = None,
        *,
        controllers: Mapping[str, SmallDisk] | None = None,
    ) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._network = network
        self._disks = disks
        self._lying = lying or {}
        self._controllers = controllers or {}
        self._damage = DiskDamage(self._chance)
        self._kept: tuple[str, Path] | None = None  # a controller, and the older copy of its directory
        self.kinds: list[Callable[[], Fault]] = [
            *(self.killed, self.killed, self.frozen, self.restarted, self.asleep, self.moved, self.starved),
            *(self.flipped, self.shortened, self.removed, self.views_damaged, self.views_key_flipped),
            *(self.metadata_damaged, self.running, self.newest, self.forgetful, self.raft_damaged, self.restored),
        ]
        if network is not None:
            self.kinds += [self.cut_off, self.one_way, self.lossy, self.leaderless, self.masterless]
            self.kinds += [self.separated, self.separated_one_way, self.grey]
        if disks:
            self.kinds += [self.full]
        if self._controllers:
            self.kinds += [self.controllers_full]
        if self._lying:
            self.kinds += [self.failing, self.misdirected, self.controller_failing, self.controller_misdirected]
            self.kinds += [self.without_power, self.all_without_power]
        if only := os.environ.get("HEADGATE_FAULTS_KINDS"):
            self.kinds = [getattr(self, name) for name in only.split(",")]
        self._left: list[Callable[[], Fault]] = []

    def any(self) -> Fault:
        """Returns a fault of a kind drawn by chance; each kind is drawn once before one is drawn again."""
        if not self._left:
            self._left = self._chance.sample(self.kinds, len(self.kinds))
        return self._left.pop()()

    # ---- processes

    def killed(self, name: str | None = None) -> Fault:
        """Returns a kill -9 of a process."""
        name, cluster = name or self._node(), self._cluster
        return self._fault("killed", name, lambda: cluster.stop(name, kill=True), lambda: cluster.start(name))

    def frozen(self, name: str | None = None, *, kind: str = "frozen", seconds: float | None = None) -> Fault:
        """Returns a SIGSTOP of a process for a while, as if its machine were suspended."""
        name = name or self._node()
        pid = self._cluster.pid(name)
        return self._fault(
            kind, name, lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT), seconds=seconds
        )

    def restarted(self, name: str | None = None) -> Fault:
        """Returns a restart as an operator makes it."""
        name, cluster = name or self._node(), self._cluster
        return self._fault("restarted", name, lambda: cluster.stop(name), lambda: cluster.start(name), seconds=0.0)

    def starved(self) -> Fault:
        """Returns a kill -9 of all replicas of a group but its master, which then has fewer than `min_in_sync`."""
        cluster, master = self._cluster, self._master()
        group = master.rpartition("-")[0]
        names = [name for name in self._named("store") if name.rpartition("-")[0] == group and name != master]

        def start() -> None:
            for name in names:
                cluster.start(name)

        seconds = self._chance.uniform(*SAMPLED_S)
        return self._fault("starved", master, lambda: cluster.stop(*names, kill=True), start, seconds=seconds)

    def asleep(self) -> Fault:
        """Returns a sleep of a proxy: others may take over what it owns, and it wakes with full socket buffers."""
        return self.frozen(
            self._chance.choice(self._named("proxy")), kind="asleep", seconds=self._chance.uniform(*ASLEEP_S)
        )

    def moved(self) -> Fault:
        """Returns a sleep of a proxy that is longer than it owns anything; its clients go to another proxy at once."""
        name = self._chance.choice(self._named("proxy"))
        fault = self.frozen(name, kind="asleep, clients moved", seconds=self._chance.uniform(*SLEPT_S))
        return fault._replace(leaves=name, serves=True)

    # ---- what lies on disks

    def flipped(self) -> Fault:
        """Returns damage of bytes in a replica's log, which the replica finds when it is started again."""
        return self._damaged("log flipped", self._store(), self._damage.flip_log)

    def shortened(self) -> Fault:
        """Returns the loss of the end of one file of a replica's log, closed or not."""
        return self._damaged("log shortened", self._store(), self._damage.shorten)

    def removed(self) -> Fault:
        """Returns the loss of a whole file of a replica's log."""
        return self._damaged("log file removed", self._store(), self._damage.remove)

    def views_damaged(self) -> Fault:
        """Returns damage of bytes in a replica's views, or the loss of their end."""
        how, damage = self._either(self._damage.flip_views, self._damage.cut_views)
        return self._damaged(f"views {how}", self._store(), damage)

    def views_key_flipped(self) -> Fault:
        """Returns damage of a key in the views of a replica, or of a group's master, while its process serves."""
        name = self._chance.choice([self._store(), self._master()])
        directory = self._directory(name)
        kind = "views key flipped while running"
        return self._fault(kind, name, lambda: self._damage.flip_views_key(directory), lambda: None)

    def metadata_damaged(self) -> Fault:
        """Returns damage of a small file in which a replica keeps its epochs, its bounds or its group."""
        how, damage = self._either(self._damage.flip_metadata, self._damage.cut_metadata)
        return self._damaged(f"metadata {how}", self._store(), damage)

    def raft_damaged(self) -> Fault:
        """Returns damage of a controller's log; where the controller refuses to start, its directory is emptied."""
        how, damage = self._either(self._damage.flip_raft, self._damage.cut_raft)
        name, cluster = self._chance.choice(self._named("controller")), self._cluster

        def hurt(directory: Path) -> None:
            damage(directory)
            empty_if_refused(cluster, name)

        return self._damaged(f"raft {how}", name, hurt)

    def _either(self, flip: Damage, cut: Damage) -> tuple[str, Damage]:
        return self._chance.choice([("flipped", flip), ("cut", cut)])

    def running(self) -> Fault:
        """Returns damage of a closed segment of a replica, or of a group's master, while its process runs."""
        name = self._chance.choice([self._store(), self._master()])
        closed = segments(self._directory(name))[:-1]
        if not closed:
            return self.killed(name)
        path = self._chance.choice(closed)
        repaired = Repaired(self._cluster, name, lambda one: status(self._cluster, one), {path: path.read_bytes()})
        how = self._chance.choice(list(CLOSED))
        what = f"{name}, {path.name} {how}"
        fault = self._fault("damaged while running", what, lambda: CLOSED[how](self._damage, path), lambda: None)
        return fault._replace(serves=True, lasting=repaired.why_not)

    def newest(self) -> Fault:
        """Returns damage of the newest segment of a replica or the master, and a kill -9 of the master at once."""
        master, cluster = self._master(), self._cluster
        group = [name for name in self._named("store") if name.rpartition("-")[0] == master.rpartition("-")[0]]
        name = self._chance.choice(group)

        def begin() -> None:
            self._damage.flip_newest(self._directory(name))
            cluster.stop(master, kill=True)

        repaired = Repaired(cluster, name, lambda one: status(cluster, one))
        fault = self._fault("newest flipped", f"{name}, {master} killed", begin, lambda: cluster.start(master))
        return fault._replace(lasting=repaired.why_not)

    def restored(self) -> Fault:
        """Returns a controller's directory to an older copy; the first time, makes the copy."""
        cluster = self._cluster
        if self._kept is None:
            name = self._chance.choice(self._named("controller"))
            kept = cluster.plan.directory / "kept" / name
            self._kept = name, kept
            return self._damaged("controller copied", name, lambda directory: copy(directory, kept))
        name, kept = self._kept
        in_place = self._chance.random() < 0.5
        topic = f"restored-{self._chance.getrandbits(32)}"

        def begin() -> None:
            in_a_child(make_topic, cluster.plan, topic)
            cluster.stop(name, kill=True)
            put_back(kept, self._directory(name), in_place=in_place)

        def lasting() -> str:
            in_a_child(find_topic, cluster.plan, topic)
            return ""

        what = f"{name} {'in its place' if in_place else 'as a copy'}"
        fault = self._fault("controller restored", what, begin, lambda: cluster.start(name))
        return fault._replace(serves=True, lasting=lasting)

    def forgetful(self) -> Fault:
        """Returns the loss of all files of a controller."""
        return self._damaged("emptied", self._chance.choice(self._named("controller")), empty)

    def failing(self) -> Fault:
        """Returns a disk that answers with errors for a while; a supervisor starts its process again."""
        mode = self._chance.choice([Mode.EIO_READ, Mode.EIO_WRITE, Mode.EIO_SYNC])
        part = self._chance.choice(["", "/log/", "/views/"])
        if mode is Mode.EIO_READ:
            part = part.replace("/views/", "/log/")  # LMDB maps its file, and reads nothing
        return self._lied(self._chance.choice(self._lying_of("store")), mode, part)

    def misdirected(self) -> Fault:
        """Returns a write that the disk stores elsewhere, or not at all; its process is killed a moment later."""
        mode = self._chance.choice([Mode.MISDIRECT_ONCE, Mode.LOSE_ONCE])
        return self._lied(self._chance.choice(self._lying_of("store")), mode, self._chance.choice(["/log/", "/views/"]))

    def controller_failing(self) -> Fault:
        """Returns a disk of a controller that takes no writes, or syncs none."""
        mode = self._chance.choice([Mode.EIO_WRITE, Mode.EIO_SYNC])
        return self._lied(self._chance.choice(self._lying_of("controller")), mode, RAFT)

    def controller_misdirected(self) -> Fault:
        """Returns a write of a controller that its disk stores elsewhere, or not at all."""
        mode = self._chance.choice([Mode.MISDIRECT_ONCE, Mode.LOSE_ONCE])
        return self._lied(self._chance.choice(self._lying_of("controller")), mode, RAFT)

    def _lied(self, name: str, mode: Mode, part: str) -> Fault:
        """Returns a lie of a process's disk, which is told once at least; then the process is started again."""
        disk, cluster = self._lying[name], self._cluster
        kind = f"disk {mode.name} {part}".strip()
        topic = f"written-{self._chance.getrandbits(32)}"

        def begin() -> None:
            before = disk.done
            disk.lie(mode, part)
            if part == RAFT:
                in_a_child(make_topic, cluster.plan, topic)
            reading = read_log(cluster, name) if mode is Mode.EIO_READ else None
            try:
                wait_until(lambda: disk.done > before, f"{kind} of {name} was not carried out", HIT_S)
            finally:
                if reading is not None:
                    reading.kill()
                    reading.wait()
            if part == RAFT:  # clients go on while the command line is asked whether it is refused
                stop()
                empty_if_refused(cluster, name)

        def stop() -> None:
            disk.lie(Mode.NONE)
            cluster.stop(name, kill=True)

        def end() -> None:
            stop()
            cluster.start(name)

        return self._fault(kind, name, begin, end)

    def without_power(self) -> Fault:
        """Returns a machine's loss of power, and with it of all bytes that were not synced."""
        return self._powerless([self._chance.choice(self._lying_of("store"))])

    def all_without_power(self) -> Fault:
        """Returns a loss of power of all machines of the stores at once."""
        return self._powerless(self._lying_of("store"))

    def _lying_of(self, role: str) -> Sequence[str]:
        return [name for name in self._named(role) if name in self._lying]

    def _powerless(self, names: Sequence[str]) -> Fault:
        cluster = self._cluster

        def begin() -> None:
            for name in names:
                cluster.stop(name, kill=True)
            for name in names:
                self._lying[name].lose_power()

        def end() -> None:
            for name in names:
                cluster.start(name)

        return self._fault("power lost", names[0] if len(names) == 1 else "by all stores", begin, end)

    def _damaged(self, kind: str, name: str, damage: Callable[[Path], None]) -> Fault:
        cluster = self._cluster

        def begin() -> None:
            cluster.stop(name, kill=True)
            damage(self._directory(name))

        return self._fault(kind, name, begin, lambda: cluster.start(name), seconds=self._chance.uniform(0.0, 1.0))

    # ---- the network

    def cut_off(self, name: str | None = None) -> Fault:
        """Returns a cut of all connections of one process: of a group's master, or of any."""
        name = name or self._chance.choice([self._master(), self._node()])
        return self._torn("cut off", name, lambda network: network.cut([name]))

    def one_way(self) -> Fault:
        """Returns a cut of a master's connections in one direction only."""
        master = self._master()
        others = [node.name for node in self._cluster.nodes if node.name != master]
        if self._chance.random() < 0.5:
            return self._torn("deaf", master, lambda network: network.cut(others, [master], back=False))
        return self._torn("mute", master, lambda network: network.cut([master], others, back=False))

    def lossy(self) -> Fault:
        """Returns loss and delay of packets between all processes."""
        low, high = SLOW_MS
        return self._torn(
            "lossy", "network", lambda network: network.trouble(loss=LOSS, delay_ms=low, jitter_ms=high - low)
        )

    def leaderless(self) -> Fault:
        """Returns a cut of all connections of the controllers' leader."""
        leader = self._leader()
        return self._torn("leader cut off", leader, lambda network: network.cut([leader]))

    def masterless(self) -> Fault:
        """Returns a cut between a master and the proxies; its replicas and the controllers still reach it."""
        master = self._master()
        proxies = [node.name for node in self._cluster.nodes if node.role == "proxy"]
        return self._torn("cut off from proxies", master, lambda network: network.cut([master], proxies))

    def separated(self) -> Fault:
        """Returns a cut between two processes; all others still reach both."""
        one, other = self._chance.sample([node.name for node in self._cluster.nodes], 2)
        return self._torn("separated", f"{one} and {other}", lambda network: network.cut([one], [other]))

    def separated_one_way(self) -> Fault:
        """Returns a cut between two processes in one direction."""
        one, other = self._chance.sample([node.name for node in self._cluster.nodes], 2)
        return self._torn("deaf", f"{other} to {one}", lambda network: network.cut([one], [other], back=False))

    def grey(self) -> Fault:
        """Returns a cut between a master and all but the controllers, in one direction or both."""
        master = self._master()
        others = [node.name for node in self._cluster.nodes if node.role != "controller" and node.name != master]
        back = self._chance.random() < 0.5
        some, rest = ([master], others) if self._chance.random() < 0.5 else (others, [master])
        seconds = self._chance.uniform(*GREY_S)
        return self._torn("grey", master, lambda network: network.cut(some, rest, back=back), seconds=seconds)

    # ---- disks

    def full(self) -> Fault:
        """Returns a full disk, or one with less room than a store keeps in reserve."""
        name, disk = self._chance.choice(sorted(self._disks.items()))
        leave = self._chance.choice([0, 0, LITTLE_ROOM_BYTES])
        seconds = self._chance.uniform(*self._chance.choice([HURT_S, SAMPLED_S]))
        return self._fault("disk full", name, lambda: disk.fill(leave=leave), disk.free, seconds=seconds)

    def controllers_full(self) -> Fault:
        """Returns full disks of a minority or a majority of the controllers."""
        count = self._chance.randint(1, len(self._controllers))
        disks = dict(self._chance.sample(sorted(self._controllers.items()), count))

        def begin() -> None:
            for disk in disks.values():
                disk.fill()

        def end() -> None:
            for disk in disks.values():
                disk.free()

        return self._fault("controllers full", " and ".join(disks), begin, end)._replace(serves=True)

    # ---- who is who

    def _torn(self, kind: str, name: str, begin: Callable[[Network], None], *, seconds: float | None = None) -> Fault:
        network = self._network
        assert network is not None
        return self._fault(kind, name, lambda: begin(network), network.heal, seconds=seconds)

    def _fault(
        self, kind: str, name: str, begin: Callable[[], None], end: Callable[[], None], *, seconds: float | None = None
    ) -> Fault:
        seconds = self._chance.uniform(*HURT_S) if seconds is None else seconds
        return Fault(kind, f"{kind} {name} for {seconds:.1f} s", begin, end, seconds)

    def _node(self) -> str:
        return self._chance.choice(self._cluster.nodes).name

    def _named(self, role: str) -> Sequence[str]:
        return [node.name for node in self._cluster.nodes if node.role == role]

    def _store(self) -> str:
        return self._chance.choice(self._named("store"))

    def _directory(self, name: str) -> Path:
        return self._cluster.plan.directory / "data" / name

    def _master(self) -> str:
        """Returns a group's master, drawn by chance from those that exist."""
        return self._chance.choice(masters(self._cluster))

    def _leader(self) -> str:
        names = [node.name for node in self._cluster.nodes if node.role == "controller"]
        return next((name for name in names if status(self._cluster, name).get("role") == "leader"), names[0])
