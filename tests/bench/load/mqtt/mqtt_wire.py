"""MQTT 3.1.1 as far as the loads need it: packets encoded in advance, a connection, a counter of PUBLISH packets."""

import socket
import struct

from tests.bench.load.base import SILENCE_S, LoadError

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
KEEP_ALIVE_S = 600


def packet(first: int, body: bytes) -> bytes:
    """Returns a control packet (2.2): first byte, remaining length, the rest."""
    length, left = bytearray(), len(body)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return bytes([first]) + bytes(length) + body


def text(value: bytes) -> bytes:
    """Returns a string with its length before it (1.5.3)."""
    return struct.pack("!H", len(value)) + value


def topic(number: int) -> bytes:
    """Returns the topic of a device; all have the same length and the same first level."""
    return b"telemetry/site%02d/dev%05d/temp" % (number % 50, number)


def publish(name: bytes, payload: bytes, *, qos: int, identifier: int = 0) -> bytes:
    """Returns a PUBLISH (3.3)."""
    return packet(0x30 | qos << 1, text(name) + (struct.pack("!H", identifier) if qos else b"") + payload)


def connect_packet(client_id: str, *, clean: bool = True) -> bytes:
    """Returns a CONNECT of 3.1.1 (3.1)."""
    return packet(
        0x10, text(b"MQTT") + bytes([4, 2 if clean else 0]) + struct.pack("!H", KEEP_ALIVE_S) + text(client_id.encode())
    )


def receive(connection: socket.socket, size: int = 1 << 16) -> bytes:
    """Returns the received bytes. Raises `LoadError` when nothing comes, or the server has closed."""
    try:
        data = connection.recv(size)
    except TimeoutError:
        raise LoadError(f"nothing came for {SILENCE_S} s") from None
    if not data:
        raise LoadError("closed by the server")
    return data


def connect(host: str, port: int, client_id: str, *, clean: bool = True) -> socket.socket:
    """Opens a connection, and reads its CONNACK. Raises `LoadError`."""
    connection = socket.create_connection((host, port), timeout=SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(connect_packet(client_id, clean=clean))
    answer = receive(connection, 4)
    if answer not in {b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"} or (clean and answer[2]):
        raise LoadError(f"CONNECT was answered {answer.hex()}")
    return connection


def subscribe(connection: socket.socket, pattern: bytes, *, qos: int) -> None:
    """Subscribes, and waits for the SUBACK. Raises `LoadError`."""
    connection.sendall(packet(0x82, b"\x00\x01" + text(pattern) + bytes([qos])))
    answer = receive(connection, 5)
    if answer[:4] != b"\x90\x03\x00\x01" or answer[4] > 2:
        raise LoadError(f"SUBSCRIBE was answered {answer.hex()}")


class PublishCounter:
    """Counts the PUBLISH packets of a stream cut anywhere.

    Packets of one load are all alike, so it walks in strides: where the first packet of the buffer has `n` bytes, the
    longest run of equal bytes at every n-th place, and equal bytes behind them, are whole packets of the same kind
    and length. Only where that ends it goes packet by packet. Counting so costs a few nanoseconds a packet.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes bytes from the server."""
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        while (size := packet_size(data, at)) and at + size <= end:
            alike = min(_run(data[at::size]), _run(data[at + 1 :: size]), (end - at) // size)
            if data[at] >> 4 == 3:
                self.count += alike
            at += alike * size
        self._rest = data[at:]


def _run(values: bytes) -> int:
    """Returns how many of the first values are equal."""
    return len(values) - len(values.lstrip(values[:1]))


def packet_size(data: bytes, at: int) -> int:
    """Returns the length of the packet at a place, header included; 0 when too little of it is here."""
    length = shift = 0
    for place in range(at + 1, min(at + 5, len(data))):
        length |= (data[place] & 127) << shift
        shift += 7
        if data[place] < 128:
            return place + 1 - at + length
    return 0
