"""`headgate serve --workers N`: N proxies on the same ports, beside this process, which has store and metadata.

Up: ports, store and metadata, workers; down: the other way round, so that everything acknowledged is on disk. The pages
of the one admin port, and the gRPC port for readers, are of this process and stand for all.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from gateway.config.config import Config, ListenerConfig
from gateway.config.nodes import node_credentials
from gateway.domain.keys import kv_key
from gateway.ops.metrics import Metrics
from gateway.ops.status import Listening, Status
from gateway.ownership.presence import ALIVE
from gateway.process.app import PAGES, Load, topics_status
from gateway.process.renewing import NewestConfig, Renewing
from gateway.process.roles import check_workers
from gateway.process.shared_ports import SharedPorts
from gateway.process.shared_store import SharedStore, shared_store
from gateway.process.worker_messages import WorkerMessageError
from gateway.process.worker_metrics import WorkerMetrics
from gateway.process.worker_operations import WorkerOperations
from gateway.process.worker_pool import Worker, WorkerPool
from gateway.runtime.reloading import reread
from gateway.security.access_control import AccessControl
from gateway.sessions.will_rights import WaitingWills
from store.base import logs
from store.base.admin import AdminServer, ReadyState
from store.base.errors import StoreError
from store.base.process_errors import listening_on
from store.base.runner import ServerRun, StopRequested, hangups, run_server
from store.serving.rpc import StoreService

log = logs.get(__name__)


class Workers:
    """The gateway that all processes together are; made by `serve`."""

    def __init__(self, config: Config, base: SharedStore, count: int) -> None:
        self.config = config
        self.listening: list[Listening] = []
        self._base = base
        self._pool = pool = WorkerPool(_for_workers(config, base), count, base.sockets, gone=self._worker_gone)
        self._began_s = time.monotonic()
        self._stored: dict[str, int] = {}  # by workers that are gone
        self._open = False  # every worker has served
        self._stopping = False
        metrics = Metrics()
        base.watch(metrics)
        access = AccessControl(config.access, base.controller, metrics, clock=time.monotonic, changed=_nothing)
        self._wills = WaitingWills(base.store, access.check_publisher, spawn=self._spawn)
        self._looking: asyncio.Task[None] | None = None  # at waiting wills, once: the workers do so from then on
        metrics.wills_undecodable.set_function(lambda: self._wills.undecodable_count)
        metrics.topics.set_function(lambda: len(base.controller.topics()))
        self._registry = CollectorRegistry()
        self._metrics = WorkerMetrics(
            metrics.registry, lambda: {one.name: one.metrics for one in pool.workers}, name="store"
        )
        self._registry.register(self._metrics)
        serving = Gauge("headgate_workers_serving", "Workers that serve", registry=self._registry)
        serving.set_function(lambda: sum(one.ready for one in pool.workers))
        restarts = Gauge("headgate_worker_restarts", "Workers started again since the start", registry=self._registry)
        restarts.set_function(lambda: sum(one.restarts for one in pool.workers))

    # ---- up and down

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Opens the pages and the port for readers, and starts the workers. Raises `ServerFailed`, `ChildFailed`."""
        config, admin, rpc = self.config, self.config.admin, self.config.rpc
        pages = await AdminServer.start(
            admin,
            ready=self.ready,
            status=self.status,
            registry=self._registry,
            gather=self._pool.gather,
            operations=WorkerOperations(self._pool).operations,
        )
        stack.push_async_callback(pages.stop)
        if rpc.enabled:
            credentials = node_credentials(config.cluster, host=rpc.host, key="rpc.host").server
            base, address = self._base, f"{rpc.host}:{rpc.port}"
            with listening_on("rpc", rpc.host, rpc.port):
                readers = await StoreService.start(
                    base.store, base.controller, address, credentials=credentials, by_first_level=not config.routes
                )
            stack.push_async_callback(readers.stop, 1.0)
            self.listening.append(Listening(name="rpc", host=rpc.host, port=readers.port, summary="gRPC, for Spark"))
        stack.push_async_callback(self._stop)
        await self._pool.start()
        self._wills.begin(self._base.begin_timers)
        self.listening += [each for one in config.listeners.values() if one.enabled for each in _listening(one)]
        self.listening.append(Listening(name="admin", host=admin.host, port=pages.port, summary=PAGES))
        self._open = True

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        self._looking = asyncio.create_task(_logged(work))

    async def _stop(self) -> None:
        self._stopping = True
        if self._looking is not None:
            self._looking.cancel()
        await self._pool.stop()

    async def _worker_gone(self, worker: Worker) -> None:
        """Keeps the counts of a worker that has ended, and lets the others go on with its sessions at once."""
        metrics, status = worker.metrics, worker.status
        worker.metrics, worker.status = "", None  # they are in the sums from now on: not twice while the store is told
        self._metrics.gone(metrics)
        if status is None:
            return
        for protocol, count in status.stored.items():
            self._stored[protocol] = self._stored.get(protocol, 0) + count
        if status.proxy:
            try:
                await self._base.store.keys.delete(kv_key(ALIVE, status.proxy))
            except StoreError as error:
                log.warning(
                    "the other workers could not be told that a worker has ended; they notice when its keys expire",
                    error=str(error),
                )

    async def follow(self, news: AsyncIterator[Config], newest: NewestConfig) -> None:
        """Tells the workers every new configuration. Ports and all else stay as they are."""
        try:
            async for new in news:
                reloaded = newest.with_reloaded(new)
                try:
                    self._pool.send_config(_for_workers(reloaded, self._base))
                except WorkerMessageError as error:
                    mistakes = [str(error)]
                    log.error("the new configuration is invalid; the previous one stays in force", mistakes=mistakes)
                else:
                    newest.config = reloaded
        except Exception:  # our own bug: the workers go on as they were told before
            log.exception("the configuration cannot be reloaded any more: the watcher has failed")

    # ---- status and metrics

    def ready(self) -> ReadyState:
        """Returns whether any worker serves, and the reasons why others do not."""
        reasons = []
        if self._stopping:
            reasons.append("shutting down")
        elif not self._open:
            reasons.append("starting")
        reasons += self._base.troubles()
        serving = any(one.ready for one in self._pool.workers)
        ready = serving and not reasons
        workers = [f"{one.name}: {trouble}" for one in self._pool.workers for trouble in one.troubles]
        if not ready:
            reasons += workers
        warnings = (*(workers if ready else ()), *self._base.warnings())
        return ReadyState(ready=ready, reasons=tuple(reasons), alive=self._base.alive, warnings=warnings)

    async def status(self) -> Status:
        """Returns the document of /status: of all processes together."""
        base, workers = self._base, self._pool.workers
        lost = await base.lost()  # first: the warnings name them
        state = self.ready()
        said = [one.status for one in workers if one.status is not None]
        return Status(
            version=version("headgate"),
            ready=state.ready,
            reasons=state.reasons,
            warnings=state.warnings,
            uptime_s=round(time.monotonic() - self._began_s, 3),
            data_dir=str(self.config.store.data_dir),
            log=base.log(),
            damages=tuple(base.damages()),
            lost=tuple(lost.ranges),
            lost_more=lost.more,
            damaged_views=tuple(base.damaged_views()),
            scrub=base.scrub(),
            listeners=tuple(self.listening),
            connections=_sum([one.connections for one in said]),
            stored=_sum([self._stored, *[one.stored for one in said]]),
            topics=await topics_status(base.store, base.controller),
            workers=tuple(one.shown() for one in workers),
            bridges=tuple(bridge for one in said for bridge in one.bridges if bridge.here),
        )


