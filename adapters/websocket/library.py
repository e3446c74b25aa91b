"""Output of the protocol layer of `websockets`, as several adapters write it."""

from typing import Final

from websockets.protocol import OPEN
from websockets.server import ServerProtocol

REASON_BYTES_MAX: Final = 123  # of a close frame (RFC 6455, 5.5)


def output_of(protocol: ServerProtocol) -> bytes:
    """Returns the output of `websockets`."""
    return b"".join(protocol.data_to_send())


def close_frame_of(protocol: ServerProtocol, code: int, reason: str) -> bytes:
    """Returns a close frame, unless one was sent or received; the reason is cut to fit."""
    if protocol.state is OPEN:
        text = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        protocol.send_close(code, text)
    return output_of(protocol)
