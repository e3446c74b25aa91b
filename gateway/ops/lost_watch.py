"""The messages that store groups of a cluster have lost for good, as their masters say: one look at a time for each.

Controllers know from heartbeats whether a replica has damage that no other one can repair, and not which messages are
in it. So the group's master is asked, and its answer stays until it is another master's turn, or its damage changes.
All who want to know share the look, and none of them ends it: they take the newest answer, and whether it holds still.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from controller.api.client import Group
from controller.elections.registry import GroupRoute
from store.api.client import StoreClient
from store.api.lost import LOST_RANGES_COUNT_MAX, LostList, LostMessages
from store.api.lost_words import Topics, lost_list, lost_words
from store.base import logs
from store.base.errors import StoreError
from store.rpc.wire import BadRequest

AGAIN_S = 5.0  # from a look that has failed to the next one
WAIT_S = 0.5  # that `/status` waits for the looks under way
NO_MASTER = "it has no master"
NOT_REACHED = "its master is not reached"
ASKED = "its master is being asked"
OLDER = "its master is of an older version, which does not say"
FAILED = "the look for them has failed"
LESS = "its master has said less than its heartbeat"

log = logs.get(__name__)


class GroupLoss(NamedTuple):
    """The messages that a group has lost. `unknown`: why they are not known; empty: they are `found`.

    While they are unknown, `found` is what was known before, if anything was.
    """

    group: int
    found: LostMessages | None
    unknown: str = ""

    @property
    def is_nothing(self) -> bool:
        """Returns whether the master has said that no part of its log is lost."""
        return not self.unknown and self.found is not None and not self.found.damages

    @property
    def messages(self) -> int | None:
        """Returns the number of lost messages; None: not known."""
        return None if self.unknown or self.found is None else self.found.messages


class _LostKey(NamedTuple):
    """The state of a group in which an answer holds: its master's epoch, and that master's damage as controllers know.

    A new master may have lost other messages, with damage of the same size.
    """

    master_epoch: int
    damages: int = 0
    damaged_bytes: int = 0
    lost_bytes: int = 0


class _Look:
    """The newest answer of a group's master, and the look under way."""

    def __init__(self) -> None:
        self.key: _LostKey | None = None  # of the answer; None: there is none
        self.found: LostMessages | None = None
        self.trouble = ""  # why the newest look brought nothing
        self.again_s = 0.0  # when the next one may begin
        self.task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Returns whether the master is being asked."""
        return self.task is not None and not self.task.done()


class LostWatch:
    """The losses of all groups. `routes` are as controllers know them, `clients` those of groups that are reached.

    Belongs to the event loop.
    """

    def __init__(
        self,
        groups: Callable[[], Sequence[Group]],
        routes: Callable[[], Mapping[int, GroupRoute]],
        clients: Callable[[], Mapping[int, StoreClient]],
        topics: Topics,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups, self._routes, self._clients = groups, routes, clients
        self._topics = topics
        self._now_s = now_s
        self._looks: dict[int, _Look] = {}  # by group

    # ---- what is lost

    def losses(self) -> Sequence[GroupLoss]:
        """Returns what groups have lost, as far as it is known, without waiting; begins the looks that are due.

        Groups that have lost nothing are left out.
        """
        groups, routes, clients = self._groups(), self._routes(), self._clients()
        damaged = {one.number: key for one in groups if (key := _key(one, routes.get(one.number))) is not None}
        for number in self._looks.keys() - damaged.keys():
            self._forget(number)
        found = [self._loss(one, damaged[one.number], clients) for one in groups if one.number in damaged]
        return [one for one in found if not one.is_nothing]

    async def settle(self) -> None:
        """Begins the looks that are due, and waits a moment for them."""
        self.losses()
        if asked := [one.task for one in self._looks.values() if one.task is not None and not one.task.done()]:
            await asyncio.wait(asked, timeout=WAIT_S)

    def words(self) -> Sequence[str]:
        """Returns a line for each group that has lost messages, or of which that is not known.

        A group of which no controller has said anything yet, as after a start, is left out while it is asked.
        """
        routes = self._routes()
        return [self._words(one) for one in self.losses() if one.group in routes or one.unknown != ASKED]

    def list(self) -> LostList:
        """Returns the lost messages of all groups, as far as they are known: as many ranges as of one group."""
        known = [lost_list(one.found, self._topics) for one in self.losses() if one.found is not None]
        ranges = [lost for one in known for lost in one.ranges]
        listed = ranges[:LOST_RANGES_COUNT_MAX]
        return LostList(listed, sum(one.more for one in known) + len(ranges) - len(listed))

    def _words(self, one: GroupLoss) -> str:
        name, found = f"store group {one.group}", one.found
        if found is None:
            return f"{name}: which messages are lost is not known: {one.unknown}"
        said = f"{name}: {found.size_bytes} bytes of its log in {found.damages} ranges are lost"
        said = f"{said}; {lost_words(found, self._topics)}"
        return f"{said}; whether that still holds is not known: {one.unknown}" if one.unknown else said

    async def close(self) -> None:
        """Ends the looks under way."""
        tasks = [one.task for one in self._looks.values() if one.task is not None]
        for number in list(self._looks):
            self._forget(number)
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- looks

    def _loss(self, group: Group, key: _LostKey, clients: Mapping[int, StoreClient]) -> GroupLoss:
        number = group.number
        look = self._looks.setdefault(number, _Look())
        if look.key == key:
            return GroupLoss(number, look.found, look.trouble)
        if group.master is None:
            return GroupLoss(number, look.found, NO_MASTER)
        client = clients.get(number)
        if client is None:
            return GroupLoss(number, look.found, NOT_REACHED)
        if not look.is_under_way and self._now_s() >= look.again_s:
            asking = self._ask(look, number, key, client)
            look.task = asyncio.create_task(asking, name=f"lost messages of store group {number}")
        return GroupLoss(number, look.found, look.trouble or ASKED)

    async def _ask(self, look: _Look, number: int, key: _LostKey, client: StoreClient) -> None:
        """Asks a group's master, and keeps its answer."""
        try:
            found = await client.queues.lost(LOST_RANGES_COUNT_MAX)
        except BadRequest:  # that it does not know the call holds until another master is elected
            look.key, look.found, look.trouble = key, None, OLDER
        except StoreError as error:
            look.trouble, look.again_s = f"its master does not say: {error}", self._now_s() + AGAIN_S
        except Exception:
            log.exception("a look for lost messages has failed", group=number)
            look.trouble, look.again_s = FAILED, self._now_s() + AGAIN_S
        else:
            if found.size_bytes < key.lost_bytes:  # it was found, or judged, in between: the answer must not stay
                look.trouble, look.again_s = LESS, self._now_s() + AGAIN_S
            else:
                look.key, look.found, look.trouble = key, found, ""

    def _forget(self, number: int) -> None:
        task = self._looks.pop(number).task
        if task is not None:
            task.cancel()


def _key(group: Group, route: GroupRoute | None) -> _LostKey | None:
    """Returns the state in which an answer holds; None: as controllers know it, the group has lost nothing."""
    if route is None:
        return _LostKey(group.master_epoch)
    if not any(one.lost_bytes for one in route.replicas):
        return None
    for one in route.replicas:
        if one.id == group.master:
            return _LostKey(group.master_epoch, one.damages, one.damaged_bytes, one.lost_bytes)
    return _LostKey(group.master_epoch)
