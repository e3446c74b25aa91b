"""The admin port: `/healthz`, `/readyz`, `/metrics` and `/status` over HTTP/1.1.

Small on purpose: GET and HEAD, one answer a connection, nothing read but a bounded request head. What it says is asked
of the runtime at the moment of the request, so it cannot be truer or falser than the gateway itself.

It asks for no password, so a page of any site could read it by the browser of somebody who reaches it (DNS rebinding).
Browsers therefore have to call it by an address, by localhost or by a name that is configured, and pages of other
origins are refused (`store.base.browsers`). Tools that are no browsers may call it by any name.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from store.base import logs
from store.base.browsers import BROWSERS, knows_host, same_origin
from store.base.listening.places import Places, origin_of
from store.base.process_errors import listening_on

HEAD_BYTES_MAX = 8 * 1024  # a request head that is longer gets 431
HEAD_TIMEOUT_S = 5.0  # from connecting to the end of the head
PAGE_TIMEOUT_S = 5.0  # for the runtime to say what it is asked
WRITE_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 64  # beyond, the oldest one of the address that has most is closed unanswered
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

log = logs.get(__name__)

StatusSource: TypeAlias = Callable[[], Any]  # a `gateway.ops.status.Status`, a mapping, or an awaitable of one


class AdminSettings(Protocol):
    """The section `[admin]` of the configuration: where the port is, and the names by which browsers may call it."""

    @property
    def host(self) -> str:
        """The address."""

    @property
    def port(self) -> int:
        """The port; 0 is any that is free."""

    @property
    def allowed_hosts(self) -> Collection[str]:
        """The names."""


class AdminPlace(NamedTuple):
    """`AdminSettings` of a server that has no configuration."""

    host: str
    port: int
    allowed_hosts: tuple[str, ...] = ()


class ReadyState(NamedTuple):
    """The readiness of a process to serve. `reasons` say why not; `alive` is False when only a restart helps.

    `warnings` are what some of its clients suffer from, or what is no longer there for the next failure.
    """

    ready: bool
    reasons: tuple[str, ...] = ()
    alive: bool = True
    warnings: tuple[str, ...] = ()


class _Answer(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class AdminServer:
    """The server of the admin port; made by `start`."""

    def __init__(self, ready: Callable[[], ReadyState], status: StatusSource, registry: CollectorRegistry) -> None:
        self._ready = ready
        self._status = status
        self._registry = registry
        self._allowed_hosts: Collection[str] = ()
        self._gather: Callable[[], Awaitable[None]] | None = None
        self._server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[Any]] = set()  # one a connection
        self._places = Places()  # <= CONNECTIONS_MAX
        self._pages: dict[str, Callable[[str], _Answer | Awaitable[_Answer]]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            "/status": self._status_page,
        }

    @classmethod
    async def start(
        cls,
        settings: AdminSettings,
        *,
        ready: Callable[[], ReadyState],
        status: StatusSource,
        registry: CollectorRegistry,
        gather: Callable[[], Awaitable[None]] | None = None,
    ) -> "AdminServer":
        """Listens. `status` gives what `/status` shows. Raises `ServerFailed` when the port is taken.

        `gather` is awaited before `/metrics` is made.
        """
        server = cls(ready, status, registry)
        server._allowed_hosts = settings.allowed_hosts
        server._gather = gather
        host, port = settings.host, settings.port
        with listening_on("admin", host, port):
            server._server = await asyncio.start_server(server._serve, host, port, limit=HEAD_BYTES_MAX)
        return server

    @classmethod
    async def start_at(
        cls, path: Path, *, ready: Callable[[], ReadyState], status: StatusSource, registry: CollectorRegistry
    ) -> "AdminServer":
        """Listens at a Unix socket. Raises `OSError`."""
        server = cls(ready, status, registry)
        server._server = await asyncio.start_unix_server(server._serve, path, limit=HEAD_BYTES_MAX)
        return server

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """Stops listening and drops the connections that are open."""
        if self._server is None:
            return
        self._server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, one answer."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        accepted = writer.get_extra_info("socket")
        self._places.take(task, origin_of(accepted.family, writer.get_extra_info("peername")), CONNECTIONS_MAX)
        try:
            answer, only_head = await self._read(reader)
            if answer is not None:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    writer.write(_encode(answer, only_head=only_head))
                    await writer.drain()
        except (ConnectionError, TimeoutError):
            pass  # the peer has gone or does not read; there is nobody to tell
        finally:
            self.tasks.discard(task)
            self._places.leave(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[_Answer | None, bool]:
        """The answer to the request, and whether its body is left out (HEAD)."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEAD_BYTES_MAX} bytes"), False
        except asyncio.IncompleteReadError as error:
            return (_text(HTTPStatus.BAD_REQUEST, "the request has no end") if error.partial else None), False
        except TimeoutError:
            return _text(HTTPStatus.REQUEST_TIMEOUT, "the request took too long"), False
        line, *fields = head.decode("latin-1").split("\r\n")
        parts = line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _text(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1.1 request"), False
        return await self._answer(parts[0], parts[1], fields), parts[0] == "HEAD"

    async def _answer(self, method: str, target: str, fields: list[str]) -> _Answer:
        headers = {name.strip().lower(): text.strip() for name, _, text in (field.partition(":") for field in fields)}
        stranger = _stranger(headers, self._allowed_hosts)
        if stranger is not None:
            return _text(HTTPStatus.FORBIDDEN, stranger)
        try:
            page = self._pages.get(urlsplit(target).path)
        except ValueError:
            page = None
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}")
        if method not in {"GET", "HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", headers=(("allow", "GET, HEAD"),))
        try:
            answer = page(headers.get("accept", ""))
            if not isinstance(answer, _Answer):
                async with asyncio.timeout(PAGE_TIMEOUT_S):
                    answer = await answer
        except Exception as error:  # the runtime's own answer failed: say so, and keep serving the others
            log.error("admin_page_failed", page=target, exc_info=error)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        return answer

    def _healthz(self, _accept: str) -> _Answer:
        state = self._ready()
        return _text(HTTPStatus.OK, "ok") if state.alive else _reasons(state)

    def _readyz(self, _accept: str) -> _Answer:
        state = self._ready()
        if not state.ready:
            return _reasons(state)
        return _text(HTTPStatus.OK, "\n".join(["degraded", *state.warnings]) if state.warnings else "ready")

    async def _metrics(self, accept: str) -> _Answer:
        if self._gather is not None:
            await self._gather()
        encode, content_type = choose_encoder(accept)
        return _Answer(HTTPStatus.OK, content_type, encode(self._registry))

    async def _status_page(self, _accept: str) -> _Answer:
        found = self._status()
        if inspect.isawaitable(found):
            found = await found
        return _Answer(HTTPStatus.OK, JSON, msgspec.json.encode(found, enc_hook=str) + b"\n")


def process_registry() -> CollectorRegistry:
    """Returns a registry with the figures of this process: memory, CPU, open files, garbage, Python."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _stranger(headers: Mapping[str, str], allowed_hosts: Collection[str]) -> str | None:
    """Returns why a request is refused to the browser that sends it, None for any other request."""
    host, origin = headers.get("host"), headers.get("origin")
    if all(name not in headers for name in BROWSERS):
        return None
    if host is not None and not knows_host(host, allowed_hosts):
        return f"host: {host[:128]} is not one of admin.allowed_hosts"
    if origin is not None and not same_origin(origin, host):
        return f"origin: {origin[:128]} is not allowed"
    return None


def _reasons(state: ReadyState) -> _Answer:
    return _text(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join([*state.reasons, *state.warnings]) or "not ready")


def _text(status: HTTPStatus, text: str, *, headers: tuple[tuple[str, str], ...] = ()) -> _Answer:
    return _Answer(status, TEXT, f"{text}\n".encode(), headers)


def _encode(answer: _Answer, *, only_head: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"content-type: {answer.content_type}",
        f"content-length: {len(answer.body)}",
        "cache-control: no-store",
        "connection: close",
        *(f"{name}: {value}" for name, value in answer.headers),
    ]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if only_head else head + answer.body
