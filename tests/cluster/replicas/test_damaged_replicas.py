"""A store group of real processes whose disks lie: what is damaged is repaired from a replica; nothing is lost."""

import asyncio
import shutil

import pytest
from typer.testing import CliRunner

from controller.api.client import NotElectable
from gateway.cli.commands import app
from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, controller_of, on_free_ports, started
from tests.support.cluster.replica_group import PATIENCE_S, ReplicaGroup
from tests.support.store.flips import flip
from tests.support.store.node_kit import Load
from tests.support.store.replica_kit import log_bytes
from tests.support.store.store_kit import append, bodies, frame

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SMALL = "segment_size_bytes = 65536\n"
COUNT = 500  # messages, in some ten segments
MESSAGE_BYTES = 1_000


@pytest.fixture
async def group(tmp_path):
    plan = on_free_ports(ClusterPlan(tmp_path, controllers=1, groups=1, proxies=0))
    with started(plan, all_groups, stores=SMALL) as cluster:
        async with controller_of(plan) as controller:
            found = ReplicaGroup(cluster, controller)
            await found.begin()
            yield found
            await found.store.close()


async def filled(group):
    """Stores acknowledged messages in several segments of all replicas, and returns their bodies."""
    load = Load(group.store, window=32, size=MESSAGE_BYTES)
    await load.until(COUNT)
    acknowledged = await load.stop()
    assert not load.errors
    return [load.body(one) for one in acknowledged]


def flip_middle(path):
    flip(path, path.stat().st_size // 2, bit=4)


async def test_a_replica_with_a_flipped_byte_or_a_cut_segment_loses_no_message_when_it_is_master(group):
    expected = await filled(group)
    first, second = (name for name in group.names if name != group.master)

    await group.stop(first)
    flip_middle(group.segments(first)[2])
    group.cluster.start(first)
    await group.lead(first)
    assert await bodies(group.store, 16) == expected

    await group.stop(second)
    cut = group.segments(second)[1]
    size = cut.stat().st_size
    with cut.open("r+b") as file:
        file.truncate(size // 3)
    group.cluster.start(second)
    await group.lead(second)
    assert await bodies(group.store, 16) == expected
    await group.ready(second)
    assert group.status(second)["damages"] == []
    assert cut.stat().st_size == size
    await group.whole()


async def test_an_empty_replica_is_filled_from_a_master_whose_log_has_a_flipped_byte(group):
    expected = await filled(group)
    master, empty = (name for name in group.names if name != group.master)
    await group.stop(master)
    group.cluster.start(master)  # with nothing of its log in memory
    await group.lead(master)
    await group.stop(empty)
    flip_middle(group.segments(master)[3])
    shutil.rmtree(group.cluster.plan.directory / "data" / empty)
    group.cluster.start(empty)
    await group.whole()
    await group.ready(master)
    await group.lead(empty)
    assert await bodies(group.store, 16) == expected
    await group.store.close()
    await asyncio.to_thread(group.cluster.stop_all)
    data = group.cluster.plan.directory / "data"
    assert len({log_bytes(data / name) for name in group.names}) == 1


async def test_a_group_whose_logs_have_all_lost_their_ends_writes_again_when_an_operator_accepts_that(group):
    """The only way out of what a disk that lies on all machines leaves behind."""
    expected = await filled(group)
    addresses = ",".join(group.cluster.plan.addresses.values())

    async def elect(*options):
        command = ["cluster", "elect", "0", "--controllers", addresses, *options]
        return await asyncio.to_thread(CliRunner().invoke, app, command, input="y\n")

    await asyncio.gather(*(asyncio.to_thread(group.cluster.stop, name, kill=True) for name in group.names))
    for count, name in enumerate(group.names, 1):
        last = group.segments(name)[-1]
        with last.open("r+b") as file:
            file.truncate(max(last.stat().st_size - 3 * count * MESSAGE_BYTES, 100))
        group.cluster.start(name)

    async def all_heard():
        routes = {route.group: route for route in await group.controller.routes(0)}
        return [one.alive and one.cut_short for one in routes[0].replicas] == [True] * 3

    async with asyncio.timeout(PATIENCE_S):
        while not await all_heard():
            await asyncio.sleep(0.1)
        refused = await elect()
        assert isinstance(refused.exception, NotElectable)
        assert not any(group.status(name)["role"] == "master" for name in group.names)
        while (accepted := await elect("--unclean")).exit_code:
            await asyncio.sleep(0.1)
    assert "and it has lost its end" in accepted.output
    longest = next(one.id for one in group.group.replicas if one.node == group.names[0])
    assert f"replica {longest} has the longest log of the newest epoch" in accepted.output
    assert f"replica {longest} is master" in accepted.output

    await group.whole()
    await append(group.store, frame((16, b"more")))
    left = await bodies(group.store, 16)
    assert len(left) > COUNT // 2
    assert left == [*expected[: len(left) - 1], b"more"]
    for name in group.names:
        await group.ready(name)
        assert group.status(name)["damages"] == []
    second = next(name for name in group.names if name != group.master)
    await group.lead(second)
    assert await bodies(group.store, 16) == left
