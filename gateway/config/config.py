"""The gateway's configuration: one frozen, typed value, validated once at the start.

Four sources, each laid over the one before: the defaults below, a TOML file, environment variables
(`HEADGATE__STORE__DATA_DIR=/data`), and the options of the command line. Unknown keys are refused with the nearest
right name; a secret is never written in the file but named by a key of the same name ending in `_file`. Ports in the
result are final: the port offset has been added. `headgate.example.toml` shows every key.
"""

import importlib.metadata
import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gateway.base.config_reader import DEFAULT_ELSEWHERE, Mistakes, environment_table, merge, read_struct, unknown_key
from gateway.bridges.shared.settings import BridgeConfig, bridge_mistakes
from gateway.config.cluster_settings import ClusterConfig, ControllerConfig, NodeAddress, ProxyConfig, cluster_mistakes
from gateway.domain.access_settings import AccessConfig, access_mistakes
from gateway.domain.errors import Refusal
from gateway.domain.filters import check_filter
from gateway.domain.forwarding_settings import ForwardingConfig, forwarding_mistakes
from gateway.groups.settings import GroupsConfig
from gateway.kv.settings import KvConfig
from gateway.port.adapter import AdapterFactory, Listener
from gateway.publishing.routing.topic_settings import TopicSettings
from gateway.push.settings import SubscriptionsConfig, subscription_mistakes
from gateway.queues.leaving.policies import QueuesConfig, policy_mistakes
from gateway.queues.shared.settings import SharedConfig
from gateway.security.auth_mistakes import auth_mistakes
from gateway.security.auth_settings import AuthConfig, TlsConfig
from gateway.security.limits_settings import LimitsConfig
from store.api.decoding import DecodeRule
from store.api.devices import DeviceRule
from store.base.process_errors import ConfigError

