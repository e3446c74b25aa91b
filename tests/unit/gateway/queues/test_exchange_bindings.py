"""Bindings between exchanges, internal and alternate exchanges: what may be declared, what is kept, what they route."""

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeleteExchange,
    GetMessage,
    UnbindExchange,
    UnbindQueue,
)
from store.api.message import Message
from tests.support.gateway.asking import refused
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, "a") as rig:
        yield rig


async def declare(rig, name, kind="fanout", **options):
    await rig.request(rig.conn(), DeclareExchange(name=name, kind=kind, **options))


async def link(rig, destination, source, key="", **arguments):
    request = BindExchange(destination=destination, source=source, routing_key=key, arguments=arguments)
    await rig.request(rig.conn(), request)


async def unlink(rig, destination, source, key=""):
    await rig.request(rig.conn(), UnbindExchange(destination=destination, source=source, routing_key=key))


async def queue(rig, name, *exchanges, key="", **options):
    await rig.declare(rig.conn(), name, **options)
    for exchange in exchanges:
        await rig.request(rig.conn(), BindQueue(queue=name, exchange=exchange, routing_key=key))


async def exists(rig, name):
    try:
        await declare(rig, name, passive=True)
    except Refusal:
        return False
    return True


async def test_a_message_passes_through_bound_exchanges_and_is_once_in_a_queue(rig):
    await declare(rig, "source", "topic")
    for name in ("left", "right"):
        await declare(rig, name)
        await link(rig, name, "source", "k.#")
        await link(rig, name, "source", "k.#")
    await link(rig, "left", "right")
    await link(rig, "right", "left")
    await queue(rig, "q", "left", "right", "source")
    assert len(await rig.publish("source", "k.1", b"once")) == 1
    assert await rig.publish("source", "other", b"") == []
    got = await rig.request(rig.conn(), GetMessage(queue="q"))
    assert (got.leased.messages[0].address, got.remaining) == ("$amqp/source/k/1", 0)


async def test_routing_keys_count_at_every_exchange_on_the_way(rig):
    await declare(rig, "source")
    await declare(rig, "direct", "direct")
    await link(rig, "direct", "source", "ignored by a fanout")
    await queue(rig, "q", "direct", key="k")
    assert len(await rig.publish("source", "k", b"")) == 1
    assert await rig.publish("source", "l", b"") == []


async def test_what_other_protocols_publish_passes_through_exchanges_bound_to_amq_topic(rig):
    await declare(rig, "all")
    await link(rig, "all", "amq.topic", "a.#")
    await queue(rig, "q", "all")
    assert len(await rig.publish_to("a/b", b"")) == 1


async def test_headers_are_matched_on_the_way(rig):
    await declare(rig, "source")
    await declare(rig, "some", "headers")
    await declare(rig, "end")
    await link(rig, "some", "source")
    await link(rig, "end", "some", h="1")
    await queue(rig, "q", "end")
    await queue(rig, "r", "end")
    assert len(await rig.publish("source", "", b"", properties=(("h", "1"),))) == 2
    assert await rig.publish("source", "", b"", properties=(("h", "2"),)) == []


async def test_unbinding_an_exchange_ends_one_binding(rig):
    await declare(rig, "s", "direct")
    await declare(rig, "d")
    await link(rig, "d", "s", "k")
    await link(rig, "d", "s", "l")
    await queue(rig, "q", "d")
    for _ in range(2):
        await unlink(rig, "d", "s", "k")
    assert await rig.publish("s", "k", b"") == []
    assert len(await rig.publish("s", "l", b"")) == 1


async def test_bindings_between_exchanges_that_cannot_be_are_refused(rig):
    await declare(rig, "x", "headers")
    await refused(Cause.NOT_FOUND, link(rig, "x", "nowhere"))
    await refused(Cause.NOT_FOUND, link(rig, "nowhere", "x"))
    await refused(Cause.FORBIDDEN, link(rig, "x", ""))
    await refused(Cause.FORBIDDEN, link(rig, "", "x"))
    await refused(Cause.FORBIDDEN, unlink(rig, "", "x"))
    await refused(Cause.PRECONDITION, link(rig, "amq.fanout", "x", **{"x-match": "most"}))
    await refused(Cause.PRECONDITION, link(rig, "x", "amq.topic", ".".join("#" * 9)))
    await unlink(rig, "nowhere", "x")


