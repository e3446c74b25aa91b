"""Checks a configuration for a role: each role refuses some settings beyond those that no role can read.

A role calls its check before it opens anything, so a mistake is a line and not a process that ends half way up.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from controller.api.client import HOME_GROUP
from gateway.config.cluster_settings import NodeAddress
from gateway.config.config import Config, ListenerConfig
from gateway.config.nodes import NodeCredentials, controller_start, node_credentials
from gateway.dtls.psk_file import read_keys
from gateway.oscore.contexts_file import read_contexts
from gateway.runtime.dtls import check_dtls
from gateway.security.auth import tokens_of
from gateway.security.tls import ServerTls
from store.base.process_errors import ConfigError

NO_CONTROLLERS = 'cluster.controllers: is empty; write where the controllers are, { 1 = "10.0.0.1:8082" }'


def check_serve(config: Config) -> None:
    """Raises `ConfigError` for a configuration that `headgate serve` refuses."""
    _check_clients(config)
    _check_directory("store.data_dir", config.store.data_dir)


def _check_clients(config: Config) -> None:
    """Raises `ConfigError` for settings of the ports for clients that cannot be used."""
    if config.rpc.enabled:
        node_credentials(config.cluster, host=config.rpc.host, key="rpc.host")
    if config.tls.enabled:
        ServerTls(config.tls).context(())
    tokens_of(config.auth)
    _check_file("auth.psk_file", config.auth.psk_file, read_keys, "write the path of a JSON file of pre-shared keys")
    _check_file("auth.oscore_file", config.auth.oscore_file, read_contexts, "make one by `headgate coap oscore add`")
    for one in config.listeners.values():
        if one.enabled and one.dtls:
            check_dtls(one.name, config.auth, config.tls)
    listeners = {f"listeners.{one.name}.host": one.host for one in config.listeners.values() if one.enabled}
    rpc = {"rpc.host": config.rpc.host} if config.rpc.enabled else {}
    _check_hosts({**listeners, **rpc, "admin.host": config.admin.host})


def _check_file(key: str, path: Path | None, read: Callable[[Path], object], remedy: str) -> None:
    """Raises `ConfigError` for a file that is named and cannot be read, or has a mistake in it."""
    if path is None:
        return
    try:
        read(path)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror}); {remedy}") from error


def check_workers(config: Config) -> None:
    """Raises `ConfigError` for a configuration that `headgate serve --workers` refuses."""
    check_serve(config)
    if config.store.group != HOME_GROUP:
        raise ConfigError(
            f"store.group: is {config.store.group}; a gateway with workers has store group {HOME_GROUP} alone; "
            f"write store.group = {HOME_GROUP}"
        )


def check_proxy(config: Config) -> None:
    """Raises `ConfigError` for a configuration that `headgate proxy` refuses."""
    if not config.cluster.controllers:
        raise ConfigError(NO_CONTROLLERS)
    node_credentials(config.cluster, host="localhost", key="cluster")
    _check_clients(config)
    if config.proxy.state_dir is not None:
        _check_directory("proxy.state_dir", config.proxy.state_dir)


def check_store(config: Config) -> NodeCredentials:
    """Returns a store's credentials. Raises `ConfigError` for what `headgate store` refuses."""
    if not config.cluster.controllers:
        raise ConfigError(NO_CONTROLLERS)
    rpc = config.rpc
    reached_at = _reached_at(rpc.host, rpc.advertise)
    made = node_credentials(config.cluster, host=rpc.host, key="rpc.host", reached_at=_certified(reached_at))
    _check_reachable("rpc", reached_at)
    _check_hosts({"rpc.host": config.rpc.host, "admin.host": config.admin.host})
    _check_directory("store.data_dir", config.store.data_dir)
    return made


def check_controller(config: Config, *, join: bool = False) -> NodeCredentials:
    """Returns a controller's credentials. Raises `ConfigError` for what `headgate controller` refuses."""
    start = controller_start(config, join=join)
    host = config.controller.host
    reached_at = _reached_at(host, start.address)
    made = node_credentials(config.cluster, host=host, key="controller.host", reached_at=_certified(reached_at))
    _check_reachable("controller", reached_at)
    _check_hosts({"controller.host": config.controller.host, "admin.host": config.admin.host})
    _check_directory("controller.data_dir" if config.controller.data_dir else "store.data_dir", start.directory)
    return made


