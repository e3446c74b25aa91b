"""The settings of a node that is one of several: `[cluster]`, `[controller]`, `[proxy]`.

Without `[cluster] controllers` everything is in one process, and the other keys have no effect.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from socket import gethostname
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(?P<port>[0-9]{1,5})")


class NodeAddress(NamedTuple):
    """The address at which a node serves. An IPv6 host is in brackets when it is written."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "NodeAddress":
        """Returns the address written as "host:port". Raises ValueError."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 < int(found["port"]) < 1 << 16:
            raise ValueError(f"{text!r} is not host:port")
        try:
            found["host"].encode("idna")  # as connecting does: labels of 1 to 63 characters (RFC 1035, 2.3.4)
        except UnicodeError as error:
            raise ValueError(f"{text!r} is not host:port: {error}") from error
        return cls(found["host"].strip("[]"), int(found["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NodesTls(msgspec.Struct, frozen=True, kw_only=True):
    """`[cluster.tls]`: mutual TLS between nodes. All three files or none."""

    cert_file: Annotated[Path | None, Meta(description="PEM: this node's certificate, of the cluster's own CA")] = None
    key_file: Annotated[Path | None, Meta(description="PEM: its private key")] = None
    ca_file: Annotated[Path | None, Meta(description="PEM: the CA's certificates; nodes without one are refused")] = (
        None
    )

    @property
    def enabled(self) -> bool:
        """Returns whether nodes prove their identity."""
        return self.cert_file is not None


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[cluster]`: which nodes belong together. The same on all of them but for `node` and `zone`."""

    controllers: Annotated[
        Mapping[str, str], Meta(description='the first controllers by id: { 1 = "10.0.0.1:8082" }; empty: one process')
    ] = msgspec.field(default_factory=dict)
    node: Annotated[str, Meta(max_length=255, description="this node's name, one of its own; the host's if empty")] = ""
    zone: Annotated[str, Meta(max_length=255, description="where it is: nodes of one zone are near each other")] = ""
    insecure: Annotated[
        bool, Meta(description="whether nodes may speak without TLS beyond this machine; for closed networks only")
    ] = False
    tls: NodesTls = NodesTls()

    @property
    def node_name(self) -> str:
        """The name of this node."""
        return self.node or gethostname()

    @property
    def addresses(self) -> dict[int, NodeAddress]:
        """The controllers by id. Raises ValueError."""
        return {int(id_): NodeAddress.parse(text) for id_, text in self.controllers.items()}


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[controller]`: a node of `headgate controller`."""

    id: Annotated[int, Meta(ge=1, le=1 << 62, description="its number among cluster.controllers")] = 1
    host: Annotated[str, Meta(min_length=1, description="an address of this machine; 0.0.0.0 is all of them")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65_535, description="gRPC, for nodes; 0 takes any free port")] = 8082
    advertise: Annotated[str, Meta(description="host:port by which other nodes reach it, if not host and port")] = ""
    data_dir: Annotated[Path | None, Meta(description="its log and state; `controller` in the store's if not set")] = (
        None
    )
    join: Annotated[bool, Meta(description="begin as a new member of a cluster that is running")] = False
    tick_ms: Annotated[
        int,
        Meta(
            ge=5,
            le=10_000,
            description="half the time between two heartbeats; ten without one, and there is an election",
        ),
    ] = 50


class ProxyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[proxy]`: a node of `headgate proxy`."""

    read_from: Annotated[
        Literal["master", "nearest"],
        Meta(description="who is read from: the master, or a replica in sync in this zone"),
    ] = "master"
    failover_s: Annotated[
        float, Meta(gt=0, le=600, description="how long a write waits for a new master before it is given up")
    ] = 10.0
    ttl_s: Annotated[
        float, Meta(ge=1, le=600, description="unheard for so long, a proxy's sessions and wills are others' to take")
    ] = 6.0
    outage_s: Annotated[
        float,
        Meta(
            ge=0, le=86_400, description="while the home group is not served they stay for so long; same on all proxies"
        ),
    ] = 60.0
    state_dir: Annotated[
        Path | None,
        Meta(description="where it keeps the controllers' last addresses; made when missing"),
    ] = None


def cluster_mistakes(cluster: ClusterConfig) -> Iterator[tuple[str, str]]:
    """Yields the mistakes that no single key shows, as (key, remedy)."""
    for id_, text in cluster.controllers.items():
        if not id_.isdecimal() or not 1 <= int(id_) <= 1 << 62:
            yield f"cluster.controllers.{id_}", "is no id; write a number from 1 on"
        try:
            NodeAddress.parse(text)
        except ValueError as error:
            yield f"cluster.controllers.{id_}", f"{error}; write the address of a controller"
    tls = cluster.tls
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file, "ca_file": tls.ca_file}
    if any(files.values()):
        for key, file in files.items():
            if file is None:
                yield f"cluster.tls.{key}", "is missing; the three files are written together or not at all"
            elif not file.is_file():
                yield f"cluster.tls.{key}", f"{file} cannot be read; write the path of a PEM file"
