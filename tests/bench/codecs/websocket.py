"""WebSocket frames: `adapters.mqtt.websocket.frames` beside the protocol layers of `websockets` and wsproto."""

import importlib.util
from collections.abc import Callable
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from adapters.mqtt.websocket.frames import Frames, data_frames
from tests.bench.codecs.subject import Subject, Work

READ_BYTES = 64 * 1024
SIZES = (100, 4_000, 60_000)
BROKEN = {
    "a frame without a mask": b"\x82\x01x",
    "reserved bits": b"\xf2\x81\0\0\0\0x",
    "a fragmented ping": b"\x09\x80\0\0\0\0",
    "a ping of 126 bytes": b"\x89\xfe\0\x7e\0\0\0\0" + bytes(126),
    "an unknown opcode": b"\x83\x80\0\0\0\0",
    "a continuation of nothing": b"\x80\x80\0\0\0\0",
    "a message inside another": b"\x02\x80\0\0\0\0\x82\x80\0\0\0\0",
    "a length in too many bytes": b"\x82\xfe\0\x01\0\0\0\0x",
    "a length of 2^63": b"\x82\xff\x80" + bytes(11),
    "close code 1005": b"\x88\x82\0\0\0\0\x03\xed",
    "a close reason that is no UTF-8": b"\x88\x83\0\0\0\0\x03\xe8\xff",
}


def ours(data: bytes) -> None:
    """Reads, and raises what was broken."""
    frames = Frames()
    frames.receive(data)
    if frames.fault is not None:
        raise frames.fault


def protocol() -> ServerProtocol:
    """Returns a connection that is open."""
    return ServerProtocol(state=OPEN, max_size=None)


def websockets(data: bytes) -> None:
    """Reads, and raises what was broken."""
    server = protocol()
    server.receive_data(data)
    server.events_received()
    if server.parser_exc is not None:
        raise server.parser_exc


def _ours_read(data: bytes) -> Callable[[], Any]:
    frames = Frames()
    return lambda: frames.receive(data)


def _websockets_read(data: bytes) -> Callable[[], Any]:
    server = protocol()

    def read() -> bytes:
        server.receive_data(data)
        return b"".join([event.data for event in server.events_received()])

    return read


def _websockets_write(payload: bytes) -> Callable[[], Any]:
    server = protocol()

    def write() -> bytes:
        server.send_binary(payload)
        return b"".join(server.data_to_send())

    return write


def _wsproto_read(data: bytes) -> Callable[[], Any]:
    from wsproto.connection import Connection, ConnectionType
    from wsproto.events import BytesMessage

    server = Connection(ConnectionType.SERVER)

    def read() -> bytes:
        server.receive_data(data)
        return b"".join([bytes(event.data) for event in server.events() if isinstance(event, BytesMessage)])

    return read


def subject() -> Subject:
    """Returns the comparison."""
    works = []
    for size in SIZES:
        one = Frame(Opcode.BINARY, bytes(size)).serialize(mask=True)
        count = max(1, READ_BYTES // len(one))
        readers = {"ours": _ours_read(one * count), "websockets": _websockets_read(one * count)}
        if importlib.util.find_spec("wsproto") is not None:
            readers["wsproto"] = _wsproto_read(one * count)
        works.append(Work(f"read a masked frame of {size} bytes, {count} in a read", count, readers))
    payload = bytes(400)
    writers = {"ours": lambda: data_frames(payload), "websockets": _websockets_write(payload)}
    works.append(Work("write a frame of 400 bytes", 1, writers))
    return Subject(works, {"ours": ours, "websockets": websockets}, BROKEN)
