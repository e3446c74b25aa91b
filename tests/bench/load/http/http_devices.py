"""Many HTTP clients, each with a connection of its own and one POST under way."""

import socket
from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta

from tests.bench.load.base import SILENCE_S, Count, Load, LoadError, Measured, json_payload
from tests.bench.load.http.http_wire import Http1, Post
from tests.bench.load.one_each import Peer, one_each


class HttpDevices(Load, frozen=True, kw_only=True, tag="http-devices"):
    """Answers a second over HTTP/1.1, of `conns` connections with one request under way each, from one process."""

    conns: Count = 500
    duration_s: Count = 5
    payload: Annotated[int, Meta(ge=34, description="bytes")] = 100
    mode: Literal["topic", "event", "batch"] = "event"
    batch: Count = 100

    def run(self) -> Measured:
        """See `Load.run`."""
        post = Post(self.mode, json_payload(self.payload), self.batch)
        sockets = [socket.create_connection((self.host, self.port), timeout=SILENCE_S) for _ in range(self.conns)]
        try:
            for one in sockets:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return one_each([self._peer(one, post) for one in sockets], duration_s=self.duration_s, pid=self.pid)
        finally:
            for one in sockets:
                one.close()

    def _peer(self, connection: socket.socket, post: Post) -> Peer:
        wire = Http1(post, f"{self.host}:{self.port}")
        return connection, wire.requests(1), _answered(wire)


def _answered(wire: Http1) -> Callable[[bytes], bytes]:
    """Returns the function that reads answers; every one has to be of class 2."""
    request, seen = wire.requests(1), 0

    def answered(data: bytes) -> bytes:
        nonlocal seen
        wire.feed(data)
        total = wire.statuses.total()
        if total == seen:
            return b""
        if bad := {status: count for status, count in wire.statuses.items() if not 200 <= status < 300}:
            raise LoadError(f"a request was refused: {bad}")
        seen = total
        return request

    return answered
