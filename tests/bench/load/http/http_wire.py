"""The messages posted over HTTP, encoded in advance for either version, and a counter of answers."""

import json
import struct
from collections import Counter, deque

from hpack import Decoder

from tests.bench.load.base import LoadError

DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, RST_STREAM = 0, 1, 4, 6, 7, 8, 3
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW_BYTES = 65_535  # the initial flow-control window (RFC 9113, 6.9.2)
FRAME_BYTES = 16_384  # the largest payload of a frame, before a peer allows more (RFC 9113, 4.2)
WIDE_BYTES = 1 << 30  # bytes that the server may send before we say more


class Post:
    """One request: its path, headers and body, and how many events it carries."""

    def __init__(self, mode: str, payload: bytes, batch: int) -> None:
        self.events = batch if mode == "batch" else 1
        self.headers: list[tuple[str, str]] = [("content-type", "application/json")]
        self.path, self.body = "/events", payload
        attributes = {"specversion": "1.0", "id": "load-1", "source": "//load/dev1", "type": "load.reading"}
        attributes["subject"] = "telemetry/site01/dev00001/temp"
        if mode == "topic":
            self.path = f"/topics/{attributes['subject']}"
        elif mode == "event":
            self.headers += [(f"ce-{name}", value) for name, value in attributes.items()]
        else:
            data = json.loads(payload)
            events = [{**attributes, "id": f"load-{n}", "data": data} for n in range(batch)]
            self.headers = [("content-type", "application/cloudevents-batch+json")]
            self.body = json.dumps(events, separators=(",", ":")).encode()


class Http1:
    """HTTP/1.1, pipelined (RFC 9112, 9.3.2)."""

    opening = b""

    def __init__(self, post: Post, host: str) -> None:
        lines = [f"POST {post.path} HTTP/1.1", f"host: {host}", f"content-length: {len(post.body)}"]
        lines += [f"{name}: {value}" for name, value in post.headers]
        self._request = ("\r\n".join(lines) + "\r\n\r\n").encode() + post.body
        self._rest = b""
        self._heads: dict[bytes, tuple[int, int]] = {}  # status and content length, of heads seen
        self.statuses: Counter[int] = Counter()

    def requests(self, count: int) -> bytes:
        """Returns the bytes of this many more requests."""
        return self._request * count

    def feed(self, data: bytes) -> bytes:
        """Takes bytes from the server, and returns the bytes that must answer them at once. Raises `LoadError`."""
        data = self._rest + data
        at = 0
        while (end := data.find(b"\r\n\r\n", at)) >= 0:
            head = data[at:end]
            known = self._heads.get(head) or self._head(head)
            status, length = known
            if end + 4 + length > len(data):
                break
            self.statuses[status] += 1
            at = end + 4 + length
        self._rest = data[at:]
        return b""

    def _head(self, head: bytes) -> tuple[int, int]:
        first, *lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b":", 1) for line in lines)
        if b"transfer-encoding" in fields:
            raise LoadError("an answer in chunks")
        if len(self._heads) > 1_000:  # a date in the head changes every second
            self._heads.clear()
        found = self._heads[head] = (int(first.split()[1]), int(fields.get(b"content-length", b"0")))
        return found


class Http2:
    """HTTP/2 with prior knowledge (RFC 9113, 3.3), within the server's windows.

    The server is told to keep no header table, so equal answers are equal bytes and each is decoded once.
    """

    def __init__(self, post: Post, host: str) -> None:
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", host), (":path", post.path)]
        fields += [*post.headers, ("content-length", str(len(post.body)))]
        self._block = b"".join(_literal(name.encode(), value.encode()) for name, value in fields)
        self._body = post.body
        settings = struct.pack("!HIHI", 1, 0, 4, WIDE_BYTES)  # SETTINGS_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE
        widened = struct.pack("!I", WIDE_BYTES)
        self.opening = PREFACE + _frame(SETTINGS, 0, 0, settings) + _frame(WINDOW_UPDATE, 0, 0, widened)
        self._stream = 1  # of the next request
        self._window = WINDOW_BYTES  # bytes that may be sent on the connection
        self._wanted: deque[int] = deque()  # streams whose body waits for the window
        self._blocks: dict[bytes, int] = {}
        self._rest = b""
        self.statuses: Counter[int] = Counter()
        if len(post.body) > WINDOW_BYTES:
            raise LoadError("a body larger than the first window of a stream")

    def requests(self, count: int) -> bytes:
        """Returns the bytes of more requests; bodies that the connection's window has no room for follow from
        `feed`.
        """
        parts = []
        for _ in range(count):
            parts.append(_frame(HEADERS, END_HEADERS, self._stream, self._block))
            self._wanted.append(self._stream)
            self._stream += 2
            self._bodies(parts)
        return b"".join(parts)

    def _bodies(self, parts: list[bytes]) -> None:
        size = len(self._body)
        while self._wanted and self._window >= size:
            self._window -= size
            stream = self._wanted.popleft()
            for at in range(0, size, FRAME_BYTES):
                flags = END_STREAM if at + FRAME_BYTES >= size else 0
                parts.append(_frame(DATA, flags, stream, self._body[at : at + FRAME_BYTES]))

    def feed(self, data: bytes) -> bytes:
        """Takes bytes from the server, and returns the bytes that must answer them at once. Raises `LoadError`."""
        data = self._rest + data
        parts: list[bytes] = []
        at, end = 0, len(data)
        while end - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            if end - at < 9 + length:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            self._frame(kind, flags, stream, data[at + 9 : at + 9 + length], parts)
            at += 9 + length
        self._rest = data[at:]
        self._bodies(parts)
        return b"".join(parts)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, parts: list[bytes]) -> None:
        if kind == HEADERS:
            if not flags & END_HEADERS:
                raise LoadError("headers in more than one frame")
            status = self._blocks.get(payload)
            self.statuses[status if status is not None else self._decode(payload)] += 1
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            parts.append(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            parts.append(_frame(PING, ACK, 0, payload))
        elif kind in {GOAWAY, RST_STREAM}:
            raise LoadError(f"the server ends {'everything' if kind == GOAWAY else 'a stream'}: {payload.hex()}")

    def _decode(self, block: bytes) -> int:
        if len(self._blocks) > 1_000:
            self._blocks.clear()
        found = self._blocks[block] = int(dict(Decoder().decode(block))[":status"])
        return found


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Returns a frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Returns a header field without indexing (RFC 7541, 6.2.2), both strings as they are."""
    return b"\0" + _string(name) + _string(value)


def _string(value: bytes) -> bytes:
    """Returns a string literal (RFC 7541, 5.2), not Huffman coded."""
    size = len(value)
    return (bytes([size]) if size < 127 else bytes([127, size - 127])) + value
