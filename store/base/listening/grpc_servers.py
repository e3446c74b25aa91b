"""gRPC's own servers behind a listener, each at an abstract Unix socket (unix(7)).

A server keeps the certificate that it was started with, and connections that begin after a renewal go to another one.
gRPC has credentials that follow the files (`grpc.dynamic_ssl_server_credentials`), but they are no defence: one of its
threads replaces them while another one begins a handshake with them, and the process ends (docs/decisions/0065).
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio

from store.base.listening.refusals import NotServed

logger = logging.getLogger(__name__)

AGAIN_S: Final = 60.0  # before a server that could not be started with a renewed certificate is tried again
FIRST_AGAIN_S: Final = 1.0  # likewise where there is no other server


class _Server:
    """A server, from the connection for which it is started to the last one."""

    def __init__(self, handlers: Sequence[Any], options: dict[str, Any], credentials: Any) -> None:
        """Begins to start it; `started` waits for the end."""
        self.name = f"headgate-{secrets.token_hex(16)}"
        self.tls = None if credentials is None else credentials.tls
        self.connections_count = 0
        self._failed_s = 0.0
        self._starting = asyncio.ensure_future(self._start(handlers, options, credentials))

    async def _start(self, handlers: Sequence[Any], options: dict[str, Any], credentials: Any) -> Any:
        server, address = grpc.aio.server(**options), f"unix-abstract:{self.name}"
        server.add_generic_rpc_handlers(tuple(handlers))
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials.for_grpc())
        await server.start()
        return server

    @property
    def failed_for_s(self) -> float:
        """Returns the time since it could not be started."""
        return asyncio.get_running_loop().time() - self._failed_s

    @property
    def failed(self) -> bool:
        """Returns whether it could not be started."""
        return self._starting.done() and (self._starting.cancelled() or self._starting.exception() is not None)

    async def started(self) -> None:
        """Waits until it serves. Raises `NotServed`."""
        try:
            await asyncio.shield(self._starting)
        except Exception as error:  # the text has no random name: it is logged once in a while
            self._failed_s = self._failed_s or asyncio.get_running_loop().time()
            why = str(error).partition("; set GRPC_VERBOSITY")[0].replace(self.name, "")
            with_files = "" if self.tls is None else " with the files of [cluster.tls]"
            raise NotServed(
                f"gRPC's server cannot be started{with_files} ({why}); GRPC_VERBOSITY=ERROR has it write more"
            ) from error

    async def stop(self, grace_s: float | None) -> None:
        """Ends its streams, which may go on for `grace_s` seconds."""
        await asyncio.wait([self._starting])
        if not self.failed:
            await self._starting.result().stop(grace_s)


class GrpcServers:
    """The server that takes connections, and those before it that still have some.

    The first one is started for the first connection: its threads wake four times a second, also without connections.
    """

    def __init__(self, handlers: Sequence[Any], options: dict[str, Any], credentials: Any) -> None:
        """Takes what `grpc.aio.server` takes; `credentials` are `store.rpc.credentials`', None without TLS."""
        self._handlers = handlers
        self._options = options
        self._credentials = credentials
        self._server: _Server | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._refused: tuple[Any, float] = (None, 0.0)  # a certificate without a server, and when one was tried
        self._stopping: set[asyncio.Task[None]] = set()
        self.serving: set[_Server] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[str]:
        """Yields the name of the socket for a connection that begins now, and is over when this is left.

        Starts a server where there is none, where the last one could not be started, and after a renewal. Raises
        `NotServed`.
        """
        server = await self._current()
        server.connections_count += 1
        try:
            await server.started()
            yield server.name
        finally:
            server.connections_count -= 1
            self._leave(server)

    async def _current(self) -> _Server:
        if self._server is None or (self._server.failed and self._server.failed_for_s > FIRST_AGAIN_S):
            self._server = self._another()
        elif self._credentials is not None and not self._server.failed and self._is_renewed(self._server):
            if self._renewing is None:
                self._renewing = asyncio.ensure_future(self._renew(self._server))
            await asyncio.shield(self._renewing)
            if self._server is None:
                raise ConnectionAbortedError("the server is stopped")
        return self._server

    def _another(self) -> _Server:
        made = _Server(self._handlers, self._options, self._credentials)
        self.serving.add(made)
        if self._server is not None:
            self.serving.discard(self._server)  # it has failed
        return made

    def _is_renewed(self, server: _Server) -> bool:
        """Returns whether another certificate is in force than the server's, and was not tried in vain lately."""
        tls, (refused, when_s) = self._credentials.tls, self._refused
        return tls is not server.tls and (tls is not refused or asyncio.get_running_loop().time() - when_s > AGAIN_S)

    async def _renew(self, former: _Server) -> None:
        """Starts a server with the renewed certificate; the former goes on where gRPC does not take it."""
        made = _Server(self._handlers, self._options, self._credentials)
        try:
            await made.started()
        except NotServed as error:
            logger.warning("the former certificate stays in force for clients of gRPC: %s", error)
            self._refused = made.tls, asyncio.get_running_loop().time()
        else:
            self.serving.add(made)
            self._server = made
            self._leave(former)
        finally:
            self._renewing = None

    def _leave(self, server: _Server) -> None:
        """Stops a server that takes no more connections, when it has none."""
        if server is not self._server and not server.connections_count and server in self.serving:
            self.serving.remove(server)
            task = asyncio.ensure_future(server.stop(0))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def stop(self, grace_s: float | None) -> None:
        """Ends all of them; their streams may go on for `grace_s` seconds. No connection begins any more."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing])
        servers, self.serving, self._server = self.serving, set(), None
        await asyncio.gather(*(one.stop(grace_s) for one in servers), *self._stopping)
