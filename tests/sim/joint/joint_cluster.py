"""A simulated cluster: controllers, store nodes and proxies, each a process of the product on a machine of its own.

What runs is the product: `ControllerNode` and its service, `StoreNode` with both roles, `RemoteController`, heartbeats
and `ClusterStore`. Simulated are time, the network below gRPC, disks, and the log and the views of a store.
"""

import asyncio
import random
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, ClusterLimits, CreateTopic
from controller.metadata.state import MetadataState
from controller.node.node import ControllerNode
from controller.node.service import ControllerService
from controller.raft import Membership, RaftError, RaftMember, RaftSettings, decode, encode, first_snapshot
from controller.raft.log import Log
from controller.remote.heartbeats import Heartbeats
from controller.remote.remote import RemoteController
from controller.wire.wire import COMMAND_BYTES_MAX, Hello
from store.base.errors import StoreError
from store.base.rhythm import PHASE_S
from store.cluster.cluster import ClusterStore, connect_remote
from store.node.node import StoreNode
from store.node.replica.metadata_mark import MetadataMark
from store.node.settings import Credentials, NodeSettings
from store.reach.reporter import Reporter
from store.replication.pace import ReplicationPace
from tests.sim.joint.joint_loop import JointLoop, Process
from tests.sim.joint.joint_net import Net
from tests.sim.joint.joint_raft_files import FiledDisk
from tests.sim.joint.joint_small_files import SmallFiles
from tests.sim.joint.joint_snapshots import in_place as snapshots_in_place
from tests.sim.joint.joint_store import Platter, SimDisk
from tests.sim.raft.raft_checks import Seen
from tests.sim.raft.raft_cluster import RaftDisk

DATA = Path("/data")
PORT = 1
GROUP_COUNT, REPLICA_COUNT, CONTROLLER_COUNT, PROXY_COUNT = 2, 3, 3, 2
TOPIC, QUEUE_COUNT = "t", 4
CONTROLLERS = {n: f"c{n}:{PORT}" for n in range(1, CONTROLLER_COUNT + 1)}
TICK_S, ELECTION_TICKS, SNAPSHOT_TICKS = 0.1, 5, 20  # of Raft; a snapshot's answer may be lost
LOOK_S = 0.02  # how often it is looked whether what is waited for is so
STOP_S = 8.0  # that a process may take to end
QUICK_S = (0.0, 0.003)  # a disk
FAILED_S = 0.5  # until a process that has ended because of its disk is started again
TORN_S = 0.3  # until a store node that fell while its disk worked is started again
PACE = ReplicationPace(batch_bytes=400, window_bytes=2_000)


class End(Enum):
    """The way in which a process ends."""

    KILLED = auto()  # as by SIGKILL: what it has written is there, and its connections are closed
    RESET = auto()  # its machine starts anew: what was not synced is lost, and its connections are closed
    DARK = auto()  # its machine has no power any more: likewise, and nobody is told that it is gone


