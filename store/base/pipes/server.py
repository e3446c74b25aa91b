"""The server's side: one port where pipes are served, and gRPC for its clients.

Connections that are no pipe go to gRPC's server (`store.base.listening`). At a Unix socket's path, which is for
processes of one machine, only pipes are served.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import grpc
import grpc.aio

from store.base import listening
from store.base.listening.passing import handed_over
from store.base.listening.places import ConnectionSlots, of_files
from store.base.listening.server import OPENING_S
from store.base.listening.sockets import UNIX, listen
from store.base.pipes.pipe import FRAMES, OPENING, End, Metadata, Pipe, PipeSizes

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 4_096  # pipes; beyond, new ones are refused
CONNECTION_FILES = 4
UNADMITTED_MAX = 1_024  # of them, those whose service has heard nothing sound; beyond, the oldest one makes way
UNADMITTED_FILES = 16
METHOD_BYTES_MAX = 256


class Context:
    """The context of a stream's handler: `grpc.aio.ServicerContext`, as far as streams use it."""

    writes_whole = True  # a write that is cancelled is done all the same

    def __init__(self, pipe: Pipe, admitted: Callable[[], object]) -> None:
        """Calls `admitted` when the client is."""
        self.read = pipe.read
        self.write = pipe.write
        self._admitted = admitted
        self._pipe = pipe

    def admit(self) -> None:
        """Notes that the client is authenticated. Again does nothing."""
        self._pipe.admit()
        self._admitted()

    def cancelled(self) -> bool:
        """Returns whether the stream is over, as it is when the client has gone away."""
        return self._pipe.over

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """Ends the stream with a status."""
        self._pipe.end(End(code.name, details, list(trailing_metadata)))
        raise grpc.aio.AbortError("the stream is ended")


class _Details(NamedTuple):
    """See `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[()] = ()


class PipeServer(listening.Server):
    """A server like `grpc.aio.server`, with pipes for the streams of the services that are added."""

    def __init__(self, *, sizes: PipeSizes = FRAMES, **options: Any) -> None:
        """Takes the sizes of its pipes, and the options of `store.base.listening.Server`."""
        super().__init__(**options)
        self._sizes = sizes
        self._services: list[Any] = []
        self.pipes: set[asyncio.Task[None]] = set()  # <= CONNECTIONS_MAX
        self.unadmitted = ConnectionSlots()  # those of them whose clients are not admitted; <= UNADMITTED_MAX

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See `grpc.aio.Server`."""
        self._services += handlers
        super().add_generic_rpc_handlers(handlers)

    def add_insecure_port(self, address: str) -> int:
        """See `grpc.aio.Server`: once."""
        if not address.startswith(UNIX):
            return super().add_insecure_port(address)
        self._listeners = listen(address)
        return 0

    async def _begin(self, first: bytes, accepted: socket.socket, origin: bytes, opening: asyncio.Timeout) -> None:
        if first == OPENING:
            await self._pipe(accepted, origin, opening)
        else:
            await super()._begin(first, accepted, origin, opening)

    async def _pipe(self, accepted: socket.socket, origin: bytes, opening: asyncio.Timeout) -> None:
        me = asyncio.current_task()
        assert me is not None
        tls = None if self._credentials is None else self._credentials.tls
        pipe = Pipe(me.cancel, sizes=self._sizes, first_bytes_max=METHOD_BYTES_MAX)
        strange = tls is None and accepted.family != socket.AF_UNIX
        if strange:
            pipe.hold_in(lambda size_bytes: self.unauthenticated.hold(pipe, origin, size_bytes))
        said = False
        try:
            await self._loop.connect_accepted_socket(  # with TLS, uvloop does not return the protocol that it was given
                lambda: pipe,
                handed_over(accepted),
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else OPENING_S,
            )
            method = await pipe.read()
            said = method is not grpc.aio.EOF
            if not said:
                return
            found = self._handler(bytes(method).decode("utf-8", "replace"))
            request = None if found is None or found.request_streaming else await pipe.read()
            if len(self.pipes) >= of_files(CONNECTIONS_MAX, CONNECTION_FILES):
                pipe.end(End(grpc.StatusCode.UNAVAILABLE.name, "too many streams"))
                return
            opening.reschedule(None)
            self.unopened.leave(me)
            self.pipes.add(me)
            if strange:
                self.unadmitted.take(me, origin, of_files(UNADMITTED_MAX, UNADMITTED_FILES))
            if found is None:
                pipe.end(End(grpc.StatusCode.UNIMPLEMENTED.name, f"no stream is called {method!r}"))
            else:
                await _serve(pipe, found, request, partial(self.unadmitted.leave, me))
        except grpc.aio.AioRpcError:  # the client went away
            logger.debug("a stream has broken", exc_info=True)
        finally:
            self.pipes.discard(me)
            self.unadmitted.leave(me)
            if self._stopping or not said or me.cancelling():
                pipe.abort()
            else:
                pipe.close()
            pipe.release()

    def _handler(self, path: str) -> Any:
        """Returns the handler of a stream or a question; None where there is none that pipes can serve."""
        details = _Details(path)
        found = next((one for service in self._services if (one := service.service(details)) is not None), None)
        uploads = found is not None and found.request_streaming and not found.response_streaming
        return None if uploads else found


async def _serve(pipe: Pipe, handler: Any, request: Any, admitted: Callable[[], object]) -> None:
    """Lets a handler serve a stream, or a question with its `request`."""
    context = Context(pipe, admitted)
    try:
        if not handler.response_streaming:
            await pipe.write(await handler.unary_unary(request, context))
        else:
            answers = (
                handler.stream_stream(None, context)
                if handler.request_streaming
                else handler.unary_stream(request, context)
            )
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
        logger.exception("a stream has failed")
        pipe.end(End(grpc.StatusCode.UNKNOWN.name, f"{type(error).__name__}: {error}"))
    else:
        pipe.end(End(grpc.StatusCode.OK.name))
