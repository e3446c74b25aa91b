"""The masters of a running cluster."""

from tests.support.cluster.faults import masters, status


def only_master(cluster):
    """Returns the first group's master, and its epoch."""
    name = next(name for name in masters(cluster) if name.startswith("store-0-"))
    return name, status(cluster, name)["master_epoch"]
