"""A body in parts on its way to the peer: its header is sent, and its parts are read as the peer takes them."""

from collections import deque
from collections.abc import Callable
from typing import Final

from adapters.amqp.codec.wire import FRAME_BODY, FRAME_END, HEAD
from gateway.port.bodies import BodyParts
from store.format.frame import LogOffset

_END: Final = bytes([FRAME_END])


class Download:
    """The rest of one body: later output of the connection waits for it."""

    __slots__ = ("_channel", "_frames", "fetching", "left_bytes", "lost")

    def __init__(self, channel: int, parts: BodyParts, lost: Callable[[], None] = lambda: None) -> None:
        """Begins a download; calls `lost` where a part is lost for good."""
        self._channel = channel
        self.lost = lost
        self._frames: deque[LogOffset] = deque(next(iter(parts.frames.values())))
        self.left_bytes = parts.size_bytes
        self.fetching = False  # the next part is on its way from the log

    def next_frame(self) -> LogOffset | None:
        """Takes the frame of the next part; None behind the last, or while one is on its way."""
        if self.fetching or not self._frames:
            return None
        self.fetching = True
        return self._frames.popleft()

    def take(self, data: bytes, payload_max: int) -> list[bytes]:
        """Returns the frames of the part that has been read."""
        self.fetching = False
        self.left_bytes -= len(data)
        out: list[bytes] = []
        for at in range(0, len(data), payload_max):
            chunk = data[at : at + payload_max]
            out += (HEAD.pack(FRAME_BODY, self._channel, len(chunk)), chunk, _END)
        return out

    @property
    def ended(self) -> bool:
        """Returns whether all parts have been read."""
        return not self.fetching and not self._frames
