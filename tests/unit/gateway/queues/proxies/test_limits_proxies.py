"""Full queues of several proxies: each counts again before it goes by a length that others may have changed."""

import pytest

from gateway.publishing.routing.length_gates import SURE_MS
from store.api.message import Message

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def gate_of(proxy):
    return proxy.router.gates[proxy.queues.registry.queues["q"].number]


async def admitted(proxy, count):
    """Returns how many of some messages a proxy's gate admits, a while after it was asked last."""
    gate = gate_of(proxy)
    proxy.now_ms += SURE_MS
    assert not gate.is_sure(0, 0)
    await gate.recount()
    assert gate.is_sure(0, 0)
    found = sum([gate.admit(Message("a", b"x")) for _ in range(count)])
    gate.landed(gate.admitted)  # or will never be
    return found


@pytest.mark.parametrize("limit", [{"x-max-length": 3}, {"x-max-length-bytes": 3}])
async def test_a_queue_that_others_fill_and_drain_is_counted_anew(two, limit, monkeypatch):
    monkeypatch.setattr("gateway.queues.keeper.COUNT_MS", 60_000)  # a busy machine must not make it guess
    _, one, other = two
    await one.declare(one.conn(), "q", durable=True, arguments={"x-overflow": "reject-publish", **limit})
    assert await admitted(other, 5) == 3
    await one.publish("", "q", b"1", b"2", b"3")
    assert await admitted(other, 5) == 0
    conn = one.conn()
    await one.consume(conn, "q")
    await conn.has(3)
    await one.settle(conn, "q", "ack", *[offset for _, offset, _ in conn.taken])
    assert await admitted(other, 5) == 3


async def test_a_store_that_does_not_answer_leaves_the_gate_with_what_it_knows(two):
    cluster, one, _ = two
    await one.declare(one.conn(), "q", durable=True, arguments={"x-overflow": "reject-publish", "x-max-length": 3})
    assert await admitted(one, 1) == 1
    await cluster.node.stop()
    assert await admitted(one, 5) == 2
    await cluster.node.start(cluster.store)
