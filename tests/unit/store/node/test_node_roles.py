"""A store group of real nodes: masters that go away, switch-overs, slaves that come back."""

import pytest
from controllers import Controllers, until
from node_kit import Load, StoreGroup
from replica_kit import log_bytes
from store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def controllers(tmp_path):
    async with Controllers(tmp_path / "controllers", count=1) as found:
        await found.leader()
        yield found


@pytest.fixture
async def group(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers) as found:
        await found.in_sync()
        yield found


async def test_what_is_appended_is_on_every_replica_and_can_be_read_there(group, tmp_path):
    store = group.store()
    await append(store, frame((16, b"a"), (17, b"b")))
    assert await bodies(store, 16) == [b"a"]
    await group.settled()
    logs = {name: log_bytes(tmp_path / name) for name in group.names}
    assert len(set(logs.values())) == 1
    for node in group.nodes.values():
        assert await bodies(node.disk.store, 17) == [b"b"]


async def test_a_master_that_dies_under_load_is_succeeded_and_nothing_is_lost_or_doubled(group, tmp_path):
    load = Load(group.store())
    await load.until(50)
    old = await group.master()
    epoch = group.group.master_epoch
    await group.kill(old)
    new = await group.master(after=epoch)
    assert new != old
    await load.until(50)
    acknowledged = await load.stop()
    assert not load.errors
    assert await bodies(group.store(), 16) == [load.body(one) for one in acknowledged]
    await group.start(old)
    await group.in_sync()
    await group.settled()
    assert len({log_bytes(tmp_path / name) for name in group.names}) == 1


async def test_a_switch_over_under_load_fails_no_write(group):
    load = Load(group.store())
    await load.until(20)
    for _ in range(3):
        old = await group.master()
        epoch = group.group.master_epoch
        target = next(name for name in group.names if name != old)
        assert await group.nodes[old].switch_over(group.id(target)) == group.id(target)
        assert await group.master(after=epoch) == target
        await load.until(20)
        await group.in_sync()
    acknowledged = await load.stop()
    assert not load.errors
    assert await bodies(group.store(), 16) == [load.body(one) for one in acknowledged]
    assert load.longest_s < 2


async def test_a_slave_that_was_away_catches_up(group):
    store = group.store()
    master = await group.master()
    away = next(name for name in group.names if name != master)
    await group.kill(away)
    for i in range(50):
        await append(store, frame((16, b"%d" % i)))
    await until(lambda: len(group.group.sync_set) == 2)
    await group.start(away)
    await group.in_sync()
    await group.settled()
    assert await bodies(group.nodes[away].disk.store, 16) == [b"%d" % i for i in range(50)]
