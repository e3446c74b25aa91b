"""A cluster of processes, hurt at random under load: nothing acknowledged is lost, nothing is doubled, keys and values
stay linearizable, and everything goes on after each fault.

HEADGATE_FAULTS says how many (`make faults`: 100), HEADGATE_FAULTS_SEED which; a failure names both.
"""

import asyncio
import os
import socket

import pytest
from fault_run import FaultRun
from linearizability import check_history
from senders import stored

from controller.client import GroupConfig
from controller.remote import RemoteController
from gateway.endpoint import now_ms
from gateway.local_cluster import LocalCluster, Plan, nodes

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(7200)]

FAULTS = int(os.environ.get("HEADGATE_FAULTS", "6"))
SEED = int(os.environ.get("HEADGATE_FAULTS_SEED", "1"))
GROUPS = 1 if FAULTS < 50 else 2


@pytest.fixture
async def cluster(tmp_path):
    plan = next(
        plan for offset in range(12_000, 40_000, 700) if free(plan := Plan(tmp_path, groups=GROUPS, port_offset=offset))
    )
    cluster = LocalCluster(plan)
    try:
        cluster.write()
        await asyncio.to_thread(start, cluster, "controller")
        controller = RemoteController(list(plan.addresses.values()), now_ms=now_ms)
        await controller.ready()
        for number in range(GROUPS):
            await controller.add_group(number, GroupConfig(replicas=3, min_in_sync=2))
        await controller.create_topic("kill", queues=4)
        await controller.close()
        await asyncio.to_thread(start, cluster, "store")
        await asyncio.to_thread(start, cluster, "proxy")
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop_all)


def start(cluster, role):
    names = [node.name for node in cluster.nodes if node.role == role]
    for name in names:
        cluster.start(name)
    list(cluster.until_ready(names))


def free(plan):
    for node in nodes(plan):
        for port in {node.port, node.admin_port, *(node.port - 1883 + base for base in (5672, 8080, 8081))}:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return False
    return True


async def test_nothing_acknowledged_is_lost_whatever_breaks(cluster):
    run = FaultRun(cluster, SEED)
    run.start_clients(6)
    done = []
    try:
        await run.keep_going(1.0, until=lambda: all(one.count for one in run.publishers))
        while len(done) < FAULTS:
            done.append(await run.hurt())
    except AssertionError as error:
        raise AssertionError(f"seed {SEED}, fault {len(done) + 1}: {error}; before: {done[-5:]}") from error
    finally:
        await run.stop_clients()
    for proxy in run.proxies:
        await asyncio.to_thread(cluster.stop, proxy.name)
    for one in run.publishers:
        one.gather()
    reading = run.proxies[0]
    cluster.start(reading.name)
    await asyncio.to_thread(lambda: list(cluster.until_ready([reading.name])))
    found = await asyncio.to_thread(stored, reading)
    print(f"faults: {dict(run.said)}; longest silence {run.longest_s:.1f} s; ", end="")
    print(f"acknowledged: { {one.name: (len(one.acked), one.lives) for one in run.publishers} }; ", end="")
    print(f"operations on keys: {len(run.recording.history)}")
    for one in run.publishers:
        numbers = found[f"kill/{one.name}/n"]
        lost = set(one.acked) - set(numbers)
        assert not lost, (
            f"seed {SEED}: {one.name}: {len(lost)} of {len(one.acked)} are lost: {sorted(lost)[:5]}; {done}"
        )
        assert numbers == sorted(set(numbers)), f"seed {SEED}: {one.name}: out of order or doubled; {done}"
    assert check_history(run.recording.history) == [], f"seed {SEED}; {done}"
