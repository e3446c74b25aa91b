"""gRPC's own servers behind a listener, each at an abstract Unix socket (unix(7)).

A server keeps the certificate that it was started with, and connections that begin after a renewal go to another one.
gRPC has credentials that follow the files (`grpc.dynamic_ssl_server_credentials`), but they are no defence: one of its
threads replaces them while another one begins a handshake with them, and the process ends (docs/decisions/0065).
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio


class _Server:
    """A server, from the connection for which it is started to the last one."""

    def __init__(self, credentials: Any) -> None:
        self.name = f"headgate-{secrets.token_hex(16)}"
        self.connections_count = 0
        self._credentials = credentials
        self._tls = None if credentials is None else credentials.tls
        self._starting: asyncio.Task[Any]

    @property
    def current(self) -> bool:
        """Returns whether it serves, or is about to, with the credentials of now."""
        failed = self._starting.done() and (self._starting.cancelled() or self._starting.exception() is not None)
        return not failed and (self._credentials is None or self._credentials.tls is self._tls)

    def start(self, handlers: Sequence[Any], options: dict[str, Any]) -> None:
        """Begins to start it; `started` waits for the end."""
        self._starting = asyncio.ensure_future(self._start(handlers, options))

    async def _start(self, handlers: Sequence[Any], options: dict[str, Any]) -> Any:
        server, address = grpc.aio.server(**options), f"unix-abstract:{self.name}"
        server.add_generic_rpc_handlers(tuple(handlers))
        if self._credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, self._credentials.for_grpc())
        await server.start()
        return server

    async def started(self) -> None:
        """Waits until it serves. Raises what kept it from that."""
        await asyncio.shield(self._starting)

    async def stop(self, grace_s: float | None) -> None:
        """Ends its streams, which may go on for `grace_s` seconds."""
        await asyncio.wait([self._starting])
        if not self._starting.cancelled() and self._starting.exception() is None:
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
        self._stopping: set[asyncio.Task[None]] = set()
        self.serving: set[_Server] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[str]:
        """Yields the name of the socket for a connection that begins now, and is over when this is left.

        Starts a server where there is none, where the last one could not be started, and after a renewal.
        """
        server = self._current()
        server.connections_count += 1
        try:
            await server.started()
            yield server.name
        finally:
            server.connections_count -= 1
            self._leave(server)

    def _current(self) -> _Server:
        server = self._server
        if server is None or not server.current:
            self._server = _Server(self._credentials)
            self._server.start(self._handlers, self._options)
            self.serving.add(self._server)
            if server is not None:
                self._leave(server)
            return self._server
        return server

    def _leave(self, server: _Server) -> None:
        """Stops a server that takes no more connections, when it has none."""
        if server is not self._server and not server.connections_count and server in self.serving:
            self.serving.remove(server)
            task = asyncio.ensure_future(server.stop(0))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def stop(self, grace_s: float | None) -> None:
        """Ends all of them; their streams may go on for `grace_s` seconds."""
        servers, self.serving, self._server = self.serving, set(), None
        await asyncio.gather(*(one.stop(grace_s) for one in servers), *self._stopping)
