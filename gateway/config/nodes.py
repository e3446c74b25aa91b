"""Nodes of a configuration: the credentials of a node, and the place of a controller among the others."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gateway.config.cluster_settings import ClusterConfig, NodeAddress
from gateway.config.config import Config, is_loopback
from store.base.process_errors import ConfigError
from store.rpc.credentials import CredentialFiles, MutualTls


class NodeCredentials(NamedTuple):
    """The credentials of a node, both None where nodes do not prove who they are."""

    server: MutualTls | None
    channel: MutualTls | None


def node_credentials(cluster: ClusterConfig, *, host: str, key: str, reached_at: str | None = None) -> NodeCredentials:
    """Returns the credentials of a node that listens on `host`, as the key `key` says.

    Raises `ConfigError` for files that cannot be used, for a certificate that other nodes would refuse at the name or
    address `reached_at`, and for an address beyond this machine without them.
    """
    tls = cluster.tls
    if tls.cert_file is None or tls.key_file is None or tls.ca_file is None:
        if not cluster.insecure and not is_loopback(host):
            raise ConfigError(
                f"{key}: {host} can be reached from other machines; write [cluster.tls], or cluster.insecure = true"
            )
        return NodeCredentials(None, None)
    files = CredentialFiles(tls.cert_file, tls.key_file, tls.ca_file)
    try:
        made = NodeCredentials(files.server(reached_at), files.channel(reached_at))
        refusal = files.refusal(reached_at)
    except OSError as error:
        raise ConfigError(f"cluster.tls: {error.filename} cannot be read: {error.strerror}") from error
    if refusal:
        raise ConfigError(
            f"cluster.tls.cert_file: other nodes refuse {tls.cert_file}: {refusal.rstrip('.')}; write a certificate of "
            "cluster.tls.ca_file that is valid now" + (f", for {reached_at}" if reached_at else "")
        )
    return made


class ControllerStart(NamedTuple):
    """The address of a starting controller, its members, and its directory."""

    address: str
    members: Mapping[int, str]
    directory: Path
    join: bool


def controller_start(config: Config, *, join: bool) -> ControllerStart:
    """Returns how the controller of a configuration starts. Raises `ConfigError`."""
    mine = config.controller
    members = {id_: str(at) for id_, at in config.cluster.addresses.items()}
    join = join or mine.join
    address = mine.advertise or members.get(mine.id) or str(NodeAddress(mine.host, mine.port))
    if join and not members.keys() - {mine.id}:
        raise ConfigError("cluster.controllers: is empty; write the addresses of the controllers to join")
    if not join and members and mine.id not in members:
        known = ", ".join(map(str, members))
        raise ConfigError(f"controller.id: {mine.id} is none of {known}; write one of them, or start with --join")
    if not mine.advertise and mine.id not in members and not mine.port:
        raise ConfigError(
            "controller.port: 0 gives a port that no other node knows; write a port, or controller.advertise"
        )
    directory = mine.data_dir or config.store.data_dir / "controller"
    return ControllerStart(address, members if join or members else {mine.id: address}, directory, join)
