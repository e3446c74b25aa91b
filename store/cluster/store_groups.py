"""The groups of a cluster as the controller knows them: their clients, and which of them to ask."""

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from controller.api.client import ControllerClient
from store.api.client import StoreClient
from store.base.errors import StoreUnreachable
from store.format.frame import QueueNumber
from store.remoting import RemoteStore

logger = logging.getLogger(__name__)

ROUTES_COUNT_MAX = 1 << 16  # queues whose group is remembered, those in use; a queue never changes its group

Connect = Callable[[int], StoreClient]
T = TypeVar("T")


class StoreGroups:
    """The clients of all store groups, connected to and left as the controller says."""

    def __init__(self, controller: ControllerClient, connect: Connect) -> None:
        """Begins to connect; the event loop has to be running."""
        self.controller = controller
        self.logs: dict[int, StoreClient] = {}
        self.home: StoreClient  # of the home group
        self._connect = connect
        self._routes: OrderedDict[QueueNumber, int] = OrderedDict()  # the group asked for last is last
        self._listeners: dict[int, Callable[[StoreClient], Callable[[], None]]] = {}
        self._listener_count = 0
        self._stops: dict[tuple[int, int], Callable[[], None]] = {}  # by group and listener
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._unwatch = controller.watch(self._changed)
        self._changed()

    async def close(self) -> None:
        """Disconnects from all groups."""
        self._closed = True
        self._unwatch()
        logs, self.logs = self.logs, {}
        for log in logs.values():
            self._leave(log)
        if self._leaving:
            await asyncio.wait(list(self._leaving))

    @property
    def unreachable(self) -> Sequence[int]:
        """The groups to which no connection stands."""
        return [n for n, log in self.logs.items() if isinstance(log, RemoteStore) and not log.is_connected]

    @property
    def troubles(self) -> Mapping[int, str]:
        """Returns why groups refuse writes, as they said last; groups that take writes are left out."""
        said = {n: log.trouble for n, log in self.logs.items() if isinstance(log, RemoteStore)}
        return {n: trouble for n, trouble in said.items() if trouble}

    def _changed(self) -> None:
        """Applies news of the controller: groups may have come or gone, masters be others."""
        if self._closed:
            return
        there = {group.number for group in self.controller.groups()} | {self.controller.home}
        for number in sorted(there.difference(self.logs)):
            log = self.logs[number] = self._connect(number)
            for key, listen in self._listeners.items():
                self._stops[number, key] = listen(log)
        for number in sorted(self.logs.keys() - there):
            for stopped in [one for one in self._stops if one[0] == number]:
                self._stops.pop(stopped)()
            for queue in [queue for queue, group in self._routes.items() if group == number]:
                del self._routes[queue]
            self._leave(self.logs.pop(number))
        self.home = self.logs[self.controller.home]
        for log in self.logs.values():
            if isinstance(log, RemoteStore):
                log.moved()
                log.forget_gone(self._is_gone)

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

    def log(self, group: int) -> StoreClient:
        """Returns the client of a group. Raises `StoreUnreachable`."""
        log = self.logs.get(group)
        if log is None:
            raise StoreUnreachable(f"there is no store group {group}, or it is not known here yet")
        return log

    def is_known(self, queue: QueueNumber) -> bool:
        """Returns whether it is known in which group a queue lies, or lay before it was forgotten."""
        return queue in self._routes or self.controller.group_of_queue(queue) is not None

    def _is_gone(self, queue: QueueNumber) -> bool:
        """Returns whether a queue is deleted. One that the controllers have named a moment ago may be unknown here."""
        return self.controller.group_of_queue(queue) is None and queue < self.controller.known().next_queue

    def store_group(self, queue: QueueNumber) -> int:
        """Returns the group of a queue, also of one forgotten lately; the home group refuses an unknown one."""
        routes = self._routes
        group = routes.get(queue)
        if group is not None:
            routes.move_to_end(queue)
            return group
        group = self.controller.group_of_queue(queue)
        if group is None:
            return self.controller.home
        routes[queue] = group
        if len(routes) > ROUTES_COUNT_MAX:
            routes.popitem(last=False)
        return group

    def of(self, queue: QueueNumber) -> StoreClient:
        """Returns the client of the group that a queue lies in. Raises `StoreUnreachable`."""
        return self.log(self.store_group(queue))

    async def of_any(self, queues: Sequence[QueueNumber] | None, ask: Callable[[StoreClient], Awaitable[T]]) -> list[T]:
        """Asks the groups that some queues lie in, None: all groups. All that are asked have to answer."""
        if queues is None:
            return await self.all(ask)
        stores = [self.log(group) for group in sorted({self.store_group(queue) for queue in queues})]
        return await asyncio.gather(*map(ask, stores))

    async def all(self, ask: Callable[[StoreClient], Awaitable[T]]) -> list[T]:
        """Asks all groups, which all have to answer."""
        return await asyncio.gather(*map(ask, self.logs.values()))

    def listen(self, listen: Callable[[StoreClient], Callable[[], None]]) -> Callable[[], None]:
        """Listens to all groups, those that come later too; `listen` returns the function that stops it."""
        number = self._listener_count
        self._listener_count += 1
        self._listeners[number] = listen
        for group, log in self.logs.items():
            self._stops[group, number] = listen(log)

        def stop() -> None:
            self._listeners.pop(number, None)
            for key in [key for key in self._stops if key[1] == number]:
                self._stops.pop(key)()

        return stop


def routed(subject: str) -> Callable[[type[T]], type[T]]:
    """Gives a class of `_stores` the methods of its protocol that it lacks: each asks the group of its first argument.

    That is a queue. `subject` says where the method is at the client of a group.
    """

    def fill(kind: type[T]) -> type[T]:
        calls = kind.__mro__[1]
        for name, method in vars(calls).items():
            if name.startswith("_") or name in vars(kind):
                continue
            assert inspect.iscoroutinefunction(method), f"{kind.__name__}.{name} has to be spelled"
            assert list(inspect.signature(method).parameters)[1] == "queue", f"{kind.__name__}.{name} has to be spelled"
            setattr(kind, name, _routed(subject, name))
        return kind

    return fill


def _routed(subject: str, name: str) -> Any:
    ask = attrgetter(f"{subject}.{name}")

    async def call(self: Any, queue: QueueNumber, *arguments: Any, **options: Any) -> Any:
        return await ask(self._stores.of(queue))(queue, *arguments, **options)

    return call
