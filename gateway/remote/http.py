"""A client of a running gateway's HTTP port, for `headgate pub`, `sub`, `find` and `topics`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from gateway.ops.status import Status
from store.base.process_errors import HeadgateError, NothingAnswers

if TYPE_CHECKING:
    import ssl

    import httpx

EVENT_BYTES_MAX = 512 * 1024 * 1024  # a server-sent event that is longer is no message of ours
CONNECT_TIMEOUT_S = 10.0  # that a busy machine may take
FOUND_AT_ONCE = 1_000  # messages on a page of those found
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the end may be half of one
_USER = re.compile("(?<=//).*@")  # to the last @: characters of a password may lack their percent signs


class Unreachable(NothingAnswers):
    """The server does not answer."""


class RemoteRefused(HeadgateError):
    """The gateway said no; `status` is its HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class ServerSentEvent(NamedTuple):
    """One server-sent event (HTML Living Standard, 9.2.6)."""

    id: str
    type: str
    data: str


class _FoundEvent(msgspec.Struct):
    id: str


class RemoteGateway:
    """One gateway at a base URL such as `http://127.0.0.1:8080`. Methods raise `Unreachable` and `RemoteRefused`.

    `ca_file` has the authorities of its certificate, in place of the system's or those of SSL_CERT_FILE.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        timeout_s: float = 30.0,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        import httpx  # noqa: PLC0415 - here and below: slow to load, and only some commands make a client

        from gateway.base.client_tls import client_tls  # noqa: PLC0415 - loads ssl, as below

        base_url = url.rstrip("/")
        self.url = _USER.sub("", base_url)  # for messages: without a password
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        # Proxies of the environment are for the web; a gateway is on this machine or in this network.
        with self._trouble():
            self._client = httpx.Client(
                base_url=base_url, timeout=timeout, transport=transport, trust_env=False, verify=client_tls(ca_file)
            )

    def __enter__(self) -> "RemoteGateway":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def publish(
        self,
        address: str,
        body: bytes,
        *,
        qos: int | None = None,
        retain: bool = False,
        content_type: str | None = None,
    ) -> None:
        """Publishes one message; returns when it is durable."""
        query: dict[str, str] = {}
        if qos is not None:
            query["qos"] = str(qos)
        if retain:
            query["retain"] = "true"
        headers = {"content-type": content_type} if content_type else {}
        with self._trouble():
            path = f"/topics/{quote(address, safe='/')}"
            _check(self._client.post(path, params=query or None, content=body, headers=headers))

    def subscribe(
        self, pattern: str, *, start: str | None = None, where: str | None = None
    ) -> Iterator[ServerSentEvent]:
        """Yields events of messages to matching addresses that pass a condition, from now or a position on."""
        query = {"filter": pattern} if where is None else {"filter": pattern, "where": where}
        return self.events(f"/subscribe?{_encoded(query)}", last=start)

    def events(self, target: str, *, last: str | None = None) -> Iterator[ServerSentEvent]:
        """Yields server-sent events, behind the last one seen; raises `Unreachable` where the server ends them."""
        headers = {"accept": "text/event-stream"}
        if last is not None:
            headers["last-event-id"] = last
        timeout = (CONNECT_TIMEOUT_S, None, CONNECT_TIMEOUT_S, CONNECT_TIMEOUT_S)  # to connect, read, write, and wait
        with self._trouble(), self._client.stream("GET", target, headers=headers, timeout=timeout) as got:
            if got.status_code >= 400:
                got.read()
            _check(got)
            if not got.headers.get("content-type", "").startswith("text/event-stream"):
                raise RemoteRefused(got.status_code, f"{self.url} does not answer as a gateway does")
            yield from read_events(read_lines(got.iter_bytes()))
            raise Unreachable(f"{self.url} has ended the stream of events")

    def ask(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> "httpx.Response":
        """Sends one request and returns its answer, which is no refusal."""
        with self._trouble():
            return _check(self._client.request(method, target, content=body, headers=headers))

    def find(self, limit: int, **query: str) -> Iterator[ServerSentEvent]:
        """Yields up to `limit` stored messages, newest first; `query` is that of `GET /messages`."""
        target = f"/messages?{_encoded(query | {'limit': str(min(limit, FOUND_AT_ONCE))})}"
        while True:
            with self._trouble():
                answer = _check(self._client.get(target))
            try:
                found = msgspec.json.decode(answer.content, type=list[_FoundEvent])
                raw = msgspec.json.decode(answer.content, type=list[msgspec.Raw])
            except msgspec.DecodeError as error:
                raise RemoteRefused(answer.status_code, f"{self.url} does not answer as a gateway does") from error
            for event, data in zip(found[:limit], raw, strict=False):
                yield ServerSentEvent(event.id, "message", bytes(data).decode())
            limit -= len(found)
            following = answer.links.get("next", {}).get("url")
            if limit <= 0 or following is None:
                return
            target = following

    def addresses(self, prefix: str = "") -> list[str]:
        """Returns addresses that were published to, sorted."""
        found: list[str] = []
        target: str | None = f"/topics?{_encoded({'prefix': prefix})}"
        while target is not None:
            with self._trouble():
                answer = _check(self._client.get(target))
            try:
                page = msgspec.json.decode(answer.content)
                found += [str(one) for one in (page["addresses"] if isinstance(page, dict) else page)]
            except (msgspec.DecodeError, KeyError, TypeError) as error:
                raise RemoteRefused(answer.status_code, f"{self.url} does not answer as a gateway does") from error
            target = answer.links.get("next", {}).get("url")
        return found

    def status(self) -> Status:
        """Returns the gateway's status; `url` is its admin port's."""
        with self._trouble():
            answer = _check(self._client.get("/status"))
        try:
            return msgspec.json.decode(answer.content, type=Status)
        except msgspec.DecodeError as error:
            raise RemoteRefused(answer.status_code, f"{self.url} is not a gateway's admin port") from error

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """Raises transport errors in one line."""
        import httpx  # noqa: PLC0415

        from gateway.base.client_tls import tls_cause  # noqa: PLC0415

        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if cause := tls_cause(error):
                raise Unreachable(self._tls_fault(cause)) from error
            raise Unreachable(f"nothing answers at {self.url}; is the gateway running there?") from error
        except httpx.TimeoutException as error:
            raise Unreachable(f"{self.url} has not answered in time") from error
        except httpx.RemoteProtocolError as error:
            raise Unreachable(f"{self.url} has ended its answer too early, or speaks no HTTP") from error
        except httpx.TransportError as error:
            why = str(error) or "it has ended"
            raise Unreachable(f"the connection to {self.url} failed: {why}") from error
        except httpx.InvalidURL as error:
            raise Unreachable(
                f"{self.url} is no URL; write http://host:port, and special characters of a password as %XX"
            ) from error

    def _tls_fault(self, error: "ssl.SSLError") -> str:
        """Returns why a handshake failed."""
        import ssl  # noqa: PLC0415

        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {self.url} is refused: {error.verify_message}; "
                "--ca-file and SSL_CERT_FILE name authorities"
            )
        return f"the TLS handshake with {self.url} failed: {error.reason or error}"


def read_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yields the lines of an event stream, however it is cut: CR, LF or both end one, and nothing else of Unicode.

    Bytes behind the last end of a line are no line. Raises `RemoteRefused` for a line without an end.
    """
    kept: list[bytes] = []
    size = 0
    for chunk in chunks:
        held_cr = bool(kept) and kept[-1].endswith(b"\r")
        kept.append(chunk)
        size += len(chunk)
        if held_cr or b"\n" in chunk or b"\r" in chunk:
            *lines, rest = _LINE_END.split(b"".join(kept))
            for line in lines:
                yield line.decode("utf-8", "replace")
            kept, size = [rest], len(rest)
        elif size > EVENT_BYTES_MAX:
            raise RemoteRefused(200, f"an event is longer than {EVENT_BYTES_MAX} bytes")


