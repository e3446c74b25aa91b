"""The server's side: one port where pipes are served, and gRPC to whoever speaks that.

gRPC's own server listens on an abstract Unix socket (unix(7)), and what is no pipe is passed on to there byte by byte,
TLS included. At a Unix socket's path, which is for processes of one machine, only pipes are served.
"""

import asyncio
import errno
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

import grpc
import grpc.aio

from store.pipes.passing import handed_over, pass_on
from store.pipes.pipe import OPENING, End, Metadata, Pipe
from store.pipes.places import Places, of_files, origin_of

__all__ = ["CONNECTIONS_MAX", "Context", "Server"]

logger = logging.getLogger(__name__)

# Places, and of how many files that may be open there is one: together these take little more than half of them.
CONNECTIONS_MAX = 4_096  # pipes; beyond, new ones are refused
CONNECTION_FILES = 4
UNOPENED_MAX = 256  # that have not said what they want
UNOPENED_FILES = 16
PASSED_ON_MAX = 256  # each takes three files: to who connected, to gRPC, and gRPC's
PASSED_ON_FILES = 32
OPENING_S = 10.0  # that a client may take until it has said what it wants, TLS included
METHOD_BYTES_MAX = 256
AGAIN_S = 0.1  # before a connection is taken again, where none could be
BACKLOG = 1_024
# A client whose machine is gone is noticed after half a minute, also where nothing is said for long.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
UNIX = "unix:"


