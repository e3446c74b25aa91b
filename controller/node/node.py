"""A controller: the cluster's metadata agreed upon by Raft, heartbeats, and elections while it leads.

In process it is a `ControllerClient`. Reads return the state that this node has applied. Commands are proposed here
while it leads, and go to the leader while another one does; either way they are applied here before they are answered.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from controller.api.client import (
    ControllerClosed,
    ControllerError,
    ControllerRequest,
    ControllerUnreachable,
    WrongCluster,
)
from controller.api.commands import ClusterLimits
from controller.api.requests import AddMember, Barrier
from controller.disk.cluster_file import ClusterFile
from controller.disk.driver import Driver, OutcomeUnknown
from controller.disk.migration import RAFT, open_storage
from controller.elections.registry import TICK_MS, GroupRoute, Heartbeat, Registry
from controller.incarnations.members import Members
from controller.incarnations.memory_check import MemoryCheck
from controller.metadata.feed import CommandFeed
from controller.metadata.machine import Metadata
from controller.node.leadership import ChangeSignal, Leadership
from controller.raft import (
    BadMessage,
    Membership,
    Message,
    NotLeader,
    ProposalDropped,
    RaftError,
    RaftSettings,
    Storage,
    WentBack,
)
from controller.raft.lmdb_storage import LmdbStorage
from controller.wire.commander import BUDGET_S, Commander, settled
from controller.wire.peers import Peers
from controller.wire.state_client import StateClient
from controller.wire.status import ControllerStatus, status_of
from controller.wire.wire import COMMAND_BYTES_MAX, Hello, NotLeading
from store.base.rhythm import pause

logger = logging.getLogger(__name__)

TICK_S = 0.05  # of Raft: ten without a heartbeat, and there is an election
HEARTBEAT_TICKS = 2  # between two heartbeats of the leader: each costs all controllers processor time, idle or not
FOLLOWER_LOOK_S = 0.5  # between two looks at the time where nothing is elected: half of what counts as a pause
WITH_HEARTBEAT_MS = 250  # the same where heartbeats of a leader come: their wakes serve for both
CALM_TICKS = 2  # of elections, between two looks at the time where all masters serve without complaints
CURRENT_S = 5.0  # how long a start waits for a leader before it shows its applied metadata to others
HANG_UP_S = 5.0  # until connections to controllers that were removed are closed
AGAIN_S = 0.1  # until a command that was not taken is tried again, if nothing happens before
RESIGN_S = 0.5  # for another controller to take over from one that is shut down
_TRANSIENT = (NotLeading, NotLeader, ProposalDropped, OutcomeUnknown)


def monotonic_ms() -> int:
    """Returns milliseconds that never go back."""
    return time.monotonic_ns() // 1_000_000


class ControllerNode(StateClient):
    """One controller. `open` begins it, `close` ends it; `failed` is set when it must not go on.

    `members` are the first members of a new cluster by id, with where they serve; every one of them is given the same.
    A node with none, and an empty directory, waits until it is added.
    """

    def __init__(
        self,
        node_id: int,
        storage: Storage,
        *,
        address: str = "",
        node: str = "local",
        members: Mapping[int, str] | None = None,
        limits: ClusterLimits | None = None,
        now_ms: Callable[[], int],
        clock_ms: Callable[[], int] = monotonic_ms,
        credentials: Any = None,
        settings: RaftSettings | None = None,
        tick_s: float | None = TICK_S,
        chance: random.Random | None = None,
        send: Callable[[Sequence[Message]], None] | None = None,
        budget_s: float = BUDGET_S,
        cluster: ClusterFile | None = None,
        join: bool = False,
        copied: bool = False,
    ) -> None:
        self._metadata = Metadata()
        super().__init__(self._metadata.state, limits or ClusterLimits(), now_ms)
        self._loop = asyncio.get_running_loop()
        self.id = node_id
        self.address = address
        self.node = node
        self.storage = storage
        self._members = Members(node_id, members or {})
        self.clock_ms = clock_ms
        self._budget_s = budget_s
        self._peers = Peers(
            lambda: Hello(node_id, address, self.cluster),
            self._members.address_of,
            self._unreachable,
            credentials=credentials,
        )
        self.driver = Driver(
            node_id,
            storage,
            self._metadata,
            send=send or self._peers.send,
            settings=settings or RaftSettings(heartbeat_ticks=HEARTBEAT_TICKS, proposal_bytes_max=COMMAND_BYTES_MAX),
            chance=chance,
            tick_s=tick_s,
        )
        self._members.follow(self.driver)
        first = {} if join else members or {}
        self.memory = MemoryCheck(self, self.driver, self._members, first, copied=copied, credentials=credentials)
        self._forward = Commander(
            self._members.others, cluster=lambda: self.cluster, credentials=credentials, budget_s=budget_s
        )
        self.state = self._metadata.state  # for reading; another object after a snapshot was installed
        self.registry = Registry(clock_ms())
        self._metadata.on_move = self._moved
        self._changes = ChangeSignal()
        self._leadership = Leadership(
            self.driver,
            self._metadata,
            self._members,
            self.registry,
            self._changes,
            clock_ms=clock_ms,
            now_ms=now_ms,
        )
        self.current = asyncio.Event()  # set when the applied state is not older than this node's start
        self.failed: asyncio.Future[Exception] = self._loop.create_future()
        self._closing = False
        self._cluster = cluster or ClusterFile(None)
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        node_id: int = 1,
        members: Mapping[int, str] | None = None,
        join: bool = False,
        **rest: Any,
    ) -> "ControllerNode":
        """Opens or begins a controller's directory. Raises `ControllerDamaged`, `StorageFailed`, OSError."""
        voters = {} if join else dict(members or {node_id: rest.get("address", "")})
        if not join and node_id not in voters:
            raise ControllerError(f"controller {node_id} is none of the first members {sorted(voters)}: let it join")
        loop = asyncio.get_running_loop()
        storage = await loop.run_in_executor(None, open_storage, directory, node_id, voters)
        try:
            file = ClusterFile(directory / RAFT)
            node = cls(node_id, storage, members=members, join=join, copied=storage.copied, cluster=file, **rest)
            node.start()
        except BaseException:
            storage.close()
            raise
        return node

    def start(self) -> None:
        """Begins to take part. Raises `StorageFailed`, `ControllerDamaged`."""
        self.driver.settle()
        self._spawn(self._drive(), "raft")
        self._spawn(self._watch_time(), "elections")
        self._spawn(self._members.promote(), "learners")
        self._spawn(self._hang_up(), "removed controllers")
        self._spawn(self._become_current(), "first state")
        self._spawn(self._cluster.learn(lambda: self._metadata.state.cluster, self._changes.next), "id of the cluster")
        self._spawn(self.memory.run(), "trust in the directory")
        if self.address:
            self._spawn(self.memory.introduce(), "membership")

    async def resign(self) -> None:
        """Lets another controller lead, if this one does and another one is there, before it is closed."""
        status = self.driver.status
        successors = [id_ for id_ in self.membership.voters if id_ in status.progress and status.progress[id_].active]
        if self.leading is None or not successors:
            return
        successor = max(successors, key=lambda id_: status.progress[id_].match)
        deadline_s = self._loop.time() + RESIGN_S
        with suppress(RaftError):
            self.driver.transfer(successor)
            while self.leading is not None and self._loop.time() < deadline_s:
                await self._changes.next(RESIGN_S)

    async def close(self) -> None:
        """Ends it. Everything that was answered is on disk."""
        self._closing = True
        await self._forward.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._peers.close()
        await self._loop.run_in_executor(None, self.driver.close)
        if isinstance(self.storage, LmdbStorage):
            self.storage.close()

    def _spawn(self, work: Any, name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(self) -> None:
        try:
            await self.driver.run()
        except Exception as error:
            logger.critical("this controller stops: %s", error, exc_info=not isinstance(error, ControllerError))
            self._leadership.end()
            if not self.failed.done():
                self.failed.set_result(error)
            self._changes.happened()

    @property
    def removed(self) -> str | None:
        """Returns why writes would be lost now; None while the file of the log is in its place."""
        return self.storage.removed if isinstance(self.storage, LmdbStorage) else None

    # ---- news of the log

    @property
    def applied(self) -> int:
        """The index of the last entry that is applied here."""
        return self.driver.applied

    @property
    def cluster(self) -> str:
        """The cluster's id, also before this node knows its commit index; empty: it has none yet."""
        return self._metadata.state.cluster or self._cluster.id

    def check_cluster(self, cluster: str) -> None:
        """Raises `WrongCluster` for a peer of another cluster."""
        if cluster and self.cluster not in {"", cluster}:
            raise WrongCluster(f"this is controller {self.id} of cluster {self.cluster}, not of cluster {cluster}")

    @property
    def feed(self) -> CommandFeed:
        """The newest commands."""
        return self._metadata.feed

    @property
    def membership(self) -> Membership:
        """Returns the controllers that vote, and those that are to."""
        return self.driver.status.membership

    @property
    def leader_address(self) -> str:
        """Returns where the leader serves, or an empty string."""
        return self._leadership.leader_address

    @property
    def leading(self) -> int | None:
        """The term in which this node leads, and knows all that was done before."""
        return self._leadership.term

    async def answer(self, request: ControllerRequest[Any], *, term: int | None = None) -> Any:
        """Executes a request, as the leader, in this term if one is given.

        Raises `NotLeading`, `OutcomeUnknown`, and the error that refuses it.
        """
        return await self._leadership.answer(request, term=term)

    @property
    def term(self) -> int:
        """The newest term that this node knows of."""
        return self.driver.status.term

    @property
    def has_leader(self) -> bool:
        """Returns whether a leader is known."""
        return self.driver.status.leader is not None

    @property
    def is_member(self) -> bool:
        """Returns whether this node belongs to the cluster, as far as it knows, with the directory that it has."""
        member, status = self.membership.get(self.id), self.driver.status
        return member is not None and member.is_(status.incarnation)

    def snapshot(self) -> tuple[int, bytes]:
        """Returns the state as of an index from which `feed` goes on."""
        return self._metadata.shown()

    def _moved(self) -> None:
        """Handles the news that more is applied, or that another controller leads."""
        metadata = self._metadata
        self.state = metadata.state
        term = self._leadership.look()
        if term is not None:
            self._spawn(self._leadership.begin(term), "beginning to lead")
        metadata.feed.reached(self.driver.applied)
        if metadata.news:
            metadata.news = False
            for group, replica in metadata.forgotten:
                self.registry.forget(group, replica)
            metadata.forgotten.clear()
            self._listeners.tell()
            self._leadership.judge()
        self._changes.happened()

    async def _become_current(self) -> None:
        """Catches up with commands from before this start; without a leader, takes its state after a while."""
        deadline_s = self._loop.time() + CURRENT_S
        while not self.current.is_set():
            left_s = deadline_s - self._loop.time()
            if left_s <= 0 and self.applied:
                self.current.set()
                return
            with suppress(RaftError, TimeoutError):
                async with asyncio.timeout(left_s if left_s > 0 else CURRENT_S):
                    await self.driver.barrier()
                    self.current.set()
                    return
            await asyncio.sleep(0.02)

    def _applied(self) -> int:
        return self.applied

    # ---- requests

    async def barrier(self) -> None:
        """Waits until all is applied here that was done before."""
        await self.do(Barrier())

    async def _request(self, request: ControllerRequest[Any]) -> Any:
        """Executes it, here or at the leader. Raises `ControllerError`."""
        deadline_s = self._loop.time() + self._budget_s
        unsure = False
        while True:
            if self.leading is not None:
                try:
                    return await self.answer(request)
                except _TRANSIENT as error:
                    unsure = unsure or isinstance(error, OutcomeUnknown)
                except ControllerError as error:
                    if settled(request, error, unsure=unsure):
                        return None
                    raise
            elif self.driver.status.leader not in {None, self.id}:
                self._forward.led_by(self.leader_address, self.term)
                index, answer = await self._forward.ask(request)
                await self.driver.until_applied(index)
                return answer
            await self._until_moved(deadline_s)

    async def _until_moved(self, deadline_s: float) -> None:
        if self.failed.done():
            raise ControllerClosed(f"this controller has failed: {self.failed.result()}")
        if self._closing:
            raise ControllerClosed("this controller is shut down")
        if self._loop.time() >= deadline_s:
            raise ControllerUnreachable(f"the controllers have had no leader for {self._budget_s:g} s")
        await self._changes.next(AGAIN_S)

    # ---- who is a controller

    async def _hang_up(self) -> None:
        """Closes the connections to controllers that were removed, when they have been told so."""
        while True:
            await asyncio.sleep(HANG_UP_S)
            if self.is_member:
                await self._peers.keep(self.membership.ids)

    async def ask_membership(self, request: AddMember) -> None:
        """Asks for membership.

        A controller that is no member knows no leader, and asks the controllers that it was told of.
        """
        if self.has_leader and self.is_member:
            await self._request(request)
        else:
            await self._forward.ask(request)

    def _unreachable(self, id_: int) -> None:
        self.driver.unreachable(id_)

    def receive(self, sender: Hello, messages: Sequence[Message]) -> None:
        """Takes a peer's messages. Raises `BadMessage`, `ControllerClosed`."""
        self._members.learn(sender)
        for message in messages:
            if message.sender != sender.id:
                raise BadMessage(f"controller {sender.id} speaks for controller {message.sender}")
            try:
                self.driver.step(message)
            except WentBack as error:
                self._spawn(self.memory.went_back(str(error)), "another incarnation")
                return
        if self.leading is None and self.clock_ms() - self.registry.ticked_ms >= WITH_HEARTBEAT_MS:
            self._leadership.judge()

    # ---- who is alive

    def heartbeat(self, said: Heartbeat) -> None:
        """Takes a replica's heartbeat. Raises `ControllerError`."""
        if self.registry.heartbeat(said, self.clock_ms()):
            self._leadership.judge()

    def disconnected(self, group: int, replica: int) -> None:
        """Notes that the connection of a replica has ended."""
        self.registry.disconnected(group, replica, self.clock_ms())

    def routes(self, group: int | None) -> list[GroupRoute]:
        """Returns where this group is served, or all are, as far as this controller has heard."""
        now_ms = self.clock_ms()
        numbers = [group] if group is not None else sorted({*self.state.groups, *self.registry.groups()})
        found = (self.registry.route(number, self.state.groups.get(number), now_ms) for number in numbers)
        return [route for route in found if route is not None]

    async def _watch_time(self) -> None:
        while True:
            await pause(FOLLOWER_LOOK_S if self.leading is None else self._look_s())
            self._leadership.judge()

    def _look_s(self) -> float:
        """Returns the time between two looks of a leader."""
        return (CALM_TICKS if self._leadership.is_calm else 1) * TICK_MS / 1000

    # ---- status

    def status(self) -> ControllerStatus:
        """Returns the status that operators see."""
        full = self.driver.full is not None
        return status_of(self.driver.status, self.state, self.registry, self.clock_ms(), full=full)
