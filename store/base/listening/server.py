"""gRPC's server behind a listener that unauthenticated connections cannot fill.

gRPC's own servers listen on abstract Unix sockets (unix(7)), and connections are passed on to there byte by byte, TLS
included. Only connections that a service has admitted are kept for longer than `OPENING_S`.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from store.base.listening.admission import waiting_under
from store.base.listening.grpc_servers import GrpcServers
from store.base.listening.passing import pass_on
from store.base.listening.peer_budget import UNAUTHENTICATED, Holder, PeerBudget
from store.base.listening.places import ConnectionSlots, of_files, origin_of
from store.base.listening.refusals import NotAdmitted, Refusals
from store.base.listening.sockets import keep_alive, listen

logger = logging.getLogger(__name__)

# Places, and of how many files that may be open there is one: together these take little more than half of them.
UNOPENED_MAX = 256  # connections that are not admitted
UNOPENED_FILES = 16
PASSED_ON_MAX = 256  # admitted ones; each takes three files: to who connected, to gRPC, and gRPC's
PASSED_ON_FILES = 32
OPENING_S = 10.0  # that a client may take until it is admitted, TLS included
AGAIN_S = 0.1  # before a connection is taken again, where none could be


class Server:
    """A server like `grpc.aio.server`. Its services call `admit` for a client that has sent them something sound."""

    def __init__(
        self,
        *,
        unauthenticated: PeerBudget[Holder] = UNAUTHENTICATED,
        **options: Any,
    ) -> None:
        """Takes the options of `grpc.aio.server` besides its own."""
        self._loop = asyncio.get_running_loop()
        # gRPC gives two minutes for TLS and the first words.
        hurry = ("grpc.server_handshake_timeout_ms", int(OPENING_S * 1000))
        self._options = {**options, "options": (*(options.get("options") or ()), hurry)}
        self._handlers: list[Any] = []
        self.grpc: GrpcServers | None = None  # None: gRPC is not served
        self._listeners: list[socket.socket] = []
        self._credentials: Any = None
        self.serving: set[asyncio.Task[None]] = set()  # one a connection, whatever its kind
        self.unopened = ConnectionSlots()  # <= UNOPENED_MAX
        self.passed_on = ConnectionSlots()  # <= PASSED_ON_MAX
        self._passed_count = 0  # since the start: names of connections
        self.unauthenticated = unauthenticated
        self._stopping = False
        self._refusals = Refusals(self._loop.time)

    # ---- up

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See `grpc.aio.Server`."""
        self._handlers += handlers

    def add_insecure_port(self, address: str) -> int:
        """See `grpc.aio.Server`: once."""
        self._listeners = listen(address)
        self.grpc = GrpcServers(self._handlers, self._options, self._credentials)
        return int(self._listeners[0].getsockname()[1])

    def add_secure_port(self, address: str, credentials: Any) -> int:
        """See `grpc.aio.Server`: once; `credentials` are `store.rpc.credentials`'."""
        self._credentials = credentials
        return self.add_insecure_port(address)

    async def start(self) -> None:
        """Serves."""
        for listener in self._listeners:
            self._listen_on(listener)

    # ---- down

    async def stop(self, grace_s: float | None) -> None:
        """Takes no more connections, lets streams go on for `grace_s` seconds, then ends them."""
        self._stopping = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        stopping = None if self.grpc is None else asyncio.ensure_future(self.grpc.stop(grace_s))
        if self.serving and grace_s:
            await asyncio.wait(self.serving, timeout=grace_s)
        await _cancel(list(self.serving))
        if stopping is not None:
            await stopping

    # ---- connections

    def _accept(self, listener: socket.socket) -> None:
        """Takes the connections that wait."""
        while True:
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor is left, say
                logger.warning("connections cannot be accepted: %s", error)
                self._loop.remove_reader(listener)
                self._loop.call_later(AGAIN_S, self._listen_on, listener)
                return
            accepted.setblocking(False)
            origin = origin_of(accepted.family, address)
            serving = self._loop.create_task(self._serve(accepted, origin, str(address[0]) if address else ""))
            self.serving.add(serving)
            serving.add_done_callback(partial(self._served, accepted, origin))
            self.unopened.take(serving, origin, of_files(UNOPENED_MAX, UNOPENED_FILES))

    def _served(self, accepted: socket.socket, origin: bytes, serving: "asyncio.Task[None]") -> None:
        """Forgets a connection that is over, maybe before it was looked at."""
        self.serving.discard(serving)
        self.unopened.leave(serving)
        self.passed_on.leave(serving)
        self.unauthenticated.release(serving, origin)
        accepted.close()

    def _listen_on(self, listener: socket.socket) -> None:
        if not self._stopping:
            self._loop.add_reader(listener, self._accept, listener)

    async def _serve(self, accepted: socket.socket, origin: bytes, host: str) -> None:
        """Serves one connection of a host, from its first byte to its end."""
        keep_alive(accepted)
        try:
            async with asyncio.timeout(OPENING_S) as opening:
                try:
                    first = await self._loop.sock_recv(accepted, 1)
                except ConnectionResetError:
                    return  # a load balancer that looks whether the port is there ends so
                if first:
                    await self._begin(first, accepted, origin, opening)
        except TimeoutError:
            logger.debug("a connection was not admitted in time")
        except OSError as error:  # TLS's errors are too
            self._refusals.note(host, error, secure=self._credentials is not None)
        except Exception:
            logger.exception("a connection has failed")

    async def _begin(self, first: bytes, accepted: socket.socket, origin: bytes, opening: asyncio.Timeout) -> None:
        """Serves a connection that began with this byte, until its end."""
        if self.grpc is not None and not self._stopping:
            async with self.grpc.connection() as inner:
                await self._pass_on(inner, first, accepted, origin, opening)

    async def _pass_on(
        self, inner: str, first: bytes, accepted: socket.socket, origin: bytes, opening: asyncio.Timeout
    ) -> None:
        """Passes a connection on to gRPC's socket `inner`, until its end. Raises `NotAdmitted`."""
        me = asyncio.current_task()
        assert me is not None
        strange, held_bytes = True, 0

        def admitted() -> None:
            nonlocal strange
            if opening.expired():
                return
            strange = False
            opening.reschedule(None)
            self.unauthenticated.release(me, origin)
            self.unopened.leave(me)
            self.passed_on.take(me, origin, of_files(PASSED_ON_MAX, PASSED_ON_FILES))

        def came(size_bytes: int) -> None:
            nonlocal held_bytes
            if strange:
                held_bytes += size_bytes
                self.unauthenticated.hold(me, origin, held_bytes)

        self._passed_count += 1
        name = f"{inner}-{self._passed_count}"
        with waiting_under(f"unix-abstract:{name}", admitted):
            await pass_on(first, accepted, f"\0{inner}", came, name=f"\0{name}")
        if strange and self._credentials is not None and not self._stopping:
            raise NotAdmitted


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
