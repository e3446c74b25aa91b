"""A store node with the configuration of another cluster says so and ends; its data stay as they are."""

import shutil
import subprocess
import sys

import pytest
from test_proxies import free

from gateway.local_cluster import LocalCluster, Plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

STORE, CONTROLLER = "store-0-1", "controller-1"


def cluster(directory, offsets):
    directory.mkdir()
    plans = (Plan(directory, 1, 1, 1, 1, 0, offset) for offset in offsets)
    found = LocalCluster(next(plan for plan in plans if free(plan)))
    found.write()
    found.start(CONTROLLER)
    list(found.until_ready([CONTROLLER]))
    add = ("-m", "gateway.cli", "cluster", "groups", "add", "0", "--replicas", "1", "--min-in-sync", "1")
    subprocess.run([sys.executable, *add, "--controllers", found.plan.addresses[1]], check=True, capture_output=True)
    return found


def held(directory):
    """What is in a directory, but for who has it open."""
    files = (one for one in directory.rglob("*") if one.is_file() and "lock" not in one.name.lower())
    return {str(one.relative_to(directory)): one.read_bytes() for one in files}


def test_a_store_of_another_cluster_is_refused_by_both_names(tmp_path):
    ours = cluster(tmp_path / "ours", range(22_000, 36_000, 777))
    try:
        ours.start(STORE)
        list(ours.until_ready([STORE]))
    finally:
        ours.stop_all()
    data = tmp_path / "ours" / "data"
    theirs = cluster(tmp_path / "theirs", range(37_000, 50_000, 777))
    try:
        moved = tmp_path / "theirs" / "data" / STORE
        shutil.copytree(data / STORE, moved)
        before = held(moved)
        theirs.start(STORE)
        assert theirs._processes[STORE].wait(60) == 1
        said = theirs.last_words(STORE)
        (name,) = (one.read_text().strip() for one in data.glob("*/raft/cluster"))
        assert f"is of cluster {name}, and the controllers are of cluster " in said
        assert held(moved) == before
    finally:
        theirs.stop_all()
    try:
        for one in (CONTROLLER, STORE):
            ours.start(one)
        list(ours.until_ready([CONTROLLER, STORE]))
    finally:
        ours.stop_all()