DEFAULT_FILE = Path("headgate.toml")  # read when it is in the working directory and no other file is named
ADAPTER_GROUP = "headgate.adapters"
_FACTORY_ATTRIBUTES = ("listeners", "options", "connect")
KiB, MiB, CONFIG_BYTES_MAX = 1024, 1024 * 1024, 1024 * 1024

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65_535, description="0 takes any free port")]
Host: TypeAlias = Annotated[str, Meta(min_length=1, description="an address of this machine; 0.0.0.0 is all of them")]


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the file."""


class StoreConfig(_Section, frozen=True, kw_only=True):
    """`[store]`: the log and the views made from it."""

    data_dir: Annotated[Path, Meta(description="the directory that holds everything; made when missing")] = Path(
        "headgate-data"
    )
    segment_size_bytes: Annotated[
        int, Meta(ge=64 * KiB, description="a log file is closed when it has grown to this")
    ] = 256 * MiB
    pending_bytes_max: Annotated[int, Meta(ge=MiB, description="bytes that may wait to be written before refusals")] = (
        256 * MiB
    )
    flush_interval_ms: Annotated[
        int, Meta(ge=1, le=60_000, description='how long messages of topics with flush = "async" may be on no disk yet')
    ] = 20
    compress_bytes_min: Annotated[
        int, Meta(ge=0, description="messages that arrive together are compressed from this size on; 0: never")
    ] = 0
    disk_reserve_bytes: Annotated[
        int, Meta(ge=0, description="with less free on the disk, writing is refused until there is more")
    ] = 256 * MiB
    retention_ms: Annotated[
        int, Meta(ge=-1, description="how long messages are kept where their topic does not say; -1: for ever")
    ] = -1
    retention_bytes: Annotated[
        int, Meta(ge=-1, description="bytes kept of each queue where its topic does not say; -1: no limit")
    ] = -1
    retention_interval_s: Annotated[
        float, Meta(gt=0, description="seconds between looks for log files that can be deleted")
    ] = 30.0
    scrub_bytes_per_s: Annotated[
        int, Meta(ge=0, description="read of closed log files, to find flipped bits before readers do; 0: nothing")
    ] = 8 * MiB
    timers_max: Annotated[
        int, Meta(ge=0, description="messages that may wait to be delivered later; more are refused")
    ] = 10_000_000
    timers_bytes_max: Annotated[int, Meta(ge=0, description="their bytes, which the views hold on disk")] = (
        8 * 1024 * MiB
    )
    timer_horizon_days: Annotated[
        int, Meta(ge=1, le=36_500, description="how far ahead a message may be due; further is refused")
    ] = 400
    group: Annotated[int, Meta(ge=0, lt=1 << 15, description="the store group, in a cluster")] = 0
    priority: Annotated[int, Meta(description="in a cluster: of equals the one with more becomes master")] = 0
    learner: Annotated[bool, Meta(description="in a cluster: follows from afar and never becomes master")] = False


class GatewayConfig(_Section, frozen=True, kw_only=True):
    """`[gateway]`: limits on connections and messages."""

    max_message_bytes: Annotated[
        int, Meta(ge=1, le=128 * MiB, description="the largest body of any protocol; above 48 MiB of AMQP alone")
    ] = 16 * MiB
    pending_bytes_max: Annotated[
        int, Meta(ge=MiB, description="bytes received and not yet durable, over all connections")
    ] = 64 * MiB
    write_buffer_bytes_max: Annotated[
        int, Meta(ge=64 * KiB, description="bytes waiting for one slow peer; more is held back in the log")
    ] = MiB
    unread_bytes_max: Annotated[
        int,
        Meta(ge=MiB, description="responses that HTTP clients do not read; beyond, the largest holder is cut off"),
    ] = 256 * MiB
    connections_max: Annotated[int, Meta(ge=1, description="open connections, over all listeners")] = 50_000
    memory_high_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="memory of one process, above which publishers over AMQP are asked to wait; 0: six tenths of "
            "the machine's",
        ),
    ] = 0
    shutdown_grace_s: Annotated[
        float, Meta(ge=0, le=3600, description="seconds for connections to end when the gateway stops")
    ] = 10.0


class ListenerConfig(_Section, frozen=True, kw_only=True):
    """`[listeners.NAME]`: one port, and its twin under TLS when `[tls]` names a certificate."""

    enabled: Annotated[bool, Meta(description="whether it listens at all")] = True
    host: Host = "127.0.0.1"
    port: Annotated[Port, Meta(extra={DEFAULT_ELSEWHERE: True})] = 0  # its adapter knows it
    plain: Annotated[bool, Meta(description="whether the port without TLS is open")] = True
    tls_port: Port | None = None  # None: this listener has no TLS twin, or there is no certificate
    # Declared by the adapter; not configurable.
    name: str = ""
    adapter: str = ""  # the entry point's name: the key of `Config.adapters`
    transport: str = "tcp"  # "tcp" or "udp"
    alpn: tuple[str, ...] = ()
    summary: str = ""
    dtls: bool = False


DECLARED = frozenset(
    {"name", "adapter", "transport", "alpn", "summary", "dtls"}
)  # fields of a listener that are not configured


class TopicsConfig(_Section, frozen=True, kw_only=True):
    """`[topics]`: how topics come to be."""

    auto_create: Annotated[bool, Meta(description="whether publishing makes a topic that is not there")] = True
    default_queues: Annotated[int, Meta(ge=1, le=1024, description="queues of a topic made by publishing")] = 8
    topics_max: Annotated[int, Meta(ge=1, le=1_000_000, description="topics, over which creation is refused")] = 10_000
    topics_per_user_max: Annotated[
        int,
        Meta(
            ge=0,
            description="of them, those that one user makes by publishing; all without a name and guests together; "
            "0: no limit",
        ),
    ] = 1_000
    index: Annotated[
        tuple[Literal["key", "address"], ...],
        Meta(description="indexes of messages, where a topic's own configuration does not say"),
    ] = ()
    configure: Annotated[
        tuple[TopicSettings, ...], Meta(description="topics with settings of their own: [[topics.configure]]")
    ] = ()


class TopicRoute(_Section, frozen=True, kw_only=True):
    """`[[routes]]`: addresses that match `pattern` belong to `topic`. The first that matches counts."""

    pattern: Annotated[str, Meta(min_length=1, description='an address filter, such as "plant/+/telemetry/#"')]
    topic: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9$_.-]{1,127}$", description="letters, digits and $ _ . - (up to 127)")
    ]


class AdminConfig(_Section, frozen=True, kw_only=True):
    """`[admin]`: health, readiness and metrics over HTTP."""

    host: Host = "127.0.0.1"
    port: Port = 8088
    allowed_hosts: Annotated[
        tuple[str, ...], Meta(description="names by which browsers may call it, besides addresses and localhost")
    ] = ()


class RpcConfig(_Section, frozen=True, kw_only=True):
    """`[rpc]`: the store's gRPC service, which Spark reads."""

    enabled: Annotated[bool, Meta(description="whether it listens at all")] = True
    host: Host = "127.0.0.1"
    port: Port = 8081
    advertise: Annotated[str, Meta(description="host:port by which other nodes reach it, if not host and port")] = ""


