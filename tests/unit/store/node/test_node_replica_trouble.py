"""A replica that cannot take what its master sends, for a while: it begins anew, whatever it is to be next."""

import pytest

from controller.api.client import GroupConfig
from store.node import replica_role
from store.node.replica_role import ReplicaRole
from tests.support.process.waiting import until
from tests.support.store.node_kit import PATIENCE_S, Load, StoreGroup
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_a_replica_that_is_elected_while_it_has_no_room_begins_anew_and_is_the_master(
    tmp_path, controllers, monkeypatch
):
    """Frames dropped for want of room count as on their way to the disk, and would be waited for."""
    monkeypatch.setattr(replica_role, "AGAIN_S", 3.0)  # it is elected meanwhile
    group = StoreGroup(tmp_path, controllers, count=2, config=GroupConfig(replicas=2, min_in_sync=2))
    files = {name: FaultyFiles() for name in group.names}
    group.own = {name: {"files": files[name], "disk_reserve_bytes": 1 << 20} for name in group.names}
    async with group:
        await group.in_sync()
        load = Load(group.store(), pause_s=0.01)
        await load.until(20)
        old = await group.master()
        full = next(name for name in group.names if name != old)
        epoch = group.group.master_epoch
        node, role = group.nodes[full], group.role(full)
        files[full].free = 0
        await until(lambda: role.broken, PATIENCE_S)
        assert isinstance(role, ReplicaRole)
        assert role.core.flushed < role.core.end
        await group.kill(old)
        files[full].free = None
        assert await group.master(after=epoch) == full
        assert not node.failed.done()
        load.task.cancel()


@pytest.mark.slow
async def test_a_replica_without_room_comes_back_when_there_is_some(tmp_path, controllers, monkeypatch):
    monkeypatch.setattr(replica_role, "AGAIN_S", 0.1)
    group = StoreGroup(tmp_path, controllers, count=3)
    files = {name: FaultyFiles() for name in group.names}
    group.own = {name: {"files": files[name]} for name in group.names}
    async with group:
        await group.in_sync()
        load = Load(group.store(), pause_s=0.01)
        await load.until(20)
        master = await group.master()
        full = next(name for name in group.names if name != master)
        role = group.role(full)
        files[full].fill(5_000)
        await until(lambda: role.broken, PATIENCE_S)
        await load.until(20)  # the others go on
        files[full].write_error = 0
        await group.in_sync()
        acknowledged = await load.stop()
        assert not load.errors
        assert not group.nodes[full].failed.done()
        await group.settled()
        assert await bodies(group.nodes[full].disk.store, 16) == [load.body(one) for one in acknowledged]


@pytest.mark.slow
async def test_a_store_that_was_cut_is_told_again_what_is_confirmed(tmp_path, controllers):
    """Its views may not have come so far before it was closed, and nobody would say it a second time."""
    async with StoreGroup(tmp_path, controllers, count=2) as group:
        await group.in_sync()
        store = group.store()
        await append(store, frame((16, b"a")))
        await group.settled()
        master = await group.master()
        role = group.role(next(name for name in group.names if name != master))
        told = []
        opened = role.context.disk.open_replica

        async def behind(end):
            reopened = await opened(end)
            reopened.replication.confirm = told.append
            return reopened

        role.context.disk.open_replica = behind
        await role._cut(role.core.end)
        assert told == [role.core.confirmed]
