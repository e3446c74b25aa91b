"""A bare durable MQTT broker: each look's messages are written and synced once, then acknowledged. Delivers nothing.

    python -m tests.bench.peers.bare_log --file data.log [--host 127.0.0.1] [--port 1883]

MQTT 3.1.1, QoS 0 and 1, one epoll loop: about the least that a Python program which keeps its promise can do. The peer
that shows how much of a figure is the disk's and the interpreter's. Ends on SIGINT or SIGTERM.
"""

import argparse
import os
import select
import signal
import socket

CONNECT, PUBLISH, PINGREQ = 1, 3, 12
CONNACK, PINGRESP = b"\x20\x02\x00\x00", b"\xd0\x00"
READ_BYTES = 65_536


class Device:
    """A connection: its socket, the beginning of a packet that has not arrived whole, and what it is to be sent."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.rest = b""
        self.answers = bytearray()

    def receive(self) -> list[bytes] | None:
        """Reads once, prepares the answers, and returns the messages to be kept; None at the end of the connection."""
        try:
            data = self.rest + self.peer.recv(READ_BYTES)
        except ConnectionError:
            return None
        if len(data) == len(self.rest):
            return None
        kept, at = [], 0
        while (end := packet_end(data, at)) is not None:
            kind = data[at] >> 4
            if kind == PUBLISH:
                kept.append(data[at:end])
                if data[at] & 0x06:
                    self.answers += b"\x40\x02" + identifier(data, at)
            elif kind in (CONNECT, PINGREQ):
                self.answers += CONNACK if kind == CONNECT else PINGRESP
            at = end
        self.rest = data[at:]
        return kept

    def answer(self) -> None:
        """Sends the answers; a peer that does not read them is not waited for."""
        if self.answers:
            self.peer.send(self.answers)
            self.answers.clear()


def packet_end(data: bytes, at: int) -> int | None:
    """Returns where the packet that begins at `at` ends, or None while it is not all there (MQTT 3.1.1, 2.2.3)."""
    size = 0
    for index in range(at + 1, min(at + 5, len(data))):
        size |= (data[index] & 0x7F) << 7 * (index - at - 1)
        if data[index] < 0x80:
            end = index + 1 + size
            return end if end <= len(data) else None
    return None


def identifier(data: bytes, at: int) -> bytes:
    """Returns the two bytes of the packet identifier of the PUBLISH that begins at `at` (MQTT 3.1.1, 3.3.2)."""
    at += 1
    while data[at] >= 0x80:
        at += 1
    end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
    return data[end : end + 2]


def serve(listener: socket.socket, log: int, stop: int) -> None:
    """Serves until `stop` can be read."""
    devices: dict[int, Device] = {}
    with select.epoll() as poller:
        for number in (listener.fileno(), stop):
            poller.register(number, select.EPOLLIN)
        while True:
            read, kept = [], []
            for number, _ in poller.poll():
                if number == stop:
                    return
                if number == listener.fileno():
                    device = Device(listener.accept()[0])
                    devices[device.peer.fileno()] = device
                    poller.register(device.peer.fileno(), select.EPOLLIN)
                    continue
                messages = devices[number].receive()
                if messages is None:
                    poller.unregister(number)
                    devices.pop(number).peer.close()
                else:
                    kept += messages
                    read.append(devices[number])
            if kept:
                os.write(log, b"".join(kept))
                os.fdatasync(log)
            for device in read:
                device.answer()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--file", required=True, help="the log, which is begun anew")
    arguments = parser.parse_args()
    stop = os.eventfd(0, os.EFD_NONBLOCK)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.eventfd_write(stop, 1))
    log = os.open(arguments.file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    with socket.create_server((arguments.host, arguments.port), backlog=4_096) as listener:
        print(f"listens on {arguments.host}:{arguments.port}", flush=True)
        serve(listener, log, stop)


if __name__ == "__main__":
    main()
