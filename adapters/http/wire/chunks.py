"""The framing of a chunked body (RFC 9112, 7.1): where it ends, and its cost beside the body's own bytes.

llhttp decodes the chunks. It has no limit on their extensions, which have no use, and which a peer may send without
end.
"""

import re
from typing import Final

EXTENSION_BYTES_MAX: Final = 16 * 1024  # of all chunks of a body: extensions, and zeros before sizes
SIZE_DIGITS_MAX: Final = 16  # of a chunk's size; zeros before it count as extensions
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]+")
_LINE_BYTES_MAX: Final = EXTENSION_BYTES_MAX + SIZE_DIGITS_MAX + len(b"\r\n")


class ChunkFraming:
    """Follows the chunks of one body as their bytes come."""

    __slots__ = ("_data_bytes", "_line", "ended", "extension_bytes", "trailers")

    def __init__(self) -> None:
        self.extension_bytes = 0
        self.ended = False
        self.trailers = False  # the last chunk has come
        self._data_bytes = 0  # until the next size: the rest of a chunk, and its CRLF
        self._line = b""  # the received part of a size with its extensions, or of a trailer

    @property
    def too_much(self) -> bool:
        """Returns whether the extensions are more than a body may have."""
        return self.extension_bytes > EXTENSION_BYTES_MAX

    def end(self, data: bytes, at: int) -> int:
        """Returns where the body or its trailers end behind `at`, or all bytes when they go on; `ended` tells which.

        Stops where there is `too_much`; an invalid size counts as the end, because llhttp reports none.
        """
        size = len(data)
        while at < size and not self.ended:
            if self._data_bytes:
                passed = min(self._data_bytes, size - at)
                self._data_bytes -= passed
                at += passed
                continue
            found = data.find(b"\n", at, at + _LINE_BYTES_MAX)
            end = min(size, at + _LINE_BYTES_MAX) if found < 0 else found + 1
            line, self._line = self._line + data[at:end], b""
            at = end
            if found < 0 and self.trailers:
                self._line = line[-2:]  # enough to tell an empty line
            elif found < 0 and len(line) <= _LINE_BYTES_MAX:
                self._line = line
            elif self.trailers:
                self.ended = not line.strip(b"\r\n")
            elif not self._begin_chunk(line):
                break
        return at

    def _begin_chunk(self, line: bytes) -> bool:
        """Takes the line of a chunk's size; returns whether there may be more."""
        found = _SIZE.match(line)
        digits = found[0].lstrip(b"0") if found is not None else b""
        if found is None or len(digits) > SIZE_DIGITS_MAX:
            self.ended = True
            return False
        length = int(digits or b"0", 16)
        self.extension_bytes += max(len(line) - len(digits or b"0") - len(b"\r\n"), 0)
        self.trailers = not length
        self._data_bytes = length + len(b"\r\n") if length else 0
        return not self.too_much
