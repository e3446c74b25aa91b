"""The frames of CoAP over a byte stream (RFC 8323, 3.2).

    |Len 4|TKL 4|  Extended Length, 0 to 4 bytes  |  Code 8  |  Token, TKL bytes  |  Options | 0xFF | Payload

Len counts options, payload marker and payload. There is no version, type or Message ID.
"""

from typing import NamedTuple

from adapters.coap.codec.wire import TOKEN_BYTES_MAX

_EXTENDED = {13: (1, 13), 14: (2, 269), 15: (4, 65_805)}  # by Len: bytes of the Extended Length, and its base


class FrameError(Exception):
    """Raised for bytes that are no frame: nothing behind them can be read."""


class Head(NamedTuple):
    """The beginning of a frame: where its parts lie, counted from its first byte."""

    code: int
    token_at: int
    options_at: int
    end: int


def read_head(data: bytes | bytearray, at: int) -> Head | None:
    """Returns the head of the frame at `at`; None until it is whole. Raises `FrameError` for too long a token."""
    size = len(data) - at
    if size < 2:
        return None
    first = data[at]
    length, token_bytes = first >> 4, first & 15
    if token_bytes > TOKEN_BYTES_MAX:
        raise FrameError(f"a token of {token_bytes} bytes")
    code_at = 1
    extended = _EXTENDED.get(length)
    if extended is not None:
        more, above = extended
        code_at += more
        if size <= code_at:
            return None
        length = int.from_bytes(data[at + 1 : at + code_at], "big") + above
    token_at = code_at + 1
    return Head(data[at + code_at], token_at, token_at + token_bytes, token_at + token_bytes + length)


def encode_frame(code: int, token: bytes = b"", rest: bytes = b"") -> bytes:
    """Returns the frame of a message; `rest` is its options and, behind a marker, its payload."""
    length = len(rest)
    if length < 13:
        head = bytes((length << 4 | len(token), code))
    else:
        nibble = 13 if length < 269 else 14 if length < 65_805 else 15
        more, above = _EXTENDED[nibble]
        head = bytes((nibble << 4 | len(token),)) + (length - above).to_bytes(more, "big") + bytes((code,))
    return head + token + rest
