"""The standing of a controller: whether its memory counts, and what it does where it does not.

A memory is a directory with its incarnation. Three are in doubt:

- An empty one. It may be that of a new cluster, or one that was lost. A new cluster is begun by the controller with the
  lowest id, when all others have said that they are empty too: were fewer enough, two that have lost their memory
  could not be told from two that never had one, while the third, which knows, is down. Otherwise it asks the leader for
  membership, as any new controller does, and is a learner first.
- A copy, which may be an old one: the file is not the one that was written to. It becomes another incarnation, and so a
  learner, as soon as there is a leader. Where there is none, because all were copied, it counts when all other voters
  have answered and none of them knows of anything that it lacks; from then on it votes only for candidates that have as
  much as the furthest of them. Where these then go on without it, with another incarnation of it, it becomes yet
  another one.
- One that went back without that being visible, such as a volume that was reset to a snapshot. Others remember its
  term and last acknowledged entry. They are asked once after every start, before it votes, and a leader's heartbeats
  tell it later. It becomes another incarnation too. So does one that went back to before it became another one: the
  others name that, and a leader sends this one nothing.

A memory of before the cluster was recovered from another controller counts nowhere any more. It has no leader to tell
it: so it asks the others as long as it knows no leader.
"""

import asyncio
import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Protocol

from controller.api.client import A_co, ControllerError, ControllerRequest, Member, MetadataForgotten
from controller.api.commands import SetMember
from controller.api.requests import AddMember
from controller.disk.driver import Driver
from controller.incarnations import operator_texts
from controller.incarnations.census import ask_all
from controller.incarnations.members import Members
from controller.metadata.feed import CommandFeed
from controller.metadata.state import MetadataState
from controller.raft import ChangeRefused, Membership, RaftError, RaftMember, RaftStatus, StorageFailed
from controller.raft.lmdb_storage import new_incarnation
from controller.wire.wire import Identification, Introduction
from store.base.rhythm import pause

logger = logging.getLogger(__name__)

ASK_S = 0.3  # between two rounds of asking all others
LOOK_S = 1.0  # between two looks at whether anything is to be done
IMPOSTORS_MAX = 64  # controllers remembered whose incarnation is not the one of the membership


class MemoryDoubt(Enum):
    """The reasons why a memory may not be the newest."""

    NONE = auto()
    STARTED = auto()  # every memory that was not in use until now
    COPIED = auto()
    WAITS = auto()  # a copy that counts, but is not known to have caught up


class CheckedController(Protocol):
    """The controller that this is about."""

    id: int
    address: str
    node: str
    current: asyncio.Event

    @property
    def applied(self) -> int:
        """The index of the last entry that is applied."""

    @property
    def feed(self) -> CommandFeed:
        """The newest commands."""

    @property
    def leading(self) -> int | None:
        """The term in which this controller leads, and knows all that was done before."""

    @property
    def cluster(self) -> str:
        """The cluster's id, or empty."""

    @property
    def state(self) -> MetadataState:
        """Returns the applied state."""

    async def do(self, request: ControllerRequest[A_co]) -> A_co:
        """Sends a request to the current leader and returns its answer. Raises `ControllerError`."""

    async def ask_membership(self, request: AddMember) -> None:
        """Asks the current leader to add this controller. Raises `ControllerError`."""


