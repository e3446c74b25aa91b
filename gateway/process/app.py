"""The composition root: it makes a gateway of a configuration, runs it, and takes it down in order.

Up: store, controller, hub, internal services, and the listeners last, so that no client is served before everything is
ready. Down: the other way round, so that everything acknowledged is on disk and everything read has its answer.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from controller.api.client import ControllerClient, Topic
from gateway.bridges.sinks.kinds import sink_kinds
from gateway.config.config import Config, ListenerConfig, adapter_factories
from gateway.config.nodes import node_credentials
from gateway.ops.metrics import Metrics
from gateway.ops.status import GroupStatus, Listening, Status, TopicStatus
from gateway.port.adapter import AdapterFactory
from gateway.port.push import SinkFactory
from gateway.process.backend import Backend, cluster_backend, local_backend
from gateway.process.renewing import NewestConfig, Renewing
from gateway.process.roles import check_proxy, check_serve
from gateway.publishing.ingest import WHOLE_BYTES_MAX
from gateway.publishing.routing import topic_settings
from gateway.runtime.amqp_operations import AmqpOperations
from gateway.runtime.client_sessions import ClientSessions
from gateway.runtime.connection import Connection
from gateway.runtime.datagram import DatagramEndpoint
from gateway.runtime.dtls import dtls_adapter
from gateway.runtime.endpoint import ListenerContext
from gateway.runtime.hub import ProcessHub
from gateway.runtime.reloading import follow, reread, watch_users
from gateway.security.failed_handshakes import FailedHandshakes
from gateway.security.tls import ServerTls
from gateway.security.tls_listener import Handshakes, TlsListener
from gateway.sockets.batches import COMPILED
from gateway.sockets.listening import PlainListener
from gateway.sockets.poller import Poller
from store.api.client import StoreClient
from store.api.lost_status import LostList
from store.base import logs
from store.base.admin import AdminServer, ReadyState
from store.base.clock import now_ms
from store.base.errors import StoreError, StoreUnreachable
from store.base.memory import memory_limit_bytes
from store.base.process_errors import listening_on
from store.base.runner import ServerRun, StopRequested, hangups, run_server
from store.format.frame import QueueNumber
from store.serving.rpc import StoreService

if TYPE_CHECKING:
    from gateway.bridges.bridges import Bridges

ACCEPT_BACKLOG = 1024
TLS_HANDSHAKE_S = 10.0  # a peer that takes longer is cut off; until then it is no connection that is counted
BOUNDS_S = 1.0  # in which a store group returns a queue's bounds, for /status; the page has a few seconds
PAGES = "/healthz /readyz /metrics /status"

log = logs.get(__name__)
Load: TypeAlias = Callable[[], Config]


class Gateway:
    """A running gateway. A `worker` shares its ports with others and has its pages at a Unix socket."""

    def __init__(
        self, config: Config, backend: Backend, tasks: asyncio.TaskGroup, *, worker: Path | None = None
    ) -> None:
        self.config = config
        self._worker = worker
        self.backend = backend
        self.store = backend.store
        self.controller = backend.controller
        self.metrics = Metrics()
        self.hub = ProcessHub(config, self.store, self.controller, self.metrics, tasks, owners=backend.owners)
        self.hub.pressure.low_disk = lambda: backend.low_disk
        self.listening: list[Listening] = []
        self._started = time.monotonic()
        self._open = False  # every listener is up
        self._stopping = False
        self._servers: list[PlainListener | TlsListener] = []
        self._poller = Poller(asyncio.get_running_loop(), self.hub.turn.received)
        self._handshakes = Handshakes()
        self._sockets: list[DatagramEndpoint] = []
        self._rpc: StoreService | None = None
        self._admin: AdminServer | None = None
        self._bridges: Bridges | None = None
        self._tls = ServerTls(config.tls)

    # ---- up

    async def start(self) -> None:
        """Opens everything. Raises `ServerFailed`."""
        self.backend.watch(self.metrics)
        self.metrics.subscribers.set_function(lambda: self.hub.fanout.subscriber_count)
        self.metrics.subscribers_behind.set_function(lambda: self.hub.fanout.behind_count)
        self.metrics.damages_passed.set_function(lambda: self.hub.fanout.damages_passed)
        self.metrics.messages_lost.add(lambda: self.hub.queues.keeper.lost.count)
        self.metrics.topics.set_function(lambda: len(self.controller.topics()))
        self.metrics.wills_undecodable.set_function(lambda: self.hub.waiting_wills.undecodable_count)
        self.metrics.dead_letters_dropped.set_function(lambda: self.hub.queues.keeper.dropped)
        await self.hub.start()
        self.hub.waiting_wills.begin(self.backend.begin_timers)
        watch_users(self.hub)
        config = self.config
        if config.rpc.enabled:
            address = f"{config.rpc.host}:{config.rpc.port}"
            credentials = node_credentials(config.cluster, host=config.rpc.host, key="rpc.host").server
            with listening_on("rpc", config.rpc.host, config.rpc.port):
                self._rpc = await StoreService.start(
                    self.store,
                    self.controller,
                    address=address,
                    credentials=credentials,
                    by_first_level=not config.routes,
                )
            self._listens("rpc", config.rpc.host, self._rpc.port, summary="gRPC, for Spark")
        self._admin = await self._serve_pages()
        factories = adapter_factories()
        self.hub.push.speak(sink_kinds(factories.values(), self.hub.timer_secrets.gateway_id))
        enabled = {
            listener.name: ListenerContext(
                listener.name, listener.adapter, factories[listener.adapter], config.adapters[listener.adapter]
            )
            for listener in config.listeners.values()
            if listener.enabled
        }
        self.hub.others |= {
            name: context for name, context in enabled.items() if config.listeners[name].transport == "tcp"
        }
        for name, context in enabled.items():
            await self._listen(config.listeners[name], context)
        if self._worker is None:
            self._listens("admin", config.admin.host, self._admin.port, summary=PAGES)
        if config.tls.enabled:
            self.hub.spawn(self._tls.follow())
        if config.bridges:
            self._bridges = self._start_bridges(factories)
        codec = next((one for one in factories.values() if isinstance(one, SinkFactory)), None)
        if codec is not None:
            self.hub.push.start(codec, self.metrics.registry)
        self._open = True

    def _start_bridges(self, factories: Mapping[str, AdapterFactory]) -> "Bridges":
        from gateway.bridges.bridges import Bridges  # noqa: PLC0415 - a client of WebSocket, which only those need that have any

        config, hub = self.config, self.hub
        bridges = Bridges(
            config.bridges,
            {name: (factory, config.adapters[name]) for name, factory in factories.items()},
            hub,
            store=hub.ingest.publish,
            registry=self.metrics.registry,
            now_ms=now_ms,
            message_bytes_max=min(config.gateway.max_message_bytes, WHOLE_BYTES_MAX),
            gateway_id=hub.timer_secrets.gateway_id,
        )
        bridges.start()
        return bridges

    async def _serve_pages(self) -> AdminServer:
        ready, status, registry = self.ready, self.status, self.metrics.registry
        operations = AmqpOperations(self.hub).operations.with_those_of(ClientSessions(self.hub).operations)
        if self._worker is not None:
            return await AdminServer.start_at(
                self._worker, ready=ready, status=status, registry=registry, operations=operations
            )
        return await AdminServer.start(
            self.config.admin, ready=ready, status=status, registry=registry, operations=operations
        )

    async def _listen(self, listener: ListenerConfig, context: ListenerContext) -> None:
        if listener.transport == "udp":
            secured = None
            if listener.dtls:
                secured = dtls_adapter(self.hub, context, self.config.auth, self.config.tls)
            with listening_on(f"listeners.{listener.name}", listener.host, listener.port):
                endpoint = await DatagramEndpoint.open(
                    self.hub,
                    context,
                    listener.host,
                    listener.port,
                    shared=self._worker is not None,
                    adapter=secured,
                )
            self._sockets.append(endpoint)
            self._listens(
                listener.name,
                listener.host,
                endpoint.address[1],
                transport="udp",
                secure=listener.dtls,
                summary=listener.summary,
            )
            return
        if listener.plain:
            await self._serve(listener, context, listener.port, None)
        if listener.tls_port is not None:
            await self._serve(listener, context, listener.tls_port, self._tls.context(listener.alpn))

    async def _serve(
        self, listener: ListenerConfig, context: ListenerContext, port: int, tls: ssl.SSLContext | None
    ) -> None:
        shared = self._worker is not None

        def connection() -> Connection:
            return Connection(self.hub, context)

        server: PlainListener | TlsListener
        with listening_on(f"listeners.{listener.name}", listener.host, port, key="tls_port" if tls else "port"):
            if tls is None:
                server = PlainListener(connection, self._poller, together=True)
            else:
                errors = partial(self.metrics.errors, listener.adapter)
                server = TlsListener(
                    connection,
                    tls,
                    self._handshakes,
                    handshake_s=TLS_HANDSHAKE_S,
                    cut_off=errors("cut_off").inc,
                    failed=FailedHandshakes(listener.name, listener.adapter, errors("handshake")).note,
                )
            await server.listen(listener.host, port, backlog=ACCEPT_BACKLOG, shared=shared)
        self._servers.append(server)
        real = server.sockets[0].getsockname()[1]
        self._listens(listener.name, listener.host, real, secure=tls is not None, summary=listener.summary)

    def _listens(
        self, name: str, host: str, port: int, *, transport: str = "tcp", secure: bool = False, summary: str = ""
    ) -> None:
        self.listening.append(
            Listening(name=name, host=host, port=port, transport=transport, secure=secure, summary=summary)
        )

    # ---- down

    async def stop(self) -> None:
        """Stops listening, lets connections end, and waits until nothing is in flight.

        Bridges and subscriptions end beside the connections: their last cursors may wait for a store that is away.
        """
        self._stopping = True
        for server in self._servers:
            server.close()
        for endpoint in self._sockets:
            endpoint.drain()
        self.hub.groups.stop()
        self.hub.finds.stop()
        self.hub.answers.stop()
        self.hub.contexts.stop()
        ending = [asyncio.ensure_future(self.hub.push.stop())]
        if self._bridges is not None:
            ending.append(asyncio.ensure_future(self._bridges.stop()))
        for connection in list(self.hub.connections.values()):
            connection.shut_down()
        grace_s = self.config.gateway.shutdown_grace_s
        await self._quiet(ending, grace_s)
        for connection in list(self.hub.connections.values()):
            connection.abort()
        await self._quiet(ending, max(1.0, grace_s))
        for endpoint in self._sockets:
            endpoint.close("")
        await self.hub.queues.close()
        await self.hub.owners.close()
        if self._rpc is not None:
            await self._rpc.stop(1.0)
        self._poller.close()

    async def _quiet(self, ending: "list[asyncio.Task[None]]", timeout_s: float) -> None:
        """Waits until these tasks have ended and nothing is in flight, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.wait(ending)
                await self.hub.quiet()

    async def stop_admin(self) -> None:
        """Stops answering on the admin port; the last thing to go."""
        if self._admin is not None:
            await self._admin.stop()

    # ---- status and metrics

    def ready(self) -> ReadyState:
        """Returns whether the process can serve, and the reasons why not."""
        reasons = []
        if self._stopping:
            reasons.append("shutting down")
        elif not self._open:
            reasons.append("starting")
        reasons += self.backend.troubles()
        down = any(not server.is_serving() for server in self._servers) or any(one.gone for one in self._sockets)
        if down and not self._stopping:
            reasons.append("a listener is down")
        warnings = tuple(self.backend.warnings())
        return ReadyState(ready=not reasons, reasons=tuple(reasons), alive=self.backend.alive, warnings=warnings)

    async def status(self) -> Status:
        """Returns the document of /status."""
        # First: the warnings name them. The process beside a worker says what is lost, for all.
        lost = await self.backend.lost() if self._worker is None else LostList()
        state, groups = self.ready(), tuple(self.backend.groups())
        connections: dict[str, int] = {}
        for connection in self.hub.connections.values():
            connections[connection.protocol] = connections.get(connection.protocol, 0) + 1
        return Status(
            version=version("headgate"),
            ready=state.ready,
            reasons=state.reasons,
            warnings=state.warnings,
            uptime_s=round(time.monotonic() - self._started, 3),
            data_dir=self.backend.where,
            log=self.backend.log(),
            damages=tuple(self.backend.damages()),
            lost=tuple(lost.ranges),
            lost_more=lost.more,
            damaged_views=tuple(self.backend.damaged_views()),
            scrub=self.backend.scrub(),
            groups=groups,
            listeners=tuple(self.listening),
            connections=connections,
            stored=self.metrics.stored_by_protocol(),
            topics=await topics_status(self.store, self.controller, groups) if self._worker is None else (),
            proxy=self.hub.owners.id,
            bridges=() if self._bridges is None else self._bridges.status(),
        )


