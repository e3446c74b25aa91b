"""A cluster of processes, hurt under load: nothing acknowledged is lost, nothing is doubled, keys and values stay
linearizable, and everything goes on after each fault.

Where it is allowed each process has a network namespace of its own, and one replica and all controllers small disks, so
that networks can fail and disks be full. HEADGATE_FAULTS says how many faults by chance (`make faults`: 100),
HEADGATE_FAULTS_SEED which; a failure names both. HEADGATE_FAULTS_KINDS chooses among them, by the names of methods of
`Faults`: "grey,flipped"; one that is named twice comes twice as often.
"""

import asyncio
import contextlib
import os
import time

import pytest

from controller.api.client import GroupConfig, NotElectable, StaleEpoch
from controller.api.commands import AddGroup, CreateTopic
from controller.api.requests import Elect
from gateway.process.local_cluster import ClusterPlan, nodes
from store.node.run import REPLICA
from tests.support.cluster.fault_run import QUIET_S, FaultRun
from tests.support.cluster.faults import Faults
from tests.support.cluster.local_clusters import controller_of, on_free_ports, started, until_ready
from tests.support.cluster.lying_disk import LyingDisk
from tests.support.cluster.lying_disk import missing as no_lying_disk
from tests.support.cluster.masters import only_master, status
from tests.support.cluster.network import Network, missing
from tests.support.cluster.small_disks import CONTROLLER_DISK_BYTES, small_disk
from tests.support.mqtt.paho_client import connected

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(7200)]

FAULTS = int(os.environ.get("HEADGATE_FAULTS", "4"))
SEED = int(os.environ.get("HEADGATE_FAULTS_SEED", "1"))
CHOSEN = "HEADGATE_FAULTS" in os.environ  # not one test of many
LONG = FAULTS >= 50  # `make faults`: on its own, and so strict
GROUPS = 2 if LONG else 1
CLIENTS = 6
WITHOUT_CONTROLLERS_S = 4.0
CUT_S = 5.0
SMALL_SEGMENTS = "segment_size_bytes = 1_048_576\n"  # many are closed, and can be damaged


class Setting:
    """A cluster with its network, its small disks (of a store, of `controllers`) and its disks that lie, where there
    are any."""

    def __init__(self, cluster, network, disks, lying, controllers):
        self.cluster, self.network, self.disks, self.lying = cluster, network, disks, lying
        self.controllers = controllers


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    plan = ClusterPlan(directory, groups=GROUPS)
    names = [node.name for node in nodes(plan)]
    with contextlib.ExitStack() as stack:
        network = None
        if missing() is None:
            network = Network(names)
            stack.callback(network.close)
            plan = plan._replace(hosts={name: network.addresses[name] for name in names})
        else:
            plan = on_free_ports(plan)
        small = f"store-{GROUPS - 1}-2"
        disk = stack.enter_context(small_disk(directory / "data" / small))
        controllers = {}
        for name in [name for name in names if name.startswith("controller-")]:
            found = stack.enter_context(small_disk(directory / "data" / name, CONTROLLER_DISK_BYTES))
            if found is not None:
                controllers[name] = found
        lying = lying_disks(directory, [name for name in names if not name.startswith("proxy-")]) if CHOSEN else {}
        for one in lying.values():
            stack.callback(one.close)

        def under(name):
            inside = network.under(name) if network is not None else ()
            return (*inside, *(lying[name].under() if name in lying else ()))

        cluster = stack.enter_context(started(plan, prepare, under=under, stores=SMALL_SEGMENTS))
        yield Setting(cluster, network, {small: disk} if disk is not None else {}, lying, controllers)


def lying_disks(directory, names):
    """Returns a disk that lies for each of these processes, where the system allows one."""
    if no_lying_disk() is not None:
        return {}
    return {name: LyingDisk(directory / "data" / name, directory / "lying" / name) for name in names}


async def prepare(plan):
    async with controller_of(plan) as controller:
        for number in range(GROUPS):
            await controller.do(AddGroup(number=number, config=GroupConfig(replicas=3, min_in_sync=2)))
        await controller.do(CreateTopic(name="kill", queues=4))


