"""The settings of upstream brokers whose messages are read into the log: `[bridges.NAME]`."""

import os
import re
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from gateway.base.config_reader import Secret
from gateway.bridges.shared.addresses import BridgedFilter, DestinationMap
from gateway.bridges.shared.amqp_settings import AmqpTopology, topology_mistakes

KiB, MiB = 1024, 1024 * 1024
BRIDGES_COUNT_MAX = 64
SUBSCRIPTIONS_COUNT_MAX = 256  # of one bridge

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_AMQP = {"amqp", "amqps"}
_SCHEMES = {"mqtt", "mqtts", "ws", "wss", *_AMQP}
_SECURE = {"mqtts", "wss", "amqps"}
_MQTT_ALONE = ("version", "clean", "session_expiry_s", "subscribe")  # keys that say nothing to an AMQP broker


class BridgeTls(msgspec.Struct, frozen=True, kw_only=True):
    """`[bridges.NAME.tls]`: who the upstream has to be, and who we are to it."""

    ca_file: Annotated[Path | None, Meta(description="PEM: the upstream's CAs; the system's if not")] = None
    cert_file: Annotated[Path | None, Meta(description="PEM: our certificate, where the upstream asks for one")] = None
    key_file: Annotated[Path | None, Meta(description="PEM: its private key")] = None


class BridgeSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """`[[bridges.NAME.subscribe]]`: a filter to read, and its messages' address. The first match counts."""

    filter: Annotated[str, Meta(min_length=1, description="a topic filter of the upstream; $share/group/filter too")]
    qos: Annotated[int, Meta(ge=0, le=2, description="at most; 0 may lose messages")] = 1
    to: Annotated[
        str,
        Meta(
            min_length=1,
            description="the address: {topic} is the upstream's, {1} the part that the filter's first wildcard matches",
        ),
    ] = "{topic}"
    device: Annotated[
        str,
        Meta(min_length=1, description="the device of messages, which stay in order; {1} and so on, and {bridge}"),
    ] = "{bridge}"


class BridgeConfig(AmqpTopology, frozen=True, kw_only=True):
    """`[bridges.NAME]`: one upstream broker."""

    url: Annotated[
        str,
        Meta(
            min_length=1,
            description="mqtt://host:port, mqtts, ws://host/path, wss, amqp://host/vhost, amqps",
        ),
    ]
    client_id: Annotated[
        str,
        Meta(description="of our session, or our connection's name; headgate-NAME if empty"),
    ] = ""
    username: str | None = None
    password: Annotated[Secret | None, Meta(description="named by password_file")] = None
    version: Annotated[Literal["5.0", "3.1.1"], Meta(description="of MQTT")] = "5.0"
    clean: Annotated[
        bool, Meta(description="whether every connection begins anew: what is published meanwhile is not read")
    ] = False
    session_expiry_s: Annotated[
        int, Meta(ge=0, le=4_294_967_295, description="how long the upstream keeps our session; 4294967295: for ever")
    ] = 604_800
    tls: BridgeTls = BridgeTls()
    subscribe: Annotated[
        tuple[BridgeSubscription, ...], Meta(description="what is read: [[bridges.NAME.subscribe]]")
    ] = ()
    keep_alive_s: Annotated[int, Meta(ge=0, le=65_535, description="seconds between two pings; 0: none")] = 30
    connect_timeout_s: Annotated[float, Meta(gt=0, le=600, description="seconds to connect, and to be subscribed")] = (
        15.0
    )
    reconnect_min_s: Annotated[float, Meta(gt=0, le=3_600, description="until the first new attempt, about")] = 1.0
    reconnect_max_s: Annotated[float, Meta(gt=0, le=86_400, description="between two attempts, when many failed")] = (
        60.0
    )
    receive_maximum: Annotated[
        int, Meta(ge=1, le=65_535, description="messages not acknowledged, as they are not durable yet")
    ] = 2_048
    pending_bytes_max: Annotated[
        int, Meta(ge=64 * KiB, description="bytes of messages not durable yet; beyond, nothing is read")
    ] = 16 * MiB

    @property
    def is_amqp(self) -> bool:
        """Returns whether the upstream speaks AMQP 0-9-1."""
        return urlsplit(self.url).scheme in _AMQP

    def subscriptions(self) -> tuple[BridgedFilter, ...]:
        """Returns the subscriptions, with the addresses that their messages go to."""
        return tuple([BridgedFilter(one.filter, one.qos, one.to, one.device) for one in self.subscribe])


