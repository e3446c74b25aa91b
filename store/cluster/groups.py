"""The groups of a cluster as the controller knows them: their clients, and which of them to ask."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from controller.api.client import ControllerClient
from store.api.client import QueuesListener, StoreClient, TailListener
from store.base.errors import StoreUnreachable
from store.format.frame import QueueNumber
from store.remoting import RemoteStore

__all__ = ["Connect", "Groups"]

logger = logging.getLogger(__name__)

ROUTES_COUNT_MAX = 1 << 20  # queues whose group is remembered; a queue never changes its group

Connect = Callable[[int], StoreClient]
T = TypeVar("T")


class Groups:
    """Clients of all store groups, connected to and left as the controller says."""

    def __init__(self, controller: ControllerClient, connect: Connect) -> None:
        """Begin to connect; the event loop has to be running."""
        self._controller = controller
        self._connect = connect
        self._logs: dict[int, StoreClient] = {}
        self._routes: dict[QueueNumber, int] = {}
        self._listeners: dict[int, QueuesListener] = {}
        self._tail_listeners: dict[int, TailListener] = {}
        self._listener_count = 0
        self._stops: dict[tuple[int, int], Callable[[], None]] = {}  # by group and listener
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._unwatch = controller.watch(self._changed)
        self._changed()

    async def close(self) -> None:
        """Disconnect from all groups."""
        self._closed = True
        self._unwatch()
        logs, self._logs = self._logs, {}
        for log in logs.values():
            self._leave(log)
        if self._leaving:
            await asyncio.wait(list(self._leaving))

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self._controller.home

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return MappingProxyType(self._logs)

    @property
    def unreachable(self) -> Sequence[int]:
        """The groups to which no connection stands."""
        return [n for n, log in self._logs.items() if isinstance(log, RemoteStore) and not log.is_connected]

    @property
    def troubles(self) -> Mapping[int, str]:
        """Returns why groups do not take what they were sent, as they said last; groups that take it are left out."""
        said = {n: log.trouble for n, log in self._logs.items() if isinstance(log, RemoteStore)}
        return {n: trouble for n, trouble in said.items() if trouble}

    def _changed(self) -> None:
        """The controller says something new: groups may have come or gone, masters be others."""
        if self._closed:
            return
        there = {group.number for group in self._controller.groups()} | {self._controller.home}
        for number in sorted(there.difference(self._logs)):
            log = self._logs[number] = self._connect(number)
            for key, listener in self._listeners.items():
                self._stops[number, key] = log.watch_queues(listener)
            for key, tail in self._tail_listeners.items():
                self._stops[number, key] = log.tail(tail)
        for number in sorted(self._logs.keys() - there):
            for stopped in [one for one in self._stops if one[0] == number]:
                self._stops.pop(stopped)()
            self._routes = {queue: group for queue, group in self._routes.items() if group != number}
            self._leave(self._logs.pop(number))
        for log in self._logs.values():
            if isinstance(log, RemoteStore):
                log.moved()

    def _leave(self, log: StoreClient) -> None:
        close = getattr(log, "close", None)
        if close is not None:
            task = asyncio.ensure_future(close())
            self._leaving.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: "asyncio.Task[None]") -> None:
        self._leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a store group's client could not be closed", exc_info=error)

    def _log(self, group: int) -> StoreClient:
        log = self._logs.get(group)
        if log is None:
            raise StoreUnreachable(f"there is no store group {group}, or it is not known here yet")
        return log

    @property
    def _home(self) -> StoreClient:
        return self._log(self._controller.home)

    def _group(self, queue: QueueNumber) -> int:
        """Returns where a queue lies, or lay before it was forgotten; the home group refuses one that nobody knows."""
        group = self._routes.get(queue)
        if group is None:
            group = self._controller.group_of_queue(queue)
            if group is None:
                return self._controller.home
            if len(self._routes) >= ROUTES_COUNT_MAX:
                self._routes.clear()
            self._routes[queue] = group
        return group

    def _of(self, queue: QueueNumber) -> StoreClient:
        return self._log(self._group(queue))

    async def _all(self, ask: Callable[[StoreClient], Awaitable[T]]) -> list[T]:
        """Ask all groups, which all have to answer."""
        return await asyncio.gather(*map(ask, self._logs.values()))

    def _listen(
        self, listeners: dict[int, T], listener: T, listen: Callable[[StoreClient], Callable[[], None]]
    ) -> Callable[[], None]:
        """Listen to all groups, those that come later too."""
        number = self._listener_count
        self._listener_count += 1
        listeners[number] = listener
        for group, log in self._logs.items():
            self._stops[group, number] = listen(log)

        def stop() -> None:
            listeners.pop(number, None)
            for key in [key for key in self._stops if key[1] == number]:
                self._stops.pop(key)()

        return stop
