"""The stream shell when its peer does not read, or has gone away without reading."""

import socket
from types import SimpleNamespace
from typing import Any

from gateway.domain.principal import Principal
from gateway.ops.flow import Flow
from gateway.publishing.timer_secrets import TimerSecrets
from gateway.runtime.connection import Connection
from gateway.runtime.unread import UnreadBudget
from gateway.security.limits import ConnectionLimiter
from gateway.security.limits_settings import LimitsConfig


class WrittenTransport:
    def __init__(self, socket: Any = None) -> None:
        self.written: list[bytes] = []
        self.closing = False
        self.socket = socket

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        if name == "socket":
            return self.socket
        return ("127.0.0.1", 1) if name.endswith("name") else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class OutputAdapter:
    wants_data = True

    def __init__(self) -> None:
        self.out = b""
        self.calls: list[object] = []

    def receive(self, data: bytes, *, now_ms: int) -> tuple[()]:
        self.calls.append(data)
        return ()

    def lost(self, *, now_ms: int) -> tuple[()]:
        self.calls.append("lost")
        return ()

    def take_output(self) -> bytes:
        out, self.out = self.out, b""
        return out

    def deadline_ms(self) -> None:
        return None


def connected(adapter: OutputAdapter, transport: WrittenTransport) -> Connection:
    hub: Any = SimpleNamespace(
        connection_limiter=ConnectionLimiter(LimitsConfig(), 1, now_ms=0),
        limits=LimitsConfig(),
        forwarding=None,
        timer_secrets=TimerSecrets(),
        joined=lambda connection: None,
        next_id=lambda: 1,
        later=lambda seconds, work: SimpleNamespace(cancel=lambda: None),
        left=lambda connection: None,
        metrics=SimpleNamespace(flow=lambda protocol: Flow()),
        fanout=SimpleNamespace(wake=lambda subscriber: None),
        body_bytes_max=1 << 20,
        write_buffer_bytes_max=1,
        unread=UnreadBudget(1 << 30),
        others={},
        random=None,
        access=SimpleNamespace(unauthenticated=lambda protocol: Principal(name="")),
        crowded=False,
    )
    factory = SimpleNamespace(connect=lambda info, options, random: adapter)
    connection = Connection(hub, SimpleNamespace(factory=factory, name="p", options=None, protocol="p"))  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection


def test_output_stays_with_the_adapter_while_the_peer_does_not_read():
    adapter, transport = OutputAdapter(), WrittenTransport()
    connection = connected(adapter, transport)
    connection.pause_writing()
    adapter.out = b"later"
    connection.flush()
    assert transport.written == []
    assert adapter.out == b"later"
    connection.resume_writing()
    assert transport.written == [b"later"]


def test_what_the_peer_said_before_a_write_to_it_failed_is_heard():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        adapter, transport = OutputAdapter(), WrittenTransport(ours)
        connection = connected(adapter, transport)
        theirs.sendall(b"good-bye")
        theirs.close()
        transport.closing = True
        connection.connection_lost(BrokenPipeError())
        assert adapter.calls == [b"good-bye", "lost"]
        assert ours.fileno() >= 0  # still the transport's to close


def test_a_peer_that_was_cut_off_is_not_heard_any_more():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        adapter, transport = OutputAdapter(), WrittenTransport(ours)
        connection = connected(adapter, transport)
        theirs.sendall(b"more")
        connection.connection_lost(None)
        assert adapter.calls == ["lost"]