@contextlib.asynccontextmanager
async def at_work(cluster, label):
    """Yields clients of every kind at work, and checks at the end what they were acknowledged."""
    run = FaultRun(cluster, SEED, label=label, quiet_s=30.0 if LONG else QUIET_S)
    run.start_clients(CLIENTS)
    try:
        await run.keep_going(1.0, until=lambda: all(one.count for one in run.publishers))
        yield run
    finally:
        await run.stop_clients()
        print(f"\n{run.report()}", flush=True)
    await asyncio.to_thread(run.check)


async def test_nothing_acknowledged_is_lost_whatever_breaks(setting):
    async with at_work(setting.cluster, "any") as run:
        faults = Faults(
            setting.cluster,
            SEED,
            setting.network,
            setting.disks,
            setting.lying,
            controllers=setting.controllers,
        )
        while sum(run.said.values()) < FAULTS:
            await run.hurt(await asyncio.to_thread(faults.any))
    if LONG:
        await every_replica_has_everything(setting.cluster, run)


async def every_replica_has_everything(cluster, run):
    """Makes each replica master in turn, and reads back what was acknowledged."""
    for n in range(1, 4):
        for group in range(GROUPS):
            await elect(cluster, f"store-{group}-{n}")
        await asyncio.to_thread(until_ready, cluster, [node.name for node in cluster.nodes])
        await asyncio.to_thread(run.check_stored)


async def test_without_controllers_everything_that_is_there_goes_on(setting):
    cluster = setting.cluster
    controllers = [node.name for node in cluster.nodes if node.role == "controller"]
    async with at_work(cluster, "alone") as run:
        for name in controllers:
            await asyncio.to_thread(cluster.stop, name, kill=True)
        until = time.monotonic() + WITHOUT_CONTROLLERS_S
        while time.monotonic() < until:
            assert not await run.all_going(), run.report()
        assert not any(one.errors for one in run.publishers), run.report()
        assert not run.key_errors, run.report()
        for name in controllers:
            cluster.start(name)
        assert await run.keep_going(until=run.whole), run.not_ready()
        assert not await run.all_going()


async def test_every_process_is_restarted_in_turn_and_clients_only_connect_again(setting):
    async with at_work(setting.cluster, "rolling") as run:
        faults = Faults(setting.cluster, SEED, None, {})
        for node in setting.cluster.nodes:
            await run.hurt(faults.restarted(node.name))
        waited = [one.name for one in run.publishers if {"TimeoutError", "ReadTimeout"} & set(one.errors)]
        assert not waited, f"{waited} have waited for an answer in vain: {run.report()}"
        if not LONG:  # beside other tests an answer may be late, and then its outcome is unknown
            return
        # Being asked at the door to come again is connecting again.
        assert not [why for one in run.publishers for why in one.refused if not why.startswith("CONNACK")], run.report()
        assert not [error for error in run.key_errors if any(digit in error for digit in "45")], run.report()


async def test_a_master_cut_off_with_a_proxy_acknowledges_nothing(setting):
    cluster, network = setting.cluster, setting.network
    if network is None:
        pytest.skip(f"needs a network to cut: {missing()}")
    master, epoch = await asyncio.to_thread(only_master, cluster)
    async with at_work(cluster, "minority") as run:
        here = FaultRun(cluster, SEED, label="here")
        here.proxies[:] = here.proxies[:1]
        there = FaultRun(cluster, SEED, label="there")
        there.proxies[:] = there.proxies[1:]
        try:
            assert not await here.all_going()
            assert not await there.all_going()
            minority = [master, here.proxies[0].name]
            majority = [node.name for node in cluster.nodes if node.name not in minority]
            await asyncio.to_thread(network.cut, minority, majority)
            await both(here, there, 1.0)  # answers on their way back to clients have come
            before = [one.count for one in here.publishers]
            elected = [one.count for one in there.publishers]
            await both(here, there, CUT_S)
            assert [one.count for one in here.publishers] == before, here.report()
            slow = [one.name for one, count in zip(there.publishers, elected, strict=True) if one.count == count]
            assert not slow, f"{slow}: {there.report()}"
            await asyncio.to_thread(network.heal)
            assert await run.keep_going(until=run.whole), run.not_ready()
            await both(here, there, 1.0)
        finally:
            network.heal()
            for one in (here, there):
                await one.stop_clients()
        found = await asyncio.to_thread(only_master, cluster)
        assert found[0] != master
        assert found[1] > epoch
        for one in (here, there):
            await asyncio.to_thread(one.check)


