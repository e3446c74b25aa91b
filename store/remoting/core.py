"""The part that all subjects of a store over the network share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from store.base.errors import StoreClosed, StoreUnreachable
from store.base.streams.event_wait import wait_at_most
from store.format.frame import LogOffset
from store.remoting.connection import StoreConnection
from store.remoting.held import HeldLeases
from store.rpc.arguments import Arguments
from store.rpc.table import CALLS

T = TypeVar("T")


def decoder(kind: Any) -> Callable[[Any], Any]:
    """Returns the function that decodes the body of an answer."""
    return msgspec.msgpack.Decoder(kind).decode


class Remote:
    """The state that the subjects of a store over the network share. Belongs to the thread of the event loop."""

    def __init__(self, group: int, connection: StoreConnection, held: HeldLeases, *, budget_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.group = group
        self.budget_s = budget_s
        self.connection = connection
        self.held = held
        self.closed = StoreClosed("the client is closed")  # raised then
        self.closing: asyncio.Future[None] | None = None

    def call(
        self,
        method: str,
        arguments: Arguments,
        decode: Callable[[Any], T],
        *,
        orphaned: Callable[[T], None] | None = None,
    ) -> Coroutine[Any, Any, T]:
        """See `Caller.call`. The table of calls says how it is retried."""
        return self.connection.caller.call(method, arguments, decode, CALLS[method].mode, orphaned=orphaned)

    def notify(self, method: str, arguments: Arguments) -> None:
        """See `Caller.notify`."""
        self.connection.caller.notify(method, arguments)

    def check_open(self) -> None:
        """Raises `StoreClosed`."""
        if self.closing is not None:
            raise self.closed

    async def connected(self) -> None:
        """Waits until a connection stands. Raises `StoreUnreachable` after `budget_s`."""
        if not await wait_at_most(self.connection.up, self.budget_s):
            raise StoreUnreachable(f"store group {self.group} could not be reached at {self.connection.target}")

    @property
    def confirmed(self) -> LogOffset:
        """Returns the confirmed offset as it was heard last. Raises `StoreUnreachable` before the first connection."""
        if not self.connection.sessions:
            raise StoreUnreachable(f"store group {self.group} has not been reached yet")
        return self.connection.confirmed
