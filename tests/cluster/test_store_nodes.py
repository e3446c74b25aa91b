"""A store group of real processes: the master is killed, stopped and frozen under load."""

import asyncio
import json
import os
import signal
import socket
import urllib.request

import pytest
from controllers import until
from node_kit import Load
from replica_kit import log_bytes
from store_kit import bodies

from controller.client import GroupConfig
from controller.remote import RemoteController
from gateway.endpoint import now_ms
from gateway.local_cluster import LocalCluster, Plan, nodes
from store.remoting import RemoteStore

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATIENCE_S = 30.0


def free(plan):
    for node in nodes(plan):
        for port in (node.port, node.admin_port):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return False
    return True


class Group:
    """One group of three processes, and one controller."""

    def __init__(self, cluster, controller):
        self.cluster, self.controller = cluster, controller
        self.stores = [node for node in cluster.nodes if node.role == "store"]

    @property
    def group(self):
        return self.controller.group(0)

    def status(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.cluster.node(name).admin_port}/status", timeout=5) as page:
            return json.load(page)

    @property
    def master(self):
        replica = self.group.replica(self.group.master)
        return replica.node if replica is not None else None

    def client(self):
        def resolve():
            replica = self.group.replica(self.group.master) if self.group.master is not None else None
            return replica.address if replica is not None else None

        store = RemoteStore(0, resolve, budget_s=PATIENCE_S)
        self.controller.watch(store.moved)
        return store

    async def whole(self):
        await until(lambda: len(self.group.sync_set) == 3, PATIENCE_S)


@pytest.fixture
async def group(tmp_path):
    plan = next(
        plan
        for offset in range(13_000, 40_000, 700)
        if free(plan := Plan(tmp_path, controllers=1, groups=1, proxies=0, port_offset=offset))
    )
    cluster = LocalCluster(plan)
    controller = RemoteController(list(plan.addresses.values()), now_ms=now_ms)
    try:
        cluster.write()
        for node in cluster.nodes:
            cluster.start(node.name)
        await controller.ready()
        await controller.add_group(0, GroupConfig(replicas=3, min_in_sync=2))
        found = Group(cluster, controller)
        await found.whole()
        yield found
    finally:
        await controller.close()
        await asyncio.to_thread(cluster.stop_all)


async def test_a_master_is_killed_stopped_and_frozen_under_load_and_nothing_is_lost(group, tmp_path):
    cluster, store = group.cluster, group.client()
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
    for node in group.stores:
        await until(lambda name=node.name: group.status(name)["confirmed"] == end, PATIENCE_S)
    await asyncio.to_thread(cluster.stop_all)
    assert len({log_bytes(tmp_path / "data" / node.name) for node in group.stores}) == 1
