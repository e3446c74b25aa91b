"""The gateway's admin API: `/status` and `/metrics`, asked at most once in two seconds, and rates between answers.

`/sessions` is asked for each page of a device, for the user who looks at it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 2.0
FRESH_S = 2.0
RATE_S_MIN = 1.0  # between two answers that make a rate
ANSWER_BYTES_MAX = 32 * 1024 * 1024


class GatewayFigures(NamedTuple):
    """The state of the gateway as of one question. `error` is a sentence when there is none; rates are by second."""

    error: str = ""
    status: Mapping[str, Any] = {}
    metrics: Mapping[str, float] = {}  # without labels: the sums over them
    stored_rates: Mapping[str, float] = {}  # by protocol
    topic_rates: Mapping[str, float] = {}  # of the records that can be read, by topic
    at_s: float = 0.0


class ListedSessions(NamedTuple):
    """The connections and sessions of a client (`gateway.ops.client_report`). `error` is a sentence when unknown."""

    error: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    more: bool = False  # there are others


class AdminApi:
    """Asks a gateway for its state. Shared by all threads."""

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.BaseTransport | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(timeout=TIMEOUT_S, transport=transport, trust_env=False)
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._last: GatewayFigures | None = None

    def ask(self) -> GatewayFigures:
        """Returns the state of the gateway; it may be two seconds old."""
        with self._lock:
            now_s = self._clock_s()
            if self._last is None or now_s - self._last.at_s >= FRESH_S:
                self._last = self._asked(now_s, self._last)
            return self._last

    def sessions(self, client: str, user: str | None) -> ListedSessions:
        """Returns the connections and sessions of a client, as far as a user may see them; None sees all."""
        asked = {"client": client} if user is None else {"client": client, "user": user}
        try:
            said = msgspec.json.decode(self._get("/sessions", asked), type=dict[str, Any])
            return ListedSessions("", said["rows"], said["more"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code == HTTPStatus.NOT_FOUND:
                return ListedSessions(f"The gateway at {self.url} is of a version that does not list sessions.")
            return ListedSessions(f"The gateway's admin API at {self.url} refuses: {error.response.reason_phrase}.")
        except (httpx.HTTPError, ValueError, KeyError) as error:
            why = str(error) or type(error).__name__
            return ListedSessions(f"The gateway's admin API at {self.url} does not answer: {why}. See --admin.")

    def _asked(self, now_s: float, before: GatewayFigures | None) -> GatewayFigures:
        try:
            status = msgspec.json.decode(self._get("/status"), type=dict[str, Any])
            metrics = _sums(self._get("/metrics").decode())
        except (httpx.HTTPError, ValueError) as error:
            why = str(error) or type(error).__name__
            return GatewayFigures(error=f"The gateway's admin API at {self.url} does not answer: {why}", at_s=now_s)
        if before is None or before.error or now_s - before.at_s < RATE_S_MIN:
            return GatewayFigures("", status, metrics, at_s=now_s)
        passed_s = now_s - before.at_s
        stored = _rates(status.get("stored", {}), before.status.get("stored", {}), passed_s)
        topics = _rates(_records(status), _records(before.status), passed_s)
        return GatewayFigures("", status, metrics, stored, topics, now_s)

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        with self._client.stream("GET", f"{self.url}{path}", params=query) as answer:
            answer.raise_for_status()
            body = b""
            for piece in answer.iter_bytes():
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"{path} has more than {ANSWER_BYTES_MAX:,} bytes")
            return body


def _sums(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("headgate_") and "le" not in sample.labels:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _records(status: Mapping[str, Any]) -> dict[str, int]:
    """Returns the records of each topic all of whose queues answer."""
    return {one["name"]: one.get("records", 0) for one in status.get("topics", ()) if not one.get("unknown")}


def _rates(counts: Mapping[str, int], before: Mapping[str, int], passed_s: float) -> dict[str, float]:
    """Returns rates by name, none of one that was not there before; 0 where retention took more than came."""
    return {name: max(0, count - before[name]) / passed_s for name, count in counts.items() if name in before}
