"""The names of a store node's streams, and what both ends agree on about their messages."""

from typing import Any

import msgspec

from store.format.frame import FRAME_BYTES_MAX
from store.rpc.wire import Offset

__all__ = ["APPEND", "CALLS", "CHANNEL_OPTIONS", "MESSAGE_BYTES_MAX", "NODE_SERVICE", "TAIL", "TailRequest", "path"]

NODE_SERVICE = "headgate.store.v1.Node"
CALLS, APPEND, TAIL = "Calls", "Append", "Tail"
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + (
    4 << 20
)  # a frame is never split; others are in the same message while it is small

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),  # a store is reached directly, whatever the environment says of proxies
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, which ends with the channel
    ("grpc.enable_retries", 0),  # what is sent again is decided here
)


class TailRequest(msgspec.Struct, frozen=True, array_like=True):
    """The start of a tail."""

    start: Offset


def path(method: str) -> str:
    """A method as gRPC names it."""
    return f"/{NODE_SERVICE}/{method}"
