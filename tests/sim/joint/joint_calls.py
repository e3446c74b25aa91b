"""A call of simulated gRPC, as its client has it and as its server has it; a connection carries what they say."""

import asyncio
from collections import deque
from collections.abc import Callable

import grpc
import grpc.aio

from tests.sim.joint.joint_loop import Process

EOF = grpc.aio.EOF
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Call:
    """A call as its client has it."""

    def __init__(self, connection, path: str, request: bytes | None = None, *, timeout_s=None) -> None:
        self.connection, self.path = connection, path
        self.context = Context(self)
        self._received: deque = deque()
        self._reader: asyncio.Future | None = None
        self._status: tuple[grpc.StatusCode, str, tuple] | None = None
        self._callbacks: list[Callable] = []
        if request is not None:
            self.context.put(request)
            self.context.put(EOF)
        connection.begin(self)
        if timeout_s is not None:
            connection.client.later(timeout_s, self._late)

    def _late(self) -> None:
        if self._status is None:
            self.ended(grpc.StatusCode.DEADLINE_EXCEEDED, "it took too long")
            self.connection.up.put(self.context.gone)

    async def write(self, message: bytes) -> None:
        if self._status is not None:
            raise self._error()
        self.connection.up.put(lambda: self.context.put(message))

    async def done_writing(self) -> None:
        self.connection.up.put(lambda: self.context.put(EOF))

    async def read(self):
        if self._received:
            return self._received.popleft()
        if self._status is None:
            self._reader = self.connection.net.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
            if self._received:
                return self._received.popleft()
        assert self._status is not None
        if self._status[0] is grpc.StatusCode.OK:
            return EOF
        if self._status[0] is grpc.StatusCode.CANCELLED:
            raise asyncio.CancelledError
        raise self._error()

    def __aiter__(self):
        return self

    async def __anext__(self):
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message

    def __await__(self):
        return self._whole().__await__()

    async def _whole(self):
        message = await self.read()
        if message is EOF:
            return b""
        return message

    def done(self) -> bool:
        return self._status is not None

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self.ended(grpc.StatusCode.CANCELLED, "cancelled")
        self.connection.up.put(self.context.gone)
        return True

    def add_done_callback(self, callback) -> None:
        self._callbacks.append(callback)

    async def code(self):
        return self._status[0]

    async def details(self):
        return self._status[1]

    async def trailing_metadata(self):
        return self._status[2]

    def _error(self):
        code, details, trailing = self._status
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)

    # ---- from the network

    def got(self, message: bytes) -> None:
        if self._status is None:
            self._received.append(message)
            self._wake()

    def ended(self, code: grpc.StatusCode, details: str = "", trailing=()) -> None:
        if self._status is None:
            self._status = code, details, tuple(trailing)
            self._wake()
            for callback in self._callbacks:
                self.connection.client.soon(callback, self)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Context:
    """A call as its server has it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._received: deque = deque()
        self._reader: asyncio.Future | None = None
        self._task: asyncio.Task | None = None
        self._gone = False

    # ---- grpc.aio.ServicerContext

    async def read(self):
        while not self._received:
            self._reader = self.call.connection.net.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._received[0] is EOF:
            return EOF
        return self._received.popleft()

    def write(self, message: bytes) -> asyncio.Future:
        """Sends a message, and returns a future that is done already, so that no task has to wait for it."""
        future = self.call.connection.net.loop.create_future()
        if self._gone:
            future.set_exception(asyncio.InvalidStateError("the call is over"))
        else:
            self.call.connection.down.put(lambda: self.call.got(message))
            future.set_result(None)
        return future

    async def abort(self, code, details: str = "", trailing_metadata=()) -> None:
        self._end(code, details, trailing_metadata)
        raise grpc.aio.AbortError(details)

    def cancelled(self) -> bool:
        return self._gone

    # ---- the server

    def begin(self, handler, process: Process) -> None:
        self._task = process.run(self._serve(handler))

    async def _serve(self, handler) -> None:
        try:
            if handler.stream_stream is not None:
                await handler.stream_stream(None, self)
            elif handler.stream_unary is not None:
                self._say(await handler.stream_unary(None, self))
            elif handler.unary_stream is not None:
                made = handler.unary_stream(await self.read(), self)
                if hasattr(made, "__aiter__"):
                    async for message in made:
                        await self.write(message)
                else:
                    await made
            else:
                self._say(await handler.unary_unary(await self.read(), self))
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            if not self._gone:
                self._end(UNAVAILABLE, "the server ends it")
            return
        self._end(grpc.StatusCode.OK)

    def _say(self, message: bytes) -> None:
        self.call.connection.down.put(lambda: self.call.got(message))

    def _end(self, code, details: str = "", trailing=()) -> None:
        if not self._gone:
            self.call.connection.down.put(lambda: self.call.ended(code, details, trailing))

    # ---- from the network

    def put(self, message) -> None:
        self._received.append(message)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def gone(self) -> None:
        """Notes that the client is gone."""
        self._gone = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
