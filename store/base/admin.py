"""The admin port: `/healthz`, `/readyz`, `/metrics` and `/status` over HTTP/1.1, and a process's own pages.

Small on purpose: one answer a connection, nothing read but a bounded request. Its answers are asked of the runtime at
the moment of the request, so it cannot be truer or falser than the gateway itself.

Actions are asked for by POST, with a body that says it is JSON: no page of another origin can send that without being
asked first. They are for this machine alone: the port may be open to others who read figures there. Received parts of
their bodies count in the budget of unauthenticated input.

It asks for no password, so a page of any site could read it through the browser of a user who reaches it (DNS
rebinding). Browsers therefore have to call it by an address, by localhost or by a name that is configured, and pages of
other origins are refused (`store.base.browsers`). Tools that are no browsers may call it by any name.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from socket import AF_UNIX
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from store.base import logs
from store.base.browsers import BROWSERS, knows_host, same_origin
from store.base.listening import UNAUTHENTICATED
from store.base.listening.places import ConnectionSlots, origin_of
from store.base.process_errors import listening_on

HEAD_BYTES_MAX = 8 * 1024  # a request head that is longer gets 431
FORWARDED = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})  # a proxy asks on behalf of another client
ACTION_BYTES_MAX = 16 * 1024 * 1024  # of the body of an action
ACTION_TIMEOUT_S = 120.0  # from the head of an action to its end
HEAD_TIMEOUT_S = 5.0  # from connecting to the end of the head
QUERY_COUNT_MAX = 16  # parameters of a query
PAGE_TIMEOUT_S = 5.0  # for the runtime to answer
WRITE_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 64  # beyond, the oldest one of the address that has most is closed unanswered
OUR_BUG = "internal error; the log of the process says more"
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

log = logs.get(__name__)

StatusSource: TypeAlias = Callable[[], Any]  # a `gateway.ops.status.Status`, a mapping, or an awaitable of one


# Functions that a process adds: they take the query, or the body of an action, and return a value for JSON.
Listing: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Any]]
Action: TypeAlias = Callable[[bytes], Awaitable[Any]]
_Holds: TypeAlias = Callable[[int], None]  # told how many bytes of a body have come


class ActionRefused(Exception):
    """Raised by an action or a listing that is not done."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Operations(NamedTuple):
    """The listings and actions that a process adds, by path."""

    listings: Mapping[str, Listing] = MappingProxyType({})
    actions: Mapping[str, Action] = MappingProxyType({})

    def with_those_of(self, other: "Operations") -> "Operations":
        """Returns these and others, whose paths are not these."""
        return Operations({**self.listings, **other.listings}, {**self.actions, **other.actions})


NO_OPERATIONS: Final = Operations()


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


class AdminAddress(NamedTuple):
    """`AdminSettings` of a server that has no configuration."""

    host: str
    port: int
    allowed_hosts: tuple[str, ...] = ()