def read_events(lines: Iterable[str]) -> Iterator[ServerSentEvent]:
    """Yields server-sent events of a stream's lines; drops an event that has not ended when the stream does."""
    kind, data, event_id, size = "", list[str](), "", 0
    for line in lines:
        if not line:
            if data:
                yield ServerSentEvent(event_id, kind or "message", "\n".join(data))
            kind, data, size = "", [], 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        size += len(line)
        if size > EVENT_BYTES_MAX:
            raise RemoteRefused(200, f"an event is longer than {EVENT_BYTES_MAX} bytes")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            event_id = value


def _encoded(query: Mapping[str, str]) -> str:
    """Returns a query in which a space is %20: a plus sign means itself there, as in filters."""
    return urlencode(query, quote_via=quote)


def _check(answer: "httpx.Response") -> "httpx.Response":
    """Returns the answer itself. Raises a refusal as the problem document (RFC 9457) explains it."""
    if answer.status_code < 400:
        return answer
    detail = f"{answer.status_code} {answer.reason_phrase}".strip()
    problem: Any = None
    if "json" in answer.headers.get("content-type", ""):
        try:
            problem = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            problem = None
    if isinstance(problem, dict) and (text := problem.get("detail") or problem.get("title")):
        detail = f"{detail}: {text}"
    if retry := answer.headers.get("retry-after"):
        detail = f"{detail} (try again in {retry} s)"
    raise RemoteRefused(answer.status_code, detail)
