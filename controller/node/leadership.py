"""The work of a controller that leads: it answers requests, and elects masters."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

from controller.api.client import ControllerClosed, ControllerError, ControllerRequest, Group, NotElectable, Service
from controller.api.commands import (
    AlterSyncSet,
    Command,
    DeleteMember,
    ElectMaster,
    NameCluster,
    RaiseQueues,
    RegisterReplica,
    encode_command,
)
from controller.api.requests import AddMember, AskService, Barrier, CompareMetadata, Elect, RemoveMember, Transfer
from controller.complaints.messages import Report
from controller.disk.driver import Driver
from controller.elections.admission import ReplicaAdmission
from controller.elections.elections import OPERATOR_CHOICE_MS, Elections
from controller.elections.registry import Registry
from controller.elections.serving import Serving
from controller.incarnations.members import Members
from controller.metadata.machine import Metadata
from controller.raft import NotLeader, RaftError, Role
from controller.wire.wire import BadRequest, NotLeading
from store.base.streams.event_wait import wait_at_most

logger = logging.getLogger(__name__)

APPLIED_LOOK_S = 0.05  # between two looks whether what is in the log is applied
BEGIN_AGAIN_S = 0.02  # until a new leader tries again to apply its predecessors' entries
CLUSTER_ID_BYTES = 8  # random, of a new cluster's id


def name_cluster(time_ms: int) -> bytes:
    """Returns the command by which a cluster gets an id, if it has none."""
    return encode_command(NameCluster(id=secrets.token_hex(CLUSTER_ID_BYTES), time_ms=time_ms))


class ChangeSignal:
    """A condition that wakes all its waiters at once."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def happened(self) -> None:
        """Wakes all waiters."""
        self._next.set()
        self._next = asyncio.Event()

    async def next(self, timeout_s: float) -> None:
        """Waits for the next event, at most `timeout_s`."""
        await wait_at_most(self._next, timeout_s)


