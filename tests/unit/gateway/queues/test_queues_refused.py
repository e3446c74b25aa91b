"""A store or controller that refuses while queues are removed: for their users they are gone, and the rest follows."""

import asyncio

import pytest

from controller.api.client import ControllerError
from controller.api.commands import ForgetQueue
from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import BindQueue, DeclareExchange, DeclareQueue, DeleteQueue, GetMessage
from gateway.queues.consumers.consumer_counts import LocalConsumerCounts
from store.base.errors import StoreFailed, StoreOverloaded, StoreUnreachable
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 0.001)
    monkeypatch.setattr("gateway.queues.queues.FINISH_MAX_S", 0.01)
    async with opened_queues(tmp_path) as rig:
        yield rig


class Refusing:
    """Lets the methods of an object fail until it is told otherwise, from each one's `after`th call on.

    A call counts whose first argument is an `only`.
    """

    def __init__(self, monkeypatch, of, error, *names, after=0, only=object):
        self.failing = True
        self.only = only
        self.failures = 0
        for name in names:
            monkeypatch.setattr(of, name, self.wrap(getattr(of, name), error, after))

    def wrap(self, method, error, after):
        calls = 0

        async def call(*args, **kwargs):
            nonlocal calls
            counts = isinstance(args[0], self.only)
            calls += counts
            if self.failing and counts and calls > after:
                self.failures += 1
                raise error
            return await method(*args, **kwargs)

        return call

    async def failed(self, count):
        async with asyncio.timeout(60):
            while self.failures < count:
                await asyncio.sleep(0)


async def until_dropped(rig, names):
    async with asyncio.timeout(60):
        while not rig.queues.registry.queues.keys().isdisjoint(names):
            await asyncio.sleep(0.001)


async def until_named(rig, names):
    async with asyncio.timeout(60):
        while {q for q in names if rig.controller.state.named.get(q) is not None}:
            await asyncio.sleep(0.001)


NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("what", ["delete", "do"])
async def test_every_exclusive_queue_of_a_lost_connection_goes_whatever_is_refused(rig, monkeypatch, what, after):
    conn, other = rig.conn(), rig.conn()
    for name in NAMES:
        await rig.declare(conn, name, exclusive=True)
    of, error = (rig.store.queues, StoreOverloaded()) if what == "delete" else (rig.controller, ControllerError())
    refusing = Refusing(monkeypatch, of, error, what, after=after, only=ForgetQueue if what == "do" else object)
    await rig.lose(conn)
    for name in NAMES:
        with pytest.raises(Refusal) as info:
            await rig.declare(other, name, passive=True)
        assert info.value.cause is Cause.NOT_FOUND
    await refusing.failed(8)
    refusing.failing = False
    await until_named(rig, NAMES)
    for name in NAMES:
        assert (await rig.declare(other, name)).messages == 0


@pytest.mark.parametrize("lost", [False, True])
async def test_an_unused_queue_whose_removal_is_refused_cannot_be_used_and_goes_later(rig, monkeypatch, lost):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(conn, "mine", exclusive=True)
    for name in NAMES:
        await rig.declare(conn, name, durable=True, auto_delete=True)
        await rig.consume(conn, name, NAMES.index(name) + 1)
    refusing = Refusing(monkeypatch, rig.store.keys, StoreOverloaded(), "delete")
    if lost:
        await rig.lose(conn)
    else:
        for consumer in range(1, len(NAMES) + 1):
            rig.cancel(conn, consumer)
    await refusing.failed(8)
    for request in (GetMessage(queue="a"), BindQueue(queue="a", exchange="amq.direct"), DeclareQueue(name="a")):
        with pytest.raises(Refusal):
            await rig.request(other, request)
    assert await rig.request(other, DeleteQueue(name="b")) == 0
    refusing.failing = False
    await until_named(rig, [*NAMES, *(["mine"] if lost else [])])
    await rig.restart()
    for name in NAMES:
        with pytest.raises(Refusal):
            await rig.declare(other, name, passive=True)


@pytest.mark.parametrize("lost", [False, True])
async def test_queues_go_later_whose_consumers_at_other_proxies_could_not_be_counted(rig, monkeypatch, lost):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(conn, "mine", exclusive=True)
    for name in NAMES:
        await rig.declare(conn, name, auto_delete=True)
        await rig.consume(conn, name, NAMES.index(name) + 1)
    refusing = Refusing(monkeypatch, LocalConsumerCounts, StoreUnreachable("no master"), "elsewhere")
    if lost:
        await rig.lose(conn)
        assert "mine" not in rig.queues.registry.queues
    else:
        for consumer in range(1, len(NAMES) + 1):
            rig.cancel(conn, consumer)
    await refusing.failed(2)
    assert rig.queues.registry.queues.keys() >= set(NAMES)
    await rig.consume(other, "a")
    await rig.request(other, DeleteQueue(name="b"))
    await rig.declare(other, "b", auto_delete=True)  # another queue, without a consumer until now
    refusing.failing = False
    await until_dropped(rig, ["c", "d"])
    assert rig.queues.registry.queues.keys() >= {"a", "b"}


