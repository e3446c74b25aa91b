"""What an operator can set for MQTT: the section `adapters.mqtt` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["Options"]

_U16 = Meta(ge=0, le=65_535)
_U16_POSITIVE = Meta(ge=1, le=65_535)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every limit on what one MQTT client can ask of the gateway or make it hold."""

    # The largest packet taken from a client, fixed header included; told to clients of 5.0 (3.2.2.3.6).
    max_packet_bytes: Annotated[int, Meta(ge=64, le=67_108_864)] = 1_048_576
    # The largest CONNECT: what somebody may make us hold before we know who it is.
    connect_bytes_max: Annotated[int, Meta(ge=64, le=1_048_576)] = 65_536
    # How long a new connection may take until its CONNECT is here.
    connect_timeout_s: Annotated[int, Meta(ge=1, le=3_600)] = 10
    client_id_bytes_max: Annotated[int, Meta(ge=23, le=1_024)] = 256
    # QoS 1 and 2 messages from a client that are not acknowledged yet; told to clients of 5.0 (3.2.2.3.3).
    receive_maximum: Annotated[int, _U16_POSITIVE] = 8_192
    # Messages from a client that the log does not have yet: beyond this nothing more is read from it.
    unstored_bytes_max: Annotated[int, Meta(ge=65_536)] = 16_777_216
    # QoS 1 and 2 messages to a client that it has not acknowledged yet. Its own Receive Maximum may be lower.
    inflight_max: Annotated[int, _U16_POSITIVE] = 1_024
    # The longest keep alive of a client of 5.0; one that asks for more, or for none, is told this (3.2.2.3.14).
    keep_alive_max_s: Annotated[int, _U16] = 0  # 0: no limit
    topic_alias_maximum: Annotated[int, _U16] = 64
    # How long a session may outlive its connection, None: for ever. One of 3.1.1 that is not clean lasts this long.
    session_expiry_max_s: Annotated[int, Meta(ge=0, le=4_294_967_294)] | None = 604_800
    subscriptions_max: Annotated[int, Meta(ge=1)] = 1_000
    filter_bytes_max: Annotated[int, _U16_POSITIVE] = 4_096
    # Retained messages that one topic filter brings at most.
    retained_max: Annotated[int, Meta(ge=0)] = 10_000
    # Whether clients of 3.1.1, which cannot be told an event's attributes, get its data alone instead of JSON with all.
    events_as_data: bool = False
