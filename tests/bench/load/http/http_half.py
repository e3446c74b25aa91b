"""HTTP requests at half of what a server can do."""

import socket
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from tests.bench.load.base import SILENCE_S, Count, Load, LoadError, Measured, json_payload
from tests.bench.load.half import Answers, half_load
from tests.bench.load.http.http_wire import HEADERS, Http1, Http2, Post


class HttpHalf(Load, frozen=True, kw_only=True, tag="http-half"):
    """Milliseconds until an answer, p99, at half of the most that `conns` connections get with one request each."""

    conns: Count = 100
    probe_s: Annotated[float, Meta(gt=0, description="seconds in which the most is found")] = 4.0
    duration_s: Annotated[float, Meta(gt=0)] = 10.0
    payload: Annotated[int, Meta(ge=34, description="bytes")] = 100
    version: Literal[1, 2] = 1
    mode: Literal["topic", "event", "batch"] = "event"
    batch: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        post = Post(self.mode, json_payload(self.payload), self.batch)
        wire = _Numbered1 if self.version == 1 else _Numbered2
        return half_load(
            self._connect,
            lambda _: wire(post, f"{self.host}:{self.port}"),
            conns=self.conns,
            probe_s=self.probe_s,
            duration_s=self.duration_s,
            pid=self.pid,
        )

    def _connect(self) -> socket.socket:
        one = socket.create_connection((self.host, self.port), timeout=SILENCE_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return one


class _Numbered1:
    """HTTP/1.1, whose answers come in the order of the requests."""

    def __init__(self, post: Post, host: str) -> None:
        self._wire = Http1(post, host)
        self.opening = self._wire.opening
        self._seen = 0

    def request(self) -> bytes:
        """See `Wire`."""
        return self._wire.requests(1)

    def feed(self, data: bytes) -> Answers:
        """See `Wire`."""
        self._wire.feed(data)
        before, self._seen = self._seen, self._wire.statuses.total()
        if self._seen != before:
            _check(self._wire.statuses)
        return Answers(range(before, self._seen))


class _Numbered2(Http2):
    """HTTP/2, whose answers name their streams."""

    def __init__(self, post: Post, host: str) -> None:
        super().__init__(post, host)
        self._numbers: list[int] = []

    def request(self) -> bytes:
        """See `Wire`."""
        return self.requests(1)

    def feed(self, data: bytes) -> Answers:  # type: ignore[override]
        """See `Wire`."""
        urgent = super().feed(data)
        numbers, self._numbers = self._numbers, []
        if numbers:
            _check(self.statuses)
        return Answers(numbers, urgent)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, parts: list[bytes]) -> None:
        super()._frame(kind, flags, stream, payload, parts)
        if kind == HEADERS:
            self._numbers.append(stream // 2)


def _check(statuses: dict[int, int]) -> None:
    bad: Sequence[int] = [status for status in statuses if not 200 <= status < 300]
    if bad:
        raise LoadError(f"a request was refused: {list(bad)}")
