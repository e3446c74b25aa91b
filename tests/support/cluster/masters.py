"""The masters of a running cluster, and what its processes say of themselves."""

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

from gateway.process.local_cluster import LocalCluster


def only_master(cluster: LocalCluster) -> tuple[str, int]:
    """Returns the first group's master, and its epoch."""
    name = next(name for name in masters(cluster) if name.startswith("store-0-"))
    return name, status(cluster, name)["master_epoch"]


def masters(cluster: LocalCluster) -> Sequence[str]:
    """Returns the stores that say that they are a group's master; where none does, all of them."""
    names = [node.name for node in cluster.nodes if node.role == "store"]
    return [name for name in names if status(cluster, name).get("role") == "master"] or names


def status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """Returns a process's own status; empty when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{cluster.admin(name)}/status", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return {}
