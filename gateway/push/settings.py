"""The settings of push: `[subscriptions]`."""

import re
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gateway.base.client_tls import ca_file_mistake

MiB: Final = 1024 * 1024
_HOST: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")
_ORIGIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class SubscriptionsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[subscriptions]`: events that are delivered to sinks, and where those may be."""

    subscriptions_max: Annotated[int, Meta(ge=0, le=100_000, description="subscriptions; more are refused")] = 1_000
    private_sinks: Annotated[
        tuple[str, ...],
        Meta(
            description='networks and host names where sinks may be though they are private, such as "10.1.0.0/16", '
            '"*.internal"; all of the Internet is allowed without'
        ),
    ] = ()
    plain_http: Annotated[
        bool,
        Meta(
            description="whether sinks on the Internet may have http:, mqtt: and amqp: URLs; private sinks always may"
        ),
    ] = False
    ca_file: Annotated[
        Path | None,
        Meta(description="PEM: authorities that may vouch for sinks besides the system's; read at the start"),
    ] = None
    validation: Annotated[
        Literal["required", "off"],
        Meta(description="whether a sink has to consent by WebHook-Allowed-Origin before it is sent anything"),
    ] = "required"
    origin: Annotated[
        str, Meta(description="WebHook-Request-Origin: the name of this system for sinks; headgate if empty")
    ] = ""
    held_bytes_max: Annotated[
        int,
        Meta(
            ge=MiB, description="events that a process holds for all sinks, with their properties; more stay in the log"
        ),
    ] = 64 * MiB
    attempts_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="deliveries that a process attempts at a time, besides one of each subscription",
        ),
    ] = 1_024


def subscription_mistakes(config: SubscriptionsConfig) -> Iterator[tuple[str, str]]:
    """Yields the mistakes that no single key shows: the key, and a remedy."""
    for index, one in enumerate(config.private_sinks):
        try:
            ip_network(one)
        except ValueError:
            if _HOST.fullmatch(one) is None or one.replace(".", "").isdigit():
                key = f"subscriptions.private_sinks[{index}]"
                yield key, f"{one!r} is neither a network nor a host name; write 10.1.0.0/16 or *.internal"
    if config.ca_file is not None and (mistake := ca_file_mistake(config.ca_file)):
        yield "subscriptions.ca_file", mistake
    if config.origin and _ORIGIN.fullmatch(config.origin) is None:
        yield "subscriptions.origin", f"{config.origin!r} is no DNS name; write one such as gateway.example.com"
