"""Requests to sinks: over connections to addresses that were checked, without redirects, proxies or cookies."""

import asyncio
import contextlib
import importlib.util
import ssl
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

import httpcore

from gateway.push.guard import SinkGuard, SinkRefused, SinkUnreachable, connect_checked
from gateway.push.trust import refused_certificate

# With every request httpcore looks for sniffio, which it does without. Where that is not installed the search through
# all directories takes a third of a request's processor time: 0.9 ms with it, 0.6 without. None ends it at once.
if "sniffio" not in sys.modules and importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

ANSWER_BYTES_MAX: Final = 64 << 10  # of an answer's body, which is not used; a longer one costs its connection
CONNECT_S: Final = 10.0
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


class SinkClient:
    """The connections to one sink, at most as many as there are attempts at a time."""

    def __init__(self, guard: SinkGuard, *, connections_max: int, tls: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=connections_max,
            max_keepalive_connections=connections_max,
            keepalive_expiry=IDLE_S,
            http2=True,
            network_backend=_CheckedBackend(guard),
        )

    async def request(
        self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, timeout_s: float
    ) -> SinkAnswer:
        """Sends a request and waits for its answer. Raises `SinkUnreachable`, `SinkRefused`.

        What the head of an answer says counts, though its body may not come to an end.
        """
        found: SinkAnswer | None = None
        times = {"connect": min(CONNECT_S, timeout_s), "read": timeout_s, "write": timeout_s, "pool": timeout_s}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._pool.stream(
                    method, url, headers=list(headers), content=body, extensions={"timeout": times}
                ) as answer,
            ):
                found = SinkAnswer(answer.status, answer.headers, _retry_after_ms(answer.headers))
                await self._read(answer)
        except TimeoutError as error:
            if found is None:
                raise SinkUnreachable(f"no answer within {timeout_s:g} s") from error
        except (SinkRefused, SinkUnreachable):
            raise
        except (OSError, ValueError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            if found is None:
                raise SinkUnreachable(refused_certificate(error) or str(error) or type(error).__name__) from error
        assert found is not None
        return found

    @staticmethod
    async def _read(answer: httpcore.Response) -> None:
        """Reads the body to its end, so that the connection can be used again, or to its limit."""
        size = 0
        async for part in answer.aiter_stream():
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                return

    async def close(self) -> None:
        """Closes all connections."""
        with contextlib.suppress(OSError, httpcore.NetworkError):
            await self._pool.aclose()


def _retry_after_ms(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Returns the seconds, or the time until the date, of Retry-After (RFC 9110, 10.2.3), in ms.

    A date is by the sink's clock, if the sink says its time, else by ours.
    """
    said = {name.lower(): value for name, value in headers}
    found = said.get(b"retry-after")
    if found is None:
        return None
    text = found.decode("latin-1").strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text) * 1_000
    try:
        date = said.get(b"date")
        now = datetime.now(UTC) if date is None else parsedate_to_datetime(date.decode("latin-1"))
        return max(int((parsedate_to_datetime(text) - now).total_seconds() * 1_000), 0)
    except (TypeError, ValueError, OverflowError):
        return None
