"""Sends the heartbeats of a store node to every controller; the answers say the state of the node's groups."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from controller.api.client import ControllerError, Group, WrongCluster
from controller.elections.registry import HEARTBEAT_MS, Heartbeat
from controller.wire.commander import CONNECT_S
from controller.wire.wire import ERRORS, HEARTBEAT, HeartbeatHello, Pushed, decode, encode, open_streams, path
from store.base.rhythm import pause, until_next_s
from store.base.streams import Backoff, Stream, keep_connected, opened, until_one_ends
from store.base.streams.event_wait import wait_at_most

logger = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 0.5  # between attempts to connect
SILENCE_S = 2.5  # a controller from which nothing came for so long is given up, and thinks that this node may be gone
LOOK_S = 1.0  # how often it is looked for controllers that are new, or gone


class Heartbeats:
    """Sends heartbeats to every controller, and calls `changed` with each new group. Belongs to the event loop.

    `addresses` returns the controllers' addresses ("host:port"), `reports` the heartbeat of each replica. Call
    `send_now` when epochs or roles have changed. `changed` may be called with an equal group again, and never with an
    older one than before. `cluster` returns the id of the node's cluster.
    """

    def __init__(
        self,
        groups: Sequence[int],
        addresses: Callable[[], Sequence[str]],
        reports: Callable[[], Sequence[Heartbeat]],
        changed: Callable[[Group], None],
        *,
        cluster: Callable[[], str] = str,
        credentials: Any = None,
        interval_s: float = HEARTBEAT_MS / 1000,
    ) -> None:
        self._cluster = cluster
        self._groups = tuple(groups)
        self._addresses = addresses
        self._reports = reports
        self._changed = changed
        self._credentials = credentials
        self._interval_s = interval_s
        self._newest: dict[int, tuple[int, Group]] = {}  # by group: as of which index
        self._controllers: dict[str, _Controller] = {}
        self._task = asyncio.get_running_loop().create_task(self._run(), name="heartbeats")

    def send_now(self) -> None:
        """Sends the heartbeats at once, to every controller."""
        for controller in self._controllers.values():
            controller.due.set()

    @property
    def connected(self) -> int:
        """Returns the number of controllers that receive this node's heartbeats."""
        return sum(controller.connected for controller in self._controllers.values())

    async def close(self) -> None:
        """Stops sending."""
        self._task.cancel()
        await asyncio.wait([self._task])
        gone, self._controllers = list(self._controllers.values()), {}
        for controller in gone:
            await controller.close()

    async def _run(self) -> None:
        while True:
            addresses = dict.fromkeys(self._addresses())
            for address in addresses:
                if address not in self._controllers:
                    self._controllers[address] = _Controller(address, self)
            for address in [address for address in self._controllers if address not in addresses]:
                await self._controllers.pop(address).close()
            await pause(LOOK_S)

    def hello(self) -> bytes:
        """Returns the first message to a controller."""
        return encode(HeartbeatHello(self._groups, self._cluster()))

    def message(self) -> bytes:
        """Returns the message to send now."""
        return encode(list(self._reports()))

    def take(self, pushed: Sequence[Pushed]) -> None:
        """Takes a controller's message about groups."""
        for one in pushed:
            before = self._newest.get(one.number)
            if one.group is None or (before is not None and (one.index < before[0] or one.group == before[1])):
                continue
            self._newest[one.number] = (one.index, one.group)
            try:
                self._changed(one.group)
            except Exception:
                logger.exception("applying a change of store group %d has failed", one.number)

    def channel(self, address: str) -> Any:
        """Returns a connection to a controller."""
        return open_streams(address, self._credentials)

    @property
    def interval_s(self) -> float:
        """Returns the interval between messages."""
        return self._interval_s


class _Controller:
    """The connection to one of them."""

    def __init__(self, address: str, heartbeats: Heartbeats) -> None:
        self._address = address
        self._heartbeats = heartbeats
        self.connected = False
        self.due = asyncio.Event()
        self._backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        kept = keep_connected(
            self._attempt,
            self._backoff,
            name=lambda: f"no heartbeats to {address}",
            logger=logger,
            lost=ControllerError,
            refusals=WrongCluster,
        )
        self._task = asyncio.get_running_loop().create_task(kept, name=f"heartbeats to {address}")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _attempt(self) -> None:
        """Connects, and sends and receive until one of both fails. Raises `ControllerError`."""
        try:
            async with opened(self._heartbeats.channel(self._address)) as channel:
                stream = Stream(channel.stream_stream(path(HEARTBEAT))(), ERRORS, self._address)
                async with stream.within(CONNECT_S):
                    await stream.write(self._heartbeats.hello())
                    await stream.write(self._heartbeats.message())
                await until_one_ends(self._send(stream), self._receive(stream))
        finally:
            self.connected = False

    async def _send(self, stream: Stream) -> None:
        while True:
            self.due.clear()
            await wait_at_most(self.due, until_next_s(self._heartbeats.interval_s))
            await stream.write(self._heartbeats.message())

    async def _receive(self, stream: Stream) -> None:
        while True:
            async with stream.within(SILENCE_S):
                message = await stream.read()
            self.connected = True
            self._backoff.reset()
            self._heartbeats.take(decode(message, list[Pushed]))
