"""An operator's settings for HTTP: the section `[adapters.http]` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

from adapters.cloudevents import EventRoute

MiB = 1024 * 1024


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`[adapters.http]`: limits and times of one connection, the browsers that may use it, and the mapping of names."""

    max_body_bytes: Annotated[int, Meta(ge=1, le=256 * MiB, description="the largest request body")] = 4 * MiB
    max_batch_events: Annotated[
        int, Meta(ge=1, le=1_000_000, description="events of one batch; each costs up to 30 us in which others wait")
    ] = 10_000
    max_header_bytes: Annotated[int, Meta(ge=1024, le=MiB, description="the largest request head")] = 64 * 1024
    max_held_bytes: Annotated[
        int,
        Meta(ge=64 * 1024, description="bytes held for one connection: requests that arrive, and responses not read"),
    ] = 16 * MiB
    arriving_bytes_max: Annotated[
        int,
        Meta(
            ge=MiB,
            description="requests that arrive, or bodies that wait for logins, on all connections; half of it where "
            "nobody was let in yet",
        ),
    ] = 256 * MiB
    max_concurrent_streams: Annotated[
        int, Meta(ge=1, le=10_000, description="HTTP/2 streams open at a time (SETTINGS_MAX_CONCURRENT_STREAMS)")
    ] = 256
    max_pipelined: Annotated[
        int, Meta(ge=1, le=10_000, description="HTTP/1.1 requests not answered yet; beyond, nothing is read")
    ] = 256
    max_filters: Annotated[int, Meta(ge=1, le=1_000, description="filters of one subscription")] = 64
    idle_timeout_s: Annotated[int, Meta(ge=1, le=86_400, description="a connection without requests is closed")] = 75
    request_timeout_s: Annotated[
        int, Meta(ge=1, le=3_600, description="how long a request may take to arrive, and its answer to be read")
    ] = 30
    idempotency_window_s: Annotated[
        int,
        Meta(
            ge=1,
            le=30 * 86_400,
            description="how long an Idempotency-Key is known after it was used; the same on all proxies",
        ),
    ] = 86_400
    sse_heartbeat_s: Annotated[int, Meta(ge=1, le=3_600, description="how often a quiet event stream says so")] = 15
    sse_stall_s: Annotated[
        int, Meta(ge=1, le=3_600, description="an HTTP/2 event stream whose window stays shut this long is ended")
    ] = 30
    compress_bytes_min: Annotated[
        int, Meta(ge=0, description="JSON of this size and more is compressed where the client accepts it; 0: never")
    ] = 1024
    answers_prefix: Annotated[
        str,
        Meta(
            pattern="^[^+#\0]{1,256}$",
            description="commands that wait and name no address for answers have them sent to {this}/{user}",
        ),
    ] = "answers"
    event_window_s: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * 86_400,
            description="an event with the source and id of one stored so long ago or less is not stored again; "
            "0: it is; the same on all proxies",
        ),
    ] = 0
    webhook_origins: Annotated[
        tuple[str, ...],
        Meta(description='senders that may deliver events here, by WebHook-Request-Origin; "*" for all'),
    ] = ()
    websocket_mqtt: Annotated[
        bool, Meta(description="MQTT over WebSocket at /mqtt of this port, too, where listeners.mqtt-ws is enabled")
    ] = True
    websocket_coap: Annotated[
        bool,
        Meta(description="CoAP over WebSocket at /.well-known/coap of this port, where listeners.coap-tcp is enabled"),
    ] = True
    cors_origins: Annotated[
        tuple[str, ...], Meta(description='origins whose pages may use this from a browser; "*" for all')
    ] = ()
    property_headers: Annotated[
        tuple[str, ...], Meta(description='headers, beginning with "x-", that are kept as properties')
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(description="names by which clients without a password may call this machine, besides localhost"),
    ] = ()
    device_level: Annotated[
        int,
        Meta(
            ge=-1,
            le=127,
            description="the level of the address, from 0, that names the device of a client without a name; "
            "-1, or none there: the peer's host",
        ),
    ] = 2
    event_routes: Annotated[
        tuple[EventRoute, ...], Meta(description="addresses of events; without a rule the subject, or events/{type}")
    ] = ()
