"""A blocking client of the gateway's HTTP listener: requests that may be sent again, until they are answered."""

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import msgspec

from spark.errors import BadOption, GatewayUnreachable, PublishRefused

TIMEOUT_S: Final = 30.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 2.0
_AGAIN: Final = frozenset({408, 409, 425, 429, 502, 503, 504})
_SAYS_LATER: Final = "retry-after"


class Answer(msgspec.Struct, frozen=True):
    """The status and the JSON of a response."""

    status: int
    document: Any


class GatewayClient:
    """Speaks to one gateway, or to one proxy after the other of a cluster (`urls`, comma-separated).

    Every request must be one that may be repeated. `retry_s` is how long one may fail before `GatewayUnreachable`.
    """

    def __init__(
        self,
        urls: str,
        *,
        user: str = "",
        password: str = "",
        token: str = "",
        authority: Path | None = None,
        retry_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = urls.split(",")
        self._turn = 0
        self._retry_s, self._sleep, self._clock_s = retry_s, sleep, clock_s
        try:
            verify = ssl.create_default_context(cafile=str(authority)) if authority is not None else True
        except (OSError, ssl.SSLError) as error:
            raise BadOption("gatewayCaFile", f"cannot be {authority}: {error}") from error
        self._client = httpx.Client(
            timeout=TIMEOUT_S,
            transport=transport,
            trust_env=False,
            verify=verify,
            auth=httpx.BasicAuth(user, password) if user else None,
            headers={"authorization": f"Bearer {token}"} if token else None,
        )

    def __enter__(self) -> "GatewayClient":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: frozenset[int] = frozenset(),
        again: frozenset[int] = _AGAIN,
    ) -> Answer:
        """One request, repeated while it makes sense. Statuses of `accept` are answers as 2xx are.

        Raises `GatewayUnreachable`, and `PublishRefused` for any other status.
        """
        since_s = self._clock_s()
        pause_s = PAUSE_MIN_S
        while True:
            wait_s = pause_s
            try:
                response = self._client.request(method, self._urls[self._turn] + path, content=content, headers=headers)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            else:
                if response.is_success or response.status_code in accept:
                    return Answer(response.status_code, _document(response))
                detail = _detail(response)
                if response.status_code not in again:
                    raise PublishRefused(response.status_code, detail)
                why = f"status {response.status_code}: {detail}"
                wait_s = _later_s(response, pause_s)
            if self._clock_s() - since_s + wait_s > self._retry_s:
                raise GatewayUnreachable(
                    f"the gateway at {', '.join(self._urls)} has not taken the request for {self._retry_s:g} s "
                    f"(options gateway, retrySeconds): {why}"
                )
            self._sleep(wait_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            self._turn = (self._turn + 1) % len(self._urls)


def _document(response: httpx.Response) -> Any:
    try:
        return msgspec.json.decode(response.content) if response.content else None
    except ValueError:
        return None


def _detail(response: httpx.Response) -> str:
    """The problem document's sentence, and that of its first error (RFC 9457)."""
    found = _document(response)
    if not isinstance(found, dict):
        return response.text[:200] or response.reason_phrase
    text = str(found.get("detail") or found.get("title") or response.reason_phrase)
    errors = found.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        text += f" (message {errors[0].get('index')} of the request: {errors[0].get('detail')})"
    return text


def _later_s(response: httpx.Response, pause_s: float) -> float:
    said = response.headers.get(_SAYS_LATER, "")
    return min(max(pause_s, float(said)), PAUSE_MAX_S) if said.isdecimal() else pause_s