def bridge_mistakes(bridges: Mapping[str, BridgeConfig]) -> Iterator[tuple[str, str]]:
    """Yields the mistakes that no single key shows: the key, and a remedy."""
    if len(bridges) > BRIDGES_COUNT_MAX:
        yield "bridges", f"are {len(bridges)}; write at most {BRIDGES_COUNT_MAX}"
    identities: dict[tuple[str | None, int | None, str], str] = {}
    for name, bridge in bridges.items():
        path = f"bridges.{name}"
        if not _NAME.fullmatch(name):
            yield path, "is no name; write up to 64 letters, digits, _ and -"
        url = yield from _url_mistakes(path, bridge)
        if url is not None:
            if bridge.is_amqp:
                yield from _amqp_mistakes(path, bridge)
            else:
                identity = (url.hostname, url.port, bridge.client_id or f"headgate-{name}")
                other = identities.setdefault(identity, path)
                if other != path:
                    yield f"{path}.client_id", f"is that of {other}, at the same upstream; write another one"
                yield from _amqp_alone(path, bridge)
                yield from _subscription_mistakes(path, name, bridge)
        if bridge.reconnect_max_s < bridge.reconnect_min_s:
            yield f"{path}.reconnect_max_s", f"is less than reconnect_min_s; write {bridge.reconnect_min_s} or more"
        if bridge.password is not None and bridge.username is None:
            yield f"{path}.username", "is missing; a password goes with a user name"


def _url_mistakes(path: str, bridge: BridgeConfig) -> Generator[tuple[str, str], None, SplitResult | None]:
    """Yields mistakes; returns the URL when it is one."""
    key = f"{path}.url"
    try:
        url: SplitResult = urlsplit(bridge.url)
        host, port = url.hostname, url.port
    except ValueError as error:
        yield key, f"is no URL: {error}; write mqtt://host:port"
        return None
    if url.scheme not in _SCHEMES or not host or port == 0:
        yield key, "is not the URL of a broker; write mqtt://host:port, or mqtts, ws, wss, amqp or amqps"
        return None
    if url.username is not None or url.password is not None:
        yield key, "holds a user name; write username and password_file"
    if url.scheme.startswith("mqtt") and (url.path.strip("/") or url.query or url.fragment):
        yield key, "has a path; only ws and wss have one"
    if url.scheme in _AMQP and ("/" in url.path.removeprefix("/") or url.query or url.fragment):
        yield key, "has more than a virtual host; write amqp://host:port/vhost, with %2F for a slash in its name"
    tls = bridge.tls
    given = {name: file for name in ("ca_file", "cert_file", "key_file") if (file := getattr(tls, name)) is not None}
    if given and url.scheme not in _SECURE:
        yield f"{path}.tls", "is for mqtts, wss and amqps; write such a url"
    if (tls.cert_file is None) != (tls.key_file is None):
        missing = "key_file" if tls.key_file is None else "cert_file"
        yield f"{path}.tls.{missing}", "is missing; cert_file and key_file are written together or not at all"
    for name, file in given.items():
        if not os.access(file, os.R_OK):
            yield f"{path}.tls.{name}", f"{file} cannot be read; write the path of a PEM file"
    return url


def _subscription_mistakes(path: str, name: str, bridge: BridgeConfig) -> Iterator[tuple[str, str]]:
    if not 0 < len(bridge.subscribe) <= SUBSCRIPTIONS_COUNT_MAX:
        what = f"are {len(bridge.subscribe)}; write one to {SUBSCRIPTIONS_COUNT_MAX} [[{path}.subscribe]]"
        yield f"{path}.subscribe", what
    for i, one in enumerate(bridge.subscriptions()):
        for key, mistake in DestinationMap.mistakes(name, one):
            yield f"{path}.subscribe[{i}].{key}", mistake
    filters = [one.filter for one in bridge.subscribe]
    for twice in dict.fromkeys(one for one in filters if filters.count(one) > 1):
        yield f"{path}.subscribe", f"{twice!r} is there {filters.count(twice)} times; write it once"


def _amqp_mistakes(path: str, bridge: BridgeConfig) -> Iterator[tuple[str, str]]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(BridgeConfig)}
    for key in _MQTT_ALONE:
        if getattr(bridge, key) != defaults[key]:
            yield f"{path}.{key}", "is for bridges over MQTT; leave it out"
    yield from topology_mistakes(path, bridge)


def _amqp_alone(path: str, bridge: BridgeConfig) -> Iterator[tuple[str, str]]:
    for key in ("exchanges", "consume", "forward"):
        if getattr(bridge, key):
            yield f"{path}.{key}", "is for bridges over AMQP; write an amqp:// url"
