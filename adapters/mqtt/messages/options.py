"""An operator's settings for MQTT: the section `[adapters.mqtt]` of the configuration."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from adapters.websocket.settings import KnownHosts, PageOrigins
from gateway.domain.filters import FILTER_LEVELS_COUNT_MAX

KiB, MiB = 1024, 1024 * 1024

_U16_MAX = 65_535
_U32_MAX = 4_294_967_295


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[adapters.mqtt]`: every limit on the requests of one MQTT client, and on the memory that it can use."""

    # MQTT 5.0, 3.2.2.3.6. By default: a body of 1 MiB, a topic name and as much again for properties.
    max_packet_bytes: Annotated[
        int,
        Meta(
            ge=64,
            le=256 * MiB,
            description="the largest packet taken, topic and properties included; clients of 5.0 learn it",
        ),
    ] = MiB + 128 * KiB
    connect_bytes_max: Annotated[
        int, Meta(ge=64, le=MiB, description="the largest CONNECT: held before it is known who it is")
    ] = 64 * KiB
    connect_timeout_s: Annotated[
        int, Meta(ge=1, le=3_600, description="seconds for the CONNECT of a new connection to come")
    ] = 10
    authentication_methods: Annotated[
        tuple[Literal["SCRAM-SHA-256"], ...],
        Meta(description="how clients of 5.0 may prove a password without sending it; none: [] turns it off"),
    ] = ("SCRAM-SHA-256",)
    client_id_bytes_max: Annotated[int, Meta(ge=23, le=1_024, description="the longest client identifier")] = 256
    receive_maximum: Annotated[
        int,
        Meta(
            ge=1,
            le=_U16_MAX,
            description="QoS 1 and 2 messages of a client awaiting acknowledgement; clients of 5.0 learn it",
        ),
    ] = 8_192
    unstored_bytes_max: Annotated[
        int, Meta(ge=64 * KiB, description="bytes of a client's messages not durable yet; beyond, it is not read")
    ] = 16 * MiB
    inflight_max: Annotated[
        int,
        Meta(
            ge=1, le=_U16_MAX, description="QoS 1 and 2 messages sent to a client unacknowledged; it may ask for fewer"
        ),
    ] = 1_024
    keep_alive_max_s: Annotated[
        int, Meta(ge=0, le=_U16_MAX, description="the longest keep alive of a client of 5.0; 0: any, and none at all")
    ] = 0
    topic_alias_maximum: Annotated[
        int, Meta(ge=0, le=_U16_MAX, description="topic aliases a client may use; 0: none")
    ] = 64
    topic_alias_outbound_max: Annotated[
        int, Meta(ge=0, le=_U16_MAX, description="topic aliases used towards a client that takes some; 0: none")
    ] = 64
    server_reference: Annotated[
        str,
        Meta(max_length=1_024, description="server that clients of 5.0 are referred to at shutdown: host:port"),
    ] = ""
    server_moved: Annotated[
        bool, Meta(description="whether new clients are refused with 0x9D (Server moved) and `server_reference`")
    ] = False
    response_topic_prefix: Annotated[
        str,
        Meta(
            max_length=1_024,
            pattern=r"^[^+#\x00]*\Z",
            description="Response Information for clients of 5.0 that ask; ${client_id} is theirs; empty: none",
        ),
    ] = ""
    # None: forever.
    session_expiry_max_s: Annotated[
        Annotated[int, Meta(ge=0, le=_U32_MAX - 1)] | None,
        Meta(description="seconds a session may outlive its connection; those of 3.1.1 that are not clean do so"),
    ] = 604_800
    subscriptions_max: Annotated[int, Meta(ge=1, description="subscriptions of one session")] = 1_000
    shared_subscriptions: Annotated[
        bool, Meta(description="whether clients may share subscriptions: $share/{group}/{filter}")
    ] = True
    filter_bytes_max: Annotated[int, Meta(ge=1, le=_U16_MAX, description="the longest topic filter")] = 4_096
    filters_bytes_max: Annotated[
        int, Meta(ge=1, le=16 * MiB, description="all topic filters of one session together")
    ] = 256 * KiB
    topic_levels_max: Annotated[
        int,
        Meta(ge=1, le=FILTER_LEVELS_COUNT_MAX, description="levels of a topic name; a deeper one is refused with 0x90"),
    ] = FILTER_LEVELS_COUNT_MAX
    topic_bytes_max: Annotated[
        int, Meta(ge=1, le=_U16_MAX, description="the longest topic name; a longer one is refused with 0x90")
    ] = _U16_MAX
    user_properties_max: Annotated[
        int, Meta(ge=0, description="user properties of a message; one with more is refused with 0x97")
    ] = 256
    will_bytes_max: Annotated[
        int, Meta(ge=0, le=MiB, description="the largest payload of a will; a larger one is refused with 0x95")
    ] = 64 * KiB
    retained_max: Annotated[int, Meta(ge=0, description="retained messages that one topic filter brings at most")] = (
        10_000
    )
    websocket_origins: PageOrigins = ()
    websocket_hosts: KnownHosts = ()
    sys_interval_s: Annotated[
        int, Meta(ge=0, le=86_400, description="seconds between two reports to subscribers of $SYS; 0: only one")
    ] = 10
    sparkplug: Annotated[
        bool, Meta(description="whether messages of Sparkplug B topics get their type, content type and device by them")
    ] = True
    events_as_data: Annotated[
        bool, Meta(description="whether clients of 3.1.1 get an event's data alone instead of all of it as JSON")
    ] = False
