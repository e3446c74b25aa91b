"""A bridge that several proxies may run, and the one that does."""

import json
import urllib.request


def bridge(cluster, name):
    with urllib.request.urlopen(f"http://{cluster.admin(name)}/status", timeout=60) as answer:
        (found,) = json.loads(answer.read())["bridges"]
    return found


def runs(cluster, *names):
    """Returns the proxy that the bridge is connected at."""
    found = [name for name in names if bridge(cluster, name)["connected"]]
    assert len(found) <= 1
    return found[0] if found else None
