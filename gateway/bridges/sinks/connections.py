"""Connections to brokers that are sinks: to addresses that were checked, one for each subscription."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from gateway.push.guard import SinkGuard, SinkRefused, SinkUnreachable, connect_checked
from gateway.push.sender import Consent
from gateway.push.trust import refused_certificate

CONNECT_S: Final = 10.0  # to connect, and to be let in
READ_BYTES: Final = 64 << 10


class AnyLink(Protocol):
    """A connection that its sender has opened."""

    @property
    def is_ended(self) -> bool:
        """Returns whether nothing can be sent any more."""

    async def close(self) -> None:
        """Ends it."""


L = TypeVar("L", bound=AnyLink)


class OneLink(Generic[L]):
    """The connection of a sender: opened when an attempt needs it, once for all attempts that wait for it."""

    def __init__(self, open_: Callable[[], Awaitable[L]]) -> None:
        self._open = open_
        self._opening: asyncio.Task[L] | None = None

    async def get(self) -> L:
        """Returns the connection. Raises the errors of opening it."""
        opening = self._opening
        if opening is None or (opening.done() and _is_useless(opening)):
            opening = self._opening = asyncio.ensure_future(self._open())
            opening.add_done_callback(_seen)
        return await asyncio.shield(opening)

    async def consent(self) -> Consent:
        """Connects: a broker that lets us in consents to the messages that its rules let us publish."""
        try:
            await self.get()
        except (SinkUnreachable, SinkRefused) as error:
            return Consent(str(error))
        return Consent("")

    async def close(self) -> None:
        """Ends the connection; one that is being opened is given up."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()


def _is_useless(opening: "asyncio.Task[L]") -> bool:
    return opening.cancelled() or opening.exception() is not None or opening.result().is_ended


def _seen(opening: "asyncio.Task[L]") -> None:
    """Retrieves an error that no caller waits for any more."""
    if not opening.cancelled():
        opening.exception()


async def open_checked(
    guard: SinkGuard, host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection to a broker (`connect_checked`). Raises OSError, `SinkRefused`, `SinkUnreachable`."""
    try:
        return await connect_checked(
            guard,
            host,
            lambda address: asyncio.open_connection(
                address, port, ssl=tls, server_hostname=None if tls is None else host, limit=READ_BYTES
            ),
            failures=(OSError,),
        )
    except ssl.SSLCertVerificationError as error:
        raise SinkUnreachable(f"{host}:{port}: {refused_certificate(error)}") from error