class LogConfig(_Section, frozen=True, kw_only=True):
    """`[log]`: the lines on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="the least that is written")] = (
        "info"
    )
    format: Annotated[
        Literal["auto", "json", "console"], Meta(description='"auto": console on a terminal, else a JSON object a line')
    ] = "auto"


class Config(_Section, frozen=True, kw_only=True):
    """The whole configuration. `listeners` are those of every adapter, enabled or not; `adapters` their options."""

    port_offset: Annotated[int, Meta(ge=0, le=60_000, description="added to every port that is not 0")] = 0
    cluster: ClusterConfig = ClusterConfig()
    controller: ControllerConfig = ControllerConfig()
    proxy: ProxyConfig = ProxyConfig()
    store: StoreConfig = StoreConfig()
    gateway: GatewayConfig = GatewayConfig()
    limits: LimitsConfig = LimitsConfig()
    forwarding: ForwardingConfig = ForwardingConfig()
    listeners: Mapping[str, ListenerConfig] = msgspec.field(default_factory=dict)
    adapters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    tls: TlsConfig = TlsConfig()
    auth: AuthConfig = AuthConfig()
    topics: TopicsConfig = TopicsConfig()
    routes: tuple[TopicRoute, ...] = ()
    devices: tuple[DeviceRule, ...] = ()
    decode: tuple[DecodeRule, ...] = ()
    kv: KvConfig = KvConfig()
    groups: GroupsConfig = GroupsConfig()
    shared_subscriptions: SharedConfig = SharedConfig()
    queues: QueuesConfig = QueuesConfig()
    subscriptions: SubscriptionsConfig = SubscriptionsConfig()
    access: AccessConfig = AccessConfig()
    bridges: Mapping[str, BridgeConfig] = msgspec.field(default_factory=dict)
    admin: AdminConfig = AdminConfig()
    rpc: RpcConfig = RpcConfig()
    log: LogConfig = LogConfig()


def adapter_factories() -> dict[str, AdapterFactory]:
    """Returns every installed adapter by its entry point's name.

    Raises `ConfigError` for one that cannot be loaded, and for two of one name.
    """
    found: dict[str, AdapterFactory] = {}
    values: dict[str, str] = {}
    for entry in sorted(importlib.metadata.entry_points(group=ADAPTER_GROUP), key=lambda entry: entry.name):
        where = f"the adapter {entry.name!r} ({entry.value})"
        if entry.name in found:
            raise ConfigError(f"{where} has the name of another one ({values[entry.name]}); remove one package")
        try:
            factory = entry.load()
        except Exception as error:  # the error names the package, whatever it raises
            why = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"{where} cannot be loaded: {why}; install or remove its package") from error
        needed = [*_FACTORY_ATTRIBUTES]
        if any(listener.transport == "udp" and not listener.dtls for listener in getattr(factory, "listeners", ())):
            needed.append("bind")
        if missing := [name for name in needed if not hasattr(factory, name)]:
            raise ConfigError(
                f"{where} has no {', '.join(missing)} (gateway.port.adapter.AdapterFactory); mend or remove its package"
            )
        found[entry.name], values[entry.name] = factory, entry.value
    return found


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    factories: Mapping[str, AdapterFactory] | None = None,
) -> Config:
    """Returns the configuration. Raises `ConfigError`, whose text has one line for each mistake.

    `path` is the TOML file; None takes `headgate.toml` of the working directory when it is there. `environ` is
    `os.environ` unless given. `overrides` is a tree of tables, laid over all else. `factories` are the adapters, by
    default the installed ones.
    """
    factories = adapter_factories() if factories is None else factories
    mistakes = Mistakes()
    tree = _read_file(path)
    merge(tree, environment_table(os.environ if environ is None else environ))
    merge(tree, overrides or {})
    listeners, adapters = tree.pop("listeners", {}), tree.pop("adapters", {})
    base = read_struct(Config, tree, "", mistakes)
    offset = base.port_offset if base is not None else 0
    placed = _read_listeners(listeners, factories, offset, mistakes)
    options = _read_options(adapters, factories, mistakes)
    if base is not None and not mistakes.lines:
        base = _finish(base, placed, options, mistakes)
    if mistakes.lines or base is None:
        raise ConfigError("\n".join(mistakes.lines))
    return base


@lru_cache(1_024)
def is_loopback(host: str) -> bool:
    """Returns whether an address reaches this machine only; a name other than localhost counts as outside."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_file(path: Path | None) -> dict[str, Any]:
    file = path or DEFAULT_FILE
    if path is None and not file.exists():
        return {}
    try:
        if file.stat().st_size > CONFIG_BYTES_MAX:
            raise ConfigError(f"{file}: is larger than {CONFIG_BYTES_MAX} bytes; name a TOML file")
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); name a TOML file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from error