async def topics_status(
    store: StoreClient, controller: ControllerClient, groups: Sequence[GroupStatus] = ()
) -> tuple[TopicStatus, ...]:
    """Returns the status of all topics, without the records of groups that are not reached or do not answer soon."""
    silent = {group.number for group in groups if not group.reached}
    return tuple([await _topic_status(store, topic, silent) for topic in controller.topics()])


async def _topic_status(store: StoreClient, topic: Topic, silent: set[int]) -> TopicStatus:
    records = unknown = 0
    for queue, group in zip(topic.queues, topic.groups, strict=True):
        try:
            if group in silent:
                raise StoreUnreachable(f"store group {group} does not answer")
            async with asyncio.timeout(BOUNDS_S):
                bounds = await store.queues.bounds(QueueNumber(queue))
            records += bounds.next - bounds.first
        except StoreError:
            unknown += 1
        except TimeoutError:
            silent.add(group)
            unknown += 1
    config = topic_settings.summary(topic.config)
    return TopicStatus(name=topic.name, queues=len(topic.queues), records=records, unknown=unknown, config=config)


async def _run(
    run: ServerRun,
    config: Config,
    backend: Callable[[], AbstractAsyncContextManager[Backend]],
    *,
    on_ready: Callable[[Gateway], None] | None = None,
    worker: Path | None = None,
    news: Callable[[], AsyncIterator[Config]] | None = None,
) -> None:
    """Runs a gateway on a backend until it is asked to stop; begins anew, on another one, where views are damaged.

    One that is a `worker` listens on ports that others share, and has its pages at a Unix socket of this path. `news`
    brings configurations whose users and access rules are to count in place of those before. Raises `ServerFailed`, and
    the backend's errors.
    """
    newest, renewing = NewestConfig(config), Renewing()
    run.trimming.memory_bytes_max = memory_limit_bytes(config.gateway.memory_high_bytes)
    while not run.stopped.is_set():
        async with contextlib.AsyncExitStack() as stack:
            opened = await run.start(stack.enter_async_context(backend()))
            async with asyncio.TaskGroup() as tasks:
                gateway = Gateway(newest.config, opened, tasks, worker=worker)
                stack.push_async_callback(gateway.stop_admin)
                try:
                    await gateway.start()
                    run.settle()
                    log.info("ready", data=opened.where, sockets="compiled" if COMPILED else "python")
                    if on_ready is not None:
                        on_ready(gateway)
                    if news is not None:
                        gateway.hub.spawn(follow(gateway.hub, news(), newest.take))
                    with contextlib.suppress(StopRequested):
                        await run.start(renewing.due(opened))
                finally:
                    await gateway.stop()
                    gateway.hub.cancel_tasks()
            if opened.ended is not None and opened.ended.done():
                raise opened.ended.result()