class MemoryCheck:
    """Decides whether one controller may vote.

    `first` are the first members of a new cluster, this one included; empty: the controller joins a cluster.
    """

    def __init__(
        self,
        home: CheckedController,
        driver: Driver,
        members: Members,
        first: Mapping[int, str],
        *,
        copied: bool,
        credentials: Any,
    ) -> None:
        self._home = home
        self._driver = driver
        self._members = members
        self._first = dict(first)
        self._credentials = credentials
        self._impostors: dict[int, str] = {}  # id -> the address of a controller of another incarnation
        self._logged_reason: str = ""  # the newest reason, as it was logged
        self._exists = not self._first  # there is a cluster to belong to
        self._renewing = False
        self._introducing: asyncio.Task[None] | None = None
        self._floor = 0  # the index that a copy has to reach until it is no longer in doubt
        self._generation_heard = 0  # the greatest of the others: what it says holds while they are silent
        self.reason = ""  # why this controller does not count
        status = driver.status
        alone = status.membership.voters == (status.id,) and status.votes
        self._doubt = (
            MemoryDoubt.WAITS if alone and copied else MemoryDoubt.NONE
        )  # a single controller has no other to ask
        if status.incarnation and not status.fresh and not alone:
            self._doubt = MemoryDoubt.COPIED if copied else MemoryDoubt.STARTED
            driver.prove(proven=False)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Returns why this controller does not count or, without a leader, which of the others do not."""
        status = self._driver.status
        if self.reason:
            return (self.reason,)
        if status.incarnation and not status.votes and not status.fresh:
            known = status.membership.get(status.id)
            if known is not None and not known.is_(status.incarnation):
                return (operator_texts.REPLACED.format(id=status.id),)
        if status.leader is None:
            return tuple(operator_texts.LOST.format(id=id_, address=at) for id_, at in sorted(self._impostors.items()))
        return ()

    # ---- others ask

    def check_history(self, index: int, digest: bytes) -> None:
        """Compares a client's applied index and digest with this controller's. Raises `MetadataForgotten`.

        A controller that lags may lack entries that its clients have; the leader has all of them. Terms do not tell
        histories apart: where all controllers went back, they are given again.
        """
        lacks = index > self._driver.committed and self._home.leading is not None
        known = self._home.feed.digest_at(index)
        if lacks or (digest and known not in {b"", digest}):
            raise MetadataForgotten(operator_texts.FORGOTTEN.format(index=index))

    def identify(self, asker: Introduction) -> Identification:
        """Returns this controller's identity, and its knowledge of the asker."""
        status = self._driver.status
        self._notice(status, asker.id, asker.incarnation, asker.address)
        named = status.membership.get(asker.id)
        report = self._driver.last_report(asker.id)
        same = report is not None and report.incarnation == asker.incarnation
        return Identification(
            id=status.id,
            incarnation=status.incarnation,
            cluster=self._home.cluster,
            fresh=status.fresh,
            votes=status.votes,
            led=status.leader is not None,
            term=status.term,
            last_term=status.last_term,
            last_index=status.last_index,
            named="" if named is None else named.incarnation,
            witness_term=report.term if report is not None and same else 0,
            witness_index=report.index if report is not None and same else 0,
            generation=self._home.state.generation,
        )

    def _notice(self, status: RaftStatus, id_: int, incarnation: str, address: str) -> None:
        known = status.membership.get(id_)
        if known is None or known.is_(incarnation):
            self._impostors.pop(id_, None)
        elif id_ not in self._impostors and len(self._impostors) < IMPOSTORS_MAX:
            self._impostors[id_] = address
            logger.error("%s", operator_texts.LOST.format(id=id_, address=address))

    # ---- actions

    async def run(self) -> None:
        """Begins a cluster, is believed, or becomes another incarnation. Never returns."""
        while True:
            pause_s = LOOK_S
            try:
                if self._driver.status.fresh and self._driver.status.incarnation:
                    await self._form()
                    pause_s = ASK_S
                elif self._doubt in {MemoryDoubt.STARTED, MemoryDoubt.COPIED}:
                    await self._prove()
                    pause_s = ASK_S if self._doubt in {MemoryDoubt.STARTED, MemoryDoubt.COPIED} else LOOK_S
                elif self._driver.status.leader is None:
                    await self._look_for_recovery()
                elif self._doubt is MemoryDoubt.WAITS:
                    await self._settle()
                else:
                    self._log_reason("")
            except RaftError as error:
                logger.info("this controller does not trust its directory yet: %s", error)
            except Exception:  # our own bug: without these looks it would never vote
                logger.exception("a look at whether this controller's directory is to be trusted has failed")
            await pause(pause_s)

    def _log_reason(self, reason: str) -> None:
        self.reason = reason
        if reason and reason != self._logged_reason:
            level = logging.WARNING if self._exists else logging.INFO
            logger.log(level, "this controller does not vote: %s", reason)
        self._logged_reason = reason or self._logged_reason

    async def _ask(self, addresses: Mapping[int, str]) -> dict[int, Identification | ControllerError]:
        home, status = self._home, self._driver.status
        introduction = Introduction(home.id, home.address, home.cluster, status.incarnation)
        found = await ask_all(addresses, introduction, credentials=self._credentials)
        for one in found.values():
            if isinstance(one, Identification):
                self._notice(self._driver.status, one.id, one.incarnation, addresses[one.id])
                self._generation_heard = max(self._generation_heard, one.generation)
        return found

    # ---- an empty directory

    async def _form(self) -> None:
        """Begins a new cluster, if this controller is to, and all others are as empty as this one."""
        if not self._first:
            self._log_reason(operator_texts.WAITING)
            return
        others = {id_: at for id_, at in self._first.items() if id_ != self._home.id}
        found = await self._ask(others)
        there = [one for one in found.values() if isinstance(one, Identification)]
        known = next((one for one in there if not one.fresh), None)
        missing = [id_ for id_, one in found.items() if not isinstance(one, Identification)]
        if known is not None and known.named == self._driver.status.incarnation:
            self._log_reason(operator_texts.FORMING.format(id=known.id))  # it has, with us
        elif known is not None:
            self._exists = True
            self._log_reason(operator_texts.EMPTY.format(cluster=known.cluster or "(it has no id yet)"))
        elif self._exists:
            return  # one that knew of a cluster is down now
        elif missing:
            places = ", ".join(f"{id_} at {others[id_]}" for id_ in missing)
            self._log_reason(operator_texts.MISSING.format(missing=places))
        elif self._home.id != min(self._first):
            self._log_reason(operator_texts.FORMING.format(id=min(self._first)))
        elif self._driver.status.fresh:  # no other controller has spoken meanwhile
            self._driver.form(self._founders(there))
            self._log_reason("")

    def _founders(self, others: list[Identification]) -> Membership:
        incarnations = {one.id: one.incarnation for one in others} | {self._home.id: self._driver.status.incarnation}
        return Membership.of(
            *(RaftMember(id=id_, address=at, incarnation=incarnations[id_]) for id_, at in self._first.items())
        )

    # ---- a directory that may be an old one

    async def _prove(self) -> None:
        """Asks the others whether they know of anything that this controller has forgotten."""
        others = self._voters()
        found = await self._ask(others)
        there = [one for one in found.values() if isinstance(one, Identification)]
        lacks = next((text for one in there if (text := self._lacks(one) or self._replaced(one))), None)
        if self._is_outdated:
            self._log_reason(operator_texts.RECOVERED)
        elif lacks is not None:
            await self.went_back(lacks)
        elif self._doubt is MemoryDoubt.STARTED:
            self._doubt = MemoryDoubt.NONE
            self._driver.prove(proven=True)
        elif any(one.led for one in there):
            await self.went_back("the directory is a copy, or was restored from a backup")
        elif len(there) == len(others) and all(not one.fresh for one in there):
            term = max([self._driver.status.term, *(one.term for one in there)])
            floor = max((one.last_term, one.last_index) for one in there)
            self._driver.prove(proven=True, term=term, floor=floor)
            self._floor, self._doubt = floor[1], MemoryDoubt.WAITS
            logger.warning("the directory is a copy; no other controller has a newer state: it is trusted again")
            self._log_reason("")
        else:
            self._log_reason(operator_texts.COPIED)

    async def _look_for_recovery(self) -> None:
        """Asks the others whether the cluster goes on without this controller; then it does not vote any more.

        The controllers that could have said so at the start were perhaps down, or too busy to answer in time.
        """
        found = await self._ask(self._voters())
        there = [one for one in found.values() if isinstance(one, Identification)]
        if self._is_outdated:
            self._doubt = MemoryDoubt.STARTED
            self._driver.prove(proven=False)
            self._log_reason(operator_texts.RECOVERED)
        elif replaced := next((text for one in there if (text := self._replaced(one))), None):
            await self.went_back(replaced)
        else:
            self._log_reason("")

    @property
    def _is_outdated(self) -> bool:
        """Returns whether another controller has told of a recovery that this one's applied metadata lacks."""
        return self._home.applied > 0 and self._generation_heard > self._home.state.generation

    def _voters(self) -> dict[int, str]:
        status = self._driver.status
        found = {id_: self._members.address_of(id_) for id_ in status.membership.voters if id_ != status.id}
        return {id_: at for id_, at in found.items() if at}

    def _lacks(self, one: Identification) -> str:
        """Describes entries that another controller knows this one to have had, and that it lacks; empty: none."""
        status = self._driver.status
        if (one.witness_term, one.witness_index) > (status.term, status.last_index):
            return (
                f"controller {one.id} has heard from it in term {one.witness_term}, with entry {one.witness_index}, "
                f"and the directory knows term {status.term} and entry {status.last_index}"
            )
        return ""

    def _replaced(self, one: Identification) -> str:
        """Describes another incarnation of this controller that one with newer entries names; empty: none.

        While this one's own entries do not name it, it has yet to be added, or knows of the other.
        """
        status = self._driver.status
        me = status.membership.get(status.id)
        newer = one.led and (one.last_term, one.last_index) > (status.last_term, status.last_index)
        if me is None or not me.is_(status.incarnation) or not newer or one.named in {"", status.incarnation}:
            return ""
        return f"controller {one.id} has newer entries, and they name another incarnation of this one"

    async def _settle(self) -> None:
        """Ends the doubt about a copy that has caught up with its leader."""
        if self._driver.status.commit >= self._floor:
            await self._driver.keep()
            self._doubt = MemoryDoubt.NONE

    async def went_back(self, why: str) -> None:
        """Becomes another incarnation of the same directory, and asks for membership.

        Raises `StorageFailed`, with the doubt as it was: the next look tries again.
        """
        if self._renewing:
            return
        logger.critical("this controller has forgotten what it knew, and joins the cluster anew: %s", why)
        before, self._doubt, self._renewing = self._doubt, MemoryDoubt.NONE, True
        try:
            await self._driver.renew(new_incarnation())
        except StorageFailed:
            self._doubt = before
            raise
        finally:
            self._renewing = False
        if self._introducing is not None:
            self._introducing.cancel()  # as who it was before
        self._log_reason("")

    # ---- being known

    async def introduce(self) -> None:
        """Becomes a member, and reports this node's address, as long as it runs. Never returns."""
        said = ""
        while True:
            task = self._introducing = asyncio.create_task(self._introduced(), name="membership")
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
            try:
                if not task.cancelled():
                    task.result()
                said = ""
            except ChangeRefused as error:
                logger.info("the membership cannot be changed now: %s", error)
            except ControllerError as error:
                if str(error) != said:
                    logger.warning("this controller could not introduce itself to the others yet: %s", error)
                said = str(error)
            await pause(self._pause_s())

    def _pause_s(self) -> float:
        known = self._driver.status.membership.get(self._home.id)
        there = self._home.state.members.get(self._home.id)
        return LOOK_S if known is not None and there is not None else LOOK_S / 2

    async def _introduced(self) -> None:
        home, status = self._home, self._driver.status
        known = status.membership.get(home.id)
        me = Member(id=home.id, node=home.node, address=home.address)
        if status.fresh and not self._exists:
            return  # there may be no cluster yet
        if known is None and status.applied > 1:  # it was removed, or is about to read that it was added
            logger.warning("controller %d is not in the cluster", home.id)
        elif known is None or (known.incarnation, known.address) != (status.incarnation, home.address):
            legacy = self._driver.legacy
            await home.ask_membership(
                AddMember(id=home.id, address=home.address, incarnation=status.incarnation, kept=legacy)
            )
        elif home.state.members.get(home.id) != me:
            await home.current.wait()
            await home.do(SetMember(member=me))
