"""The configuration of a store node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from store.replication.pace import ReplicationPace


class Credentials(NamedTuple):
    """`store.rpc.credentials` of a server and of channels; None: without TLS."""

    server: Any = None
    channel: Any = None


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A node's configuration. `listen` and `advertise` are "host:port"; an empty `advertise` is where it listens."""

    data_dir: Path
    group: int = 0
    name: str = "local"
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    zone: str = ""
    priority: int = 0
    learner: bool = False
    version: str = ""
    options: Mapping[str, Any] = {}  # of `LocalStore.open`, for both roles
    pace: ReplicationPace = ReplicationPace()