def serve(config: Config, *, load: Load, on_ready: Callable[[Gateway], None] | None = None) -> int:
    """Runs gateway, stores and controller in this process; the exit status. Raises `ServerFailed`.

    `load` reads the configuration again, which is asked for by SIGHUP.
    """
    check_serve(config)
    return _serve(config, lambda: local_backend(config), load, on_ready)


def serve_proxy(config: Config, *, load: Load, on_ready: Callable[[Gateway], None] | None = None) -> int:
    """Runs a gateway over a cluster's store groups in this process; the exit status. Raises `ServerFailed`.

    `load` is as in `serve`.
    """
    check_proxy(config)
    return _serve(config, lambda: cluster_backend(config), load, on_ready)


def _serve(
    config: Config,
    backend: Callable[[], AbstractAsyncContextManager[Backend]],
    load: Load,
    on_ready: Callable[[Gateway], None] | None,
) -> int:
    async def run_gateway(run: ServerRun) -> None:
        signalled = hangups()
        await _run(run, config, backend, on_ready=on_ready, news=lambda: reread(config, signalled, load))

    return run_server(run_gateway)


def serve_worker(config: Config, pages: Path, news: Callable[[], AsyncIterator[Config]]) -> int:
    """Runs one of several gateways on the same ports in this process; the exit status. Raises `ServerFailed`."""
    return run_server(lambda run: _run(run, config, lambda: cluster_backend(config), worker=pages, news=news))
