"""What an operator can set for AMQP, and what of it a connection negotiates."""

from typing import Annotated

import msgspec

__all__ = ["AmqpOptions"]

FRAME_MIN = 4_096  # AMQP 0-9-1, 4.2.3: every peer takes frames of this size


class AmqpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration section `listeners.amqp`."""

    frame_max: Annotated[int, msgspec.Meta(ge=FRAME_MIN, le=1 << 20)] = 131_072  # bytes, all of the frame
    channel_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 2_047  # of one connection
    heartbeat_s: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 60  # suggested; 0: none
    handshake_timeout_s: Annotated[int, msgspec.Meta(ge=1)] = 10
    message_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=48 << 20)] = 16 << 20  # body; larger: 311
    outstanding_count_max: Annotated[int, msgspec.Meta(ge=1)] = 65_536  # published, not yet durable; beyond: no reading
    assembling_bytes_max: Annotated[int, msgspec.Meta(ge=1)] = 32 << 20  # bodies half received, of all channels
    unacknowledged_count_max: Annotated[int, msgspec.Meta(ge=1)] = 16_384  # of a consumer without a prefetch of its own
    consumer_count_max: Annotated[int, msgspec.Meta(ge=1)] = 1_000  # of one channel