class ReadyState(NamedTuple):
    """The readiness of a process to serve. `reasons` say why not; `alive` is False when only a restart helps.

    `warnings` are faults that some of its clients meet, or losses of redundancy.
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
        self._operations = NO_OPERATIONS
        self._server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[Any]] = set()  # one a connection
        self._places = ConnectionSlots()  # <= CONNECTIONS_MAX
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
        operations: Operations = NO_OPERATIONS,
    ) -> "AdminServer":
        """Listens. `status` gives the content of `/status`. Raises `ServerFailed` when the port is taken.

        `gather` is awaited before `/metrics` is made.
        """
        server = cls(ready, status, registry)
        server._allowed_hosts = settings.allowed_hosts
        server._gather, server._operations = gather, operations
        host, port = settings.host, settings.port
        with listening_on("admin", host, port):
            server._server = await asyncio.start_server(server._serve, host, port, limit=HEAD_BYTES_MAX)
        return server

    @classmethod
    async def start_at(
        cls,
        path: Path,
        *,
        ready: Callable[[], ReadyState],
        status: StatusSource,
        registry: CollectorRegistry,
        operations: Operations = NO_OPERATIONS,
    ) -> "AdminServer":
        """Listens at a Unix socket. Raises `OSError`."""
        server = cls(ready, status, registry)
        server._operations = operations
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
        """Serves one connection: one request, one answer."""
        task = asyncio.current_task()
        assert task is not None
        accepted, place = writer.get_extra_info("socket"), writer.get_extra_info("peername")
        if place is None and accepted.family != AF_UNIX:  # the peer has gone before it was looked at
            writer.transport.abort()
            return
        self.tasks.add(task)
        origin = origin_of(accepted.family, place)
        self._places.take(task, origin, CONNECTIONS_MAX)
        try:
            here = accepted.family == AF_UNIX or _is_loopback(place[0])

            def holds(size_bytes: int) -> None:
                UNAUTHENTICATED.hold(task, origin, size_bytes)

            answer, only_head = await self._read(reader, holds, here=here)
            if answer is not None:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    writer.write(_encode(answer, only_head=only_head))
                    await writer.drain()
        except (ConnectionError, TimeoutError):
            pass  # the peer has gone or does not read; no one is left to tell
        except asyncio.CancelledError:  # it makes way, or the server stops; asyncio would log that as an error
            writer.transport.abort()
        finally:
            self.tasks.discard(task)
            self._places.leave(task)
            UNAUTHENTICATED.release(task, origin)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, holds: _Holds, *, here: bool) -> tuple[_Answer | None, bool]:
        """Returns the answer, and whether its body is left out (HEAD). `here`: the request comes from this machine."""
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
        headers = {name.strip().lower(): text.strip() for name, _, text in (field.partition(":") for field in fields)}
        refused = _browser_refusal(headers, self._allowed_hosts)
        if refused is not None:
            return _text(HTTPStatus.FORBIDDEN, refused), False
        try:
            url = urlsplit(parts[1])
            query = dict(parse_qsl(url.query, max_num_fields=QUERY_COUNT_MAX))
        except ValueError:
            return _text(HTTPStatus.NOT_FOUND, "this is no path of a page"), False
        if (action := self._operations.actions.get(url.path)) is not None and parts[0] == "POST":
            return await self._act(action, url.path, headers, reader, holds, here=here), False
        return await self._answer(parts[0], url.path, headers, query), parts[0] == "HEAD"

    async def _act(
        self,
        action: Action,
        path: str,
        headers: Mapping[str, str],
        reader: asyncio.StreamReader,
        holds: _Holds,
        *,
        here: bool,
    ) -> _Answer:
        """Returns the answer to an action."""
        if not here or not headers.keys().isdisjoint(FORWARDED):
            return _problem(HTTPStatus.FORBIDDEN, "actions are for this machine alone: ask by its loopback address")
        if headers.get("content-type", "").partition(";")[0].strip() != JSON:
            return _problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body of an action is {JSON}")
        size = headers.get("content-length", "")
        if not (size.isascii() and size.isdigit()):
            return _problem(HTTPStatus.LENGTH_REQUIRED, "an action has a content-length")
        if len(size) > len(str(ACTION_BYTES_MAX)) or int(size) > ACTION_BYTES_MAX:
            return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an action has at most {ACTION_BYTES_MAX} bytes")
        try:
            async with asyncio.timeout(ACTION_TIMEOUT_S):
                done = await action(await _body(reader, int(size), holds))
        except asyncio.IncompleteReadError:
            return _problem(HTTPStatus.BAD_REQUEST, "the request has no end")
        except ActionRefused as refused:
            return _problem(refused.status, str(refused))
        except TimeoutError:
            return _problem(HTTPStatus.GATEWAY_TIMEOUT, f"it is not done after {ACTION_TIMEOUT_S:g} s; ask again")
        except Exception as error:  # our own bug: say so, and keep serving the others
            log.error("an action of the admin port failed", action=path, exc_info=error)
            return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, OUR_BUG)
        return _json(done)

    async def _answer(self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> _Answer:
        page, listing = self._pages.get(path), self._operations.listings.get(path)
        if page is None and listing is None and path not in self._operations.actions:
            there = [*self._pages, *self._operations.listings, *self._operations.actions]
            return _text(HTTPStatus.NOT_FOUND, f"there are {', '.join(there)}")
        if page is None and listing is None:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only POST", headers=(("allow", "POST"),))
        if method not in {"GET", "HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", headers=(("allow", "GET, HEAD"),))
        try:
            if page is None:
                assert listing is not None
                async with asyncio.timeout(PAGE_TIMEOUT_S):
                    return _json(await listing(query))
            answer = page(headers.get("accept", ""))
            if not isinstance(answer, _Answer):
                async with asyncio.timeout(PAGE_TIMEOUT_S):
                    answer = await answer
        except ActionRefused as refused:
            return _problem(refused.status, str(refused))
        except TimeoutError:
            log.warning("a page of the admin port takes too long", page=path)
            return _text(HTTPStatus.GATEWAY_TIMEOUT, f"it is not there after {PAGE_TIMEOUT_S:g} s; ask again")
        except Exception as error:  # the runtime's own answer failed: say so, and keep serving the others
            log.error("a page of the admin port failed", page=path, exc_info=error)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, OUR_BUG)
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
        return _json(found)


async def _body(reader: asyncio.StreamReader, size_bytes: int, holds: _Holds) -> bytes:
    """Returns a body; `holds` is told the outcome. Raises `asyncio.IncompleteReadError`."""
    found = bytearray()
    while len(found) < size_bytes:
        part = await reader.read(size_bytes - len(found))
        if not part:
            raise asyncio.IncompleteReadError(bytes(found), size_bytes)
        found += part
        holds(len(found))
    return bytes(found)


def process_registry() -> CollectorRegistry:
    """Returns a registry with the figures of this process: memory, CPU, open files, unauthenticated input, Python."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    budget = UNAUTHENTICATED
    for name, what, value in (
        ("bytes", "Bytes held for peers that have not authenticated", lambda: budget.held_bytes),
        ("limit_bytes", "Bytes of them beyond which the peer that holds most is cut off", lambda: budget.bytes_max),
    ):
        Gauge(f"headgate_unauthenticated_{name}", what, registry=registry).set_function(value)
    return registry


def _browser_refusal(headers: Mapping[str, str], allowed_hosts: Collection[str]) -> str | None:
    """Returns why a request is refused to the browser that sends it, None for any other request."""
    host, origin = headers.get("host"), headers.get("origin")
    if all(name not in headers for name in BROWSERS):
        return None
    if host is not None and not knows_host(host, allowed_hosts):
        return f"host: {host[:128]} is not one of admin.allowed_hosts"
    if origin is not None and not same_origin(origin, host):
        return f"origin: {origin[:128]} is not allowed"
    return None


def _is_loopback(host: str) -> bool:
    address = ip_address(host.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _reasons(state: ReadyState) -> _Answer:
    return _text(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join([*state.reasons, *state.warnings]) or "not ready")


def _json(found: Any, status: HTTPStatus = HTTPStatus.OK) -> _Answer:
    return _Answer(status, JSON, msgspec.json.encode(found, enc_hook=str) + b"\n")


def _problem(status: HTTPStatus, detail: str) -> _Answer:
    return _json({"status": status.value, "title": status.phrase, "detail": detail}, status)


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
