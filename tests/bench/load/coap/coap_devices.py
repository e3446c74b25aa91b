"""Many CoAP clients, each an endpoint of its own with one confirmable request under way."""

import socket
from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta

from tests.bench.load.base import Count, Load, LoadError, Measured
from tests.bench.load.coap.coap_post import CODES, IDENTIFIERS, CoapPost
from tests.bench.load.one_each import Peer, one_each

PATHS = 100  # as many as libcoap's example server is told to make


class CoapDevices(Load, frozen=True, kw_only=True, tag="coap-devices"):
    """Answers a second, of `conns` UDP endpoints with one confirmable request under way each, from one process.

    A request without an answer is sent again after 2 s, with the same Message ID, as RFC 7252, 4.2, has it.
    """

    conns: Count = 1_000
    duration_s: Count = 5
    payload: Annotated[int, Meta(ge=1, le=1_024, description="bytes")] = 40
    method: Literal["post", "put"] = "put"

    def run(self) -> Measured:
        """See `Load.run`."""
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(self.conns)]
        try:
            for one in sockets:
                one.connect((self.host, self.port))
            peers = [self._peer(one, number) for number, one in enumerate(sockets)]
            return one_each(peers, duration_s=self.duration_s, pid=self.pid, again=True)
        finally:
            for one in sockets:
                one.close()

    def _peer(self, endpoint: socket.socket, device: int) -> Peer:
        start = bytes([0x44, CODES[self.method]])  # version 1, confirmable, a token of four bytes
        tail = CoapPost(payload=self.payload).tail(device % PATHS)
        return endpoint, _request(start, 0, tail), _answered(start, tail)


def _request(start: bytes, number: int, tail: bytes) -> bytes:
    return start + (number % IDENTIFIERS).to_bytes(2, "big") + number.to_bytes(4, "big") + tail


def _answered(start: bytes, tail: bytes) -> Callable[[bytes], bytes]:
    """Returns the function that reads answers: an empty acknowledgement is none, nor is one to an earlier request."""
    number = 0

    def answered(data: bytes) -> bytes:
        nonlocal number
        code = data[1]
        if not code or data[4:8] != number.to_bytes(4, "big"):
            return b""
        if code >> 5 != 2:
            raise LoadError(f"a request was refused: {code >> 5}.{code & 31:02d}")
        number += 1
        return _request(start, number, tail)

    return answered
