"""The guard before h2: frames that their headers show to be at fault."""

from typing import Final, NamedTuple

from h2.errors import ErrorCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, 3.4
FRAME_HEADER_BYTES: Final = 9
SETTING_BYTES: Final = 6
STREAM_ID_MAX: Final = 2**31 - 1  # the first bit of the field is reserved (RFC 9113, 4.1)
FLAG_ACK: Final = 0x01
FLAG_END_STREAM: Final = 0x01
FLAG_END_HEADERS: Final = 0x04
FRAME_BYTES_MAX: Final = 16_384  # SETTINGS_MAX_FRAME_SIZE, which we leave at its default
TAKEN_COUNT: Final = 64  # frames that are taken at a time: small ones are work enough


def frame_header(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Returns the header of a frame (RFC 9113, 4.1)."""
    return (length << 48 | kind << 40 | flags << 32 | stream).to_bytes(FRAME_HEADER_BYTES, "big")


class _Rule(NamedTuple):
    """The frames of one type: the length of a payload (None: any), and whether they belong to stream 0."""

    shortest: int
    longest: int | None
    on_connection: bool | None  # None: to stream 0 or to another


_REQUEST: Final = bytes([HeadersFrame.type])
_RULES: Final = {  # RFC 9113, 6
    DataFrame.type: _Rule(0, None, False),
    HeadersFrame.type: _Rule(0, None, False),
    PriorityFrame.type: _Rule(5, 5, False),
    RstStreamFrame.type: _Rule(4, 4, False),
    SettingsFrame.type: _Rule(0, None, True),
    PingFrame.type: _Rule(8, 8, True),
    GoAwayFrame.type: _Rule(8, None, True),
    WindowUpdateFrame.type: _Rule(4, 4, None),
    ContinuationFrame.type: _Rule(0, None, False),
}


class FrameHeaders:
    """Finds a frame that is at fault by its header, before h2 sees it.

    h2 would take in a frame that is too long, up to 16 MiB (RFC 9113, 4.2), does not ask that the first frame is
    SETTINGS (3.4), and calls some wrong lengths by another error.
    """

    __slots__ = ("_begun", "_block", "_head", "_left", "fault")

    def __init__(self) -> None:
        self._left = len(PREFACE)  # bytes until the next frame header
        self._head = b""  # the part of it that has come
        self._begun = False  # the first frame has come
        self._block = 0  # the stream whose header block goes on in CONTINUATION frames; 0: none does
        self.fault: ErrorCodes | None = None  # of the frame that `next_request` has stopped at

    @property
    def at_border(self) -> bool:
        """Returns whether the next byte begins a frame that may be a request's first."""
        return self._begun and not (self._left or self._head or self._block)

    def next_request(self, data: bytes, at: int) -> int:
        """Returns the place of the first request behind a place, or of a frame at fault, or the end of the read.

        `fault` tells which of the last two it is. Of many frames it returns a place within the last one to take.
        """
        begins, size, count = at, len(data), 0
        while True:
            at += self._left
            if at >= size:
                self._left = at - size
                return size
            self._left = 0
            if at > begins and not (self._head or self._block) and data[at + 3 : at + 4] == _REQUEST:
                return at
            missing = FRAME_HEADER_BYTES - len(self._head)
            head = self._head + data[at : at + missing]
            if len(head) < FRAME_HEADER_BYTES:
                self._head = head
                return size
            self._head = b""
            count += 1
            length = int.from_bytes(head[:3], "big")
            self.fault = self._fault(length, head[3], head[4], int.from_bytes(head[5:], "big") & STREAM_ID_MAX)
            if self.fault is not None:
                return at
            at += missing
            self._left = length
            if count == TAKEN_COUNT:
                return at

    def _fault(self, length: int, kind: int, flags: int, stream: int) -> ErrorCodes | None:
        """Returns the connection error that a frame with this header is."""
        if length > FRAME_BYTES_MAX:
            return ErrorCodes.FRAME_SIZE_ERROR
        ack = kind == SettingsFrame.type and bool(flags & FLAG_ACK)
        if not self._begun and (kind != SettingsFrame.type or ack):
            return ErrorCodes.PROTOCOL_ERROR
        self._begun = True
        if (kind == ContinuationFrame.type) != bool(self._block) or (self._block and stream != self._block):
            return ErrorCodes.PROTOCOL_ERROR  # header blocks are not interrupted (RFC 9113, 4.3)
        if kind in {HeadersFrame.type, ContinuationFrame.type}:
            self._block = 0 if flags & FLAG_END_HEADERS else stream
        rule = _RULES.get(kind)
        if rule is None:  # of a server, no promise is taken (RFC 9113, 8.4); unknown types are skipped (5.5)
            return ErrorCodes.PROTOCOL_ERROR if kind == PushPromiseFrame.type else None
        if rule.on_connection is not None and rule.on_connection != (stream == 0):
            return ErrorCodes.PROTOCOL_ERROR
        if kind == SettingsFrame.type and (length % SETTING_BYTES or (ack and length)):
            return ErrorCodes.FRAME_SIZE_ERROR
        if length < rule.shortest or (rule.longest is not None and length > rule.longest):
            return ErrorCodes.FRAME_SIZE_ERROR
        return None
