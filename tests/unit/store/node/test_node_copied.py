"""A copy of a data directory is started beside its original: one of both takes part, and the other one says why not."""

import asyncio
import contextlib
import shutil

import pytest

from controller.elections.admission import ReplicaAdmission
from store.node import node as node_module
from store.node.master_role import MasterRole
from tests.support.controller.controllers import Controllers
from tests.support.process.ports import free_port
from tests.support.process.waiting import until
from tests.support.store.node_kit import PATIENCE_S, Load, StoreGroup
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group(tmp_path):
    async with (
        Controllers(tmp_path / "controllers", count=1) as controllers,
        StoreGroup(tmp_path, controllers) as found,
    ):
        await found.in_sync()
        yield found


async def copy_of(group, name):
    """Copies a node's directory while the node is stopped, and starts the node again."""
    await group.settled()
    await group.stop(name)
    await asyncio.to_thread(shutil.copytree, group.directory / name, group.directory / "copy")
    await group.start(name)
    await group.in_sync()


def masters(group):
    """Returns the replicas that say they are the master, and of which epoch."""
    roles = [node.role for node in group.nodes.values() if not node.withdrawn]
    return [role.core.epoch for role in roles if isinstance(role, MasterRole) and role.serving]


@contextlib.asynccontextmanager
async def starting(group, name):
    task = asyncio.ensure_future(group._start(name))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.slow
async def test_a_copy_waits_while_its_original_is_there(group, caplog):
    load = Load(group.store(), pause_s=0.01)
    await copy_of(group, "n1")
    original, address = group.id("n1"), group.nodes["n1"].address
    async with starting(group, "copy") as copy:
        await until(lambda: f"replica {original} of store group 3 is alive at {address}" in caplog.text, PATIENCE_S)
        await load.until(20)
        assert not copy.done()
        assert group.group.replica(original).address == address
        await group.in_sync()
        await group.kill("n1")  # from here on it is a move
        await copy
        assert group.id("copy") == original
        await group.in_sync("copy", "n2", "n3")
    caplog.clear()
    async with starting(group, "n1") as late:
        here = group.nodes["copy"].address
        await until(lambda: f"is alive at {here}, so it cannot be at {address}" in caplog.text, PATIENCE_S)
        assert not late.done()
    await load.stop()
    assert not load.errors


@pytest.mark.slow
async def test_who_was_registered_before_stands_aside_and_comes_back(group, monkeypatch):
    """The controllers' leader may not know the original yet when the copy registers."""
    monkeypatch.setattr(node_module, "WITHDRAWN_S", 0.5)
    await append(group.store(), frame((16, b"a")))
    master = await group.master()
    await copy_of(group, master)
    await group.hand_over(master)
    node = group.nodes[master]
    with monkeypatch.context() as blind:
        blind.setattr(ReplicaAdmission, "check_registration", lambda *_: None)
        await group.start("copy")
    copy = group.nodes["copy"]
    assert copy.identity == node.identity
    seen = []
    await until(lambda: seen.append(masters(group)) or (node.withdrawn and masters(group)), PATIENCE_S)
    assert all(len(epochs) == len(set(epochs)) for epochs in seen)  # an epoch has one master, all the time
    assert node.address in node.withdrawn
    assert copy.address in node.withdrawn
    assert node._heartbeats() == []
    assert node.role is None
    await append(group.store(), frame((16, b"b")))
    await group.kill("copy")
    await until(lambda: not node.withdrawn, PATIENCE_S)
    await group.in_sync()
    await append(group.store(), frame((16, b"c")))
    await group.settled()
    assert await bodies(node.disk.store, 16) == [b"a", b"b", b"c"]


@pytest.mark.slow
async def test_a_copy_from_before_an_election_is_no_master_of_it(group, monkeypatch):
    """It has never been of that epoch, but the original is, and hears nothing."""
    name = await group.master()
    other = next(one for one in group.names if one != name)
    await group.hand_over(other)
    await copy_of(group, name)
    epoch = await group.hand_over(name)
    monkeypatch.setattr(ReplicaAdmission, "check_registration", lambda *_: None)
    monkeypatch.setattr(group.nodes[name], "_look_for_another", lambda _: None)
    await group.start("copy")
    copy, led = group.nodes["copy"], set()

    def later():
        if isinstance(copy.role, MasterRole):
            led.add(copy.role.core.epoch)
        return group.group.master_epoch > epoch

    await until(later, PATIENCE_S)
    assert await group.master(after=epoch)
    assert epoch not in led


@pytest.mark.slow
async def test_a_replica_moves_to_another_address(group):
    name = await group.master()
    address = group.nodes[name].address
    await group.kill(name)
    group.ports[name] = free_port()
    await group.start(name)
    assert group.nodes[name].address != address
    await group.in_sync()
    assert group.group.replica(group.id(name)).address == group.nodes[name].address