@pytest.mark.parametrize("refused", ["settings", "definition"])
async def test_a_declaration_that_was_refused_halfway_can_be_made_again(rig, monkeypatch, refused):
    conn = rig.conn()
    of, name = (rig.store.queues, "configure") if refused == "settings" else (rig.store.keys, "put")
    refusing = Refusing(monkeypatch, of, StoreOverloaded(), name)
    with pytest.raises(Refusal) as info:
        await rig.declare(conn, "q", durable=True)
    assert info.value.retriable
    assert await rig.publish("", "q", b"nowhere") == []
    refusing.failing = False
    assert (await rig.declare(conn, "q", durable=True)).messages == 0
    (number,) = await rig.publish("", "q", b"kept")
    assert rig.store.queues.config(number).until_settled
    await rig.restart()
    assert (await rig.declare(conn, "q", passive=True)).messages == 1


async def test_the_settings_of_a_queue_do_not_wait_for_its_definition_nor_it_for_them(rig, monkeypatch):
    begun = {"settings": asyncio.Event(), "definition": asyncio.Event()}

    def meeting(name, method, other):
        async def call(*args, **kwargs):
            begun[name].set()
            async with asyncio.timeout(60):
                await begun[other].wait()
            return await method(*args, **kwargs)

        return call

    queues, keys = rig.store.queues, rig.store.keys
    monkeypatch.setattr(queues, "configure", meeting("settings", queues.configure, "definition"))
    monkeypatch.setattr(keys, "put", meeting("definition", keys.put, "settings"))
    assert (await rig.declare(rig.conn(), "q", durable=True)).messages == 0


async def test_a_name_can_be_declared_again_while_its_old_queue_is_cleared_away(rig, monkeypatch):
    conn, other = rig.conn(), rig.conn()
    await rig.declare(conn, "q", exclusive=True)
    await rig.publish("", "q", b"old")
    refusing = Refusing(monkeypatch, rig.store.queues, StoreOverloaded(), "delete")
    await rig.lose(conn)
    with pytest.raises(Refusal) as info:
        await rig.declare(other, "q")  # its rows are still there
    assert info.value.retriable
    refusing.failing = False
    assert (await rig.declare(other, "q")).messages == 0
    await rig.publish("", "q", b"new")
    await rig.consume(other, "q")
    assert await other.has(1) == [b"new"]
    async with asyncio.timeout(60):
        while rig.queues._finishing:
            await asyncio.sleep(0.001)
    assert (await rig.declare(other, "q", passive=True)).consumers == 1


async def test_an_exchange_that_nothing_is_bound_to_goes_when_the_store_takes_it(rig, monkeypatch):
    conn = rig.conn()
    exchange = DeclareExchange(name="x", kind="fanout", durable=True, auto_delete=True)
    await rig.request(conn, exchange)
    await rig.declare(conn, "q", exclusive=True)
    await rig.request(conn, BindQueue(queue="q", exchange="x"))
    refusing = Refusing(monkeypatch, rig.store.keys, StoreOverloaded(), "delete")
    await rig.lose(conn)
    await refusing.failed(3)
    refusing.failing = False
    passive = DeclareExchange(name="x", kind="fanout", passive=True)
    async with asyncio.timeout(60):
        while True:
            try:
                await rig.request(conn, passive)
            except Refusal:
                break
            await asyncio.sleep(0.001)


async def test_who_declares_a_queue_is_not_told_which_file_the_store_has_failed_on(rig, monkeypatch):
    failed = StoreFailed("[Errno 5] Input/output error: '/data/store/log/0.log'")
    Refusing(monkeypatch, rig.store.keys, failed, "put")
    with pytest.raises(Refusal) as caught:
        await rig.declare(rig.conn(), "q", durable=True)
    assert caught.value.cause is Cause.UNAVAILABLE
    assert "/" not in caught.value.detail


async def queue_of_which_one_has_expired(rig):
    await rig.declare(rig.conn(), "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await rig.declare(rig.conn(), "q", arguments=arguments)
    await rig.publish("", "q", b"live")
    await rig.publish("", "q", b"old", expires_at_ms=500)


@pytest.mark.parametrize("settle", [False, True])
async def test_a_message_is_got_though_the_one_behind_it_cannot_become_a_dead_letter(rig, monkeypatch, settle):
    await queue_of_which_one_has_expired(rig)
    Refusing(monkeypatch, rig.store.leases, StoreOverloaded("no room"), "forward")
    got = await rig.request(rig.conn(), GetMessage(queue="q", settle=settle))
    assert (got.leased.messages[0].body, got.remaining) == (b"live", 1)
    assert (await rig.declare(rig.conn(), "q", passive=True)).messages == 1


@pytest.mark.parametrize("settle", [False, True])
async def test_a_message_that_was_not_got_after_all_is_there_for_others(rig, monkeypatch, settle):
    await queue_of_which_one_has_expired(rig)
    get, conn = GetMessage(queue="q", settle=settle), rig.conn()
    refusing = Refusing(monkeypatch, rig.store.leases, StoreOverloaded("no room"), "waiting")
    with pytest.raises(Refusal):
        await rig.request(conn, get)
    refusing.failing = False
    assert (await rig.request(rig.conn(), get)).leased.messages[0].body == b"live"
