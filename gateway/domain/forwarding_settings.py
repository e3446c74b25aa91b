"""The settings of reverse proxies: `[forwarding]`."""

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ForwardingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[forwarding]`: whose word counts on where clients of HTTP and WebSocket are."""

    proxies: Annotated[
        tuple[str, ...],
        Meta(description="networks of reverse proxies that name the client behind them; none: no proxy is trusted"),
    ] = ()
    header: Annotated[
        Literal["x-forwarded-for", "forwarded"],
        Meta(description="the header that names it; proxies have to keep or remove a client's own one of that name"),
    ] = "x-forwarded-for"


def forwarding_mistakes(config: ForwardingConfig) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of the settings: the key, and a remedy."""
    for one in config.proxies:
        try:
            ip_network(one)
        except ValueError as error:
            yield "forwarding.proxies", f"{error}; write networks, such as 10.0.0.0/8 or 127.0.0.1"