class Context:
    """What a handler of a stream is given: `grpc.aio.ServicerContext`, as far as streams use it."""

    def __init__(self, pipe: Pipe) -> None:
        self.read = pipe.read
        self.write = pipe.write
        self._pipe = pipe

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the stream with a status."""
        self._pipe.end(End(code.name, details, list(trailing_metadata)))
        raise grpc.aio.AbortError("the stream is ended")


class _Details(NamedTuple):
    """See `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[()] = ()


class Server:
    """As `grpc.aio.server`, with pipes for the streams of the services that are added."""

    def __init__(self, **options: Any) -> None:
        """The options are those of `grpc.aio.server`."""
        self._loop = asyncio.get_running_loop()
        # gRPC gives two minutes for TLS and the first words.
        hurry = ("grpc.server_handshake_timeout_ms", int(OPENING_S * 1000))
        self._grpc = grpc.aio.server(**{**options, "options": (*(options.get("options") or ()), hurry)})
        self._inner = ""  # the name of gRPC's socket; empty: gRPC is not served
        self._services: list[Any] = []
        self._listeners: list[socket.socket] = []
        self._credentials: Any = None
        self._serving: set[asyncio.Task[None]] = set()  # one a connection, whatever its kind
        self._unopened = Places()  # <= UNOPENED_MAX
        self._passed_on = Places()  # <= PASSED_ON_MAX
        self._pipes: set[asyncio.Task[None]] = set()  # <= CONNECTIONS_MAX
        self._stopping = False

    # ---- up

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See `grpc.aio.Server`."""
        self._services += handlers
        self._grpc.add_generic_rpc_handlers(tuple(handlers))

    def add_insecure_port(self, address: str) -> int:
        """See `grpc.aio.Server`: once."""
        self._listeners = _listen(address)
        if address.startswith(UNIX):
            return 0
        self._grpc.add_insecure_port(self._name())
        return int(self._listeners[0].getsockname()[1])

    def add_secure_port(self, address: str, credentials: Any) -> int:
        """See `grpc.aio.Server`: once; `credentials` are `store.credentials`'."""
        self._listeners = _listen(address)
        self._credentials = credentials
        self._grpc.add_secure_port(self._name(), credentials)
        return int(self._listeners[0].getsockname()[1])

    def _name(self) -> str:
        self._inner = f"headgate-{secrets.token_hex(16)}"
        return f"unix-abstract:{self._inner}"

    async def start(self) -> None:
        """Serve."""
        await self._grpc.start()
        for listener in self._listeners:
            self._listen_on(listener)

    # ---- down

    async def stop(self, grace_s: float | None) -> None:
        """Take no more connections, let streams go on for `grace_s` seconds, then end them."""
        self._stopping = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        stopping = asyncio.ensure_future(self._grpc.stop(grace_s))
        if self._serving and grace_s:
            await asyncio.wait(self._serving, timeout=grace_s)
        await _cancel(list(self._serving))
        await stopping

    # ---- connections

    def _accept(self, listener: socket.socket) -> None:
        """Take the connections that wait."""
        while True:
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor is left, say
                logger.warning("connections cannot be taken: %s", error)
                self._loop.remove_reader(listener)
                self._loop.call_later(AGAIN_S, self._listen_on, listener)
                return
            accepted.setblocking(False)
            origin = origin_of(accepted.family, address)
            serving = self._loop.create_task(self._serve(accepted, origin))
            self._serving.add(serving)
            serving.add_done_callback(partial(self._served, accepted))
            self._unopened.take(serving, origin, of_files(UNOPENED_MAX, UNOPENED_FILES))

    def _served(self, accepted: socket.socket, serving: "asyncio.Task[None]") -> None:
        """A connection is over, maybe before it was looked at."""
        self._serving.discard(serving)
        self._pipes.discard(serving)
        self._unopened.leave(serving)
        self._passed_on.leave(serving)
        accepted.close()

    def _listen_on(self, listener: socket.socket) -> None:
        if not self._stopping:
            self._loop.add_reader(listener, self._accept, listener)

    async def _serve(self, accepted: socket.socket, origin: bytes) -> None:
        """One connection, from its first byte to its end."""
        _keep_alive(accepted)
        try:
            async with asyncio.timeout(OPENING_S) as opening:
                first = await self._loop.sock_recv(accepted, 1)
                if first == OPENING:
                    await self._pipe(accepted, opening)
                elif first and self._inner:
                    await self._pass_on(first, accepted, origin, opening)
        except TimeoutError:
            logger.debug("a connection has not said what it wants")
        except OSError as error:  # TLS's errors are too
            logger.info("a connection was not established: %s", error)
        except Exception:
            logger.exception("a connection has failed")

    async def _pass_on(self, first: bytes, accepted: socket.socket, origin: bytes, opening: asyncio.Timeout) -> None:
        me = asyncio.current_task()
        assert me is not None

        def exchanged() -> None:
            opening.reschedule(None)
            self._unopened.leave(me)
            self._passed_on.take(me, origin, of_files(PASSED_ON_MAX, PASSED_ON_FILES))

        await pass_on(first, accepted, f"\0{self._inner}", exchanged)

    async def _pipe(self, accepted: socket.socket, opening: asyncio.Timeout) -> None:
        me = asyncio.current_task()
        assert me is not None
        tls = None if self._credentials is None else self._credentials.tls
        pipe = Pipe(me.cancel, first_bytes_max=METHOD_BYTES_MAX)
        await self._loop.connect_accepted_socket(  # with TLS, uvloop does not return the protocol that it was given
            lambda: pipe,
            handed_over(accepted),
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else OPENING_S,
        )
        said = False
        try:
            method = await pipe.read()
            said = method is not grpc.aio.EOF
            if not said:
                return
            if len(self._pipes) >= of_files(CONNECTIONS_MAX, CONNECTION_FILES):
                pipe.end(End(grpc.StatusCode.UNAVAILABLE.name, "too many streams"))
                return
            opening.reschedule(None)
            self._unopened.leave(me)
            self._pipes.add(me)
            await self._call(pipe, bytes(method).decode("utf-8", "replace"))
        except grpc.aio.AioRpcError:  # the client went away
            logger.debug("a stream has broken", exc_info=True)
        finally:
            if self._stopping or not said:
                pipe.abort()
            else:
                pipe.close()

    async def _call(self, pipe: Pipe, path: str) -> None:
        """Let the handler of a stream serve it."""
        details = _Details(path)
        found = next((one for service in self._services if (one := service.service(details)) is not None), None)
        if found is None or not found.response_streaming:
            pipe.end(End(grpc.StatusCode.UNIMPLEMENTED.name, f"no stream is called {path!r}"))
            return
        context = Context(pipe)
        try:
            if found.request_streaming:
                answers = found.stream_stream(None, context)
            else:
                answers = found.unary_stream(await pipe.read(), context)
            if isinstance(answers, AsyncIterator):
                async for answer in answers:
                    await pipe.write(answer)
            else:
                await answers
        except grpc.aio.AbortError:
            return
        except grpc.aio.AioRpcError:
            raise
        except Exception as error:
            logger.exception("a stream has failed", extra={"method": path})
            pipe.end(End(grpc.StatusCode.UNKNOWN.name, f"{type(error).__name__}: {error}"))
        else:
            pipe.end(End(grpc.StatusCode.OK.name))


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- sockets


def _listen(address: str) -> list[socket.socket]:
    """Listen on every address that a name has. Raises RuntimeError, as gRPC does, where that cannot be."""
    try:
        if address.startswith(UNIX):
            return [_unix_listener(address.removeprefix(UNIX))]
        host, _, port = address.rpartition(":")
        return _tcp_listeners(host.strip("[]"), int(port))
    except OSError as error:
        raise RuntimeError(f"{address}: {error}") from error


def _unix_listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _tcp_listeners(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            at = (where[0], port, *where[2:])
            everywhere = family == socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6()
            try:
                listener = socket.create_server(at, family=family, backlog=BACKLOG, dualstack_ipv6=everywhere)
            except OSError as error:
                if listeners and error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EADDRINUSE}:
                    continue  # it listens on another one of the name's
                raise
            listener.setblocking(False)
            listeners.append(listener)
            port = port or listener.getsockname()[1]
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _keep_alive(accepted: socket.socket) -> None:
    if accepted.family == socket.AF_UNIX:
        return
    with suppress(OSError):  # it has ended already, which will be noticed
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
