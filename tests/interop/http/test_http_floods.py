"""Peers that flood a whole gateway over real sockets, or read nothing: its memory stays flat, and others are served."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from adapters.http.wire.http2.guard import PREFACE
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
MiB = 1 << 20
LARGE = bytes(4 * MiB - 1024)
LARGE_COUNT, WIRES_COUNT = 4, 16
UNREAD_BYTES_MAX = 16 * MiB
GROWTH_BYTES_MAX = 80 * MiB  # of a gateway whose peers would have it hold 256
SETTINGS = PREFACE + SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0}).serialize()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.support.process.gateways import GatewayProcess

    limits = {
        "HEADGATE__LIMITS__CONNECTIONS_PER_ADDRESS": "0",
        "HEADGATE__ADAPTERS__HTTP__REQUEST_TIMEOUT_S": "600",
        "HEADGATE__ADAPTERS__HTTP__SSE_STALL_S": "600",
        "HEADGATE__GATEWAY__UNREAD_BYTES_MAX": str(UNREAD_BYTES_MAX),
        "MALLOC_MMAP_THRESHOLD_": str(MiB),  # freed memory is given back at once
    }
    made = GatewayProcess(tmp_path_factory.mktemp("floods") / "data", environ=limits)
    with_large = made.start()
    with httpx.Client(base_url=made.url, timeout=TIMEOUT_S, trust_env=False) as client:
        assert client.post("/topics/floods/large", content=LARGE).status_code == 201
    yield with_large
    made.close()


def memory_bytes(gateway: Any) -> int:
    """Returns the resident memory of the server."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def connect(gateway: Any, first: bytes = SETTINGS) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", gateway.port("http")), TIMEOUT_S)
    wire.sendall(first)
    return wire


def get(stream: int, path: str = "/topics/floods/large", *, flags: tuple[str, ...] = ("END_HEADERS", "END_STREAM")):
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
    return HeadersFrame(stream, data=Encoder().encode(fields, huffman=False), flags=list(flags))


def served(gateway: Any) -> None:
    """Checks that other clients can publish and read, over both versions."""
    for http2 in (False, True):
        with httpx.Client(
            base_url=gateway.url, http1=not http2, http2=http2, timeout=TIMEOUT_S, trust_env=False
        ) as other:
            assert other.post("/topics/floods/other", content=b"x").status_code == 201
            assert other.get("/topics/floods/large").content == LARGE


def closed(wire: socket.socket) -> bool:
    """Reads what there is; returns whether the gateway has closed."""
    wire.setblocking(False)
    try:
        while data := wire.recv(1 << 16):
            del data
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("window_bytes", [0, 1], ids=["shut", "byte by byte"])
def test_answers_behind_windows_that_do_not_open_take_a_bounded_part_of_memory(gateway: Any, window_bytes: int) -> None:
    """16 connections ask for 16 MiB each, 256 together, of which 16 may be held; those that hold most make way."""
    before = memory_bytes(gateway)
    wires = [connect(gateway) for _ in range(WIRES_COUNT)]
    try:
        for wire in wires:
            asked = b"".join(get(stream).serialize() for stream in range(1, 2 * LARGE_COUNT, 2))
            try:
                wire.sendall(asked)
                if window_bytes:
                    wire.sendall(WindowUpdateFrame(1, window_increment=1).serialize() * 10)
            except OSError:
                continue  # it made way
        wait_until(lambda: sum(closed(wire) for wire in wires) >= WIRES_COUNT - 4)
        wait_until(lambda: memory_bytes(gateway) - before < GROWTH_BYTES_MAX)  # but for answers that are read just now
        served(gateway)
    finally:
        for wire in wires:
            wire.close()
    served(gateway)


def test_slow_readers_of_event_streams_hold_a_little_each(gateway: Any) -> None:
    """40 readers that take nothing, of both versions, while 10 MiB are published: the log keeps it for them."""
    sse = b"GET /subscribe?filter=floods/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
    wires = [connect(gateway, sse) for _ in range(20)]
    wires += [connect(gateway, SETTINGS + get(1, "/subscribe?filter=floods/events").serialize()) for _ in range(20)]
    for wire in wires[:20]:
        assert wire.recv(12) == b"HTTP/1.1 200"
    before = memory_bytes(gateway)
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
        for _ in range(40):
            assert client.post("/topics/floods/events", content=bytes(256 * 1024)).status_code == 201
    served(gateway)
    assert memory_bytes(gateway) - before < GROWTH_BYTES_MAX
    for wire in wires:
        wire.close()


def reset(stream: int) -> bytes:
    return get(stream).serialize() + RstStreamFrame(stream, error_code=8).serialize()


FLOODS: dict[str, Callable[[int], bytes]] = {
    "rapid reset": reset,
    "ping": lambda _: PingFrame(0, opaque_data=b"12345678").serialize(),
    "settings": lambda _: SettingsFrame(0).serialize(),
    "windows": lambda _: WindowUpdateFrame(0, window_increment=1).serialize(),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_ends_its_connections_and_hurts_nobody(gateway: Any, flood: Callable[[int], bytes]) -> None:
    before = memory_bytes(gateway)
    wires = [connect(gateway) for _ in range(8)]
    data = b"".join(flood(stream) for stream in range(1, 8_001, 2))

    def send(wire: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile
            wire.sendall(data)

    threads = [threading.Thread(target=send, args=(wire,)) for wire in wires]
    for thread in threads:
        thread.start()
    served(gateway)
    for thread in threads:
        thread.join(TIMEOUT_S)
    wait_until(lambda: all(closed(wire) for wire in wires))
    assert memory_bytes(gateway) - before < GROWTH_BYTES_MAX
    for wire in wires:
        wire.close()


def test_header_blocks_without_end_take_little_memory(gateway: Any) -> None:
    """CONTINUATION frames that never end their block."""
    before = memory_bytes(gateway)
    wires = [connect(gateway) for _ in range(8)]
    more: list[Frame] = [ContinuationFrame(1, data=b"\0\x01x\x7f\x80\x7e" + b"y" * 16_000) for _ in range(64)]
    data = get(1, flags=()).serialize() + b"".join(frame.serialize() for frame in more)
    for wire in wires:
        try:
            wire.sendall(data)
        except OSError:
            continue
    wait_until(lambda: all(closed(wire) for wire in wires))
    served(gateway)
    assert memory_bytes(gateway) - before < GROWTH_BYTES_MAX
    for wire in wires:
        wire.close()
