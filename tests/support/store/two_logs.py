"""Several store groups in one process: real stores, each with a log of its own, and a gateway over them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, ClusterLimits
from controller.node.local import LocalController
from gateway.config.config import adapter_factories, load
from gateway.process.app import Gateway
from gateway.process.backend import ClusterBackend
from store.api.client import StoreClient
from store.api.log import OnAppended, TailListener
from store.base.errors import StoreUnreachable
from store.cluster.cluster import ClusterStore
from store.format.frame import LogOffset, UnplacedFrame
from store.local.local import LocalStore

TIMEOUT_S = 60.0
T = TypeVar("T")


class _Asked:
    """A subject of a store that can be out of reach."""

    def __init__(self, reach: "Reach", subject: Any) -> None:
        self._reach, self._subject = reach, subject

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        if asyncio.iscoroutinefunction(found):
            return partial(self._asked, found)
        return found

    async def _asked(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._reach.down:
            raise StoreUnreachable("nobody answers")
        return await call(*arguments, **options)


class _AskedLog(_Asked):
    @property
    def confirmed(self) -> LogOffset:
        if self._reach.never_reached:
            raise StoreUnreachable("never reached")
        return self._reach.store.log.confirmed

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        if self._reach.down:
            asyncio.get_running_loop().call_soon(done, StoreUnreachable("nobody answers"))
        else:
            self._reach.store.log.append(frame, done)

    def tail(self, listener: TailListener) -> Callable[[], None]:
        def heard(frames: Sequence[Any]) -> None:
            if self._reach.down:
                self._reach.held.append((listener, frames))
            else:
                listener(frames)

        return self._reach.store.log.tail(heard)


class Reach:
    """One group's store, which can be out of reach: then calls fail, and its tail says nothing until it is back."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.group = store.group
        self.down = False
        self.never_reached = False
        self.held: list[tuple[TailListener, Sequence[Any]]] = []
        self.log = _AskedLog(self, store.log)
        self.queues = _Asked(self, store.queues)
        self.keys = _Asked(self, store.keys)
        self.groups = _Asked(self, store.groups)
        self.leases = _Asked(self, store.leases)
        self.timers = _Asked(self, store.timers)

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        return {self.group: self}  # type: ignore[dict-item]

    def back(self) -> None:
        """Makes the group reachable again; its tail goes on from where it was."""
        self.down = self.never_reached = False
        held, self.held = self.held, []
        for listener, frames in held:
            listener(frames)


class Machine:
    """The groups and the controller of a cluster in one process, under one directory."""

    def __init__(self, directory: Path, *, groups: int = 2, queues: int = 4) -> None:
        self.directory = directory
        self._groups = groups
        self._queues = queues
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "Machine":
        limits = ClusterLimits(default_queues=self._queues)
        self.controller = LocalController.open(self.directory / "controller", limits=limits, now_ms=lambda: 0)
        self._opened.push_async_callback(self.controller.close)
        self.reaches: dict[int, Reach] = {}
        for group in range(self._groups):
            await self.open_group(group)
        self.store = ClusterStore(self.controller, self._connect)
        self._opened.push_async_callback(self.store.close)
        return self

    def _connect(self, group: int) -> Any:
        return self.reaches[group]

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def open_group(self, group: int) -> Reach:
        """Opens a group that joins the cluster."""
        store = await LocalStore.open(self.directory / f"group{group}", group=group)
        self._opened.push_async_callback(store.close)
        reach = self.reaches[group] = Reach(store)
        await self.controller.do(AddGroup(number=group, config=GroupConfig()))
        return reach


class Served:
    """A gateway over such a machine, in a thread of its own, for clients that block. `restart` keeps the directory."""

    def __init__(self, directory: Path, *, groups: int = 2) -> None:
        self._directory = directory
        self.groups = groups
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop: asyncio.Event | None = None
        self._running: Future[None] | None = None
        self.machine: Machine
        self._gateway: Gateway

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def start(self) -> "Served":
        """Starts the gateway, and waits until it is ready."""
        ready: Future[None] = Future()
        self._running = asyncio.run_coroutine_threadsafe(self._serve(ready), self._loop)
        wait([ready, self._running], TIMEOUT_S, FIRST_COMPLETED)
        if self._running.done():
            self._running.result()
        return self

    async def _serve(self, ready: "Future[None]") -> None:
        ports: dict[str, Any] = {name: {"port": 0} for name in ("mqtt", "mqtt-ws", "coap", "coap-tcp", "amqp", "http")}
        factories = adapter_factories()
        declared = {listener.name for factory in factories.values() for listener in factory.listeners}
        config = load(
            environ={},
            overrides={
                "store": {"data_dir": str(self._directory)},
                "listeners": {name: table for name, table in ports.items() if name in declared},
                "rpc": {"enabled": False},
                "admin": {"port": 0},
                "gateway": {"shutdown_grace_s": 0.5},
            },
        )
        self._stop = asyncio.Event()
        async with Machine(self._directory, groups=self.groups) as self.machine, asyncio.TaskGroup() as tasks:
            controller: Any = self.machine.controller
            self._gateway = Gateway(config, ClusterBackend(config, self.machine.store, controller), tasks)
            await self._gateway.start()
            ready.set_result(None)
            await self._stop.wait()
            await self._gateway.stop()
            await self._gateway.stop_admin()
            self._gateway.hub.cancel_tasks()

    def port(self, name: str) -> int:
        """Returns the port of a listener."""
        return next(one.port for one in self._gateway.listening if one.name == name)

    def add_group(self) -> int:
        """Adds a group while the gateway runs, and returns its number."""
        number, self.groups = self.groups, self.groups + 1
        self.run(self.machine.open_group(number))
        return number

    def stop(self) -> None:
        """Stops the gateway, and closes the stores."""
        if self._running is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._running.result(TIMEOUT_S)
            self._running = None

    def restart(self) -> None:
        """Stops the gateway, and starts it again with what is on disk."""
        self.stop()
        self.start()

    def close(self) -> None:
        """See that it is gone."""
        try:
            self.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(TIMEOUT_S)
            self._loop.close()
