"""Confirmable CoAP requests at half of what a server can do."""

import socket
from typing import Annotated, Literal

from msgspec import Meta

from tests.bench.load.base import Count, Load, LoadError, Measured
from tests.bench.load.coap.coap_devices import PATHS
from tests.bench.load.coap.coap_post import CODES, IDENTIFIERS, CoapPost
from tests.bench.load.half import Answers, half_load


class CoapHalf(Load, frozen=True, kw_only=True, tag="coap-half"):
    """Milliseconds until an answer, p99, at half of the most that `conns` endpoints get with one request each.

    At half load no request is sent again: one without an answer is reported as not done.
    """

    conns: Count = 100
    probe_s: Annotated[float, Meta(gt=0, description="seconds in which the most is found")] = 4.0
    duration_s: Annotated[float, Meta(gt=0)] = 10.0
    payload: Annotated[int, Meta(ge=1, le=1_024, description="bytes")] = 40
    method: Literal["post", "put"] = "put"

    def run(self) -> Measured:
        """See `Load.run`."""
        start = bytes([0x44, CODES[self.method]])  # version 1, confirmable, a token of four bytes
        tails = [CoapPost(payload=self.payload).tail(device) for device in range(PATHS)]
        return half_load(
            self._connect,
            lambda device: _Requests(start, tails[device % PATHS]),
            conns=self.conns,
            probe_s=self.probe_s,
            duration_s=self.duration_s,
            pid=self.pid,
            datagrams=True,
        )

    def _connect(self) -> socket.socket:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.connect((self.host, self.port))
        return one


class _Requests:
    """The requests of one endpoint; the token is the number."""

    opening = b""

    def __init__(self, start: bytes, tail: bytes) -> None:
        self._start = start
        self._tail = tail
        self._next = 0

    def request(self) -> bytes:
        """See `Wire`."""
        number = self._next
        self._next += 1
        if number >= IDENTIFIERS:
            raise LoadError("an endpoint has no Message ID left: use more of them")
        return self._start + number.to_bytes(2, "big") + number.to_bytes(4, "big") + self._tail

    def feed(self, data: bytes) -> Answers:
        """See `Wire`."""
        if not data[1]:  # an empty acknowledgement
            return Answers(())
        if data[1] >> 5 != 2:
            raise LoadError(f"a request was refused: {data[1] >> 5}.{data[1] & 31:02d}")
        return Answers((int.from_bytes(data[4:8], "big"),))
