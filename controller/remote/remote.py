"""The controllers as others see them: a replica of their state in this process, and commands to their leader."""

import asyncio
import heapq
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from controller.api.client import (
    ControllerClosed,
    ControllerDamaged,
    ControllerError,
    ControllerRequest,
    ControllerUnreachable,
    MetadataForgotten,
    WrongCluster,
)
from controller.api.commands import ClusterLimits, decode_command
from controller.api.requests import Barrier
from controller.elections.registry import GroupRoute
from controller.metadata.growth import check_growth
from controller.metadata.state import MetadataState
from controller.wire.asking import ask
from controller.wire.commander import BUDGET_S, CONNECT_S, Commander
from controller.wire.state_client import StateClient
from controller.wire.status import ControllerStatus
from controller.wire.wire import (
    ERRORS,
    FOLLOW,
    ROUTES,
    SILENCE_S,
    SNAPSHOT_BYTES_MAX,
    STATUS,
    BadAnswer,
    Fed,
    FollowRequest,
    RoutesRequest,
    decode,
    encode,
    open_streams,
    path,
)
from store.base.streams import Backoff, Stream, keep_connected, opened

logger = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 0.5  # between attempts to follow a controller
PATIENCE_S = 1.0  # for the effect of a command, until another controller is asked for it
WARN_S = 30.0  # between warnings that the state is not known to be the newest
FIRST_WARN_S = 6.0  # of a process that has no state yet, to the first one; commands have ended by then
BETTER_S = 2.0  # a controller that knows no leader, or less than we do, is left after so long


