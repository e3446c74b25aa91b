"""The names of a store node's streams, and the limits of their messages that both ends agree on."""

import msgspec

from store.format.frame import FRAME_BYTES_MAX
from store.rpc.wire import Offset

NODE_SERVICE = "headgate.store.v1.Node"
CALLS, APPEND, TAIL = "Calls", "Append", "Tail"
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + (
    4 << 20
)  # a frame is never split; others are in the same message while it is small


class TailRequest(msgspec.Struct, frozen=True, array_like=True):
    """The start of a tail."""

    start: Offset


def path(method: str) -> str:
    """Returns a method as gRPC names it."""
    return f"/{NODE_SERVICE}/{method}"