class JointMachine:
    """Something that runs one process at a time, and what stays when that ends."""

    def __init__(self, cluster: "JointCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.chance = random.Random(f"{cluster.seed} {name}")
        self.process: Process | None = None
        self.disk_s = QUICK_S
        self.lives = 0

    @property
    def up(self) -> bool:
        return self.process is not None

    @property
    def address(self) -> str:
        return f"{self.name}:{PORT}"

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self.process is not None:
            return
        cluster = self.cluster
        cluster.net.dark.pop(self.name, None)
        cluster.net.stir()
        self.lives += 1
        self.rate = self.chance.choice([1.0, 1.0, 1.0, 0.9, 1.15])  # of its clock
        self.offset_ms = self.chance.choice([0, -100_000, 100_000])
        self.process = Process(cluster.loop, self.name, self.disk_works)
        phase_s = random.Random(f"{cluster.seed} {self.name} {self.lives} phase").random()
        self.process.context.run(PHASE_S.set, phase_s)  # machines are not in step with each other
        self.process.run(self.main(), f"{self.name} {self.lives}")

    def disk_works(self) -> float:
        """Returns how long the disk takes for what it was just given."""
        return self.chance.uniform(*self.disk_s)

    def crash(self, end: End) -> None:
        """Ends the process, unless it is down."""
        if self.process is None:
            return
        process, self.process = self.process, None
        if end is End.DARK:
            self.cluster.net.dark[self.name] = None
        self.cluster.net.died(process, quietly=end is End.DARK)
        for call in process.die():
            if self.chance.random() < 0.5:
                self.half_done(call)
        self.fell(power=end is not End.KILLED)
        self.cluster.loop.changed[self.name] = None

    def stop(self, lasts_s: float) -> None:
        """Stops the process in order, as SIGTERM does, and starts it again later."""
        if self.process is not None:
            self.process.run(self._stop(lasts_s))

    async def _stop(self, lasts_s: float) -> None:
        life, net = self.lives, self.cluster.net
        try:
            async with asyncio.timeout(STOP_S):
                await self.leave()
        except TimeoutError:
            pass  # and is killed
        now_s = self.cluster.loop.now_s
        net.at(now_s, lambda: self.crash(End.KILLED) if self.lives == life else None)
        net.at(now_s + lasts_s, self.start)

    async def leave(self) -> None:
        """Does what a process does before it ends."""

    def half_done(self, call) -> None:
        """Completes what the disk was given last, or some of it."""
        call()

    def fell(self, *, power: bool) -> None:
        """Keeps what a fall leaves on the disk."""

    def now_ms(self) -> int:
        """Returns the time by this machine's clock."""
        return int(self.cluster.loop.now_s * 1000 * self.rate) + self.offset_ms + 1_000_000

    async def main(self) -> None:
        raise NotImplementedError


class ControllerMachine(JointMachine):
    """One of the controllers."""

    def __init__(self, cluster: "JointCluster", number: int) -> None:
        super().__init__(cluster, f"c{number}")
        self.number = number
        members = (RaftMember(id=id_, address=at, incarnation=f"c{id_}.0") for id_, at in CONTROLLERS.items())
        self.file_chance = random.Random(f"{cluster.seed} {self.name} files")
        self.forgotten = 0  # how often it has lost its disk
        self.disk = self._disk(first_snapshot(Membership.of(*members), cluster.first_state()), f"c{number}.0")
        self.node: ControllerNode | None = None
        self.seen = Seen()

    async def main(self) -> None:
        node = self.node = ControllerNode(
            self.number,
            self.disk,
            address=self.address,
            node=self.name,
            members=CONTROLLERS,
            limits=ClusterLimits(default_queues=4),
            now_ms=self.now_ms,
            clock_ms=self.now_ms,
            settings=RaftSettings(
                election_ticks=ELECTION_TICKS, snapshot_ticks=SNAPSHOT_TICKS, proposal_bytes_max=COMMAND_BYTES_MAX
            ),
            tick_s=TICK_S * self.rate,
            chance=self.chance,
            send=self._send if self.cluster.datagrams else None,
        )
        self.seen = Seen(self.disk.hard_state().term)
        self.cluster.net.datagrams[self.name] = self._receive
        if isinstance(self.disk, FiledDisk):
            node.failed.add_done_callback(lambda _: self._failed(node))
        node.start()
        await ControllerService.start(node, self.address)

    def start(self) -> None:
        if not self.is_refused:
            super().start()

    async def leave(self) -> None:
        if self.node is not None:
            await self.node.resign()

    def half_done(self, call) -> None:
        with suppress(RaftError):  # its disk did not take it
            call()

    # ---- its disk

    def _disk(self, first, incarnation: str):
        if self.cluster.directory is None:
            return RaftDisk(first, incarnation)
        return FiledDisk(self._place(), self.number, first, incarnation, self.file_chance)

    def _place(self) -> Path:
        return self.cluster.directory / f"{self.name}.{self.forgotten}"

    @property
    def is_refused(self) -> bool:
        """Returns whether its directory is damaged, so that it does not start."""
        return isinstance(self.disk, FiledDisk) and self.disk.refused

    def _failed(self, node: ControllerNode) -> None:
        """Ends the process, whose disk did not take what it was given, and starts it again."""
        loop, net = self.cluster.loop, self.cluster.net
        net.at(loop.now_s, lambda: self.crash(End.KILLED) if self.node is node else None)
        net.at(loop.now_s + FAILED_S, self.start)

    def memberships(self) -> list[Membership]:
        """Returns the memberships that the node goes by, or may go by when what it has appended is taken back."""
        if self.is_refused:
            return []
        log = self.raft.node.log if self.raft is not None else Log(self.disk, RaftSettings())
        return [log.history.at(log.committed), *(one for index, one in log.history.held if index > log.committed)]

    def remembers(self, membership: Membership) -> bool:
        """Returns whether a membership names it with the memory that it has."""
        return not self.is_refused and membership.incarnation_of(self.number) == self.disk.incarnation()

    def lose_disk(self, *, copy: bool) -> None:
        """Replaces the disk of a stopped process by an empty one, or by an old copy that can be seen to be one."""
        assert self.node is None
        self.forgotten += 1
        incarnation = f"c{self.number}.{self.forgotten}"
        before = self.disk
        if copy and before.copies:
            self.disk = self.chance.choice(before.copies)
            if isinstance(before, FiledDisk):
                self.disk = FiledDisk.restored(self._place(), self.number, self.disk, self.file_chance)
            self.disk.renew(incarnation)
            self.disk.copies = []
        else:
            self.disk = self._disk(None, incarnation)
        if isinstance(before, FiledDisk):
            before.close()

    def _send(self, messages) -> None:
        for message in messages:
            self.cluster.raft_checks.said(message)
            self.cluster.net.send(self.name, f"c{message.to}", (self.number, encode(message)))

    def _receive(self, datagram) -> None:
        sender, data = datagram
        process, node = self.process, self.node
        if process is not None and node is not None:
            process.soon(self._hear, node, Hello(sender, CONTROLLERS[sender]), [decode(data)])

    def _hear(self, node: ControllerNode, sender: Hello, messages) -> None:
        try:
            node.receive(sender, messages)
        except RaftError:
            if not isinstance(self.disk, FiledDisk):
                raise

    def fell(self, *, power: bool) -> None:
        self.node = None
        if isinstance(self.disk, FiledDisk):
            self.disk.fall(power=power)
        elif power:
            self.disk.lose_power()

    @property
    def raft(self):
        """The core, if it runs."""
        return None if self.node is None else self.node.driver.raft


class SimNode(StoreNode):
    """A `StoreNode` on a simulated disk, by its machine's clock."""

    def __init__(self, settings: NodeSettings, controller, credentials: Credentials) -> None:
        super().__init__(settings, controller, credentials)
        self.machine = settings.options["machine"]
        self._now_ms = self.machine.now_ms
        self.disk = SimDisk(settings.data_dir, settings.group, self.machine.platter)
        self.mark = MetadataMark(self.disk.files, settings.data_dir)
        self.machine.node = self

    def _begin(self, connect) -> None:
        super()._begin(connect)
        self.machine.registered(self.identity.id)


class ReplicaMachine(JointMachine):
    """A store node."""

    def __init__(self, cluster: "JointCluster", group: int, number: int, *, learner: bool = False) -> None:
        name = f"s{group}-{number}"
        super().__init__(cluster, name)
        self.group = group
        self.learner = learner
        self.torn_chance = 0.0  # that it falls while its disk does something
        self.platter = Platter(group, self.chance)
        self.platter.touched = lambda: cluster.loop.changed.__setitem__(name, None)
        self.platter.files.mount(DATA)
        self.node: SimNode | None = None
        self.id: int | None = None
        self.small_files = SmallFiles(self.platter.files, DATA, f"{cluster.seed} {name} files")

    async def main(self) -> None:
        controller = RemoteController(list(CONTROLLERS.values()), now_ms=self.now_ms)
        await controller.ready()
        settings = NodeSettings(
            data_dir=DATA,
            group=self.group,
            name=self.name,
            listen=self.address,
            learner=self.learner,
            options={"machine": self},
            pace=PACE,
        )

        def connect(said, changed):
            return Heartbeats([self.group], controller.addresses, said, changed)

        try:
            node = await SimNode.start(settings, controller, connect)
        except OSError:
            if not self.small_files.may_fail:
                raise
            self._failed(self.lives)
        else:
            node.failed.add_done_callback(lambda _: self._failed(self.lives) if self.small_files.may_fail else None)

    def _failed(self, life: int) -> None:
        """Ends the process, whose disk did not take what it was given, and starts it again."""
        loop, net = self.cluster.loop, self.cluster.net
        net.at(loop.now_s, lambda: self.crash(End.KILLED) if self.lives == life else None)
        net.at(loop.now_s + FAILED_S, self.start)

    def start(self) -> None:
        if self.process is None:
            self.small_files.may_fail = False
        super().start()

    async def leave(self) -> None:
        if self.node is not None:
            await self.node.close()

    def registered(self, id_: int) -> None:
        assert self.id in {None, id_}, "a replica has another id than before"
        self.id = id_
        self.cluster.replica_of[self.group, id_] = self
        self.small_files.look()

    def disk_works(self) -> float:
        """Returns how long the disk takes; the machine may fall before it has finished."""
        takes_s = super().disk_works()
        if self.torn_chance and self.chance.random() < self.torn_chance:
            net, life = self.cluster.net, self.lives
            falls_s = self.cluster.loop.now_s + self.chance.uniform(0, takes_s)
            net.at(falls_s, lambda: self.crash(End.RESET) if self.lives == life else None)
            net.at(falls_s + TORN_S, self.start)
        return takes_s

    def half_done(self, call) -> None:
        """Makes a change of files that breaks off after any step."""
        left = self.chance.randint(0, 12)

        def before(_operation: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Cut

        files = self.platter.files
        files.on_operation = before
        try:
            call()
        except (_Cut, OSError, StoreError):
            return
        finally:
            files.on_operation = lambda _operation: None

    def fell(self, *, power: bool) -> None:
        self.node = None
        self.platter.files.heal()
        self.small_files.look()
        if power:
            self.platter.lose_power()

    @property
    def core(self):
        """The Master or Replica that it is now."""
        role = None if self.node is None else self.node.role
        return None if role is None else role.core

    @property
    def serving(self) -> bool:
        """Returns whether it serves as master."""
        role = None if self.node is None else self.node.role
        return role is not None and role.master and role.serving


class _Cut(Exception):
    """The power is gone."""


class ProxyMachine(JointMachine):
    """A proxy: `begin` is called with it whenever it is connected."""

    def __init__(self, cluster: "JointCluster", number: int) -> None:
        super().__init__(cluster, f"p{number}")
        self.number = number
        self.controller: RemoteController | None = None
        self.store: ClusterStore | None = None

    async def main(self) -> None:
        controller = RemoteController(list(CONTROLLERS.values()), now_ms=self.now_ms)
        await controller.ready()
        self.store = await ClusterStore.open(controller, connect_remote(controller, budget_s=1e9))
        self.controller = controller
        store = self.store
        reporter = Reporter(controller, lambda: store.logs, controller.do, now_ms=self.now_ms)
        self.process.run(reporter.run(), f"reports of {self.name}")
        await self.cluster.begin(self)

    def fell(self, *, power: bool) -> None:
        self.controller = self.store = None
        self.cluster.ended(self)


class JointCluster:
    """All of it."""

    def __init__(
        self,
        seed: int,
        *,
        config: GroupConfig,
        learners: int,
        datagrams: bool,
        raft_checks,
        directory: Path | None = None,
    ) -> None:
        self.seed = seed
        self.directory = directory  # for the files of controllers; None: they have their disks in memory
        self.loop = JointLoop()
        self.net = Net(self.loop, seed)
        self.datagrams = datagrams
        self.raft_checks = raft_checks
        self.config = config
        self.replica_of: dict[tuple[int, int], ReplicaMachine] = {}
        self.controllers = [ControllerMachine(self, n) for n in CONTROLLERS]
        self.replicas = [
            ReplicaMachine(self, group, n, learner=n > config.replicas)
            for group in range(GROUP_COUNT)
            for n in range(1, config.replicas + learners + 1)
        ]
        self.voters = [one for one in self.replicas if not one.learner]
        for replica in self.replicas:
            others = [one.platter for one in self.voters if one.group == replica.group and one is not replica]
            replica.platter.others = others
        self.proxies = [ProxyMachine(self, n) for n in range(1, PROXY_COUNT + 1)]
        self.operator = Operator(self, "operator")
        self.machines = [*self.controllers, *self.replicas, *self.proxies]
        self.complaints: list[str] = []  # errors that nobody expected
        self.begin = self._nothing
        self.ended = lambda _proxy: None

    async def _nothing(self, _proxy: ProxyMachine) -> None:
        pass

    def first_state(self) -> bytes:
        """Returns the controllers' first state, so that no history has to create it: groups, and a topic in them."""
        state = MetadataState()
        for group in range(GROUP_COUNT):
            state.apply(AddGroup(number=group, config=self.config, time_ms=0))
        state.apply(CreateTopic(name=TOPIC, queues=QUEUE_COUNT, topics_max=1, queues_max=QUEUE_COUNT, time_ms=0))
        return state.snapshot()

    def start(self) -> None:
        for machine in (*self.machines, self.operator):
            machine.start()

    def run(self, duration_s: float, done=lambda: False) -> bool:
        """Lets time pass until `done` is true, which is looked at now and then; returns whether it was."""
        until_s = self.loop.now_s + duration_s
        with self.net.in_place(), snapshots_in_place():
            while self.loop.now_s < until_s:
                self.loop.run(min(LOOK_S, until_s - self.loop.now_s))
                assert not self.complaints, self.complaints[0]
                if done():
                    return True
        return done()

    def close(self) -> None:
        """Ends all machines."""
        for machine in (*self.machines, self.operator):
            machine.crash(End.KILLED)
        for controller in self.controllers:
            if isinstance(controller.disk, FiledDisk):
                controller.disk.close()
        self.loop.forget()

    def master(self, group: int) -> ReplicaMachine | None:
        """Returns the newest master that serves."""
        serving = [one for one in self.replicas if one.group == group and one.serving]
        return max(serving, key=lambda one: one.core.epoch, default=None)

    def leader(self) -> ControllerMachine | None:
        """Returns the controller that takes itself for the leader."""
        leading = [one for one in self.controllers if one.node is not None and one.node.leading is not None]
        return max(leading, key=lambda one: one.node.leading, default=None)


class Operator(JointMachine):
    """Asks for what operators ask for."""

    def __init__(self, cluster: JointCluster, name: str) -> None:
        super().__init__(cluster, name)
        self.controller: RemoteController | None = None

    async def main(self) -> None:
        self.controller = RemoteController(list(CONTROLLERS.values()), now_ms=self.now_ms)
