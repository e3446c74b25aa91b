"""Data representations (MQTT 5.0, 1.5): integers, variable byte integers, UTF-8 strings, binary data."""

import re

from adapters.mqtt.codec.reason import ReasonCode
from gateway.domain.errors import ProtocolError

VARINT_MAX = 268_435_455  # 1.5.5: four bytes of seven bits
TEXT_BYTES_MAX = 65_535  # 1.5.4

_UNSENDABLE = re.compile("[\0\ud800-\udfff]")
CUT = "the packet ends inside a field"


def malformed(detail: str) -> ProtocolError:
    """Returns the error of a packet that violates the specification's format (0x81)."""
    return ProtocolError(ReasonCode.MALFORMED_PACKET, detail)


def encode_varint(number: int) -> bytes:
    """Encodes a variable byte integer (1.5.5), in as few bytes as it takes."""
    assert 0 <= number <= VARINT_MAX
    if number < 128:
        return bytes((number,))
    if number < 16_384:
        return bytes((number & 127 | 128, number >> 7))
    if number < 2_097_152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21))


def read_varint(data: bytes, at: int, end: int, *, minimal: bool) -> tuple[int, int] | None:
    """Returns the variable byte integer at `at` and where it ends; None when `data[at:end]` does not hold all of it.

    Raises `ProtocolError` (0x81) for a fifth byte and, with `minimal`, for more bytes than it takes (MQTT-1.5.5-1).
    """
    number = shift = 0
    for i in range(at, min(end, at + 4)):
        byte = data[i]
        number |= (byte & 127) << shift
        if byte < 128:
            if minimal and not byte and i > at:
                raise malformed("a variable byte integer in more bytes than it takes")
            return number, i + 1
        shift += 7
    if end - at >= 4:
        raise malformed("a variable byte integer of more than four bytes")
    return None


def decode_text(raw: bytes) -> str:
    """Decodes a UTF-8 string (1.5.4). Raises `ProtocolError` (0x81) for bad UTF-8, surrogates and U+0000."""
    try:
        text = raw.decode()  # Python's decoder refuses surrogates and overlong forms, as MQTT-1.5.4-1 asks
    except UnicodeDecodeError as error:
        raise malformed(f"not UTF-8: {error.reason}") from None
    if "\0" in text:
        raise malformed("a string holds U+0000")
    return text


def encode_text(text: str) -> bytes:
    """Encodes a UTF-8 string with its length; `text` is known to fit."""
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def encode_binary(raw: bytes) -> bytes:
    """Encodes binary data with its length (1.5.6); `raw` is known to fit."""
    return len(raw).to_bytes(2, "big") + raw


def clean_text(text: str) -> str | None:
    """Returns another protocol's text as MQTT can carry it: U+FFFD for other bytes; None when it is too long."""
    if not text.isascii() or "\0" in text:
        text = _UNSENDABLE.sub("\ufffd", text)
    return text if len(text.encode()) <= TEXT_BYTES_MAX else None


class PacketReader:
    """A cursor over one packet's body. Every method raises `ProtocolError` (0x81) when the body ends too early."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def take(self, count: int) -> bytes:
        """Reads the next `count` bytes."""
        at, self.at = self.at, self.at + count
        if self.at > self.end:
            raise malformed(CUT)
        return self.data[at : self.at]

    # The small ones do not use `take`: a CONNECT has a dozen of them.

    def u8(self) -> int:
        """Reads a byte."""
        at, self.at = self.at, self.at + 1
        if self.at > self.end:
            raise malformed(CUT)
        return self.data[at]

    def u16(self) -> int:
        """Reads a two byte integer (1.5.2)."""
        at, self.at = self.at, self.at + 2
        if self.at > self.end:
            raise malformed(CUT)
        return self.data[at] << 8 | self.data[at + 1]

    def u32(self) -> int:
        """Reads a four byte integer (1.5.3)."""
        return int.from_bytes(self.take(4), "big")

    def varint(self) -> int:
        """Reads a variable byte integer (1.5.5)."""
        found = read_varint(self.data, self.at, self.end, minimal=True)
        if found is None:
            raise malformed("the packet ends inside a variable byte integer")
        number, self.at = found
        return number

    def text(self) -> str:
        """Reads a UTF-8 string (1.5.4)."""
        return decode_text(self.take(self.u16()))

    def binary(self) -> bytes:
        """Reads binary data (1.5.6)."""
        return self.take(self.u16())

    def packet_id(self) -> int:
        """Reads a packet identifier, which is never 0 (MQTT-2.2.1-3)."""
        found = self.u16()
        if not found:
            raise malformed("packet identifier 0")
        return found

    def rest(self) -> bytes:
        """Takes all bytes that are left."""
        return self.take(self.end - self.at)

    @property
    def left(self) -> int:
        """Returns the number of bytes left."""
        return self.end - self.at

    def finish(self) -> None:
        """Raises `ProtocolError` unless the body is used up."""
        if self.at != self.end:
            raise malformed(f"{self.left} bytes behind the packet's last field")
