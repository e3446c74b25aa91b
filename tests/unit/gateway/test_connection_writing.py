"""What the stream shell takes from an adapter while the peer does not read."""

from types import SimpleNamespace
from typing import Any

from gateway.connection import Connection


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name.endswith("name") else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class Adapter:
    wants_data = True

    def __init__(self) -> None:
        self.out = b""

    def take_output(self) -> bytes:
        out, self.out = self.out, b""
        return out

    def deadline_ms(self) -> None:
        return None


def test_output_stays_with_the_adapter_while_the_peer_does_not_read():
    adapter, transport = Adapter(), Transport()
    counter = SimpleNamespace(inc=lambda count=1: None)
    hub: Any = SimpleNamespace(
        admit=lambda: True,
        joined=lambda connection: None,
        next_id=lambda: 1,
        later=lambda seconds, work: SimpleNamespace(cancel=lambda: None),
        metrics=SimpleNamespace(bytes_out=lambda protocol: counter),
        fanout=SimpleNamespace(wake=lambda subscriber: None),
        write_buffer_bytes_max=1,
        random=None,
        crowded=False,
    )
    factory = SimpleNamespace(connect=lambda info, options, random: adapter)
    connection = Connection(hub, SimpleNamespace(factory=factory, options=None, protocol="p"))  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.pause_writing()
    adapter.out = b"later"
    connection.flush()
    assert transport.written == []
    assert adapter.out == b"later"
    connection.resume_writing()
    assert transport.written == [b"later"]
