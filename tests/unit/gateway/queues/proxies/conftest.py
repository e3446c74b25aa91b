"""Proxies over one store, which share their named queues."""

import pytest

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from store.local.local import LocalStore
from tests.support.gateway.queues_proxies import QueuesProxies
from tests.support.process.clock import Clock
from tests.support.store.remote_kit import Node


@pytest.fixture
async def cluster(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path / "store", now_ms=clock.now_ms) as store:
        controller = LocalController.open(tmp_path / "controller", now_ms=clock.now_ms)
        await controller.do(CreateTopic(name="$amqp"))
        node = await Node().start(store)
        cluster = QueuesProxies(store, node, controller, clock)
        yield cluster
        for proxy in cluster.proxies:
            await proxy.die()
        await node.stop()
        await controller.close()


@pytest.fixture
async def two(cluster):
    return cluster, await cluster.proxy(), await cluster.proxy()
