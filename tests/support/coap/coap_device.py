"""A CoAP client of one socket: Confirmable requests, sent again until they are answered (RFC 7252, 4.2)."""

import random
import socket
import time

from adapters.coap.codec.registry import ACK, BLOCK1, BLOCK2, CON, EMPTY, GET, POST
from adapters.coap.codec.wire import Packet, decode, encode
from adapters.coap.messages.request import Block
from tests.support.coap.coap_driver import dotted, options_of, request

BLOCK_BYTES = 1024
AGAIN_S = 0.5
PATIENCE_S = 60
INCOMPLETE = "4.08"


class Device:
    """One, with an address of its own."""

    def __init__(self, port):
        # By chance (RFC 7252, 4.4): a device may get the port of one before, whose Message IDs the server remembers.
        self._mid = random.randrange(1 << 15)
        self.last = b""  # the datagram of the last request
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._socket.settimeout(AGAIN_S)

    def close(self):
        self._socket.close()

    def ask(self, path, code=POST, **parts):
        """Sends a request, and returns its response."""
        self._mid += 1
        token = self._mid.to_bytes(4, "big")
        self.last = request(path, code, mid=self._mid, token=token, **parts)
        return self.again(token)

    def again(self, token=None):
        """Sends the last request once more, and returns its response."""
        token = token or self._mid.to_bytes(4, "big")
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                self._socket.send(self.last)
                while (packet := decode(self._socket.recv(2_000))).token != token or packet.code == EMPTY:
                    pass
            except (TimeoutError, ConnectionRefusedError):  # lost, or with a process that has ended
                continue
            if packet.type == CON:
                self._socket.send(encode(Packet(type=ACK, code=EMPTY, mid=packet.mid)))
            return packet
        raise AssertionError(f"no answer to {self.last!r}")

    def heard(self):
        """Returns the next message with the token of the last request: a notification (RFC 7641)."""
        token = self._mid.to_bytes(4, "big")
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                packet = decode(self._socket.recv(2_000))
            except TimeoutError:
                continue
            if packet.type == CON:
                self._socket.send(encode(Packet(type=ACK, code=EMPTY, mid=packet.mid)))
            if packet.token == token and packet.code != EMPTY:
                return packet
        raise AssertionError(f"no answer to {self.last!r}")

    def put(self, path, body, number):
        """Sends one block of a body, and returns the response."""
        at = number * BLOCK_BYTES
        block = Block.of_size(BLOCK_BYTES)._replace(number=number, more=at + BLOCK_BYTES < len(body))
        return self.ask(path, options=((BLOCK1, block.encode()),), payload=body[at : at + BLOCK_BYTES])

    def upload(self, path, body, *, first=0):
        """Publishes a body in blocks from `first` on, or from the beginning where the server does not know the blocks
        before. Returns the code of the last response.
        """
        number = first
        while number * BLOCK_BYTES < len(body):
            said = dotted(self.put(path, body, number).code)
            number = 0 if said == INCOMPLETE else number + 1
        return said

    def download(self, path):
        """Reads the body of an address in blocks, and returns it; returns None where there is none."""
        body, block = b"", Block.of_size(BLOCK_BYTES)
        while True:
            packet = self.ask(path, GET, options=((BLOCK2, block.encode()),))
            if dotted(packet.code) == "4.04":
                return None
            assert dotted(packet.code) == "2.05"
            body += packet.payload
            if not Block.decode(options_of(packet)[BLOCK2], "Block2").more:
                return body
            block = block._replace(number=block.number + 1)
