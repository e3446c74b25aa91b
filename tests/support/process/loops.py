"""Event loops for tests, each of which can be closed while gRPC still has something to say to it.

A process has one completion queue for all of its `grpc.aio`, and every loop that has made a channel or a server reads
it. What comes for another loop is handed to that one, and where that one is closed, the loop which is running hears
"Event loop is closed" (grpc, aio/completion_queue.pyx.pxi, `_handle_events`): another test fails by what no longer
concerns anybody. A channel that is closed does not help, as what has become of a cancelled call is waited for by
nobody. What comes behind such an event is read all the same: each has its own byte in the queue's socket.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import uvloop


def too_late(context: Mapping[str, Any]) -> bool:
    """Returns whether an exception handler is told of news from gRPC for a loop that was closed."""
    error = context.get("exception")
    closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return closed and "PollerCompletionQueue._handle_events" in context["message"]


class AsyncioLoop(asyncio.SelectorEventLoop):
    """asyncio's own."""

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        if not too_late(context):
            super().call_exception_handler(context)


class UvLoop(uvloop.Loop):
    """The one that nodes run on."""

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        if not too_late(context):
            super().call_exception_handler(context)
