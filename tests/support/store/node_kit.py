"""A store group for tests: nodes with real sockets, disks and controllers, in one process."""

import asyncio
import contextlib

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, RaiseQueues
from controller.remote.heartbeats import Heartbeats
from controller.remote.remote import RemoteController
from store.node.master_role import MasterRole
from store.node.node import StoreNode
from store.node.replica_role import ReplicaRole
from store.node.settings import NodeSettings
from store.remoting import RemoteStore
from store.replication.errors import CannotSwitchOver
from store.replication.pace import ReplicationPace
from tests.support.process.waiting import until
from tests.support.store.store_kit import begin, frame

GROUP = 3
PATIENCE_S = 90.0  # of clients, and of tests: the machine may be busy with others
TURN_S = 0.01  # of an event loop's time: on a busy machine a turn takes longer
PACE = ReplicationPace(
    heartbeat_ms=50,
    answer_ms=125,
    lag_ms=1_000,
    gone_ms=200,
    stall_ms=1_500,
    fresh_ms=2_000,
    refused_ms=300,
    hold_again_ms=300,
)


NEXT_QUEUE = 1_000  # tests write to queues below, as if controllers had given their numbers to topics


class StoreGroup:
    """A group of nodes n1, n2, ..., which keep their ports and directories when they are started again."""

    def __init__(self, directory, controllers, *, count=3, config=None, pace=PACE, **options):
        self.directory = directory
        self.controllers = controllers
        self.config = config or GroupConfig(replicas=count, min_in_sync=min(2, count))
        self.pace = pace
        self.options = {"disk_reserve_bytes": 0, **options}
        self.own = {}  # options by name
        self.names = [f"n{i + 1}" for i in range(count)]
        self.nodes: dict[str, StoreNode] = {}
        self.clients: dict[str, RemoteController] = {}
        self.learners = set()
        self.ports = {}
        self.client: RemoteController | None = None
        self.stores = []

    async def start(self, *names):
        if self.client is None:
            self.client = self.controllers.remote()
            await self.client.ready()
            await self.client.do(AddGroup(number=GROUP, config=self.config))
            await self.client.do(RaiseQueues(next_queue=NEXT_QUEUE))
        await asyncio.gather(*(self._start(name) for name in names or self.names))
        return self

    async def _start(self, name):
        controller = self.controllers.remote()
        await controller.ready()
        settings = NodeSettings(
            data_dir=self.directory / name,
            group=GROUP,
            name=name,
            listen=f"127.0.0.1:{self.ports.get(name, 0)}",
            learner=name in self.learners,
            options={**self.options, **self.own.get(name, {})},
            pace=self.pace,
        )

        def connect(said, changed):
            return Heartbeats([GROUP], controller.addresses, said, changed, interval_s=0.2)

        node = self.nodes[name] = await StoreNode.start(settings, controller, connect)
        self.ports[name] = node.services.rpc.port

    async def stop(self, name):
        """Stops a node in order."""
        await self.nodes.pop(name).close()

    async def kill(self, name):
        """Ends a node and all its connections without a word."""
        node = self.nodes.pop(name)
        await node.sender.close()
        node.sender = None
        await node.services.rpc._server.stop(0)
        node.services.rpc = None
        node.task.cancel()
        await asyncio.gather(node.task, return_exceptions=True)
        await node.close()

    async def close(self):
        for store in self.stores:
            await store.close()
        for name in list(self.nodes):
            with contextlib.suppress(Exception):
                await self.kill(name)

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        await self.close()

    # ---- looking

    @property
    def group(self):
        return self.client.group(GROUP)

    def id(self, name):
        return self.nodes[name].identity.id

    def name_of(self, replica):
        return next((name for name, node in self.nodes.items() if node.identity.id == replica), None)

    async def master(self, *, after=0):
        """Waits for a node that serves as master in an epoch after this one, and returns its name."""

        def found():
            return [
                name
                for name, node in self.nodes.items()
                if isinstance(node.role, MasterRole) and node.role.serving and node.role.core.epoch > after
            ]

        await until(found, PATIENCE_S)
        return found()[0]

    async def hand_over(self, heir):
        """Makes a node master once the master knows that it is in sync, and returns the epoch in which it serves."""
        before = await self.master()
        epoch = self.nodes[before].role.core.epoch
        if before == heir:
            return epoch
        await self.may_take_over(heir)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.nodes[before].switch_over(self.id(heir))
                    break
                except CannotSwitchOver:  # it did not catch up in time, or an answer came late: on a busy machine
                    await self.may_take_over(heir)
        assert await self.master(after=epoch) == heir
        return self.nodes[heir].role.core.epoch

    async def may_take_over(self, heir):
        """Waits until the master knows that a node is in sync; the controllers know it before."""
        core = self.nodes[await self.master()].role.core
        id_ = self.id(heir)
        await until(lambda: id_ in core.sync_set and core.peers[id_].ready, PATIENCE_S)

    def role(self, name):
        return self.nodes[name].role

    def is_streaming(self, name):
        role = self.role(name)
        return isinstance(role, ReplicaRole) and role.streaming

    async def in_sync(self, *names):
        """Waits until the SyncStateSet is these nodes."""
        ids = {self.id(name) for name in names or self.names}
        await until(lambda: set(self.group.sync_set) == ids, PATIENCE_S)

    async def settled(self):
        """Waits until every node has all of the master's log, confirmed."""

        master = await self.master()

        def ends(store):
            return store.replication.flushed, store.replication.end, store.log.confirmed

        def positions():
            stores = {name: node.disk.store for name, node in self.nodes.items()}
            return {name: one and ends(one) for name, one in stores.items()}

        def same():
            stores = [node.disk.store for node in self.nodes.values()]
            end = self.nodes[master].disk.store.replication.end
            return all(one is not None and set(ends(one)) == {end} for one in stores)

        try:
            await until(same, PATIENCE_S)
        except TimeoutError as error:
            error.add_note(f"master {master}; flushed, end and confirmed are {positions()}")
            raise

    def resolve(self):
        group = self.group
        replica = group.replica(group.master) if group.master is not None else None
        return replica.address if replica is not None else None

    def store(self, **options):
        """Returns a client of the group."""
        store = RemoteStore(GROUP, self.resolve, **{"budget_s": PATIENCE_S, **options})
        self.client.watch(store.moved)
        self.stores.append(store)
        return store


