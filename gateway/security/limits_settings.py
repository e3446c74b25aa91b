"""The settings of a client's limits: `[limits]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MiB = 1024 * 1024


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[limits]`: limits of one connection, and of one address. 0 is no limit."""

    connections_per_address: Annotated[
        int, Meta(ge=0, description="open connections from one address (of IPv6: one /64 network); 0: no limit")
    ] = 0
    connections_per_s: Annotated[
        float, Meta(ge=0, le=1_000_000, description="new connections a second, over all listeners; 0: no limit")
    ] = 0.0
    connections_burst: Annotated[int, Meta(ge=1, description="new connections at once, after a quiet time")] = 1_000
    messages_per_s: Annotated[
        float, Meta(ge=0, le=1e9, description="messages a second from one connection; 0: no limit")
    ] = 0.0
    messages_burst: Annotated[int, Meta(ge=1, description="messages at once, after a quiet time")] = 1_000
    bytes_per_s: Annotated[
        float, Meta(ge=0, le=1e12, description="bytes a second from one connection; 0: no limit")
    ] = 0.0
    bytes_burst: Annotated[int, Meta(ge=1, description="bytes at once, after a quiet time")] = MiB
    on_excess: Annotated[
        Literal["wait", "refuse"],
        Meta(description='"wait": a connection is read no faster; "refuse": excess requests are refused'),
    ] = "wait"
