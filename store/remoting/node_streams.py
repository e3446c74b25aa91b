"""The streams of one client to one store node, on a channel of their own (`store.base.pipes`)."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from store.base import pipes
from store.base.errors import RemoteFailure, StoreError
from store.base.streams import Stream
from store.format.frame import LogOffset
from store.rpc import arguments, calls
from store.rpc.calls import VALUE, SessionGreeting
from store.rpc.paths import APPEND, CALLS, TAIL, TailRequest, path
from store.rpc.wire import ERRORS, BadAnswer, encode, revive

_HELLO = (1 << 62) + 1  # the number of the first call: none of the caller's


class NodeStreams:
    """The streams of a session that the node has greeted. They raise `StoreError` when they are broken."""

    def __init__(self, target: str, channel: Any) -> None:
        self.target = target
        self.received_s = asyncio.get_running_loop().time()  # when something came last
        self.greeting: SessionGreeting
        self._channel = channel
        self.session = self._stream(channel.stream_stream(path(CALLS))())
        self._appends: Stream | None = None

    @classmethod
    async def open(cls, target: str, hello: arguments.Hello, *, credentials: Any, timeout_s: float) -> "NodeStreams":
        """Connects to `target`, host and port, and is greeted. Raises `NotMaster`, `StoreUnreachable`, `StoreError`."""
        streams = cls(target, pipes.open_channel(target, credentials))
        try:
            async with streams.session.within(timeout_s):
                await streams.session.write(calls.encode([(_HELLO, "hello", hello)]))
                streams.greeting = _greeting(await streams.session.read())
        except BaseException:
            await streams.close()
            raise
        return streams

    async def close(self) -> None:
        """Ends all streams and the connection."""
        with suppress(Exception):
            await self._channel.close()

    @property
    def appends(self) -> Stream:
        """The stream of frames, and of their outcomes back."""
        if self._appends is None:
            self._appends = self._stream(self._channel.stream_stream(path(APPEND))())
        return self._appends

    def tail(self, start: LogOffset) -> Stream:
        """Returns a stream of the log as it comes."""
        return self._stream(self._channel.unary_stream(path(TAIL))(encode(TailRequest(start))))

    def _stream(self, call: Any) -> Stream:
        return Stream(call, ERRORS, self.target, on_received=self._note_received)

    def _note_received(self) -> None:
        self.received_s = asyncio.get_running_loop().time()


def _greeting(message: bytes) -> SessionGreeting:
    answers = calls.decode_answers(message).answers
    if len(answers) != 1 or answers[0].number != _HELLO:
        raise BadAnswer("a session got no greeting")
    if answers[0].kind != VALUE:
        error = revive(answers[0].body)
        raise error if isinstance(error, StoreError) else RemoteFailure(f"not greeted: {error}")
    try:
        return msgspec.msgpack.decode(answers[0].body, type=SessionGreeting)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"greeting: {error}") from error
