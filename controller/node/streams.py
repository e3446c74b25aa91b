"""The streams of a controller's server: messages are read and written, and the first one has to come soon."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

WRITE_S = 1.0  # to finish a write when a stream is to be ended
UNOPENED_MAX = 256  # streams whose first message has not come
OPENING_S = 10.0  # that it may take
LOST = (grpc.aio.BaseError, grpc.RpcError)  # of gRPC's streams, and of pipes


class ClientGone(Exception):
    """The client is not there any more."""


class Openings:
    """The streams without a first message: few, not for long, and they make way for those that come later."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[Any], None] = {}  # the oldest first; len <= UNOPENED_MAX

    async def first(self, context: Any) -> bytes | None:
        """Returns the first message of this task's stream; None where there is none in time. Raises `ClientGone`."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._waiting) >= UNOPENED_MAX:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        self._waiting[task] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(OPENING_S):
                    return await read_or_end(context)
        finally:
            self._waiting.pop(task, None)
        return None


async def write(context: Any, message: bytes) -> None:
    """Writes to a stream. Raises `ClientGone`.

    A task that is cancelled meanwhile lets the write end: were it given up half-way, gRPC's call could not be ended.
    """
    if getattr(context, "writes_whole", False):
        try:
            await context.write(message)
        except LOST as error:
            raise ClientGone from error
        return
    writing = asyncio.ensure_future(context.write(message))
    writing.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone by then
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing], timeout=WRITE_S)
        writing.cancel()
        raise
    except LOST as error:
        raise ClientGone from error


async def read_or_end(context: Any) -> bytes | None:
    """Returns the next message of a stream; None: there is no more. Raises `ClientGone`."""
    try:
        message = await context.read()
    except LOST as error:
        raise ClientGone from error
    if message is grpc.aio.EOF:
        return None
    assert isinstance(message, bytes)
    return message
