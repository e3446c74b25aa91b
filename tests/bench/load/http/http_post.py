"""POST requests over HTTP/1.1 or HTTP/2, each with one event or a batch of CloudEvents."""

import socket
from collections import Counter
from typing import Annotated, Literal

from msgspec import Meta

from tests.bench.load.base import SILENCE_S, Count, Load, LoadError, Measured, json_payload, together
from tests.bench.load.http.http_wire import Http1, Http2, Post
from tests.bench.procfs import cpu_s


class HttpPost(Load, frozen=True, kw_only=True, tag="http"):
    """Events a second, from the first byte sent to the last answer; `count` events, `batch` of them in a request."""

    count: Count = 20_000
    conns: Count = 4
    window: Annotated[int, Meta(ge=1, le=100, description="requests without an answer, of one connection")] = 16
    payload: Annotated[int, Meta(ge=34, description="bytes")] = 100
    version: Literal[1, 2] = 1
    mode: Literal["topic", "event", "batch"] = "event"
    batch: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        post = Post(self.mode, json_payload(self.payload), self.batch)
        each = max(1, self.count // post.events // self.conns)
        statuses: Counter[int] = Counter()

        def work(connection: socket.socket) -> int:
            wire = (Http1 if self.version == 1 else Http2)(post, f"{self.host}:{self.port}")
            self._exchange(connection, wire, each)
            statuses.update(wire.statuses)
            return sum(count for status, count in wire.statuses.items() if 200 <= status < 300)

        connections = [socket.create_connection((self.host, self.port), timeout=SILENCE_S) for _ in range(self.conns)]
        try:
            for one in connections:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            used_s = cpu_s(self.pid) if self.pid else 0.0
            requests, elapsed_s = together(work, connections)
            used_s = cpu_s(self.pid) - used_s if self.pid else 0.0
        finally:
            for one in connections:
                one.close()
        if not requests:
            raise LoadError(f"nothing was answered well: {dict(statuses)}")
        done = requests * post.events
        also = {"requests_per_s": requests / elapsed_s} | {f"status_{one}": float(n) for one, n in statuses.items()}
        also["server_us"] = used_s / done * 1e6
        failed = each * self.conns * post.events - done
        return Measured(value=done / elapsed_s, elapsed_s=elapsed_s, done=done, failed=failed, also=also)

    def _exchange(self, connection: socket.socket, wire: Http1 | Http2, total: int) -> None:
        """Makes one connection's requests; sends the next ones as soon as half the window is answered."""
        connection.sendall(wire.opening)
        sent = answered = 0
        while answered < total:
            if sent < total and sent - answered <= self.window // 2:
                more = min(self.window - (sent - answered), total - sent)
                connection.sendall(wire.requests(more))
                sent += more
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                raise LoadError(f"nothing came for {SILENCE_S} s") from None
            if not data:
                raise LoadError(f"closed by the server after {dict(wire.statuses)}")
            urgent = wire.feed(data)
            if urgent:
                connection.sendall(urgent)
            answered = wire.statuses.total()