def _read_listeners(
    tables: Any, factories: Mapping[str, AdapterFactory], offset: int, mistakes: Mistakes
) -> dict[str, ListenerConfig]:
    """Returns every declared listener with its configuration applied, ports final."""
    declared: dict[str, tuple[str, Listener]] = {}
    for adapter, factory in factories.items():
        for listener in factory.listeners:
            other, first = declared.setdefault(listener.name, (adapter, listener))
            if first is not listener:
                what = f"the adapters {other!r} and {adapter!r} have a listener of this name; remove one package"
                mistakes.add(f"listeners.{listener.name}", what)
    tables = _named_tables(tables, "listeners", declared, mistakes)
    result: dict[str, ListenerConfig] = {}
    for name, (adapter, listener) in declared.items():
        path = f"listeners.{name}"
        table = tables.get(name, {})
        for key in DECLARED & table.keys():
            mistakes.add(f"{path}.{key}", "follows from the adapter; remove it")
        given = read_struct(ListenerConfig, table, path, mistakes)
        if given is not None:
            result[name] = _place(given, adapter, listener, table.keys(), offset)
    return result


def _place(given: ListenerConfig, adapter: str, listener: Listener, keys: Any, offset: int) -> ListenerConfig:
    """Returns a listener's configuration with its adapter's defaults filled in."""
    port = given.port if "port" in keys else listener.port
    tls_port = given.tls_port if "tls_port" in keys else listener.tls_port
    return msgspec.structs.replace(
        given,
        enabled=given.enabled if "enabled" in keys else listener.enabled,
        port=_moved(port, offset),
        tls_port=None if tls_port is None else _moved(tls_port, offset),
        name=listener.name,
        adapter=adapter,
        transport=listener.transport,
        alpn=tuple(listener.alpn),
        summary=listener.summary,
        dtls=listener.dtls,
    )


def _moved(port: int, offset: int) -> int:
    return port + offset if port else 0