async def test_a_master_that_only_the_controllers_reach_is_succeeded(setting):
    """It stayed master for as long as its heartbeats came, and `elect` was done and had no effect."""
    cluster, network = setting.cluster, setting.network
    if network is None:
        pytest.skip(f"needs a network to cut: {missing()}")
    master, epoch = await asyncio.to_thread(only_master, cluster)
    others = [node.name for node in cluster.nodes if node.role != "controller" and node.name != master]
    async with at_work(cluster, "grey") as run:
        try:
            await asyncio.to_thread(network.cut, [master], others)
            began = time.monotonic()
            assert await run.keep_going(until=lambda: only_master(cluster)[0] != master), run.report()
            print(f"\nanother master after {time.monotonic() - began:.1f} s", flush=True)
            assert not await run.all_going(), run.report()  # and the old one is cut off still
            assert only_master(cluster)[1] == epoch + 1
        finally:
            await asyncio.to_thread(network.heal)
        assert await run.keep_going(until=run.whole), run.not_ready()


async def test_a_proxy_that_alone_does_not_reach_the_home_group_stops_and_others_do_what_it_has_left(setting):
    cluster, network = setting.cluster, setting.network
    if network is None:
        pytest.skip(f"needs a network to cut: {missing()}")
    here, there = (node for node in cluster.nodes if node.role == "proxy")
    await asyncio.to_thread(cut_off_alone, network, cluster, here, there)


def cut_off_alone(network, cluster, here, there):
    watcher = connected(there.port, "watcher", clean=True, expiry_s=0, host=there.host)
    watcher.subscribe("wills", 1)
    cut_off = connected(here.port, "cut off", will=b"cut off", host=here.host)
    cut_off.subscribe("kill/#", 1)
    home = [node.name for node in cluster.nodes if node.name.startswith("store-0-")]
    network.cut([here.name], home)
    try:
        cut_off.left.get(timeout=90)
        assert watcher.body() == b"cut off"
        moved = connected(there.port, "cut off", host=there.host)
        assert moved.present
    finally:
        network.heal()
    until_ready(cluster, [here.name])
    back = connected(here.port, "cut off", host=here.host)  # it is one of the proxies again
    assert back.present
    assert watcher.messages.empty()
    for one in (back, watcher):
        one.close()


async def test_a_master_whose_disk_is_full_hands_over(setting):
    if not setting.disks:
        pytest.skip("needs a disk of its own to fill")
    cluster = setting.cluster
    ((name, disk),) = setting.disks.items()
    async with at_work(cluster, "full") as run:
        await elect(cluster, name)
        assert await run.keep_going(until=lambda: status(cluster, name).get("role") == "master")
        try:
            await asyncio.to_thread(disk.fill, leave=100 << 20)  # less than it keeps in reserve
            assert await run.keep_going(until=lambda: status(cluster, name).get("role") == REPLICA)
            assert not await run.all_going(), run.report()
        finally:
            disk.free()
        assert await run.keep_going(until=run.whole), run.not_ready()


async def elect(cluster, name):
    """Makes a replica its group's master, as soon as it is in sync."""
    async with controller_of(cluster.plan) as controller:
        number = int(name.split("-")[1])
        async with asyncio.timeout(60):
            while True:
                replica = next(one.id for one in controller.group(number).replicas if one.node == name)
                if controller.group(number).master == replica:
                    return
                with contextlib.suppress(NotElectable, StaleEpoch):
                    await controller.do(Elect(group=number, candidate=replica))
                    return
                await asyncio.sleep(0.2)


async def both(here, there, seconds):
    await asyncio.gather(here.keep_going(seconds), there.keep_going(seconds))
