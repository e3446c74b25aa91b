"""Requests to sinks: over connections to addresses that were checked, without redirects, proxies or cookies."""

import asyncio
import contextlib
import importlib.util
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

import httpcore
from h2.events import ConnectionTerminated

from gateway.push.guard import SinkGuard, SinkRefused, SinkUnreachable, connect_checked
from gateway.push.trust import refused_certificate

# With every request httpcore looks for sniffio, which it does without. Where that is not installed the search through
# all directories takes a third of a request's processor time: 0.9 ms with it, 0.6 without. None ends it at once.
if "sniffio" not in sys.modules and importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

ANSWER_BYTES_MAX: Final = 64 << 10  # of an answer's body, which is not used; a longer one costs its connection
CONNECT_S: Final = 10.0
RETRY_AFTER_S_MAX: Final = 10**9  # of a longer number
IDLE_S: Final = 30.0  # that a connection is kept for the next delivery


class SinkAnswer(NamedTuple):
    """The answer of a sink; `retry_after_ms` where it says when to come again."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    retry_after_ms: int | None

    def header(self, name: bytes) -> str | None:
        """Returns the value of a header, by its name in lower case."""
        for found, value in self.headers:
            if found.lower() == name:
                return value.decode("latin-1").strip()
        return None


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses alone."""

    def __init__(self, guard: SinkGuard) -> None:
        self._guard = guard
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See `connect_checked`."""
        return await connect_checked(
            self._guard,
            host,
            lambda address: self._inner.connect_tcp(address, port, timeout=timeout, socket_options=socket_options),
            failures=(httpcore.ConnectError, httpcore.ConnectTimeout),
        )

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refuses: no sink is a file."""
        raise httpcore.ConnectError("no sink is a Unix socket")

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)


class _ConnectionEnded(httpcore.RemoteProtocolError):
    """Raised where a sink ends a connection of HTTP/2 before an answer that was to come on it."""


class SinkClient:
    """The connections to one sink, at most as many as there are attempts at a time.

    An exchange that does not come to its end leaves its connection useless. httpcore closes that of HTTP/1.1, and goes
    on with that of HTTP/2: a peer that is gone without a word would be asked on it again and again, and bodies that are
    not read would use up its window. So no later request is sent on a connection of HTTP/2 that was there then.
    """

    def __init__(self, guard: SinkGuard, *, connections_max: int, tls: ssl.SSLContext) -> None:
        self._guard = guard
        self._connections_max = connections_max
        self._tls = tls
        self._pool = self._new_pool()
        self._in_use: Counter[httpcore.AsyncConnectionPool] = Counter()  # requests by pool

    def _new_pool(self) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=self._connections_max,
            max_keepalive_connections=self._connections_max,
            keepalive_expiry=IDLE_S,
            http2=True,
            network_backend=_CheckedBackend(self._guard),
        )

    async def request(
        self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, timeout_s: float
    ) -> SinkAnswer:
        """Sends a request and waits for its answer. Raises `SinkUnreachable`, `SinkRefused`.

        What the head of an answer says counts, though its body may not come to an end. A request whose connection of
        HTTP/2 is ended by the sink, as after so many requests, is sent once more at once, on another.
        """
        times = {"connect": min(CONNECT_S, timeout_s), "read": timeout_s, "write": timeout_s, "pool": timeout_s}
        heads: list[SinkAnswer] = []

        def send(pool: httpcore.AsyncConnectionPool) -> AbstractAsyncContextManager[httpcore.Response]:
            return pool.stream(method, url, headers=list(headers), content=body, extensions={"timeout": times})

        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await self._exchange(send, heads)
                except _ConnectionEnded:
                    await self._exchange(send, heads)
        except TimeoutError as error:
            if not heads:
                raise SinkUnreachable(f"no answer within {timeout_s:g} s") from error
        except (SinkRefused, SinkUnreachable):
            raise
        except (OSError, ValueError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            if not heads:
                raise SinkUnreachable(refused_certificate(error) or str(error) or type(error).__name__) from error
        return heads[0]

    async def _exchange(
        self,
        send: Callable[[httpcore.AsyncConnectionPool], AbstractAsyncContextManager[httpcore.Response]],
        heads: list[SinkAnswer],
    ) -> None:
        """Sends a request and reads its answer, whose head goes into `heads`. Raises `_ConnectionEnded` without one."""
        pool = self._pool
        kept = _has_http2(pool)  # a connection of an earlier request, which the sink may have closed while it was idle
        self._in_use[pool] += 1
        whole = False
        try:
            async with send(pool) as answer:
                heads.append(SinkAnswer(answer.status, answer.headers, _retry_after_ms(answer.headers)))
                whole = await self._read(answer)
        except httpcore.RemoteProtocolError as error:
            if heads or not _is_end_of_http2(error):
                raise
            raise _ConnectionEnded(str(error)) from error
        except (httpcore.ReadError, httpcore.WriteError) as error:
            if heads or not kept:
                raise
            raise _ConnectionEnded(str(error) or type(error).__name__) from error
        finally:
            await self._ended(pool, whole=whole)

    async def _ended(self, pool: httpcore.AsyncConnectionPool, *, whole: bool) -> None:
        """Notes the end of a request; connections that are of no use any more are closed when their last one ends."""
        if not whole and pool is self._pool and _has_http2(pool):
            self._pool = self._new_pool()
        self._in_use[pool] -= 1
        if not self._in_use[pool]:
            del self._in_use[pool]
            if pool is not self._pool:
                await _close(pool)

    @staticmethod
    async def _read(answer: httpcore.Response) -> bool:
        """Reads the body to its end, so that the connection can be used again, or to its limit: False."""
        size = 0
        async for part in answer.aiter_stream():
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                return False
        return True

    async def close(self) -> None:
        """Closes all connections."""
        for pool in (self._pool, *self._in_use):
            await _close(pool)


def _has_http2(pool: httpcore.AsyncConnectionPool) -> bool:
    return any("HTTP/2" in one.info() for one in pool.connections)


def _is_end_of_http2(error: httpcore.RemoteProtocolError) -> bool:
    """Returns whether it says GOAWAY, or that the peer has closed a connection of HTTP/2."""
    what = error.args[0] if error.args else None
    return isinstance(what, ConnectionTerminated) or what == "Server disconnected"


async def _close(pool: httpcore.AsyncConnectionPool) -> None:
    with contextlib.suppress(OSError, httpcore.NetworkError):
        await pool.aclose()


def _retry_after_ms(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Returns the seconds, or the time until the date, of Retry-After (RFC 9110, 10.2.3), in ms.

    A date is by the sink's clock, if the sink says its time, else by ours.
    """
    said = {name.lower(): value for name, value in headers}
    found = said.get(b"retry-after")
    if found is None:
        return None
    text = found.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return (int(text) if len(text) <= 9 else RETRY_AFTER_S_MAX) * 1_000
    try:
        date = said.get(b"date")
        now = datetime.now(UTC) if date is None else parsedate_to_datetime(date.decode("latin-1"))
        return max(int((parsedate_to_datetime(text) - now).total_seconds() * 1_000), 0)
    except (TypeError, ValueError, OverflowError):
        return None