def _read_options(tables: Any, factories: Mapping[str, AdapterFactory], mistakes: Mistakes) -> dict[str, Any]:
    tables = _named_tables(tables, "adapters", factories, mistakes)
    return {
        name: read_struct(factory.options, tables.get(name, {}), f"adapters.{name}", mistakes)
        for name, factory in factories.items()
    }


def _named_tables(tables: Any, path: str, known: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    """Returns the tables below `path` by known names; an environment variable writes `_` for a name's `-`."""
    if not isinstance(tables, Mapping):
        mistakes.add(path, f"is a table of tables; write [{path}.NAME], not {tables!r}")
        return {}
    found: dict[str, Any] = {}
    spelled = {name.replace("-", "_").lower(): name for name in known}
    for key, table in tables.items():
        name = key if key in known else spelled.get(key)
        if name is None:
            mistakes.add(f"{path}.{key}", unknown_key(key, path, known, table))
        else:
            merge(found, {name: table})
    return found


def _finish(base: Config, listeners: dict[str, ListenerConfig], options: dict[str, Any], mistakes: Mistakes) -> Config:
    """Completes a configuration; checks pairs of keys, ports that collide, and filters."""
    tls = base.tls
    access = access_mistakes(base.access, {one.adapter for one in listeners.values()})
    others = [*bridge_mistakes(base.bridges), *forwarding_mistakes(base.forwarding), *policy_mistakes(base.queues)]
    more = [*cluster_mistakes(base.cluster), *subscription_mistakes(base.subscriptions)]
    for key, mistake in [*auth_mistakes(base.auth, tls), *access, *others, *more]:
        mistakes.add(key, mistake)
    for key, address in (("controller", base.controller.advertise), ("rpc", base.rpc.advertise)):
        try:
            NodeAddress.parse(address or "localhost:1")
        except ValueError as error:
            mistakes.add(f"{key}.advertise", f"{error}; write how other nodes reach this one")
    for name, count in Counter(topic.name for topic in base.topics.configure).items():
        if count > 1:
            mistakes.add("topics.configure", f"{name!r} is there {count} times; write it once")
    for i, route in enumerate(base.routes):
        try:
            check_filter(route.pattern)
        except Refusal as refusal:
            mistakes.add(f"routes[{i}].pattern", f"{refusal}; write an address filter")
    if not tls.enabled:
        listeners = {name: msgspec.structs.replace(one, tls_port=None) for name, one in listeners.items()}
    moved = msgspec.structs.replace(
        base,
        listeners=listeners,
        adapters=options,
        admin=msgspec.structs.replace(base.admin, port=_moved(base.admin.port, base.port_offset)),
        rpc=msgspec.structs.replace(base.rpc, port=_moved(base.rpc.port, base.port_offset)),
        controller=msgspec.structs.replace(base.controller, port=_moved(base.controller.port, base.port_offset)),
    )
    _check_ports(moved, mistakes)
    return moved


def _check_ports(config: Config, mistakes: Mistakes) -> None:
    """Notes ports over 65535, and ports that are used twice."""
    wanted: list[tuple[str, str, str, int]] = [("admin.port", "tcp", config.admin.host, config.admin.port)]
    if config.rpc.enabled:
        wanted.append(("rpc.port", "tcp", config.rpc.host, config.rpc.port))
    for name, listener in config.listeners.items():
        if not listener.enabled:
            continue
        if listener.plain:
            wanted.append((f"listeners.{name}.port", listener.transport, listener.host, listener.port))
        if listener.tls_port is not None:
            wanted.append((f"listeners.{name}.tls_port", listener.transport, listener.host, listener.tls_port))
    taken: dict[tuple[str, str, int], str] = {}
    for path, transport, host, port in wanted:
        if port > 65_535:
            mistakes.add(path, f"is {port} with port_offset {config.port_offset}; write a smaller port_offset")
        elif port and (other := taken.setdefault((transport, host, port), path)) != path:
            mistakes.add(path, f"{port} is {other} too; write another port")