def _reached_at(host: str, advertised: str) -> str:
    """Returns the name or address at which other nodes reach this one."""
    return NodeAddress.parse(advertised).host if advertised else host


def _certified(reached_at: str) -> str | None:
    """Returns what a certificate has to name; None for all addresses of a machine, which `_check_reachable` refuses."""
    return None if _is_unspecified(reached_at) else reached_at


def _check_reachable(section: str, reached_at: str) -> None:
    """Raises `ConfigError` where other nodes would be told to connect to all addresses of a machine: to themselves."""
    if _is_unspecified(reached_at):
        raise ConfigError(
            f"{section}.advertise: {reached_at} is no address by which other nodes reach this one; write host:port of "
            "this machine"
        )


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def _check_directory(setting: str, directory: Path) -> None:
    """Raises `ConfigError` for a data directory that is a file, or would be below one."""
    try:
        there = next((path for path in (directory, *directory.parents) if path.exists()), None)
    except OSError:  # the role fails with the reason when it opens the directory
        return
    if there is not None and not there.is_dir():
        raise ConfigError(f"{setting}: {there} is a file; write a directory, or a path where there is nothing yet")


def _check_hosts(hosts: Mapping[str, str]) -> None:
    """Raises `ConfigError` for hosts that name no address, a line for each; `hosts` has them by their settings."""
    settings: dict[str, list[str]] = {}
    for setting, host in hosts.items():
        settings.setdefault(host, []).append(setting)
    mistakes = []
    for host, named in settings.items():
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no name"
            mistakes.append(f"{', '.join(named)}: {host!r} has no address ({why}); write an address of this machine")
    if mistakes:
        raise ConfigError("\n".join(mistakes))


ROLES: Mapping[str, Callable[[Config], object]] = {
    "serve": check_serve,
    "controller": check_controller,
    "store": check_store,
    "proxy": check_proxy,
}


def roles_of(config: Config) -> Sequence[str]:
    """Returns the roles that a configuration is written for: of one that names controllers, all that a node can have.

    It is no controller's where it does not have the number of one of them and says nothing else of one either.
    """
    cluster = config.cluster
    if not cluster.controllers:
        return ["serve"]
    mine = config.controller
    controller = mine.id in cluster.addresses or mine.join or mine != type(mine)()
    return [*(["controller"] if controller else []), "store", "proxy"]


def refusals(config: Config, roles: Sequence[str], *, workers: bool = False) -> Sequence[str]:
    """Returns the reasons why these roles refuse a configuration, a line each; none twice.

    `workers`: the role `serve` is to have some.
    """
    found: dict[str, None] = {}
    for role in roles:
        try:
            (check_workers if workers and role == "serve" else ROLES[role])(config)
        except ConfigError as error:
            found.update(dict.fromkeys(f"{role}: {line}" for line in str(error).splitlines()))
    return list(found)


def opened_by(config: Config, roles: Sequence[str]) -> Sequence[str]:
    """Returns lines that say which directories and ports nodes of these roles open."""
    proxies = not {"serve", "proxy"}.isdisjoint(roles)
    listeners = [one for one in config.listeners.values() if one.enabled and proxies]
    stores, ports = not {"serve", "store"}.isdisjoint(roles), []
    directories = [str(config.store.data_dir)] if stores else []
    if "controller" in roles:
        directories.append(str(controller_start(config, join=False).directory))
        ports.append(f"  controller: {config.controller.host} tcp {config.controller.port}")
    if "store" in roles or (config.rpc.enabled and proxies):
        ports.append(f"  rpc: {config.rpc.host} tcp {config.rpc.port}")
    ports.append(f"  admin: {config.admin.host} tcp {config.admin.port}")
    data = f"data in {' and '.join(directories)}" if directories else "no data directory"
    said = f"{len(listeners)} listeners, {data}" if listeners else data
    return [f"ok for {', '.join(roles)}: {said}", *ports, *map(_listener_line, listeners)]


def _listener_line(one: ListenerConfig) -> str:
    plain = [str(one.port)] if one.plain else []
    secure = [f"{one.tls_port} (TLS)"] if one.tls_port is not None else []
    return f"  {one.name}: {one.host} {one.transport} {', '.join([*plain, *secure]) or 'no port'}"
