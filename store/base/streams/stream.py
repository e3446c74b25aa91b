"""A client's side of one stream, of gRPC or a pipe: its failures are raised as errors of its protocol."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from store.base.streams.errors import ErrorTable

_BROKEN = (grpc.aio.BaseError, grpc.RpcError, asyncio.InvalidStateError)


WINDOW_BYTES = 4 << 20  # that a peer may send of one stream before it is read
# gRPC would measure the window that suits a connection, by a ping for each message of a quiet stream and its answer.
FIXED_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES))


def open_channel(target: str, credentials: Any, *, message_bytes_max: int) -> Any:
    """Returns a gRPC channel of its own to a node ("host:port").

    `credentials` are `store.rpc.credentials`', None without TLS.
    """
    options = (
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.enable_http_proxy", 0),  # a node is reached directly, whatever the environment says of proxies
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, which ends with the channel
        ("grpc.enable_retries", 0),  # this module decides which calls are sent again
        *FIXED_WINDOW,
    )
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials.for_grpc(), options=options)


@asynccontextmanager
async def opened(channel: Any) -> AsyncIterator[Any]:
    """Closes a channel at the end, whatever state it is in."""
    try:
        yield channel
    finally:
        with suppress(Exception):
            await channel.close()


class Stream:
    """A call that reads and writes messages. `peer` names the other side in errors; `on_received` is called for each.

    Its methods raise the error that the peer has refused the call with, or the table's `unreachable`.
    """

    def __init__(
        self, call: Any, errors: ErrorTable[Any], peer: str, *, on_received: Callable[[], None] | None = None
    ) -> None:
        self._call, self._errors, self._peer, self._on_received = call, errors, peer, on_received

    async def write(self, message: bytes) -> None:
        """Sends a message, as soon as the peer takes it."""
        try:
            await self._call.write(message)
        except _BROKEN as error:
            raise await self._broken(error) from error

    async def read(self) -> bytes:
        """Returns the next message."""
        try:
            message = await self._call.read()
        except _BROKEN as error:
            raise await self._broken(error) from error
        if message is grpc.aio.EOF:
            raise self._errors.unreachable(f"{self._peer} has ended the connection")
        assert isinstance(message, bytes)
        if self._on_received is not None:
            self._on_received()
        return message

    @asynccontextmanager
    async def within(self, timeout_s: float) -> AsyncIterator[None]:
        """Bounds how long the block may wait for the peer."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as error:
            raise self._errors.unreachable(f"{self._peer} has not answered within {timeout_s:g} s") from error

    def cancel(self) -> None:
        """Ends it."""
        self._call.cancel()

    async def _broken(self, error: Exception) -> Exception:
        call = self._call
        if isinstance(error, grpc.aio.AioRpcError):
            return of_call(error, self._errors)
        if not call.done():
            return self._errors.unreachable(f"the connection to {self._peer} broke: {error}")
        found = self._errors.ended_with(await call.trailing_metadata())
        return found or self._errors.unreachable(f"{(await call.code()).name}: {await call.details()}")


def of_call(error: Any, errors: ErrorTable[Any]) -> Exception:
    """Returns the error that a peer has refused a call with, or the table's `unreachable`; `error` is gRPC's."""
    return errors.ended_with(error.trailing_metadata()) or errors.unreachable(f"{error.code().name}: {error.details()}")