async def test_auto_delete_exchanges_go_with_their_last_binding_as_a_source(rig):
    for name in ("first", "second"):
        await declare(rig, name, auto_delete=True)
    await link(rig, "second", "first")
    await queue(rig, "q", "second")
    await refused(Cause.PRECONDITION, rig.request(rig.conn(), DeleteExchange(name="first", if_unused=True)))
    await rig.request(rig.conn(), UnbindQueue(queue="q", exchange="second"))
    assert not await exists(rig, "second")
    assert not await exists(rig, "first")


async def test_deleting_an_exchange_ends_its_bindings_on_both_sides(rig):
    for name in ("a", "b", "c"):
        await declare(rig, name, durable=True)
    await link(rig, "b", "a")
    await link(rig, "c", "b")
    await queue(rig, "q", "c", durable=True)
    assert len(await rig.publish("a", "", b"")) == 1
    await rig.request(rig.conn(), DeleteExchange(name="b"))
    await declare(rig, "b", durable=True)
    assert await rig.publish("a", "", b"") == []
    assert await rig.publish("b", "", b"") == []
    await rig.restart()
    assert await rig.publish("a", "", b"") == []
    assert await rig.publish("b", "", b"") == []


async def test_durable_bindings_between_exchanges_survive_a_restart(rig):
    await declare(rig, "z", "topic", durable=True, internal=True, arguments={"alternate-exchange": "amq.fanout"})
    await declare(rig, "passing")
    for name in ("amq.direct", "a"):
        if name == "a":
            await declare(rig, name, durable=True)
        for source in ("amq.topic", "passing"):
            await link(rig, name, source, "a.b")
    await link(rig, "z", "a")
    await queue(rig, "q", "z", key="#", durable=True)
    await queue(rig, "r", "amq.direct", key="a.b", durable=True)
    assert len(await rig.publish_to("a/b", b"")) == 2
    await rig.restart()
    assert len(await rig.publish_to("a/b", b"")) == 2
    await refused(Cause.FORBIDDEN, rig.publish("z", "k", b""))
    await declare(rig, "passing")
    assert await rig.publish("passing", "a.b", b"") == []
    await rig.request(rig.conn(), UnbindQueue(queue="q", exchange="z", routing_key="#"))
    await queue(rig, "f", "amq.fanout")
    assert len(await rig.publish_to("a/b", b"")) == 2


async def test_clients_do_not_publish_to_internal_exchanges(rig):
    await declare(rig, "in", internal=True)
    await declare(rig, "out")
    await link(rig, "in", "out")
    await queue(rig, "q", "in")
    await refused(Cause.FORBIDDEN, rig.publish("in", "", b""))
    assert len(await rig.publish("out", "", b"")) == 1
    await refused(Cause.PRECONDITION, declare(rig, "in"))


async def test_unroutable_messages_go_to_the_alternate_exchange(rig):
    await declare(rig, "x", "direct", arguments={"alternate-exchange": "y"})
    await declare(rig, "y", "direct", arguments={"alternate-exchange": "z"})
    await queue(rig, "wanted", "x", key="k")
    assert await rig.publish("x", "other", b"") == []
    await declare(rig, "z")
    await queue(rig, "rest", "z")
    (rest,) = await rig.publish("x", "other", b"")
    (wanted,) = await rig.publish("x", "k", b"")
    assert rest != wanted
    messages = [Message("$amqp/x/other"), Message("$amqp/x/k")]
    assert [len(rig.router.named_queues(message)) for message in messages] == [1, 1]
    await rig.request(rig.conn(), DeleteExchange(name="z"))
    assert [len(rig.router.named_queues(message)) for message in messages] == [0, 1]


async def test_an_alternate_exchange_takes_what_no_header_matches(rig):
    await declare(rig, "x", "headers", arguments={"alternate-exchange": "amq.fanout"})
    await queue(rig, "rest", "amq.fanout")
    await queue(rig, "wanted")
    await rig.request(rig.conn(), BindQueue(queue="wanted", exchange="x", arguments={"h": "1"}))
    (wanted,) = await rig.publish("x", "", b"", properties=(("h", "1"),))
    (rest,) = await rig.publish("x", "", b"")
    assert rest != wanted


async def test_an_exchange_is_declared_again_with_the_same_alternate_only(rig):
    await declare(rig, "x", arguments={"alternate-exchange": "y"})
    await declare(rig, "x", arguments={"alternate-exchange": "y"})
    await refused(Cause.PRECONDITION, declare(rig, "x"))
    await refused(Cause.PRECONDITION, declare(rig, "w", arguments={"alternate-exchange": 1}))
