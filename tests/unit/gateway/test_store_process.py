"""`headgate store`: what its admin port says of a node."""

import pytest
from controllers import Controllers, until
from node_kit import GROUP, StoreGroup

from controller.client import GroupConfig
from gateway.config import Config, StoreConfig
from gateway.controller_process import NodeCredentials
from gateway.store_process import _Process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group(tmp_path):
    async with Controllers(tmp_path / "controllers", count=1) as controllers:
        await controllers.leader()
        alone = StoreGroup(tmp_path, controllers, count=1, config=GroupConfig(replicas=1, min_in_sync=1))
        async with alone:
            await alone.in_sync()
            yield alone


async def test_a_store_of_a_removed_group_is_not_ready(group):
    """It went on saying that it was, as nobody tells a node that its group is gone."""
    process = _Process(Config(store=StoreConfig(group=GROUP)), NodeCredentials(None, None))
    process._node, process._controller = group.nodes["n1"], group.nodes["n1"]._controller
    await until(lambda: process.ready().ready)
    await group.client.remove_group(GROUP)
    reason = f"store group {GROUP} was removed from the cluster: stop this store"
    await until(lambda: reason in process.ready().reasons)
    assert not process.status().ready
