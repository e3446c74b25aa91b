"""A controller: the cluster's metadata agreed upon by Raft, who is alive, and elections while it leads.

In process it is a `ControllerClient`. Reads are of what this node has applied. Commands are proposed here while it
leads, and go to the leader while another one does; either way they are applied here before they are answered.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from controller.client import (
    ControllerClosed,
    ControllerError,
    ControllerUnreachable,
    Group,
    Member,
    NotElectable,
)
from controller.commander import BUDGET_S, Commander, settled
from controller.commands import AlterSyncSet, Command, DeleteMember, ElectMaster, decode_command, encode_command
from controller.driver import Driver, OutcomeUnknown
from controller.elections import WANTED_MS, Elections
from controller.feed import Feed
from controller.front import Limits, StateClient
from controller.peers import Peers
from controller.raft import (
    BadMessage,
    Change,
    ChangeKind,
    ChangeRefused,
    Entry,
    Membership,
    Message,
    NotLeader,
    ProposalDropped,
    RaftError,
    Role,
    Settings,
    Snapshot,
    Storage,
    first_snapshot,
)
from controller.raft import Member as RaftMember
from controller.raft.lmdb_storage import LmdbStorage
from controller.raft.progress import ProgressState
from controller.registry import TICK_MS, Heartbeat, Registry, Route
from controller.state import Answer, MetadataState
from controller.wire import (
    COMMAND_BYTES_MAX,
    AddMember,
    BadRequest,
    Barrier,
    ControllerStatus,
    Elect,
    Hello,
    MemberStatus,
    MoveMember,
    NotLeading,
    PeerStatus,
    RemoveMember,
    Request,
    Transfer,
)

__all__ = ["ControllerNode", "monotonic_ms"]

logger = logging.getLogger(__name__)

TICK_S = 0.05  # of Raft: a heartbeat; ten without one, and there is an election
CURRENT_S = 5.0  # how long a start waits for a leader before what was applied then is shown to others
HANG_UP_BEATS = 50  # ticks: who is removed is told so before
AGAIN_S = 0.1  # until a command that was not taken is tried again, if nothing happens before
WELCOME_S = 0.5  # between attempts to be known to the others
_TRANSIENT = (NotLeading, NotLeader, ProposalDropped, OutcomeUnknown)


def monotonic_ms() -> int:
    """Milliseconds that never go back."""
    return time.monotonic_ns() // 1_000_000


class _Metadata:
    """The state machine that the log is for, and its newest commands."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.feed = Feed()
        self.news = False  # since it was looked at last
        self.moved: Callable[[], None] = lambda: None

    def apply(self, entry: Entry) -> Answer:
        command = decode_command(entry.data)
        self.feed.add(entry.index, entry.data)
        self.news = True
        return self.state.apply(command)

    def restore(self, snapshot: Snapshot) -> None:
        self.state = MetadataState.restore(snapshot.data) if snapshot.data else MetadataState()
        self.feed.restart(snapshot.index)
        self.news = True

    def snapshot(self) -> bytes:
        return self.state.snapshot()


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
        limits: Limits | None = None,
        now_ms: Callable[[], int],
        clock_ms: Callable[[], int] = monotonic_ms,
        credentials: Any = None,
        settings: Settings | None = None,
        tick_s: float | None = TICK_S,
        chance: random.Random | None = None,
        send: Callable[[Sequence[Message]], None] | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._metadata = _Metadata()
        super().__init__(self._metadata.state, limits or Limits(), now_ms)
        self._loop = asyncio.get_running_loop()
        self.id = node_id
        self.address = address
        self.node = node
        self._storage = storage
        self._configured = dict(members or {})
        self._heard_at: dict[int, str] = {}  # where members that have spoken to us serve
        self._clock_ms = clock_ms
        self._budget_s = budget_s
        self._peers = Peers(Hello(node_id, address), self._address_of, self._unreachable, credentials=credentials)
        self._driver = Driver(
            node_id,
            storage,
            self._metadata,
            send=send or self._peers.send,
            settings=settings or Settings(proposal_bytes_max=COMMAND_BYTES_MAX),
            chance=chance,
            tick_s=tick_s,
        )
        self._forward = Commander(self._others, credentials=credentials, budget_s=budget_s)
        self.registry = Registry(clock_ms())
        self._state = self._metadata.state
        self._elections = Elections(self._state.groups, self.registry)
        self._metadata.moved = self._moved
        self.leading: int | None = None  # the term in which this node leads and knows all that was done before
        self._assuming: int | None = None  # the term that it begins to lead
        self._moves = asyncio.Event()
        self.current = asyncio.Event()  # what is applied here is not older than this node's start
        self.failed: asyncio.Future[Exception] = self._loop.create_future()
        self._closing = False
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
        """Open or begin a controller's directory. Raises `ControllerDamaged`, `StorageFailed`, OSError."""
        voters = {} if join else dict(members or {node_id: rest.get("address", "")})
        if not join and node_id not in voters:
            raise ControllerError(f"controller {node_id} is none of the first members {sorted(voters)}: let it join")
        first = first_snapshot(Membership.of(*(RaftMember(id=id_, address=at) for id_, at in sorted(voters.items()))))
        storage = await asyncio.get_running_loop().run_in_executor(
            None, lambda: LmdbStorage.open(directory, node_id, first=None if join else first)
        )
        try:
            node = cls(node_id, storage, members=members, **rest)
        except BaseException:
            storage.close()
            raise
        node.start()
        return node

    def start(self) -> None:
        """Begin to take part."""
        self._spawn(self._drive(), "raft")
        self._spawn(self._watch_time(), "elections")
        self._spawn(self._watch_members(), "learners")
        self._spawn(self._become_current(), "first state")
        if self.address:
            self._spawn(self._introduce(), "membership")
        self._driver.hurry_election()

    async def close(self) -> None:
        """End it. What was answered is on disk."""
        self._closing = True
        await self._forward.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._peers.close()
        await self._loop.run_in_executor(None, self._driver.close)
        close = getattr(self._storage, "close", None)
        if close is not None:
            close()

    def _spawn(self, work: Any, name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(self) -> None:
        try:
            await self._driver.run()
        except Exception as error:
            logger.critical("this controller stops: %s", error, exc_info=not isinstance(error, ControllerError))
            self.leading = None
            if not self.failed.done():
                self.failed.set_result(error)
            self._moves.set()

    # ---- what the log says

    @property
    def applied(self) -> int:
        """The index of the last entry that is applied here."""
        return self._driver.applied

    @property
    def state(self) -> MetadataState:
        """What is applied. For reading; another object after a snapshot was installed."""
        return self._metadata.state

    @property
    def feed(self) -> Feed:
        """The newest commands."""
        return self._metadata.feed

    @property
    def membership(self) -> Membership:
        """Who votes, and who is to."""
        return self._driver.status.membership

    @property
    def leader_address(self) -> str:
        """Where the leader serves, or empty."""
        leader = self._driver.status.leader
        return "" if leader is None else self._address_of(leader) or ""

    @property
    def has_leader(self) -> bool:
        """Whether a leader is known."""
        return self._driver.status.leader is not None

    @property
    def is_member(self) -> bool:
        """Whether this node belongs to the cluster, as far as it knows."""
        return self.id in self.membership.ids

    def snapshot(self) -> tuple[int, bytes]:
        """The state and its index."""
        return self.applied, self.state.snapshot()

    def _moved(self) -> None:
        """More is applied, or somebody else leads."""
        metadata, status = self._metadata, self._driver.status
        if self._state is not metadata.state:
            self._state = metadata.state
            self._elections = Elections(self._state.groups, self.registry)
        if status.role is not Role.LEADER or status.term != self._assuming:
            if self.leading is not None:
                logger.info("controller %d leads no more", self.id)
            self.leading = self._assuming = None
        if status.role is Role.LEADER and self._assuming is None:
            self._assuming = status.term
            self._spawn(self._begin_to_lead(status.term), "beginning to lead")
        metadata.feed.reached(self._driver.applied)
        if metadata.news:
            metadata.news = False
            self._notify()
            self.judge()
        self._moves.set()
        self._moves = asyncio.Event()

    def _notify(self) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener()
            except Exception:
                logger.exception("a listener on the controller has failed")

    async def _begin_to_lead(self, term: int) -> None:
        """Lead when all that was done in earlier terms is applied here."""
        with suppress(RaftError, ControllerClosed):
            await self._driver.barrier()
            if self._assuming == term:
                logger.info("controller %d leads in term %d", self.id, term)
                self._elections.began(self._clock_ms())
                self.leading = term
                self._moves.set()
                self._moves = asyncio.Event()
                self.judge()

    async def _become_current(self) -> None:
        """Catch up with what was done before this start; without a leader, go by what is there after a while."""
        deadline_s = self._loop.time() + CURRENT_S
        while not self.current.is_set():
            with suppress(RaftError, TimeoutError):
                async with asyncio.timeout(max(0.0, deadline_s - self._loop.time()) or None):
                    await self._driver.barrier()
                    self.current.set()
                    return
            if self._loop.time() >= deadline_s and self.applied:
                self.current.set()
                return
            await asyncio.sleep(0.02)

    # ---- commands

    async def _command(self, command: Command) -> Answer:
        return await self._request(command)

    async def elect(
        self,
        group: int,
        candidate: int | None = None,
        *,
        master_epoch: int | None = None,
        sync_epoch: int | None = None,
    ) -> Group:
        """Make a replica of the SyncStateSet master: this one, or the best one."""
        request = Elect(group=group, candidate=candidate, master_epoch=master_epoch, sync_epoch=sync_epoch)
        found = await self._request(request)
        assert isinstance(found, Group)
        return found

    async def add_member(self, id_: int, address: str) -> None:
        """Add a controller, which votes when it has caught up. Raises `ChangeRefused`."""
        await self._request(AddMember(id=id_, address=address))

    async def remove_member(self, id_: int) -> None:
        """Remove a controller, dead or alive. Raises `ChangeRefused`."""
        await self._request(RemoveMember(id=id_))

    async def transfer(self, to: int) -> None:
        """Let another controller lead. Raises `TransferRefused`."""
        await self._request(Transfer(to=to))

    async def barrier(self) -> None:
        """Wait until all is applied here that was done before."""
        await self._request(Barrier())

    async def _request(self, request: Request) -> Answer:
        """Do it, here or at the leader. Raises `ControllerError`."""
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
            elif self._driver.status.leader not in {None, self.id}:
                self._forward.led_by(self.leader_address)
                index, answer = await self._forward.ask(request)
                await self._driver.until_applied(index)
                return answer
            await self._until_moved(deadline_s)

    async def _until_moved(self, deadline_s: float) -> None:
        if self.failed.done():
            raise ControllerClosed(f"this controller has failed: {self.failed.result()}")
        if self._closing:
            raise ControllerClosed("this controller is shut down")
        if self._loop.time() >= deadline_s:
            raise ControllerUnreachable(f"the controllers have had no leader for {self._budget_s:g} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await self._moves.wait()

    async def answer(self, request: Request, *, term: int | None = None) -> Answer:
        """Do it as the leader, in this term if one is given. Raises `NotLeading`, `OutcomeUnknown`, what refuses it."""
        if self.leading is None or term not in {None, self.leading}:
            raise NotLeading(self.leader_address if self.leading is None else "")
        match request:
            case Elect():
                return await self._elect(request)
            case AddMember():
                await self._add_member(request)
            case MoveMember():
                await self._driver.change(Change(kind=ChangeKind.MOVE, node=request.id, address=request.address))
            case RemoveMember():
                await self._remove_member(request.id)
            case Transfer():
                if request.to != self.id:
                    self._driver.transfer(request.to)
            case Barrier():
                await self._driver.barrier()
            case ElectMaster():
                raise BadRequest("elections are decided by the controllers' leader: ask for one")
            case _:
                return await self._apply(request)
        return None

    async def _apply(self, command: Command) -> Answer:
        """Propose a command, unless it would be refused; nothing is refused by what may be out of date."""
        try:
            self._admit(command)
        except ControllerError:
            await self._driver.barrier()
            self._admit(command)
        term = self.leading
        if term is None:
            raise NotLeading(self.leader_address)
        return await self._driver.propose(encode_command(command), term=term)  # type: ignore[no-any-return]

    def _admit(self, command: Command) -> None:
        if isinstance(command, AlterSyncSet):
            self._elections.check_alteration(command, self._clock_ms())
        self._state.check(command)

    async def _elect(self, request: Elect) -> Answer:
        """Elect, in two commands where a majority acknowledges: `judge` proposes the second one."""
        command = self._elections.decide(
            request.group,
            request.candidate,
            self._clock_ms(),
            self._now_ms(),
            master_epoch=request.master_epoch,
            sync_epoch=request.sync_epoch,
        )
        if command is not None:
            await self._driver.propose(encode_command(command), term=self.leading)
            try:
                async with asyncio.timeout(WANTED_MS / 1000):
                    while not self._elected(request):
                        await self._moves.wait()
            except TimeoutError:
                raise NotElectable(f"group {request.group}: too few replicas have promised to follow") from None
        return self._state.groups.get(request.group)

    def _elected(self, request: Elect) -> bool:
        if self.leading is None:
            raise NotLeading(self.leader_address)
        there = self._state.groups.get(request.group)
        return there is None or (there.master is not None and request.candidate in {None, there.master})

    # ---- who is a controller

    async def _add_member(self, request: AddMember) -> None:
        there = self.membership.get(request.id)
        if there is None:
            change = Change(kind=ChangeKind.ADD_LEARNER, node=request.id, address=request.address)
        elif there.address != request.address:
            change = Change(kind=ChangeKind.MOVE, node=request.id, address=request.address)
        else:
            return
        await self._driver.change(change)

    async def _remove_member(self, id_: int) -> None:
        if self.membership.get(id_) is not None:
            await self._driver.change(Change(kind=ChangeKind.REMOVE, node=id_))
        await self._apply(DeleteMember(id=id_, time_ms=self._now_ms()))

    async def _watch_members(self) -> None:
        """Let learners vote that have caught up, one after the other; hang up on those that were removed."""
        beats = 0
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            beats += 1
            progress = self._driver.status.progress if self.leading is not None else {}
            for member in self.membership.members:
                peer = progress.get(member.id)
                if member.learner and peer is not None and peer.state is ProgressState.REPLICATE:
                    with suppress(RaftError, ControllerClosed):
                        await self._driver.change(Change(kind=ChangeKind.PROMOTE, node=member.id))
                        logger.info("controller %d votes", member.id)
                    break
            if beats % HANG_UP_BEATS == 0 and self.is_member:
                await self._peers.keep(self.membership.ids)

    async def _introduce(self) -> None:
        """Be a member, and say where this node is; again and again until that is known."""
        me = Member(id=self.id, node=self.node, address=self.address)
        while True:
            known = self.membership.get(self.id)
            if known is not None and known.address == self.address and self._state.members.get(self.id) == me:
                return
            try:
                if known is None and self.applied > 1:  # it was removed, or is about to read that it was added
                    logger.warning("controller %d is not in the cluster", self.id)
                elif known is None or known.address != self.address:
                    await self._introduced(AddMember(id=self.id, address=self.address))
                else:
                    await self.current.wait()
                    await self.set_member(me)
                    continue
            except ChangeRefused as error:
                logger.info("the membership cannot be changed now: %s", error)
            except ControllerError as error:
                logger.warning("the others do not know of this controller yet: %s", error)
            await asyncio.sleep(WELCOME_S)

    async def _introduced(self, request: AddMember) -> None:
        """Ask for membership; who is no member knows no leader, and asks those it was told of."""
        if self.has_leader:
            await self._request(request)
        else:
            await self._forward.ask(request)

    def _others(self) -> Sequence[str]:
        """Where other controllers may be."""
        found = {member.address: None for member in self.membership.members if member.id != self.id}
        found |= {at: None for id_, at in self._configured.items() if id_ != self.id}
        return [at for at in found if at]

    def _address_of(self, id_: int) -> str | None:
        member = self.membership.get(id_)
        if member is not None and member.address:
            return member.address
        return self._heard_at.get(id_) or self._configured.get(id_)

    def _unreachable(self, id_: int) -> None:
        self._driver.unreachable(id_)

    def receive(self, sender: Hello, messages: Sequence[Message]) -> None:
        """Take a peer's messages. Raises `BadMessage`, `ControllerClosed`."""
        if len(self._heard_at) < 1_024:
            self._heard_at[sender.id] = sender.address
        for message in messages:
            if message.sender != sender.id:
                raise BadMessage(f"controller {sender.id} speaks for controller {message.sender}")
            self._driver.step(message)

    # ---- who is alive

    def heartbeat(self, said: Heartbeat) -> None:
        """A replica has spoken. Raises `ControllerError`."""
        if self.registry.heartbeat(said, self._clock_ms()):
            self.judge()

    def disconnected(self, group: int, replica: int) -> None:
        """The connection of a replica has ended."""
        self.registry.disconnected(group, replica, self._clock_ms())

    def routes(self, group: int | None) -> list[Route]:
        """Where this group is served, or all are, as far as this controller has heard."""
        now_ms = self._clock_ms()
        numbers = [group] if group is not None else sorted({*self._state.groups, *self.registry.groups()})
        found = (self.registry.route(number, self._state.groups.get(number), now_ms) for number in numbers)
        return [route for route in found if route is not None]

    def judge(self) -> None:
        """Propose the elections that are due, if this node leads."""
        if self.leading is None:
            return
        for command in self._elections.tick(self._clock_ms(), self._now_ms()):
            try:
                future = self._driver.propose(encode_command(command), term=self.leading)
            except RaftError as error:
                logger.info("the election in group %d is not proposed: %s", command.group, error)
                continue
            future.add_done_callback(_log_election)

    async def _watch_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            if self.leading is None:
                self.registry.tick(self._clock_ms())
            else:
                self.judge()

    # ---- what it says of itself

    def status(self) -> ControllerStatus:
        """For an operator."""
        raft, now_ms = self._driver.status, self._clock_ms()
        members = []
        for member in raft.membership.members:
            peer = raft.progress.get(member.id)
            known = self._state.members.get(member.id)
            members.append(
                MemberStatus(
                    id=member.id,
                    address=member.address,
                    node=known.node if known is not None else "",
                    learner=member.learner,
                    peer=None
                    if peer is None
                    else PeerStatus(match=peer.match, state=peer.state.value, active=peer.active),
                )
            )
        replicas = [(group.number, one.id) for group in self._state.groups.values() for one in group.replicas]
        return ControllerStatus(
            id=self.id,
            role=raft.role.value,
            term=raft.term,
            leader=raft.leader,
            applied=raft.applied,
            commit=raft.commit,
            last=raft.last_index,
            first=raft.first_index,
            snapshot=raft.snapshot_index,
            members=tuple(members),
            topics=len(self._state.topics),
            queues=len(self._state.group_of),
            groups=len(self._state.groups),
            replicas_alive=sum(self.registry.heard(group, id_, now_ms) is not None for group, id_ in replicas),
        )


def _log_election(future: "asyncio.Future[Answer]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.info("an election had no effect: %s", error)
