"""Changes of queues that many connections ask for at the same time."""

import asyncio
import random

import pytest

from controller.api.commands import CreateTopic
from gateway.base.eager import eager_start
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, in_vhost
from gateway.port.queues import (
    BindQueue,
    DeclareExchange,
    DeleteExchange,
    DeleteQueue,
    OpenVhost,
    UnbindQueue,
    address_of,
)
from gateway.queues.operated.vhosts import VhostLimits
from gateway.queues.topology.change_lock import ChangeLock
from gateway.queues.topology.definitions import Changed
from store.api.message import Message
from store.base.errors import StoreError
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path) as rig:
        yield rig


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


# ---- the lock


async def test_changes_of_different_queues_go_on_beside_each_other_and_of_one_after_the_other():
    lock, inside = ChangeLock(), []

    async def change(name, until):
        async with lock.of(name):
            inside.append(name)
            await until.wait()
            inside.remove(name)

    first, rest = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.ensure_future(change(*one)) for one in (("a", first), ("b", rest), ("a", rest), ("", rest))]
    await turns()
    assert inside == ["a", "b", ""]
    first.set()
    await turns()
    assert inside == ["b", "", "a"]
    rest.set()
    await asyncio.gather(*tasks)
    assert not lock._names


async def test_who_changes_anything_is_alone_and_each_waits_for_those_before_it():
    lock, order = ChangeLock(), []

    async def one(name):
        async with lock.of(name):
            order.append(f"{name} begins")
            await turns(3)
            order.append(f"{name} ends")

    async def alone(name):
        async with lock:
            order.append(f"{name} begins")
            await turns(3)
            order.append(f"{name} ends")

    await asyncio.gather(one("a"), alone("b"), one("c"), one("d"), alone("e"))
    assert order[:4] == ["a begins", "a ends", "b begins", "b ends"]
    assert sorted(order[4:8]) == ["c begins", "c ends", "d begins", "d ends"]
    assert order[8:] == ["e begins", "e ends"]


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_is_cancelled_while_it_waits_keeps_nobody_out(seed):
    chance, lock, alone, held = random.Random(seed), ChangeLock(), [], []

    async def change(name):
        if name is None:
            async with lock:
                assert not alone
                assert not held
                alone.append(name)
                try:
                    await turns(chance.randrange(4))
                finally:
                    alone.remove(name)
        else:
            async with lock.of(name):
                assert not alone
                assert not name or name not in held
                held.append(name)
                try:
                    await turns(chance.randrange(4))
                finally:
                    held.remove(name)

    tasks = [asyncio.ensure_future(change(chance.choice([None, "", "a", "a", "b"]))) for _ in range(60)]
    while not all(task.done() for task in tasks):
        await turns(1)
        chance.choice(tasks).cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert outcome is None or isinstance(outcome, asyncio.CancelledError)
    async with asyncio.timeout(10):
        async with lock, asyncio.timeout(10):
            assert not lock._names


# ---- queues


async def test_queues_of_many_connections_are_made_at_the_same_time(rig, monkeypatch):
    do, under_way, most = rig.controller.do, 0, 0

    async def counted(command):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await do(command)
        finally:
            under_way -= 1

    monkeypatch.setattr(rig.controller, "do", counted)
    await asyncio.gather(*(rig.declare(rig.conn(), f"q{n}", durable=True) for n in range(20)))
    assert most == 20
    numbers = {queue.number for queue in rig.queues.registry.queues.values()}
    assert len(numbers) == 20
    await rig.restart()
    assert {queue.number for queue in rig.queues.registry.queues.values()} == numbers


async def test_one_queue_is_made_for_all_that_declare_it_at_once(rig):
    declared = await asyncio.gather(*(rig.declare(rig.conn(), "q", durable=True) for _ in range(10)))
    assert {one.name for one in declared} == {"q"}
    assert list(rig.queues.registry.queues) == ["q"]


async def test_no_more_queues_are_made_at_once_than_a_vhost_may_have(rig):
    registry = rig.queues.registry
    await registry.set_limits(DEFAULT_VHOST, VhostLimits(max_queues=3))
    declaring = (rig.declare(rig.conn(), f"q{n}", durable=True) for n in range(10))
    outcomes = await asyncio.gather(*declaring, return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, Refusal)]
    assert len(refused) == 7
    assert {one.cause for one in refused} == {Cause.PRECONDITION}
    assert len(registry.queues) == registry.vhosts.queues(DEFAULT_VHOST) == 3
    await rig.request(rig.conn(), DeleteQueue(name=next(iter(registry.queues))))
    await rig.declare(rig.conn(), "one more")


async def test_the_exclusive_queues_of_connections_that_end_at_once_go_with_them(rig):
    conns = [rig.conn() for _ in range(40)]
    await rig.request(conns[0], DeclareExchange(name="e", kind="fanout", auto_delete=True))
    await asyncio.gather(*(rig.declare(conn, f"q{conn.id}", exclusive=True) for conn in conns))
    await asyncio.gather(
        *(rig.request(conn, BindQueue(queue=f"q{conn.id}", exchange="e", routing_key="")) for conn in conns)
    )
    assert len(await rig.publish("e", "", b"x")) == 40
    late = rig.conn()
    declaring = asyncio.ensure_future(rig.declare(late, "late", exclusive=True))
    await turns(2)
    await asyncio.gather(*(rig.lose(conn) for conn in (*conns, late)))
    await declaring
    assert not rig.queues.registry.queues
    assert rig.queues.registry.exchange("e") is None
    await asyncio.gather(*(rig.declare(rig.conn(), f"q{conn.id}", durable=True) for conn in conns))
    assert await rig.publish("", f"q{conns[0].id}", b"y")


