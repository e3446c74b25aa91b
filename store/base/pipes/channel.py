"""The client's side: streams to one node, each a connection of its own."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from store.base.pipes.pipe import FRAMES, OPENING, Pipe, PipeSizes, broken

UNIX = "unix:"
REFUSED = "it has closed a connection without a word, as it does where it does not accept this node's certificate"


def open_channel(target: str, credentials: Any = None, *, sizes: PipeSizes = FRAMES) -> "Channel":
    """Returns a channel for streams to a node, "host:port" or "unix:path"; `credentials` are
    `store.rpc.credentials`', or None.
    """
    return Channel(target, credentials, sizes)


class Channel:
    """Streams and questions to one node. As `grpc.aio.Channel`, without calls that upload in parts."""

    def __init__(self, target: str, credentials: Any, sizes: PipeSizes) -> None:
        self._target = target
        self._sizes = sizes
        self._credentials = credentials
        self._calls: set[Call] = set()

    def stream_stream(self, path: str) -> "Callable[[], Call]":
        """Opens a stream of messages both ways."""
        return lambda: self._call(path)

    def unary_stream(self, path: str) -> "Callable[[bytes], Call]":
        """Opens a call of one message, and messages back."""
        return lambda request: self._call(path, request)

    def unary_unary(self, path: str) -> "Callable[[bytes], Awaitable[bytes]]":
        """Returns a function that sends one message, and returns the one that comes back."""

        async def ask(request: bytes) -> bytes:
            call = self._call(path, request)
            try:
                answer = await call.read()
            finally:
                call.cancel()
            if not isinstance(answer, bytes):
                raise broken("the question has no answer")
            return answer

        return ask

    def _call(self, path: str, *first: bytes) -> "Call":
        call = Call(self._connect(path, *first), self._calls.discard, secure=self._credentials is not None)
        self._calls.add(call)
        return call

    def _pipe(self) -> Pipe:
        return Pipe(sizes=self._sizes)

    async def _connect(self, path: str, *first: bytes) -> Pipe:
        loop, host = asyncio.get_running_loop(), None
        if self._target.startswith(UNIX):
            transport, pipe = await loop.create_unix_connection(self._pipe, self._target.removeprefix(UNIX))
        else:
            host, _, port = self._target.rpartition(":")
            host = host.strip("[]")
            transport, pipe = await loop.create_connection(self._pipe, host, int(port))
        try:
            transport.write(OPENING)
            if self._credentials is not None:
                secured = await loop.start_tls(transport, pipe, self._credentials.tls, server_hostname=host)
                assert secured is not None
                pipe.connection_made(secured)
            for message in (path.encode(), *first):
                await pipe.write(message)
        except BaseException:
            transport.abort()
            raise
        return pipe

    async def close(self) -> None:
        """Ends all streams."""
        for call in list(self._calls):
            call.cancel()


class Call:
    """A stream. It is connected in the background, so nothing fails before something is read or written."""

    def __init__(self, connecting: Any, over: "Callable[[Call], None]", *, secure: bool = False) -> None:
        self._opening: asyncio.Task[Pipe] = asyncio.ensure_future(connecting)
        self._opening.add_done_callback(_look)
        self._over = over
        self._error: grpc.aio.AioRpcError | None = None
        self._silent = secure  # with TLS, and nothing has come

    async def _pipe(self) -> Pipe:
        if self._opening.done() and not self._opening.cancelled() and self._opening.exception() is None:
            return self._opening.result()
        try:
            return await asyncio.shield(self._opening)
        except ssl.SSLCertVerificationError as error:
            raise broken(f"its certificate is not accepted here: {error.verify_message}") from error
        except (OSError, ValueError, OverflowError) as error:  # TLS's errors, and an address that is none
            raise broken(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            if self._opening.cancelled():
                raise broken("the stream was given up") from None
            raise

    async def _pipe_or_error(self) -> Pipe:
        try:
            return await self._pipe()
        except grpc.aio.AioRpcError as error:
            self._error = error
            raise

    async def read(self) -> Any:
        """Returns the next message; `grpc.aio.EOF` behind the last. Raises `AioRpcError`."""
        pipe = await self._pipe_or_error()
        try:
            message = await pipe.read()
        except grpc.aio.AioRpcError as error:
            self._error = error
            if self._silent and pipe.lost:  # with TLS 1.3 a client's certificate is checked behind the handshake
                raise broken(f"{REFUSED}: {error.details()}") from error
            raise
        self._silent = False
        return message

    async def write(self, message: bytes) -> None:
        """Sends a message. Raises `AioRpcError`."""
        try:
            await (await self._pipe()).write(message)
        except grpc.aio.AioRpcError as error:
            self._error = error
            raise

    def done(self) -> bool:
        """Returns whether it has ended, as far as reading or writing has shown."""
        return self._error is not None

    def cancel(self) -> bool:
        """Closes the connection."""
        self._over(self)
        if not self._opening.done():
            return self._opening.cancel()
        if self._opening.cancelled() or self._opening.exception() is not None:
            return False
        self._opening.result().abort()
        return True


def _look(opening: "asyncio.Task[Pipe]") -> None:
    """Retrieves the error of an opening, for which no reader or writer may ever ask."""
    if not opening.cancelled():
        opening.exception()