def _nothing() -> None:
    """Ignores that rights have changed: the workers look at waiting wills again."""


async def _logged(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except Exception:  # the workers serve all the same
        log.exception("waiting wills could not be looked at")


def _sum(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = sorted({name for table in tables for name in table})
    return {name: sum(table.get(name, 0) for table in tables) for name in names}


def _listening(one: ListenerConfig) -> Iterator[Listening]:
    ports = [(one.port, False)] if one.plain else []
    if one.tls_port is not None:
        ports.append((one.tls_port, True))
    for port, secure in ports:
        yield Listening(
            name=one.name, host=one.host, port=port, transport=one.transport, secure=secure, summary=one.summary
        )


async def _run(
    run: ServerRun, config: Config, count: int, *, load: Load, on_ready: Callable[[Workers], None] | None
) -> None:
    """Runs a gateway of several workers until it is asked to stop; begins anew where views are damaged.

    SIGHUP has the configuration read again, by `load`. Raises `ServerFailed`, `ChildFailed`, `ConfigError`,
    `WorkerMessageError`, `StoreError`, `ControllerError`, OSError.
    """
    signalled = hangups()
    ports = await SharedPorts.keep(config.listeners)
    run.stack.callback(ports.close)
    newest, renewing = NewestConfig(msgspec.structs.replace(config, listeners=ports.listeners)), Renewing()
    while not run.stopped.is_set():
        async with contextlib.AsyncExitStack() as stack:
            base = await run.start(stack.enter_async_context(shared_store(newest.config)))
            workers = Workers(newest.config, base, count)
            await run.start(workers.start(stack))
            run.settle()
            log.info("ready", data=str(config.store.data_dir), workers=count)
            if on_ready is not None:
                on_ready(workers)
            following = asyncio.create_task(workers.follow(reread(config, signalled, load), newest))
            try:
                with contextlib.suppress(StopRequested):
                    await run.start(renewing.due(base))
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


def _for_workers(config: Config, base: SharedStore) -> Config:
    """Returns a worker's configuration: it stores nothing itself, and finds everything in the process beside it."""
    cluster = msgspec.structs.replace(
        config.cluster, controllers={"1": base.controller_address}, tls=type(config.cluster.tls)()
    )
    rpc = msgspec.structs.replace(config.rpc, enabled=False)
    return msgspec.structs.replace(
        config, cluster=cluster, rpc=rpc, proxy=msgspec.structs.replace(config.proxy, state_dir=None)
    )


def serve(config: Config, count: int, *, load: Load, on_ready: Callable[[Workers], None] | None = None) -> int:
    """Runs a gateway of so many workers; the exit status. Raises as `_run` does.

    A second signal ends all processes at once.
    """
    check_workers(config)
    return run_server(lambda run: _run(run, config, count, load=load, on_ready=on_ready))
