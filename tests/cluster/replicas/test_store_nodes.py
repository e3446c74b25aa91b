"""A store group of real processes: the master is killed, stopped and frozen under load."""

import asyncio
import os
import signal

import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, controller_of, on_free_ports, started
from tests.support.cluster.replica_group import PATIENCE_S, ReplicaGroup
from tests.support.process.waiting import until
from tests.support.store.node_kit import Load
from tests.support.store.replica_kit import log_bytes
from tests.support.store.store_kit import bodies

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path):
    with started(on_free_ports(ClusterPlan(tmp_path, controllers=1, groups=1, proxies=0)), all_groups) as cluster:
        yield cluster


@pytest.fixture
async def group(cluster):
    async with controller_of(cluster.plan) as controller:
        found = ReplicaGroup(cluster, controller)
        await found.begin()
        yield found


async def test_a_master_is_killed_stopped_and_frozen_under_load_and_nothing_is_lost(group, tmp_path):
    cluster, store = group.cluster, group.store
    load = Load(store, pause_s=0.005)
    await load.until(100)
    for how in ("killed", "stopped", "frozen"):
        name, epoch = group.master, group.group.master_epoch
        assert (await asyncio.to_thread(group.status, name))["role"] == "master"
        if how == "frozen":
            os.kill(cluster.pid(name), signal.SIGSTOP)
        else:
            await asyncio.to_thread(lambda name=name, how=how: cluster.stop(name, kill=how == "killed"))
        await until(lambda epoch=epoch: group.group.master_epoch > epoch, PATIENCE_S)
        await load.until(100)
        if how == "frozen":
            os.kill(cluster.pid(name), signal.SIGCONT)
        else:
            cluster.start(name)
        await group.whole()
    acknowledged = await load.stop()
    assert not load.errors
    assert await bodies(store, 16) == [load.body(one) for one in acknowledged]
    await store.close()
    end = (await asyncio.to_thread(group.status, group.master))["log_end"]
    for name in group.names:
        await until(lambda name=name: group.status(name)["confirmed"] == end, PATIENCE_S)
    await asyncio.to_thread(cluster.stop_all)
    assert len({log_bytes(tmp_path / "data" / name) for name in group.names}) == 1
