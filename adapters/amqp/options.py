"""An operator's settings for AMQP, and those that a connection negotiates."""

from typing import Annotated

import msgspec
from msgspec import Meta

FRAME_MIN = 4_096  # AMQP 0-9-1, 4.2.3: every peer takes frames of this size


class AmqpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[adapters.amqp]`: limits on the requests of one connection and on the memory held for it."""

    frame_max: Annotated[int, Meta(ge=FRAME_MIN, le=1 << 20, description="bytes of the largest frame, all of it")] = (
        131_072
    )
    channel_max: Annotated[int, Meta(ge=1, le=65_535, description="channels of one connection")] = 2_047
    heartbeat_s: Annotated[
        int, Meta(ge=0, le=65_535, description="seconds between signs of life, suggested to clients; 0 is none")
    ] = 60
    handshake_timeout_s: Annotated[int, Meta(ge=1, description="seconds until a new connection is open")] = 10
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=128 << 20,
            description="the largest body that is taken, if gateway.max_message_bytes is no less; a larger one closes "
            "its channel (406)",
        ),
    ] = 16 << 20
    whole_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=48 << 20,
            description="the largest body that is held and stored whole; a larger one is stored in parts as it comes, "
            "for queues alone",
        ),
    ] = 16 << 20
    outstanding_count_max: Annotated[
        int, Meta(ge=1, description="messages published and not yet durable; beyond, nothing more is read")
    ] = 65_536
    assembling_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="bytes of messages half received, over all channels of a connection, with the memory of large "
            "properties; one message alone may have more",
        ),
    ] = 32 << 20
    transaction_bytes_max: Annotated[
        int, Meta(ge=1, le=32 << 20, description="bodies in transactions, over all channels of a connection")
    ] = 16 << 20
    transaction_count_max: Annotated[
        int, Meta(ge=1, le=65_536, description="messages published in one transaction")
    ] = 16_384
    arriving_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="bodies longer than 128 KiB that arrive, on all connections of a process, by the sizes they "
            "announce, 2 MiB of one in parts; beyond, a connection is not read before others have ended",
        ),
    ] = 256 << 20
    unacknowledged_count_max: Annotated[
        int,
        Meta(
            ge=1,
            description="messages a consumer without a prefetch of its own holds unacknowledged, and a channel by "
            "basic.get",
        ),
    ] = 65_535  # the largest prefetch that a client can ask for
    consumer_timeout_s: Annotated[
        int,
        Meta(
            ge=0,
            le=31_536_000,
            description="seconds that a consumer may hold a message without acknowledging it; then its channel closes "
            "(406); 0 is for ever",
        ),
    ] = 1_800
    consumer_count_max: Annotated[int, Meta(ge=1, description="consumers of one channel")] = 1_000
