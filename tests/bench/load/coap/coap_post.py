"""Confirmable requests over UDP, pre-built but for Message ID and Token."""

import socket
from collections import Counter
from typing import Annotated, Literal

from msgspec import Meta

from tests.bench.load.base import Count, Load, LoadError, Measured, json_payload, together

POST, PUT = 2, 3
URI_PATH, CONTENT_FORMAT = 11, 12
JSON_FORMAT = 50
LOST_S = 2.0  # a request not answered by then is lost; none is sent again
IDENTIFIERS = 65_536  # Message IDs an endpoint may use within EXCHANGE_LIFETIME (RFC 7252, 4.8.2): then a new endpoint
CODES = {"post": POST, "put": PUT}


class CoapPost(Load, frozen=True, kw_only=True, tag="coap"):
    """Answers a second; each connection is one UDP endpoint with at most `window` requests outstanding."""

    count: Count = 40_000
    conns: Count = 4
    window: Annotated[int, Meta(ge=1, le=1_000, description="requests without an answer, of one endpoint")] = 16
    payload: Annotated[int, Meta(ge=1, le=1_024, description="bytes")] = 40
    method: Literal["post", "put"] = "post"

    def run(self) -> Measured:
        """See `Load.run`."""
        codes: Counter[str] = Counter()
        total = self.count // self.conns

        def work(device: int) -> int:
            done = 0
            for first in range(0, total, IDENTIFIERS):
                seen = self._exchange(device, min(IDENTIFIERS, total - first))
                codes.update(seen)
                done += sum(count for code, count in seen.items() if code[0] == "2")
            return done

        done, elapsed_s = together(work, range(self.conns))
        if not done:
            raise LoadError(f"nothing was answered well: {dict(codes)}")
        also = {f"code_{code}": float(count) for code, count in sorted(codes.items())}
        failed = total * self.conns - done
        return Measured(value=done / elapsed_s, elapsed_s=elapsed_s, done=done, failed=failed, also=also)

    def _exchange(self, device: int, total: int) -> Counter[str]:
        """Makes one endpoint's requests, and returns the response codes of those that were answered."""
        tail = self.tail(device)
        start = bytes([0x44, CODES[self.method]])  # version 1, confirmable, a token of four bytes
        sent = answered = lost = 0
        codes: Counter[int] = Counter()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
            endpoint.connect((self.host, self.port))
            endpoint.settimeout(LOST_S)
            while answered + lost < total:
                while sent < total and sent - answered - lost < self.window:
                    endpoint.send(start + sent.to_bytes(2, "big") + sent.to_bytes(4, "big") + tail)
                    sent += 1
                try:
                    response = endpoint.recv(2048)
                except TimeoutError:
                    lost = sent - answered
                    continue
                if response[1]:  # not an empty acknowledgement: the answer itself
                    answered += 1
                    codes[response[1]] += 1
        return Counter({f"{code >> 5}.{code & 31:02d}": count for code, count in codes.items()})

    def tail(self, device: int) -> bytes:
        """Returns everything behind the token: /t/telemetry/dev0001/temp, JSON, the payload."""
        options, last = b"", 0
        for segment in (b"t", b"telemetry", b"dev%04d" % device, b"temp"):
            options += bytes([URI_PATH - last << 4 | len(segment)]) + segment  # every segment has less than 13 bytes
            last = URI_PATH
        options += bytes([CONTENT_FORMAT - last << 4 | 1, JSON_FORMAT])
        return options + b"\xff" + json_payload(self.payload)
