"""The common part of all calls of a store over the network."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from store.base.errors import StoreClosed, StoreUnreachable
from store.format.frame import LogOffset, QueueNumber
from store.format.queue_config import QueueConfig
from store.remoting.caller import Mode
from store.remoting.connection import Connection
from store.remoting.held import Held
from store.rpc.arguments import Arguments

__all__ = ["Remote", "decoder"]

T = TypeVar("T")


def decoder(kind: Any) -> Callable[[Any], Any]:
    """Returns the function that decodes the body of an answer."""
    return msgspec.msgpack.Decoder(kind).decode


class Remote:
    """Some calls of a store over the network, which sets what they need."""

    _loop: asyncio.AbstractEventLoop
    _group: int
    _budget_s: float
    _connection: Connection
    _held: Held
    _queue_configs: dict[QueueNumber, QueueConfig]  # as far as they are known here
    _unknown_configs: dict[QueueNumber, None]  # asked for
    _closed: StoreClosed  # what is raised then
    _closing: asyncio.Future[None] | None

    def _call(
        self,
        method: str,
        arguments: Arguments,
        decode: Callable[[Any], T],
        mode: Mode,
        *,
        orphaned: Callable[[T], None] | None = None,
    ) -> Coroutine[Any, Any, T]:
        return self._connection.caller.call(method, arguments, decode, mode, orphaned=orphaned)

    def _tell(self, method: str, arguments: Arguments) -> None:
        self._connection.caller.tell(method, arguments)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._closed

    async def connected(self) -> None:
        """Wait until a connection stands. Raises `StoreUnreachable` after `budget_s`."""
        try:
            async with asyncio.timeout(self._budget_s):
                await self._connection.up.wait()
        except TimeoutError as error:
            text = f"store group {self._group} could not be reached at {self._connection.target}"
            raise StoreUnreachable(text) from error

    @property
    def is_connected(self) -> bool:
        """Returns whether a connection stands."""
        return self._connection.up.is_set()

    @property
    def heard(self) -> tuple[str | None, float]:
        """The node from which something came last, refusals included, and when that was by the loop's clock."""
        return self._connection.heard

    @property
    def confirmed(self) -> LogOffset:
        """See `StoreClient.confirmed`: as it was heard last. Raises `StoreUnreachable` before the first connection."""
        if not self._connection.sessions:
            raise StoreUnreachable(f"store group {self._group} has not been reached yet")
        return self._connection.confirmed
