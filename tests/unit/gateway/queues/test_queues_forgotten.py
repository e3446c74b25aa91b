"""Queues that were declared and deleted leave nothing in memory, neither in the gateway nor in store and controller."""

import asyncio
import gc
import sys
from itertools import pairwise

import pytest

from controller.api.commands import CreateTopic
from controller.node import local as controller_local
from controller.node.local import LocalController
from gateway.port.queues import BindQueue, DeclareQueue, DeleteQueue
from store.local.local import LocalStore
from tests.support.gateway.queues_rig import QueuesRig

COUNT = 128
LEFT_MAX = COUNT // 2  # blocks of memory that one round may leave beyond the one before
ROUNDS_MAX = 20  # other tests of the process may have left something running that takes memory for a time


@pytest.fixture
async def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_local, "CACHE_BYTES_MAX", 0)  # the newest commands, which are kept for a time
    store = await LocalStore.open(tmp_path / "store", cache_bytes_max=0, linger_s=0.001)
    controller = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    await controller.do(CreateTopic(name="$amqp", queues=1))
    rig = QueuesRig(store, controller)
    await rig.queues.load()
    yield rig
    await rig.queues.close()
    await controller.close()
    await store.close()


async def come_and_go(rig, numbered):
    """Declares queues, uses them and deletes them; returns how many blocks of memory are in use then."""
    conn = rig.conn()
    names = [f"q{numbered}.{n}" for n in range(COUNT)]
    kinds = ({"durable": True}, {}, {"exclusive": True}, {"durable": True, "arguments": {"x-message-ttl": 60_000}})
    declared = [rig.request(conn, DeclareQueue(name=name, **kinds[n % 4])) for n, name in enumerate(names)]
    await asyncio.gather(*declared)
    await asyncio.gather(
        *(rig.request(conn, BindQueue(queue=name, exchange="amq.topic", routing_key=name)) for name in names[::2])
    )
    await rig.publish("", names[0], b"1")
    for nth, name in enumerate(names[:64:3]):
        await rig.consume(conn, name, nth)
    await asyncio.gather(*(rig.request(conn, DeleteQueue(name=name)) for name in names))
    await rig.lose(conn)
    core = rig.store.core
    await core.until_dispatched(core.recent.confirmed)
    await rig.store.tick()
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.anyio
async def test_queues_that_come_and_go_leave_nothing_in_memory(rig):
    blocks = [await come_and_go(rig, number) for number in range(2)]
    while blocks[-1] - blocks[-2] > LEFT_MAX and len(blocks) < ROUNDS_MAX:
        blocks.append(await come_and_go(rig, len(blocks)))
    more = [after - before for before, after in pairwise(blocks)]
    assert min(more) <= LEFT_MAX, f"blocks of memory more after each {COUNT} queues: {more}"


@pytest.mark.anyio
@pytest.mark.slow
async def test_deleted_queues_are_gone_at_once_and_leave_the_collector_nothing(rig):
    conn = rig.conn()
    await declare_use_and_delete(rig, conn, 0)  # and all that is made once
    gc.collect()
    gc.disable()
    try:
        for numbered in range(1, 4):
            await declare_use_and_delete(rig, conn, numbered)
        assert gc.collect() == 0
    finally:
        gc.enable()


async def declare_use_and_delete(rig, conn, numbered):
    """Declares queues of all kinds, one after the other, and binds, fills, consumes and deletes each."""
    kinds = (
        {"durable": True},
        {"exclusive": True},
        {"durable": True, "arguments": {"x-max-priority": 1}},
        {"durable": True, "arguments": {"x-queue-type": "stream"}},
        {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish", "x-message-ttl": 60_000}},
    )
    for nth, kind in enumerate(kinds):
        name = f"q{numbered}.{nth}"
        await rig.request(conn, DeclareQueue(name=name, **kind))
        await rig.request(conn, BindQueue(queue=name, exchange="amq.topic", routing_key=name))
        await rig.publish("", name, b"1")
        if nth < 3:
            await rig.consume(conn, name, nth)
        await rig.request(conn, DeleteQueue(name=name))