class Leadership:
    """The leadership of one controller, from term to term. In `term` it leads and has applied all earlier commands.

    `clock_ms` never goes back, `now_ms` is the time of day.
    """

    def __init__(
        self,
        driver: Driver,
        metadata: Metadata,
        members: Members,
        registry: Registry,
        changes: ChangeSignal,
        *,
        clock_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self.driver = driver
        self._metadata = metadata
        self._members = members
        self._registry = registry
        self._changes = changes
        self._clock_ms, self._now_ms = clock_ms, now_ms
        self.term: int | None = None
        self._assumed: int | None = None  # the term in which this node leads, and may not know all of it yet
        self._state = metadata.state
        self._elections = Elections(self._state.groups, registry)
        self._admission = ReplicaAdmission(self._state.groups, registry)
        self._serving = Serving(registry)

    @property
    def leader_address(self) -> str:
        """Returns where the leader serves; empty when that is not known."""
        leader = self.driver.status.leader
        return "" if leader is None else self._members.address_of(leader) or ""

    def look(self) -> int | None:
        """Looks whether this node leads still, and returns the term to `begin` if it does so newly."""
        if self._state is not self._metadata.state:
            self._state = self._metadata.state
            self._elections = Elections(self._state.groups, self._registry)
            self._admission = ReplicaAdmission(self._state.groups, self._registry)
        status = self.driver.status
        leads = status.term if status.role is Role.LEADER else None
        if leads == self._assumed:
            return None
        if self.term is not None:
            logger.info("controller %d is not the leader any more", status.id)
        self.term, self._assumed = None, leads
        return leads

    async def begin(self, term: int) -> None:
        """Leads once all that was done in earlier terms is applied here, and the cluster has an id."""
        while self._assumed == term:
            try:
                await self.driver.barrier()
                if not self._metadata.state.cluster:
                    await self.driver.propose(name_cluster(self._now_ms()), term=term)
                if not self._metadata.state.digest:
                    begin = RaiseQueues(next_queue=0, time_ms=self._now_ms())
                    await self.driver.propose(encode_command(begin), term=term)
            except (NotLeader, ControllerClosed):
                return
            except RaftError:
                await asyncio.sleep(BEGIN_AGAIN_S)
                continue
            if self._assumed == term:
                logger.info("controller %d is the leader in term %d", self.driver.status.id, term)
                self._elections.began(self._clock_ms())
                self._serving.began(self._clock_ms())
                self.term = term
                self.judge()
                self._changes.happened()
            return

    def end(self) -> None:
        """Ends the leadership, as the node has failed."""
        self.term = self._assumed = None

    # ---- requests

    async def answer(self, request: ControllerRequest[Any], *, term: int | None = None) -> Any:
        """Executes it, in this term if given. Raises `NotLeading`, `OutcomeUnknown`, and the error that refuses it."""
        if self.term is None or term not in {None, self.term}:
            raise NotLeading(self.leader_address if self.term is None else "")
        match request:
            case Elect():
                return await self._elect(request)
            case AddMember():
                await self._members.add(request, self._state)
            case RemoveMember():
                await self._members.remove(request.id, self._state)
                await self._apply(DeleteMember(id=request.id, time_ms=self._now_ms()))
            case Transfer():
                self._members.transfer(request.to)
            case Barrier():
                await self.driver.barrier()
            case CompareMetadata():
                await self.driver.barrier()
                self._metadata.check(request.known, self.driver.applied)
            case Report():
                self._take_report(request)
            case AskService():
                return await self._report_service(request.group)
            case ElectMaster():
                raise BadRequest("elections are decided by the controllers' leader: send Elect instead")
            case Command():
                return await self._apply(request)
            case _:
                raise BadRequest(f"an unknown request: {type(request).__name__}")
        return None

    def _take_report(self, report: Report) -> None:
        """Takes a proxy's report on the masters that it needs. Raises `ControllerOverloaded`."""
        self._registry.complaints.take(report, self._clock_ms())
        if report.complaints:
            self.judge()

    async def _report_service(self, group: int) -> Service:
        """Returns whether a group is served. Raises `NotLeading` if this node leads no more when that is to be sent.

        The next leader may have said otherwise by then.
        """
        term = self.term
        found = self._serving.ask(group, self._state.groups.get(group), self._clock_ms())
        await self.driver.barrier()
        if term is None or self.term != term:
            raise NotLeading(self.leader_address)
        return found

    async def _apply(self, command: Command[Any]) -> Any:
        """Proposes a command, unless it would be refused; metadata that may be out of date refuses nothing."""
        try:
            self._admit(command)
        except ControllerError:
            await self.driver.barrier()
            # Its own first copy may be in the log, and not committed: refused for good, it would hold all the same.
            await self._until_applied(self.driver.status.last_index)
            self._admit(command)
        return await self._propose(command)

    async def _until_applied(self, index: int) -> None:
        """Waits until the log is applied up to an index. Raises `NotLeading` when this controller leads no more."""
        term = self.term
        while self.driver.applied < index:
            if term is None or self.term != term:
                raise NotLeading(self.leader_address)
            await self._changes.next(APPLIED_LOOK_S)

    def _admit(self, command: Command[Any]) -> None:
        if isinstance(command, AlterSyncSet):
            self._admission.check_alteration(command, self._clock_ms())
        elif isinstance(command, RegisterReplica):
            self._admission.check_registration(command, self._clock_ms())
        self._state.check(command)

    def _propose(self, command: Command[Any]) -> "asyncio.Future[Any]":
        if self.term is None:
            raise NotLeading(self.leader_address)
        return self.driver.propose(encode_command(command), term=self.term)

    async def _elect(self, request: Elect) -> Group | None:
        """Elects, in two commands where a majority acknowledges: `judge` proposes the second one."""
        before = self._state.groups.get(request.group)
        command = self._elections.decide(
            request.group,
            request.candidate,
            self._clock_ms(),
            self._now_ms(),
            master_epoch=request.master_epoch,
            sync_epoch=request.sync_epoch,
            unclean=request.unclean,
        )
        if command is not None:
            await self._propose(command)
            deadline_ms = self._clock_ms() + OPERATOR_CHOICE_MS
            while not self._elected(request):
                if self._clock_ms() >= deadline_ms:
                    raise NotElectable(self._why_not(request))
                await self._changes.next(OPERATOR_CHOICE_MS / 1000)
        after = self._state.groups.get(request.group)
        in_vain = after is not None and before is not None and after.master == before.master is not None
        if command is not None and command.candidate is None is request.candidate and in_vain:
            assert after is not None
            raise NotElectable(
                f"store group {request.group}: replica {after.master} is master again, in epoch {after.master_epoch}: "
                "of a majority it has the longest log"
            )
        return after

    def _why_not(self, request: Elect) -> str:
        there = self._state.groups.get(request.group)
        if there is None or there.master is None:
            return f"store group {request.group}: too few replicas have promised to follow"
        return (
            f"store group {request.group}: replica {there.master} is master of epoch {there.master_epoch}: its log is "
            "longer"
        )

    def _elected(self, request: Elect) -> bool:
        if self.term is None:
            raise NotLeading(self.leader_address)
        there = self._state.groups.get(request.group)
        return there is None or (there.master is not None and request.candidate in {None, there.master})

    # ---- automatic elections

    @property
    def is_calm(self) -> bool:
        """Returns whether no election may become due soon, as far as is known here."""
        return self.term is None or self._elections.is_calm(self._clock_ms())

    def judge(self) -> None:
        """Proposes due elections, if this node leads: to be called every `registry.TICK_MS` unless it is calm."""
        if self.term is None:
            self._registry.tick(self._clock_ms())
            return
        for command in self._elections.tick(self._clock_ms(), self._now_ms()):
            try:
                self._propose(command).add_done_callback(_log_election)
            except ControllerError as error:
                logger.info("the election in store group %d is not proposed: %s", command.group, error)


def _log_election(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.info("an election had no effect: %s", error)
