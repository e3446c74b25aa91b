"""CoAP messages in WebSocket messages (RFC 8323, 4.2): a frame of CoAP over TCP whose Len says nothing.

|0 4|TKL 4|  Code 8  |  Token, TKL bytes  |  Options | 0xFF | Payload
"""

from collections.abc import Iterator

from adapters.coap.stream.frames import FrameError, encode_frame, read_head

_HEAD_BYTES = 2


def to_frame(message: bytes) -> bytes:
    """Returns the frame of CoAP over TCP of a message; its Len is ignored. Raises `FrameError`."""
    token_end = _HEAD_BYTES + (message[0] & 15) if message else 0
    if not _HEAD_BYTES <= token_end <= len(message):
        raise FrameError(f"a message of {len(message)} bytes is cut short")
    return encode_frame(message[1], message[_HEAD_BYTES:token_end], message[token_end:])


def to_messages(frames: bytes) -> Iterator[bytes]:
    """Yields the messages of whole frames of ours."""
    at = 0
    while at < len(frames):
        head = read_head(frames, at)
        assert head is not None
        first = bytes((head.options_at - head.token_at, head.code))
        yield first + frames[at + head.token_at : at + head.end]
        at += head.end
