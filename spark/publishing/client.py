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
from spark.publishing.attempts import Attempts, detail_of, document_of

TIMEOUT_S: Final = 30.0
_AGAIN: Final = frozenset({408, 409, 425, 429, 502, 503, 504})


def trusting(authority: Path | None) -> ssl.SSLContext | bool:
    """Returns the trust of a client: the authorities of a file, or the usual ones. Raises `BadOption`."""
    if authority is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise BadOption("gatewayCaFile", f"cannot be {authority}: {error}") from error


class HttpAnswer(msgspec.Struct, frozen=True):
    """The status and the JSON of a response."""

    status: int
    document: Any


class GatewayClient:
    """Speaks to one gateway, or to one proxy after the other of a cluster (`urls`, comma-separated).

    Every request must be one that may be repeated. `retry_s` is how long one may fail before `GatewayUnreachable`;
    `options` are the names by which its text calls `urls` and `retry_s`.
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
        options: str = "gateway, retrySeconds",
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = urls.split(",")
        self._turn, self._options = 0, options
        self._retry_s, self._sleep, self._clock_s = retry_s, sleep, clock_s
        self._client = httpx.Client(
            timeout=TIMEOUT_S,
            transport=transport,
            trust_env=False,
            verify=trusting(authority),
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
    ) -> HttpAnswer:
        """Sends one request, and repeats it while that makes sense. Takes statuses of `accept` as 2xx.

        Raises `GatewayUnreachable`, and `PublishRefused` for any other status.
        """
        attempts = Attempts(self._retry_s, clock_s=self._clock_s)
        while True:
            response: httpx.Response | None = None
            try:
                response = self._client.request(method, self._urls[self._turn] + path, content=content, headers=headers)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            else:
                if response.is_success or response.status_code in accept:
                    return HttpAnswer(response.status_code, document_of(response))
                detail = detail_of(response)
                if response.status_code not in again:
                    raise PublishRefused(response.status_code, detail)
                why = f"status {response.status_code}: {detail}"
            pause_s = attempts.pause_s(response)
            if pause_s is None:
                raise GatewayUnreachable(
                    f"the gateway at {', '.join(self._urls)} has not taken the request for {self._retry_s:g} s "
                    f"(options {self._options}): {why}"
                )
            self._sleep(pause_s)
            self._turn = (self._turn + 1) % len(self._urls)