class Load:
    """Appends by an idempotent producer, one after the other with some under way, until it is stopped."""

    def __init__(self, store, *, producer=7, window=8, queue=16, size=100, pause_s=0.0):
        self.store, self.producer, self.queue, self.size = store, producer, queue, size
        self.window, self.pause_s = window, pause_s
        self.acknowledged = []  # sequence numbers
        self.errors = []
        self.longest_s = 0.0  # between two acknowledgements, in the time of a loop that nothing holds up
        self._turns = 0
        self.task = asyncio.ensure_future(self._run())
        self.stopping = False

    def body(self, sequence):
        return b"%d %08d" % (self.producer, sequence) + b"." * self.size

    async def _count(self):
        while True:
            await asyncio.sleep(TURN_S)
            self._turns += 1

    async def _run(self):
        counting = asyncio.ensure_future(self._count())
        try:
            await self._append()
        finally:
            counting.cancel()

    async def _append(self):
        under_way = {}
        sequence, last = 0, self._turns
        while not self.stopping or under_way:
            while not self.stopping and len(under_way) < self.window:
                sequence += 1
                one = frame((self.queue, self.body(sequence)), producer_id=self.producer, sequence=sequence)
                under_way[begin(self.store, one)[0]] = sequence
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(done, key=under_way.__getitem__):
                number = under_way.pop(future)
                if future.exception() is not None:
                    self.errors.append(future.exception())
                else:
                    self.acknowledged.append(number)
            self.longest_s = max(self.longest_s, (self._turns - last) * TURN_S)
            last = self._turns
            await asyncio.sleep(self.pause_s)

    async def until(self, count):
        """Waits for this many more acknowledgements."""
        goal = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= goal or self.task.done(), PATIENCE_S)

    async def stop(self):
        self.stopping = True
        await self.task
        assert self.acknowledged == sorted(self.acknowledged)
        return self.acknowledged
