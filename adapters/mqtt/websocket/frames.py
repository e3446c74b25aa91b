"""WebSocket framing (RFC 6455, 5): the payloads of a client's frames, by the read, and the frames that go to it.

A frame's payload is passed on as it comes and never waited for, whatever its announced length: MQTT packets may be cut
and joined in any way (MQTT-6.0.0-2), and their size is limited where they are read.
"""

from enum import IntEnum
from struct import Struct

import numpy as np

CONTROL_BYTES_MAX = 125  # 5.5
FRAME_BYTES_MAX = 256 * 1024  # of a frame we send: many clients refuse messages over 1 MiB
_ARRAY_BYTES_MIN = (
    512  # an array is faster than a number from here on: 4,000 bytes 2.2 us and 7.6, 100 bytes 2.3 and 0.6
)

_HEADER_16, _HEADER_64 = Struct(">BBH"), Struct(">BBQ")
_CODE = Struct(">H")


class Opcode(IntEnum):
    """The kinds of frames (5.2)."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    """The reasons to close a connection (7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    NO_STATUS = 1005  # stands for none; never sent
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008


_SENDABLE = frozenset({*range(1000, 1004), *range(1007, 1015)})  # the codes that have a meaning on the wire


class Fault(Exception):
    """The client has broken the rules of RFC 6455; `code` is the `CloseCode` to say so with."""

    def __init__(self, code: CloseCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Frames:
    """The client's side of a connection. `ping`, `closed` and `fault` hold the parts of a read besides payload."""

    __slots__ = ("_fragmented", "_head", "_left", "_mask", "closed", "fault", "ping")

    def __init__(self) -> None:
        self._head = b""  # of a frame whose header, or, where it is a control frame, whose payload is not all there
        self._left = 0  # bytes that have not come of the payload in progress
        self._mask = b""  # of those bytes
        self._fragmented = False  # the message in progress has more frames to come
        self.ping: bytes | None = None  # the newest ping that has no answer yet (5.5.3)
        self.closed: int | None = None  # the code of the client's close frame, behind which nothing counts
        self.fault: Fault | None = None  # which rule was broken, behind which nothing counts

    def receive(self, data: bytes) -> bytes:
        """Returns the payload in a read, unmasked in one step."""
        if self._head:
            data, self._head = self._head + data, b""
        parts: list[bytes] = []
        masks: list[bytes] = []
        size = len(data)
        at = self._rest(data, 0, parts, masks) if self._left else 0
        try:
            while size - at >= 2 and self.closed is None:
                first, second = data[at], data[at + 1]
                if first != 0x82 or second < 128 or self._fragmented:
                    _check(first, second, fragmented=self._fragmented)
                length, start = second & 127, at + 6
                if length > 125:
                    start += 2 if length == 126 else 8
                    if start <= size:
                        length = _long(data[at + 2 : start - 4])
                end, mask = start + length, data[start - 4 : start]
                if start > size or (end > size and first & 8):
                    break
                if first & 8:
                    self._control(first & 15, _xor(data[start:end], (mask * (length // 4 + 1))[:length]))
                else:
                    self._fragmented = first < 128
                    if end > size:
                        self._left, self._mask = length, mask
                        at = self._rest(data, start, parts, masks)
                        break
                    parts.append(data[start:end])
                    masks.append((mask * (length // 4 + 1))[:length])
                at = end
            self._head = data[at:]
        except Fault as fault:
            self.fault = fault
        return _xor(b"".join(parts), b"".join(masks))

    def _rest(self, data: bytes, at: int, parts: list[bytes], masks: list[bytes]) -> int:
        """Takes the received part of the payload in progress, from `at` on; returns where that ends."""
        part, mask = data[at : at + self._left], self._mask
        length = len(part)
        parts.append(part)
        masks.append((mask * (length // 4 + 1))[:length])
        self._left -= length
        turned = length % 4
        self._mask = mask[turned:] + mask[:turned]
        return at + length

    def _control(self, opcode: int, payload: bytes) -> None:
        """Takes a control frame (5.5). A pong answers nothing that was asked. Raises `Fault`."""
        if opcode == Opcode.PING:
            self.ping = payload
        elif opcode == Opcode.CLOSE:
            self.closed = _close_code(payload)


def _check(first: int, second: int, *, fragmented: bool) -> None:
    """Raises `Fault` unless this can be the begin of a client's frame (5.2, 5.4, 5.5)."""
    opcode, final = first & 15, first >= 128
    if first & 0x70:
        raise Fault(CloseCode.PROTOCOL_ERROR, "reserved bits are set, and no extension was agreed on")
    if second < 128:
        raise Fault(CloseCode.PROTOCOL_ERROR, "a client's frames are masked")
    if opcode & 8:
        if opcode > Opcode.PONG or not final or second & 127 > CONTROL_BYTES_MAX:
            raise Fault(CloseCode.PROTOCOL_ERROR, "a control frame is fragmented or longer than 125 bytes")
    elif opcode == Opcode.TEXT:
        raise Fault(CloseCode.UNSUPPORTED_DATA, "MQTT is in binary frames (MQTT-6.0.0-1)")
    elif opcode > Opcode.BINARY:
        raise Fault(CloseCode.PROTOCOL_ERROR, f"a frame of the unknown kind {opcode}")
    elif fragmented is not (opcode == Opcode.CONTINUATION):
        raise Fault(CloseCode.PROTOCOL_ERROR, "a message inside another, or a continuation of none")


def _long(field: bytes) -> int:
    """Returns a payload length of 16 or 64 bits (5.2). Raises `Fault`."""
    length = int.from_bytes(field, "big")
    if length < (126 if len(field) == 2 else 65_536) or length >= 1 << 63:
        raise Fault(CloseCode.PROTOCOL_ERROR, "a length in more bytes than it takes")
    return length


def _close_code(payload: bytes) -> int:
    """Returns the code of a close frame (5.5.1). Raises `Fault`."""
    if not payload:
        return CloseCode.NO_STATUS
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not (code in _SENDABLE or 3000 <= code < 5000):
        raise Fault(CloseCode.PROTOCOL_ERROR, "a close frame with an invalid code")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise Fault(CloseCode.INVALID_DATA, "a close frame whose reason is no text") from None
    return code


def _xor(data: bytes, mask: bytes) -> bytes:
    """Returns two sequences of one length, bit by bit."""
    size = len(data)
    if size < _ARRAY_BYTES_MIN:
        return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
    return (np.frombuffer(data, np.uint8) ^ np.frombuffer(mask, np.uint8)).tobytes()


def frame(opcode: Opcode, payload: bytes) -> bytes:
    """Returns one whole frame to the client (5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 65_536:
        return _HEADER_16.pack(0x80 | opcode, 126, size) + payload
    return _HEADER_64.pack(0x80 | opcode, 127, size) + payload


def data_frames(payload: bytes) -> bytes:
    """Returns binary frames to the client: one, unless it were larger than many clients take."""
    if len(payload) <= FRAME_BYTES_MAX:
        return frame(Opcode.BINARY, payload)
    starts = range(0, len(payload), FRAME_BYTES_MAX)
    return b"".join([frame(Opcode.BINARY, payload[at : at + FRAME_BYTES_MAX]) for at in starts])


def close_frame(code: int, reason: str = "") -> bytes:
    """Returns a close frame; the reason is cut to fit."""
    if code == CloseCode.NO_STATUS:
        return frame(Opcode.CLOSE, b"")
    text = reason.encode("utf-8", "replace")[: CONTROL_BYTES_MAX - _CODE.size].decode("utf-8", "ignore").encode()
    return frame(Opcode.CLOSE, _CODE.pack(code) + text)
