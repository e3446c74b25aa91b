"""The controllers: their addresses, their votes, and making this one known to the others."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from controller.api.client import ControllerClosed
from controller.api.names import listed
from controller.api.requests import AddMember
from controller.disk.driver import Driver
from controller.elections.registry import TICK_MS
from controller.incarnations.operator_texts import ANOTHER
from controller.metadata.state import MetadataState
from controller.raft import ChangeKind, ChangeRefused, MembershipChange, RaftError, RaftMember, TransferRefused
from controller.raft.progress import ProgressState
from controller.wire.wire import Hello
from store.base.rhythm import pause

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks for learners, while there are none
LEARNED_COUNT_MAX = 1_024  # controllers whose address is known from themselves only


class Members:
    """The members as one of them sees them. `configured` names the first members, or those to join."""

    def __init__(self, node_id: int, configured: Mapping[int, str]) -> None:
        self._id = node_id
        self._configured = dict(configured)
        self._learned: dict[int, str] = {}  # where those serve that have spoken to us
        self._driver: Driver | None = None

    def follow(self, driver: Driver) -> None:
        """Sets the node that knows the membership."""
        self._driver = driver

    def address_of(self, id_: int) -> str | None:
        """Returns a controller's address, if it is known."""
        member = self._driver.status.membership.get(id_) if self._driver is not None else None
        if member is not None and member.address:
            return member.address
        return self._learned.get(id_) or self._configured.get(id_)

    def others(self) -> Sequence[str]:
        """Returns the addresses where other controllers may be."""
        assert self._driver is not None
        found = {one.address: None for one in self._driver.status.membership.members if one.id != self._id}
        found |= {at: None for id_, at in self._configured.items() if id_ != self._id}
        return [at for at in found if at]

    def learn(self, hello: Hello) -> None:
        """Notes the address that a controller reports: it may be one that we do not know yet."""
        if hello.id in self._learned or len(self._learned) < LEARNED_COUNT_MAX:
            self._learned[hello.id] = hello.address

    # ---- the leader's part

    async def add(self, request: AddMember, state: MetadataState) -> None:
        """Adds a learner, or says where a member is now. Raises `ChangeRefused`, `NotLeader`, `OutcomeUnknown`."""
        assert self._driver is not None
        await self._settled()
        there = self._driver.status.membership.get(request.id)
        if there is None:
            if request.id in state.removed_members:
                raise ChangeRefused(f"there was a controller {request.id}: its id is not given again; take another one")
            await self._add(request)
        elif request.incarnation and there.incarnation != request.incarnation:
            await self._take_place(there, request)
        elif there.address != request.address:
            await self._driver.change(MembershipChange(kind=ChangeKind.MOVE, node=request.id, address=request.address))

    async def _take_place(self, there: RaftMember, request: AddMember) -> None:
        """Names a member that has no incarnation yet, or adds another node in its place as a learner."""
        assert self._driver is not None
        if not there.incarnation and (request.kept or there.learner):
            change = MembershipChange(kind=ChangeKind.NAME, node=request.id, incarnation=request.incarnation)
            await self._driver.change(change)
            return
        self._check_gone(request.id, there.address)
        logger.warning("controller %d has another directory: it is added again as a learner", request.id)
        await self._add(request)

    async def _add(self, request: AddMember) -> None:
        assert self._driver is not None
        change = MembershipChange(
            kind=ChangeKind.ADD_LEARNER, node=request.id, address=request.address, incarnation=request.incarnation
        )
        await self._driver.change(change)

    def _check_gone(self, id_: int, address: str) -> None:
        """Raises `ChangeRefused` where the member whose place is asked for is alive."""
        assert self._driver is not None
        peer = self._driver.status.progress.get(id_)
        if peer is not None and peer.active:
            raise ChangeRefused(ANOTHER.format(id=id_, address=address))

    async def remove(self, id_: int, state: MetadataState) -> None:
        """Removes a member, unless it has been removed. Raises `ChangeRefused`, `NotLeader`, `OutcomeUnknown`."""
        assert self._driver is not None
        await self._settled()
        membership = self._driver.status.membership
        if membership.voters == (id_,):
            raise ChangeRefused(
                f"controller {id_} is the only one that votes: add another one by `headgate cluster members add`, and "
                "remove this one when that votes"
            )
        if membership.get(id_) is not None:
            await self._driver.change(MembershipChange(kind=ChangeKind.REMOVE, node=id_))
        elif id_ not in state.members and id_ not in state.removed_members:
            raise ChangeRefused(
                f"there is no controller {id_}, and there was none; the controllers are {listed(membership.ids)}"
            )

    def transfer(self, id_: int) -> None:
        """Hands the leadership to another controller. Raises `TransferRefused`, `NotLeader`."""
        assert self._driver is not None
        membership = self._driver.status.membership
        there = membership.get(id_)
        if there is None:
            raise TransferRefused(f"there is no controller {id_}; the controllers are {listed(membership.ids)}")
        if there.learner:
            raise TransferRefused(
                f"controller {id_} does not vote yet, so it cannot lead: it votes when it has caught up, as "
                "`headgate cluster status` shows"
            )
        if id_ != self._id:
            self._driver.transfer(id_)

    async def _settled(self) -> None:
        """Waits until the membership changes in the log are committed: until then they hold, but may be taken back.

        Raises `NotLeader`.
        """
        assert self._driver is not None
        await self._driver.settled()

    async def promote(self) -> None:
        """Lets learners vote that have caught up, one after the other, as long as this node leads. Never returns."""
        assert self._driver is not None
        while True:
            status = self._driver.status
            await pause(TICK_MS / 1000 if any(one.learner for one in status.membership.members) else LOOK_S)
            status = self._driver.status
            for member in status.membership.members:
                peer = status.progress.get(member.id)
                known = member.incarnation or not status.incarnation  # one that is not known yet cannot be counted
                if member.learner and known and peer is not None and peer.state is ProgressState.REPLICATE:
                    with suppress(RaftError, ControllerClosed):
                        await self._driver.change(MembershipChange(kind=ChangeKind.PROMOTE, node=member.id))
                        logger.info("controller %d votes", member.id)
                    break
