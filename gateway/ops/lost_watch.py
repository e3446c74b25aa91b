"""The messages that store groups of a cluster have lost for good, as their masters say: one look at a time for each.

Controllers know from heartbeats whether a replica has damage that no other one can repair, and not which messages are
in it. So the group's master is asked, again and again while there is any: a store keeps its answer, so that is cheap.
All who want to know share the look, and none of them ends it: they take the newest answer, and whether it holds still.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from controller.api.client import Group
from controller.elections.registry import GroupRoute
from store.api.client import StoreClient
from store.api.lost import LOST_RANGES_COUNT_MAX, NOTHING_LOST, LostMessages
from store.api.lost_status import LostList
from store.api.lost_words import Topics, lost_list, lost_words
from store.base import logs
from store.base.errors import StoreError
from store.rpc.wire import BadRequest

AGAIN_S = 5.0  # from the end of a look to the next one
WAIT_S = 0.5  # that `/status` waits for the looks under way
NO_MASTER = "it has no master"
NOT_REACHED = "its master is not reached"
ASKED = "its master is being asked"
OLDER = "its master is of an older version, which does not say"
FAILED = "the look for them has failed"
LESS = "its master has said less than its heartbeat"
UNHEARD = "no controller has said anything of it yet"
UNNAMED = "no queue knows all of them"

log = logs.get(__name__)


class GroupLoss(NamedTuple):
    """The messages that a group has lost. `unknown`: why they are not known; empty: they are `found`.

    While they are unknown, `found` is what was known before, if anything was.
    """

    group: int
    found: LostMessages | None
    unknown: str = ""

    @property
    def is_unheard(self) -> bool:
        """Returns whether no controller has said anything of the group yet, as after a start for a moment."""
        return self.unknown == UNHEARD

    @property
    def uncounted(self) -> str:
        """Returns why it is not known how many messages are lost; empty: it is."""
        return self.unknown or (UNNAMED if self.found is not None and self.found.unfollowed_bytes else "")

    @property
    def messages(self) -> int | None:
        """Returns the number of lost messages; None: not known."""
        return None if self.uncounted or self.found is None else self.found.messages


class _Look:
    """The newest answer of a group's master, and the look under way."""

    def __init__(self) -> None:
        self.found: LostMessages | None = None
        self.master_epoch = -1  # in which it was said
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
        self._closed = False

    # ---- what is lost

    def losses(self) -> Sequence[GroupLoss]:
        """Returns what all groups have lost, as far as it is known, without waiting; begins the looks that are due."""
        groups, routes, clients = self._groups(), self._routes(), self._clients()
        for number in self._looks.keys() - {one.number for one in groups}:
            self._forget(number)
        return [self._loss(one, routes.get(one.number), clients.get(one.number)) for one in groups]

    async def settle(self) -> None:
        """Begins the looks that are due, and waits a moment for them."""
        self.losses()
        if asked := [one.task for one in self._looks.values() if one.task is not None and not one.task.done()]:
            await asyncio.wait(asked, timeout=WAIT_S)

    def words(self) -> Sequence[str]:
        """Returns a line for each group that has lost messages, or of which that is not known."""
        topics = cache(self._topics)  # all their names are gathered for it
        return [words for one in self.losses() if not one.is_unheard and (words := _words(one, topics))]

    def list(self) -> LostList:
        """Returns the lost messages of all groups, as far as they are known: as many ranges as of one group."""
        topics = cache(self._topics)
        known = [lost_list(one.found, topics) for one in self.losses() if one.found is not None]
        ranges = [lost for one in known for lost in one.ranges]
        listed = ranges[:LOST_RANGES_COUNT_MAX]
        return LostList(listed, sum(one.more for one in known) + len(ranges) - len(listed))

    async def close(self) -> None:
        """Ends the looks under way; none begins any more."""
        self._closed = True
        tasks = [one.task for one in self._looks.values() if one.task is not None]
        for number in list(self._looks):
            self._forget(number)
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- looks

    def _loss(self, group: Group, route: GroupRoute | None, client: StoreClient | None) -> GroupLoss:
        number, lost_bytes = group.number, _lost_bytes(group, route)
        if lost_bytes == 0:
            self._forget(number)
            return GroupLoss(number, NOTHING_LOST)
        look = self._looks.setdefault(number, _Look())
        if group.master is not None and client is not None:
            self._begin(look, group, client)
        found, why = look.found, NO_MASTER if group.master is None else NOT_REACHED if client is None else look.trouble
        newest = found if look.master_epoch == group.master_epoch else None
        least_bytes = lost_bytes or 0
        if newest is not None and (newest.size_bytes == lost_bytes or (not why and newest.size_bytes >= least_bytes)):
            return GroupLoss(number, newest)
        if route is None and found is None:
            why = UNHEARD
        return GroupLoss(number, found, why or (ASKED if newest is None else LESS))

    def _begin(self, look: _Look, group: Group, client: StoreClient) -> None:
        """Begins a look if it is due."""
        if not self._closed and not look.is_under_way and self._now_s() >= look.again_s:
            asking = self._ask(look, group, client)
            look.task = asyncio.create_task(asking, name=f"lost messages of store group {group.number}")

    async def _ask(self, look: _Look, group: Group, client: StoreClient) -> None:
        """Asks a group's master, and keeps its answer."""
        try:
            look.found = await client.queues.lost(LOST_RANGES_COUNT_MAX)
            look.master_epoch, look.trouble = group.master_epoch, ""
        except BadRequest:
            look.trouble = OLDER
        except StoreError as error:
            look.trouble = f"its master does not say: {error}"
        except Exception:
            log.exception("a look for lost messages has failed", group=group.number)
            look.trouble = FAILED
        look.again_s = self._now_s() + AGAIN_S

    def _forget(self, number: int) -> None:
        look = self._looks.pop(number, None)
        if look is not None and look.task is not None:
            look.task.cancel()


def _words(one: GroupLoss, topics: Topics) -> str:
    """Returns the words for a loss; none where nothing is lost."""
    name, found = f"store group {one.group}", one.found
    if found is None or (one.unknown and not found.damages):
        return f"{name}: which messages are lost is not known: {one.unknown}"
    if not found.damages:
        return ""
    said = f"{name}: {found.size_bytes} bytes of its log in {found.damages} ranges are lost"
    said = f"{said}; {lost_words(found, topics)}"
    return f"{said}; whether that still holds is not known: {one.unknown}" if one.unknown else said


def _lost_bytes(group: Group, route: GroupRoute | None) -> int | None:
    """Returns how many bytes of its log the master said last that no replica has.

    None: it is not known; so it is where another replica lacks something that none has. 0: nothing is lost.
    """
    replicas = () if route is None else route.replicas
    heard = [one for one in replicas if one.silent_ms >= 0]
    said = [one.lost_bytes for one in heard if group.master in {None, one.id}]
    if not said or (not any(said) and any(one.lost_bytes for one in heard)):
        return None
    return max(said)
