"""One connection of a client to a store node: a channel of its own, and the streams on it (`store.pipes`)."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import msgspec

from store import pipes
from store.base.errors import RemoteFailure, StoreError, StoreUnreachable
from store.base.streams import ERROR_KEY
from store.format.frame import LogOffset
from store.rpc import arguments, calls
from store.rpc.calls import VALUE, Greeting
from store.rpc.paths import APPEND, CALLS, TAIL, TailRequest, path
from store.rpc.wire import BadAnswer, encode, revive

__all__ = ["Link", "TailStream"]

_HELLO = (1 << 62) + 1  # the number of the first call: none of the caller's


class Link:
    """A connection that was greeted by the node. Its methods raise `StoreError` when it is broken."""

    def __init__(self, target: str, channel: Any, session: Any, greeting: Greeting) -> None:
        self.target = target
        self.greeting = greeting
        self.heard_s = asyncio.get_running_loop().time()  # when something came last
        self._channel = channel
        self._session = session
        self._appends: Any = None

    @classmethod
    async def open(cls, target: str, hello: arguments.Hello, *, credentials: Any, timeout_s: float) -> "Link":
        """Connect to `target`, host and port, and be greeted. Raises `NotMaster`, `StoreUnreachable`, `StoreError`."""
        channel = pipes.open_channel(target, credentials)
        try:
            async with asyncio.timeout(timeout_s):
                session = channel.stream_stream(path(CALLS))()
                await _write(session, calls.encode([(_HELLO, "hello", hello)]))
                greeting = _greeting(await _read(session))
            return cls(target, channel, session, greeting)
        except TimeoutError as error:
            await channel.close()
            raise StoreUnreachable(f"{target} has not answered within {timeout_s:g} s") from error
        except BaseException:
            await channel.close()
            raise

    async def close(self) -> None:
        """End all streams and the connection."""
        with suppress(Exception):
            await self._channel.close()

    # ---- streams

    async def say(self, message: bytes) -> None:
        """Send a message of the session."""
        await _write(self._session, message)

    async def hear(self) -> calls.Answers:
        """The session's next message."""
        message = await _read(self._session)
        self._heard()
        return calls.decode_answers(message)

    async def append(self, message: bytes) -> None:
        """Send frames."""
        await _write(self._appending(), message)

    async def acknowledged(self) -> bytes:
        """The next message of acknowledgements."""
        message = await _read(self._appending())
        self._heard()
        return message

    def _appending(self) -> Any:
        if self._appends is None:
            self._appends = self._channel.stream_stream(path(APPEND))()
        return self._appends

    def tail(self, start: LogOffset) -> "TailStream":
        """Begin to follow the log."""
        return TailStream(self._channel.unary_stream(path(TAIL))(encode(TailRequest(start))), self._heard)

    def _heard(self) -> None:
        self.heard_s = asyncio.get_running_loop().time()


class TailStream:
    """The log as it comes."""

    def __init__(self, stream: Any, heard: Callable[[], None]) -> None:
        self._stream = stream
        self._heard = heard

    async def read(self) -> bytes:
        """The next message."""
        message = await _read(self._stream)
        self._heard()
        return message

    def cancel(self) -> None:
        """End it."""
        self._stream.cancel()


def _greeting(message: bytes) -> Greeting:
    answers = calls.decode_answers(message).answers
    if len(answers) != 1 or answers[0].number != _HELLO:
        raise BadAnswer("a session was not greeted")
    if answers[0].kind != VALUE:
        error = revive(answers[0].body)
        raise error if isinstance(error, StoreError) else RemoteFailure(f"not greeted: {error}")
    try:
        return msgspec.msgpack.decode(answers[0].body, type=Greeting)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"greeting: {error}") from error


async def _write(stream: Any, message: bytes) -> None:
    try:
        await stream.write(message)
    except (grpc.aio.BaseError, grpc.RpcError, asyncio.InvalidStateError) as error:
        raise await _translated(stream, error) from error


async def _read(stream: Any) -> bytes:
    try:
        message = await stream.read()
    except (grpc.aio.BaseError, grpc.RpcError, asyncio.InvalidStateError) as error:
        raise await _translated(stream, error) from error
    if message is grpc.aio.EOF:
        raise StoreUnreachable("the store node has ended the connection")
    assert isinstance(message, bytes)
    return message


async def _translated(stream: Any, error: Exception) -> StoreError:
    """The store's own error when the server sent one, else that it cannot be reached."""
    status = error if isinstance(error, grpc.aio.AioRpcError) else None
    if status is None and stream.done():
        trailing = await stream.trailing_metadata()
        code, details = await stream.code(), await stream.details()
    elif status is not None:
        trailing, code, details = status.trailing_metadata(), status.code(), status.details()
    else:
        return StoreUnreachable(f"the connection broke: {error}")
    for key, described in trailing or ():
        if key == ERROR_KEY and isinstance(revived := revive(described), StoreError):
            return revived
    return StoreUnreachable(f"{code.name}: {details}")
