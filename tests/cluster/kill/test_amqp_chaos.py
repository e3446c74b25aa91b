"""AMQP under kill -9 of gateway, proxies and masters, while clients publish, acknowledge, reject and commit.

What is confirmed is not lost, dead letters and what a transaction moves are there once, and first deliveries keep the
order of publishing. What was acknowledged may come back only where a kill followed before it was stored (docs/amqp.md).
HEADGATE_CHAOS_KILLS says how many kills there are (`make chaos`: 30), HEADGATE_CHAOS_SEED which.
"""

import os

import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.amqp.amqp_chaos import AmqpChaos
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started, until_ready
from tests.support.cluster.masters import only_master
from tests.support.process.ports import PORTS

KILLS = int(os.environ.get("HEADGATE_CHAOS_KILLS", "3"))
SEED = int(os.environ.get("HEADGATE_CHAOS_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 120 * KILLS)]


def test_a_gateway_is_killed_again_and_again(new_gateway):
    gateway = new_gateway().start()
    chaos = AmqpChaos(lambda: [gateway.port("amqp")], SEED)
    chaos.start()
    try:
        for _ in range(KILLS):
            chaos.progress()
            chaos.outage(gateway.kill, gateway.start)
        chaos.progress()
        chaos.finish()
    finally:
        chaos.stop()
    chaos.check()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    plan = ClusterPlan(tmp_path_factory.mktemp("cluster"), 1, 1, replicas=2, min_in_sync=1, proxies=2)
    with started(on_free_ports(plan), all_groups) as cluster:
        yield cluster


@pytest.mark.skipif("HEADGATE_CHAOS_KILLS" not in os.environ, reason="make chaos: kills a cluster again and again")
def test_proxies_and_masters_are_killed_by_turns(cluster):
    proxies = {node.name: node.port + PORTS["amqp"] - PORTS["mqtt"] for node in cluster.nodes if node.role == "proxy"}
    chaos = AmqpChaos(lambda: [port for name, port in proxies.items() if cluster.running(name)], SEED)

    def restore(name):
        cluster.start(name)
        until_ready(cluster, [node.name for node in cluster.nodes])

    chaos.start()
    try:
        for kill in range(KILLS):
            chaos.progress()
            master, _ = only_master(cluster)
            name = [master, *proxies][kill % 3]
            chaos.outage(lambda name=name: cluster.stop(name, kill=True), lambda name=name: restore(name))
        chaos.progress()
        chaos.finish()
    finally:
        chaos.stop()
    chaos.check()