@pytest.mark.parametrize("kind", ["exclusive", "auto_delete"])
async def test_queues_go_with_a_connection_whose_release_begins_outside_of_a_task(rig, kind):
    conn = rig.conn()
    await rig.declare(conn, "q", **{kind: True})
    await rig.consume(conn, "q")
    outside = asyncio.get_running_loop().create_future()

    def begin():
        try:
            outside.set_result(eager_start(rig.lose(conn)).rest)
        except RuntimeError as error:
            outside.set_exception(error)

    asyncio.get_running_loop().call_soon(begin)  # as the protocol's end of a connection comes
    rest = await outside
    assert rest is not None
    await rest
    assert not rig.queues.registry.queues


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_changed_at_once_is_the_same_after_a_restart(rig, seed):
    chance = random.Random(seed)
    names, exchanges = ["a", "b", "c"], ["x", "y"]

    def change():
        name, exchange = chance.choice(names), chance.choice(exchanges)
        return chance.choice(
            [
                lambda conn: rig.declare(conn, name, durable=True),
                lambda conn: rig.declare(conn, name, durable=True),
                lambda conn: rig.request(conn, DeleteQueue(name=name)),
                lambda conn: rig.request(conn, BindQueue(queue=name, exchange=exchange, routing_key="k")),
                lambda conn: rig.request(conn, BindQueue(queue=name, exchange=exchange, routing_key="l")),
                lambda conn: rig.request(conn, UnbindQueue(queue=name, exchange=exchange, routing_key="k")),
                lambda conn: rig.request(
                    conn, DeclareExchange(name=exchange, kind="direct", durable=True, auto_delete=True)
                ),
                lambda conn: rig.request(conn, DeleteExchange(name=exchange)),
            ]
        )

    for _ in range(6):
        outcomes = await asyncio.gather(*(change()(rig.conn()) for _ in range(12)), return_exceptions=True)
        assert all(one.cause is Cause.NOT_FOUND for one in outcomes if isinstance(one, BaseException))

    def said():
        registry = rig.queues.registry
        queues = {name: queue.definition for name, queue in registry.queues.items()}
        there = [name for name in exchanges if registry.exchange(name) is not None]
        routed = {
            (exchange, key): sorted(rig.router.named_queues(Message(address_of(exchange, key))))
            for exchange in there
            for key in "kl"
        }
        return queues, [registry.exchange(name) for name in there], routed

    before = said()
    for (exchange, key), numbers in before[2].items():
        bound = [
            q.number for q in before[0].values() for b in q.bindings if (b.exchange, b.routing_key) == (exchange, key)
        ]
        assert numbers == sorted(bound)
    await rig.restart()
    assert said() == before


@pytest.mark.parametrize("after", range(6))
async def test_a_connection_that_ends_while_its_queue_is_removed_leaves_nothing_to_remove(rig, after):
    registry, conn = rig.queues.registry, rig.conn()
    await rig.declare(conn, "q", exclusive=True)
    await rig.declare(conn, "another", exclusive=True)

    async def failing(*_arguments, **_options):
        raise StoreError("no disk")  # so that the pump waits, and takes a while to end

    registry.queues["q"].pump.head.take = failing
    await rig.consume(conn, "q")
    await turns()
    deleting = asyncio.ensure_future(rig.request(conn, DeleteQueue(name="q")))
    while "q" in registry.queues:
        await turns(1)
    await turns(after)
    await asyncio.gather(rig.lose(conn), deleting)
    assert not registry.queues
    other = rig.conn()
    await rig.declare(other, "q", exclusive=True)
    await rig.lose(other)
    assert await registry.finish()
    await rig.declare(rig.conn(), "q")


async def test_the_connections_of_a_vhost_end_while_their_queues_are_removed_with_it(rig):
    registry = rig.queues.registry
    await rig.controller.do(CreateTopic(name="$vhost"))
    await registry.make_vhost("shop")
    conns = [rig.conn() for _ in range(40)]
    for conn in conns:
        await rig.request(conn, OpenVhost(name="shop"))
        await rig.declare(conn, in_vhost("shop", f"q{conn.id}"), exclusive=True)
        await rig.consume(conn, in_vhost("shop", f"q{conn.id}"))
    deleting = asyncio.ensure_future(registry.delete_vhost("shop"))
    while len(registry.queues) == len(conns):
        await turns(1)
    await asyncio.gather(*(rig.lose(conn) for conn in conns), deleting)
    assert not registry.queues


async def test_a_removal_that_fails_lets_those_beside_it_end_before_others_may_change_something(rig, monkeypatch):
    registry, conn = rig.queues.registry, rig.conn()
    definitions, held = registry._definitions, []
    for name in ("changed", "slow"):
        await rig.declare(conn, name, exclusive=True)

    async def delete(definition, *arguments, **options):
        if definition.name == "changed":
            raise Changed(definition.name)
        await turns()
        held.append(registry._changing._gate.locked())
        return await deleted(definition, *arguments, **options)

    async def find(*_arguments, **_options):
        raise StoreError("no store now")

    deleted = definitions.delete
    with monkeypatch.context() as patch:
        patch.setattr(definitions, "delete", delete)
        patch.setattr(definitions, "find", find)
        await rig.lose(conn)
    assert held == [True]
    assert list(registry.queues) == ["changed"]
    assert await registry.finish()
    assert not registry.queues
