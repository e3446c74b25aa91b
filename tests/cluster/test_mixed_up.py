"""A store node with the configuration of another cluster says so and ends; its data stay as they are."""

import shutil

import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, on_free_ports, ports_of, started

pytestmark = pytest.mark.slow

STORE = "store-0-1"


def held(directory):
    """Returns the contents of a directory, without the file that names the process that has it open."""
    files = (one for one in directory.rglob("*") if one.is_file() and "lock" not in one.name.lower())
    return {str(one.relative_to(directory)): one.read_bytes() for one in files}


def test_a_store_of_another_cluster_is_refused_by_both_names(tmp_path):
    ours, theirs = (ClusterPlan(tmp_path / name, 1, 1, 1, 1, 0) for name in ("ours", "theirs"))
    ours = on_free_ports(ours)
    with started(ours, all_groups):
        pass
    data = ours.directory / "data"
    with started(on_free_ports(theirs, but=ports_of(ours)), all_groups, roles=["controller"]) as cluster:
        moved = theirs.directory / "data" / STORE
        shutil.copytree(data / STORE, moved)
        before = held(moved)
        cluster.start(STORE)
        assert cluster.children[STORE].process.wait(60) == 1
        said = cluster.children[STORE].last_words()
        (name,) = (one.read_text().strip() for one in data.glob("*/raft/cluster"))
        assert f"is of cluster {name}, and the controllers are of cluster " in said
        assert held(moved) == before
    with started(ours):
        pass
