"""What h2 does not watch: frames that are too long, and peers that ask for work and bring nothing."""

from typing import Final

__all__ = ["CONTROL_FRAMES_MAX", "PREFACE", "RESETS_MAX", "Calm", "FrameSizes"]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, 3.4
FRAME_HEADER_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384  # SETTINGS_MAX_FRAME_SIZE, which we leave at its default
PERIOD_MS: Final = 10_000
RESETS_MAX: Final = 200  # streams a peer may reset in a period (CVE-2023-44487)
CONTROL_FRAMES_MAX: Final = 2_000  # frames without content in a period: PING, SETTINGS, WINDOW_UPDATE, empty DATA


class FrameSizes:
    """Finds a frame that is too long by its header: h2 would first take it in whole, up to 16 MiB (RFC 9113, 4.2)."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._left = len(PREFACE)  # bytes until the next frame header
        self._head = b""  # the part of it that has come

    def sound(self, data: bytes) -> int:
        """How many bytes lie before the header of a frame that is too long; all of them when there is none."""
        at, size = 0, len(data)
        while True:
            at += self._left
            if at >= size:
                self._left = at - size
                return size
            self._left = 0
            missing = FRAME_HEADER_BYTES - len(self._head)
            head = self._head + data[at : at + missing]
            if len(head) < FRAME_HEADER_BYTES:
                self._head = head
                return size
            self._head = b""
            length = int.from_bytes(head[:3], "big")
            if length > FRAME_BYTES_MAX:
                return at
            at += missing
            self._left = length


class Calm:
    """Counts what a peer may do only so often; both questions answer False when it was too often (RFC 9113, 10.5)."""

    __slots__ = ("_control_frames", "_resets", "_since_ms")

    def __init__(self) -> None:
        self._since_ms = 0
        self._resets = 0
        self._control_frames = 0

    def reset(self, now_ms: int) -> bool:
        """It has reset a stream."""
        self._enter(now_ms)
        self._resets += 1
        return self._resets <= RESETS_MAX

    def control(self, now_ms: int) -> bool:
        """It has sent a frame without content."""
        self._enter(now_ms)
        self._control_frames += 1
        return self._control_frames <= CONTROL_FRAMES_MAX

    def progress(self) -> None:
        """We have sent it a frame of data: two window updates may answer that."""
        self._control_frames = max(self._control_frames - 2, 0)

    def _enter(self, now_ms: int) -> None:
        if now_ms - self._since_ms >= PERIOD_MS:
            self._since_ms = now_ms
            self._resets = self._control_frames = 0