class RemoteController(StateClient):
    """A `ControllerClient` over the network. Belongs to the event loop; `ready` awaits the first state.

    Reads are of the newest state that came, with controllers up or down. Where those are that were not named is learned
    from the state. `credentials` are `store.rpc.credentials`', or None.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        now_ms: Callable[[], int],
        limits: ClusterLimits | None = None,
        credentials: Any = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        super().__init__(MetadataState(), limits or ClusterLimits(), now_ms)
        self._loop = asyncio.get_running_loop()
        self._given = tuple(dict.fromkeys(addresses))
        self._credentials = credentials
        self._budget_s = budget_s
        self._commander = Commander(
            self.addresses,
            cluster=lambda: self.cluster,
            applied=lambda: (self.index, self.state.digest),
            credentials=credentials,
            budget_s=budget_s,
        )
        self.index = 0  # how far the state is; 0: there is none yet
        self.distrust = ""  # why the controllers are not believed: their metadata is older than the copy here
        self.connected = False  # to any controller
        self.leaderless = False  # the controllers that answer know no leader: nothing is elected, and no topic made
        self._unanswered = 0  # attempts in a row at which no controller has answered
        self.trouble = ""  # why no controller is followed: of the last attempt
        self._warn_s = FIRST_WARN_S
        self._target = ""  # of the newest attempt
        self._backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        self._turn = random.randrange(1 << 16)  # so that followers are spread over the controllers
        self._numbers = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: index, number
        self._good_s = 0.0  # when a controller that knows a leader was followed last
        self._ready = asyncio.Event()
        self._closed = False
        self._following: asyncio.Task[None] | None = None
        self._task = self._loop.create_task(self._run(), name="state of the controllers")

    async def ready(self) -> None:
        """Waits until there is a state, as new as that of the controller it comes from. Raises `ControllerClosed`."""
        await self._ready.wait()
        if not self.index:
            raise ControllerClosed("the connection to the controllers is closed")

    def also(self, addresses: Sequence[str]) -> None:
        """Looks for controllers at these addresses too."""
        self._given = tuple(dict.fromkeys([*self._given, *addresses]))

    async def close(self) -> None:
        """Ends the connections; everything in flight fails."""
        self._closed = True
        self._ready.set()
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._commander.close()
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(ControllerClosed("the connection to the controllers is closed"))

    def addresses(self) -> Sequence[str]:
        """Returns the controllers' addresses: those of the state, and those that were named."""
        return tuple(dict.fromkeys([*(member.address for member in self.members()), *self._given]))

    # ---- requests

    async def _request(self, request: ControllerRequest[Any]) -> Any:
        index, answer = await self._commander.ask(request)
        await self._caught_up(index)
        return answer

    async def barrier(self) -> None:
        """Waits until reads here are of a state that is not older than this call."""
        await self.do(Barrier())

    # ---- questions that every controller answers by itself

    async def routes(self, group: int | None = None) -> list[GroupRoute]:
        """Returns where groups are served, as heard by any controller that can be reached; the newest epochs count.

        Works with a majority of the controllers or without. Raises `ControllerUnreachable`: none of them answers.
        """
        asked = encode(RoutesRequest(group))
        answers = await self._ask_all(ROUTES, asked, list[GroupRoute])
        newest: dict[int, GroupRoute] = {}
        for route in (route for routes in answers.values() for route in routes):
            there = newest.get(route.group)
            if there is None or _worth(route) > _worth(there):
                newest[route.group] = route
        return [newest[number] for number in sorted(newest)]

    async def controllers(self) -> dict[str, ControllerStatus]:
        """Returns the status of each controller that answers, by address. Raises `ControllerUnreachable`: none does."""
        return await self._ask_all(STATUS, b"", ControllerStatus)

    async def _ask_all(self, method: str, request: bytes, kind: Any) -> dict[str, Any]:
        addresses = self.addresses()
        asking = partial(ask, credentials=self._credentials, timeout_s=CONNECT_S)
        found = await asyncio.gather(*(asking(at, method, request, kind) for at in addresses))
        answers = {at: one for at, one in zip(addresses, found, strict=True) if not isinstance(one, ControllerError)}
        if not answers:
            why = next((str(one) for one in found), "no controller is known")
            raise ControllerUnreachable(f"no controller answers: {why}")
        return answers

    # ---- the state

    def _applied(self) -> int:
        return self.index

    async def _until(self, index: int) -> None:
        if index <= self.index:
            return
        if self._closed:
            raise ControllerClosed("the connection to the controllers is closed")
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiting, (index, next(self._numbers), future))
        await future

    async def _caught_up(self, index: int) -> None:
        """Waits until reads here show the effect of a command. Raises `ControllerUnreachable`."""
        deadline_s = self._loop.time() + self._budget_s
        while index > self.index:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._until(index)
            except TimeoutError as error:
                if self._loop.time() > deadline_s:
                    raise ControllerUnreachable("the command is done, and no controller shows its effect") from error
                if self._following is not None:
                    self._following.cancel()

    async def _run(self) -> None:
        """Follows one controller after the other."""
        self._good_s = self._loop.time()
        await keep_connected(
            self._attempt,
            self._backoff,
            name=lambda: f"not following {self._target}",
            logger=logger,
            lost=ControllerError,
            refusals=WrongCluster,
        )

    async def _attempt(self) -> None:
        """Follows the next controller until it is gone, or `_caught_up` gives it up. Raises `ControllerError`."""
        addresses = self.addresses()
        self._target = addresses[self._turn % len(addresses)] if addresses else ""
        self._turn += 1
        self._following = self._loop.create_task(self._follow(self._target))
        try:
            await asyncio.wait([self._following])
            if not self._following.cancelled():
                self._following.result()
        except ControllerError as error:
            if isinstance(error, MetadataForgotten):
                self._doubt(error)
            self._unanswered = 0 if self.connected else self._unanswered + 1
            if self._unanswered >= len(addresses):
                self.leaderless = False  # they may have one by now
            self.trouble = f"{self._target}: {error}"
            if self._loop.time() - self._good_s > (WARN_S if self.index else self._warn_s):
                self._good_s, self._warn_s = self._loop.time(), WARN_S
                known = "the metadata here may be out of date" if self.index else "no controller is reached yet"
                logger.warning("%s: %s", known, self.trouble)
            raise
        finally:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self.connected = False

    async def _follow(self, target: str) -> None:
        """Follows a controller until it is gone, or another one may know more. Raises `ControllerError`."""
        if not target:
            raise ControllerUnreachable("no controller is known")
        async with opened(open_streams(target, self._credentials)) as channel:
            stream = Stream(channel.stream_stream(path(FOLLOW))(), ERRORS, target)
            request = FollowRequest(self.index, self.cluster, self.state.digest)
            async with stream.within(CONNECT_S):
                await stream.write(encode(request))
            whole = bytearray()  # of a snapshot; <= SNAPSHOT_BYTES_MAX
            since_s = self._loop.time()
            aim: int | None = None  # how far it was when it was asked
            while True:
                async with stream.within(SILENCE_S):
                    fed: Fed = decode(await stream.read(), Fed)
                self.connected, self.trouble = True, ""
                self.leaderless = not fed.leader
                aim = fed.applied or None if aim is None else aim
                self._commander.led_by(fed.leader, fed.term)
                if fed.part is not None:
                    self._take_part(fed, whole)
                elif fed.index > self.index:
                    self._take_commands(fed)
                if aim is not None and self.index >= aim:
                    self._ready.set()
                if fed.leader and fed.applied >= max(self.index, 1):  # 0: it has nothing to show yet
                    self.distrust = ""
                    self._good_s = since_s = self._loop.time()
                elif self._loop.time() - since_s > BETTER_S and len(self.addresses()) > 1:
                    raise ControllerUnreachable("it knows no leader, or its metadata is older than the copy here")

    def _take_part(self, fed: Fed, whole: bytearray) -> None:
        assert fed.part is not None
        if len(whole) + len(fed.part) + fed.left > SNAPSHOT_BYTES_MAX:
            raise BadAnswer(f"a state of more than {SNAPSHOT_BYTES_MAX} bytes")
        whole += fed.part
        if fed.left:
            return
        data = bytes(whole)
        whole.clear()
        if fed.index >= self.index:  # else it is older than the state here
            state = MetadataState.restore(data)
            check_growth(self.state, state)
            self.state = state
            self._reached(fed.index)

    def _take_commands(self, fed: Fed) -> None:
        for data in fed.commands:
            command = decode_command(data)
            self.state.chain(data)
            try:
                self.state.apply(command)
            except ControllerDamaged:
                raise
            except ControllerError:
                continue  # refused there, and so here
        self._reached(fed.index, news=bool(fed.commands))

    def _doubt(self, error: MetadataForgotten) -> None:
        if not self.distrust:
            logger.critical("%s", error)
        self.distrust = str(error)

    def _reached(self, index: int, *, news: bool = True) -> None:
        if index > self.index:
            self._backoff.reset()
        self.index = index
        while self._waiting and self._waiting[0][0] <= index:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
        if news:
            self._listeners.tell()


def _worth(route: GroupRoute) -> tuple[int, bool, int, int]:
    """Returns the rank of a controller's route of a group; the route of higher rank is better."""
    heard = 0 if route.trouble is None else 1 + route.trouble.proxies_heard  # proxies report to the leader alone
    return route.master_epoch, route.master is not None, sum(replica.alive for replica in route.replicas), heard
