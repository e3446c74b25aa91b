"""An operator's settings for CoAP: the section `[adapters.coap]` of the configuration."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from adapters.websocket.settings import KnownHosts, PageOrigins

MiB = 1024 * 1024


class CoapOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`[adapters.coap]`: transmission parameters (RFC 7252, 4.8), limits, and how requests become messages."""

    ack_timeout_ms: Annotated[
        int, Meta(ge=100, le=60_000, description="ACK_TIMEOUT: when a separate response is first sent again")
    ] = 2_000
    ack_random_factor: Annotated[
        float, Meta(ge=1.0, le=3.0, description="ACK_RANDOM_FACTOR: that time is stretched by chance up to this")
    ] = 1.5
    max_retransmit: Annotated[int, Meta(ge=0, le=10, description="MAX_RETRANSMIT: how often it is sent again")] = 4
    exchange_lifetime_ms: Annotated[
        int, Meta(ge=1_000, le=3_600_000, description="EXCHANGE_LIFETIME: how long a repeated message is recognised")
    ] = 247_000
    ack_delay_ms: Annotated[
        int, Meta(ge=10, le=2_000, description="a request not answered by then gets an empty acknowledgement first")
    ] = 1_000

    dedup_peer_max: Annotated[int, Meta(ge=1, le=65_536, description="messages remembered of one peer")] = 65_536
    dedup_total_max: Annotated[
        int, Meta(ge=1, le=16_000_000, description="messages remembered of all peers, about 200 bytes each")
    ] = 1_000_000
    peers_max: Annotated[int, Meta(ge=1, le=4_000_000, description="peers whose messages are remembered")] = 200_000
    requests_outstanding_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="requests taken in and not answered yet")
    ] = 16_384

    websocket_origins: PageOrigins = ()
    websocket_hosts: KnownHosts = ()

    max_body_bytes: Annotated[int, Meta(ge=1, le=256 * MiB, description="the largest body, blocks put together")] = MiB
    block_size: Annotated[
        Literal[16, 32, 64, 128, 256, 512, 1024],
        Meta(description="bytes of the largest block sent, and asked for"),
    ] = 1024
    block_transfers_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="bodies sent or received in blocks at a time, each direction")
    ] = 1_024
    block_transfers_peer_max: Annotated[int, Meta(ge=1, le=65_536, description="of these, of one peer")] = 8
    block_bytes_max: Annotated[
        int, Meta(ge=1, description="bytes held for bodies in blocks and their options, each direction")
    ] = 64 * MiB

    echo_fresh_s: Annotated[
        int,
        Meta(
            ge=0,
            le=86_400,
            description="POST, PUT, DELETE and blocks of FETCH must have an Echo at most so old; 0: none is asked for",
        ),
    ] = 0
    amplification_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000,
            description="how many times its request a response over UDP may be long, or 136 bytes, before an Echo has"
            " verified the endpoint's address; 0: as long as it is",
        ),
    ] = 0

    oscore: Annotated[
        bool, Meta(description="whether messages may be protected with OSCORE; auth.oscore_file names the contexts")
    ] = False

    observers_max: Annotated[
        int, Meta(ge=0, le=1_000_000, description="observations of all peers; beyond, a GET is only answered; 0: none")
    ] = 65_536
    observers_peer_max: Annotated[int, Meta(ge=1, le=65_536, description="observations of one peer")] = 64
    observe_confirm_every: Annotated[
        int, Meta(ge=1, le=1_000, description="of so many notifications to an observer one is Confirmable")
    ] = 16
    observe_confirm_ms: Annotated[
        int, Meta(ge=1_000, le=86_000_000, description="an observer that sends nothing for so long must acknowledge")
    ] = 600_000
    observe_check_ms: Annotated[
        int,
        Meta(ge=1_000, le=400_000, description="how often an observed address is read again: rights, losses, expiry"),
    ] = 60_000

    device_level: Annotated[
        int,
        Meta(
            ge=-1,
            le=127,
            description="the level of the address, from 0, that names the device; -1, or none there: the peer's host",
        ),
    ] = 2
    bare_paths: Annotated[bool, Meta(description="whether a path not below /t/ or /ps/ is an address, too")] = True
    cloudevents_format: Annotated[
        int, Meta(ge=65_000, le=65_535, description="the Content-Format of CloudEvents as structured JSON")
    ] = 65_011
    cloudevents_batch_format: Annotated[
        int, Meta(ge=65_000, le=65_535, description="the Content-Format of a batch of CloudEvents in JSON")
    ] = 65_012
    topics_namespace: Annotated[
        str,
        Meta(
            pattern="^([A-Za-z0-9][A-Za-z0-9._-]{0,27})?$",
            description='the namespace of keys that holds topic resources of the publish-subscribe draft; "": none',
        ),
    ] = "coap-topics"
    topic_format: Annotated[
        int, Meta(ge=0, le=65_535, description="the Content-Format of topic resources, application/core-pubsub+cbor")
    ] = 606
    max_age_s: Annotated[int, Meta(ge=0, le=86_400, description="how long a last value may be cached")] = 0
    list_max: Annotated[
        int, Meta(ge=1, le=100_000, description="addresses listed by /.well-known/core, and values by a FETCH")
    ] = 1_000
