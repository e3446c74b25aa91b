"""Exchanges, queues and bindings: what may be declared, what is kept, and where messages go."""

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import REPLIES
from gateway.port.queues import (
    BindQueue,
    DeclareExchange,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    PurgeQueue,
    UnbindQueue,
)
from store.api.message import Message
from tests.support.gateway.asking import refused
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, "a", "b") as rig:
        yield rig


async def test_declaring_twice_agrees_and_differing_is_refused(rig):
    conn = rig.conn()
    info = await rig.declare(conn, "q", durable=True)
    assert (info.name, info.messages, info.consumers) == ("q", 0, 0)
    assert await rig.declare(conn, "q", durable=True) == info
    assert "durable" in await refused(Cause.PRECONDITION, rig.declare(conn, "q"))
    assert await rig.declare(conn, "q", passive=True) == info
    await refused(Cause.NOT_FOUND, rig.declare(conn, "other", passive=True))
    await refused(Cause.FORBIDDEN, rig.declare(conn, "amq.mine"))


@pytest.mark.parametrize(
    ("name", "current", "received", "words"),
    [
        ("x-max-length", 5, 6, "received '6' but current is '5'"),
        ("x-max-length", 5, None, "received none but current is the value '5' of type 'signedint'"),
        ("x-max-length", None, 1 << 31, "received the value '2147483648' of type 'long' but current is none"),
        ("x-overflow", None, "drop-head", "received the value 'drop-head' of type 'longstr' but current is none"),
        ("x-single-active-consumer", True, None, "received none but current is the value 'true' of type 'bool'"),
    ],
)
async def test_an_argument_that_differs_is_told_in_the_words_of_rabbitmq(rig, name, current, received, words):
    said = [{} if value is None else {name: value} for value in (current, received)]
    await rig.declare(rig.conn(), "q", arguments=said[0])
    text = await refused(Cause.PRECONDITION, rig.declare(rig.conn(), "q", arguments=said[1]))
    assert text == f"inequivalent arg '{name}' for queue 'q' in vhost '/': {words}"


async def test_a_queue_without_a_name_is_given_one_of_its_own(rig):
    conn = rig.conn()
    names = {(await rig.declare(conn, "")).name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("amq.gen-") for name in names)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("x-expires", 0, "0 is not a number from 1 to 315360000000"),
        ("x-max-length", -5, "-5 is not a number from 0 to 9223372036854775807"),
        ("x-max-length", None, "expected integer, got void"),
        ("x-max-length-bytes", 1.5, "expected integer, got double"),
        ("x-dead-letter-exchange", 5, "expected longstr, got signedint"),
        ("x-dead-letter-exchange", 1 << 40, "expected longstr, got long"),
        ("x-dead-letter-routing-key", "k", "there is no 'x-dead-letter-exchange'"),
        ("x-queue-type", "heap", "unsupported queue type 'heap'; 'classic', 'quorum' and 'stream' are supported"),
        ("x-queue-type", [], "expected longstr, got array"),
        ("x-message-ttl", -1, "-1 is not a number from 0 to 315360000000"),
        ("x-message-ttl", 315_360_000_001, "315360000001 is not a number from 0 to 315360000000"),
        ("x-message-ttl", "soon", "expected integer, got longstr"),
        ("x-message-ttl", True, "expected integer, got bool"),
        ("x-overflow", "odd", "it is 'drop-head', 'reject-publish' or 'reject-publish-dlx', not 'odd'"),
        ("x-overflow", {}, "expected longstr, got table"),
        ("x-single-active-consumer", b"\xff", "expected bool, got binary"),
        ("x-max-priority", 256, "256 is not a number from 0 to 255"),
        ("x-max-age", "1h", "only a queue of the type stream has it"),
    ],
)
async def test_arguments_whose_meaning_would_be_lost_are_refused(rig, name, value, why):
    detail = await refused(Cause.PRECONDITION, rig.declare(rig.conn(), "q", arguments={name: value}))
    assert detail == f"invalid arg '{name}' for queue 'q' in vhost '/': {why}"
    assert (await rig.declare(rig.conn(), "q", arguments={"x-queue-type": "quorum", "note": 1})).name == "q"


async def test_arguments_that_nobody_knows_mean_nothing_as_in_rabbitmq(rig):
    await rig.declare(rig.conn(), "q", arguments={"x-ha-policy": "all", "x-queue-master-locator": "client-local"})
    await rig.declare(rig.conn(), "q", arguments={"x-ha-policy": "nodes"})
    await rig.declare(rig.conn(), "q")
    await exchange(rig, "x", "direct", arguments={"x-ha-policy": "all", "x-delayed-type": "topic"})


@pytest.mark.parametrize(
    ("first", "again", "agree"),
    [
        ("classic", None, True),
        (None, "classic", True),
        ("quorum", None, True),  # the virtual host may have had this default
        ("quorum", "classic", False),
        ("stream", None, False),
        (None, "stream", False),
    ],
)
async def test_a_declaration_without_a_type_agrees_with_what_an_import_has_made(rig, first, again, agree):
    def declared(of):
        return rig.declare(rig.conn(), "q", durable=True, arguments={} if of is None else {"x-queue-type": of})

    await declared(first)
    if agree:
        await declared(again)
    else:
        assert "inequivalent arg 'x-queue-type'" in await refused(Cause.PRECONDITION, declared(again))


async def test_messages_may_live_for_ten_years_as_in_rabbitmq(rig):
    ninety_days_ms = 7_776_000_000
    await rig.declare(rig.conn(), "q", arguments={"x-message-ttl": ninety_days_ms, "x-expires": 315_360_000_000})
    await rig.publish("", "q", b"1")
    rig.now_ms += ninety_days_ms - 1
    assert (await rig.declare(rig.conn(), "q", passive=True)).messages == 1


async def test_refusals_are_in_rabbitmqs_words(rig):
    owner, other = rig.conn(), rig.conn()
    await rig.declare(owner, "mine", exclusive=True)
    await rig.declare(owner, "q")
    await rig.publish("", "q", b"1")
    locked = "cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on"
    for work, cause, said in (
        (rig.declare(other, "mine", passive=True), Cause.CONFLICT, locked),
        (rig.declare(owner, "mine"), Cause.CONFLICT, locked),
        (rig.declare(owner, "amq.q"), Cause.FORBIDDEN, "queue name 'amq.q' contains reserved prefix 'amq.*'"),
        (exchange(rig, "amq.x", "direct"), Cause.FORBIDDEN, "exchange name 'amq.x' contains reserved prefix 'amq.*'"),
        (exchange(rig, "", "direct"), Cause.FORBIDDEN, "operation not permitted on the default exchange"),
        (
            rig.request(owner, DeleteQueue(name="q", if_empty=True)),
            Cause.PRECONDITION,
            "queue 'q' in vhost '/' not empty",
        ),
        (rig.request(owner, DeleteExchange(name="amq.direct")), Cause.FORBIDDEN, "deletion of system exchange 'amq.di"),
    ):
        assert (await refused(cause, work)).startswith(said)


async def test_a_queue_for_answers_is_its_connections_and_everybody_may_ask_for_it(rig):
    owner, server = rig.conn(), rig.conn()
    name = (await rig.declare(owner, REPLIES, exclusive=True, auto_delete=True)).name
    assert name.startswith(REPLIES)
    assert len(name) > len(REPLIES) + 20
    assert (await rig.declare(owner, REPLIES, exclusive=True)).name != name
    await rig.declare(server, name, passive=True)
    await refused(Cause.CONFLICT, rig.request(server, GetMessage(queue=name)))
    await refused(Cause.FORBIDDEN, rig.declare(server, f"{REPLIES}guessed"))
    await rig.publish("", name, b"answer")
    assert (await rig.request(owner, GetMessage(queue=name))).leased.messages[0].body == b"answer"
    await rig.lose(owner)
    await refused(Cause.NOT_FOUND, rig.declare(server, name, passive=True))


async def test_the_default_exchange_reaches_every_queue_by_its_name(rig):
    conn = rig.conn()
    for name in ("q", "with.dots", "with/slash", "wild.*.#"):
        await rig.declare(conn, name)
        await rig.publish("", name, name.encode())
        got = await rig.request(conn, GetMessage(queue=name, settle=True))
        assert got.leased.messages[0].body == name.encode()
        assert got.remaining == 0
        assert await rig.request(conn, GetMessage(queue=name)) is None


async def bound(rig, exchange, key, queue="q", **arguments):
    await rig.request(rig.conn(), BindQueue(queue=queue, exchange=exchange, routing_key=key, arguments=arguments))


async def exchange(rig, name, kind, **options):
    await rig.request(rig.conn(), DeclareExchange(name=name, kind=kind, **options))


async def test_a_direct_exchange_matches_keys_exactly(rig):
    await rig.declare(rig.conn(), "q")
    await exchange(rig, "d", "direct")
    await bound(rig, "d", "a.*")
    assert await rig.publish("d", "a.b", b"") == []
    assert len(await rig.publish("d", "a.*", b"")) == 1


async def test_a_topic_exchange_matches_words(rig):
    await rig.declare(rig.conn(), "q")
    await exchange(rig, "t", "topic")
    await bound(rig, "t", "a.*.c.#")
    assert len(await rig.publish("t", "a.b.c", b"")) == 1
    assert len(await rig.publish("t", "a.b.c.d.e", b"")) == 1
    assert len(await rig.publish("t", "a.x/y.c", b"")) == 1
    assert await rig.publish("t", "a.c", b"") == []
    assert await rig.publish("t", "b.b.c", b"") == []


async def test_amq_topic_is_the_addresses_that_all_protocols_publish_to(rig):
    await rig.declare(rig.conn(), "q")
    await bound(rig, "amq.topic", "a.*")
    assert len(await rig.publish_to("a/b", b"")) == 1
    assert await rig.publish_to("b/b", b"") == []
    await bound(rig, "amq.topic", "#")
    assert len(await rig.publish_to("b/b", b"")) == 1
    assert len(await rig.publish("amq.topic", "", b"")) == 1
    assert len(await rig.publish("amq.topic", "$SYS.x", b"")) == 1
    assert await rig.publish("amq.fanout", "x", b"") == []


async def test_a_fanout_exchange_matches_everything_of_its_own(rig):
    for name in ("q", "p"):
        await rig.declare(rig.conn(), name)
        await bound(rig, "amq.fanout", "", name)
    assert len(await rig.publish("amq.fanout", "any.key", b"")) == 2
    assert await rig.publish("amq.direct", "any.key", b"") == []


@pytest.mark.parametrize(
    ("arguments", "properties", "matches"),
    [
        ({"x-match": "all", "a": 1, "b": "t"}, {"a": "1", "b": "t", "c": "x"}, True),
        ({"a": 1, "b": "t"}, {"a": "1"}, False),
        ({"x-match": "any", "a": 1, "b": "t"}, {"a": "1"}, True),
        ({"x-match": "any", "a": 1}, {"a": "2"}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": True}, {"a": "true"}, True),
        ({}, {}, True),
        ({"x-match": "any"}, {"a": "1"}, False),
        ({"x-match": "all", "x-a": 1, "b": 2}, {"b": "2"}, True),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": "2"}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": "1", "b": "2"}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": "1"}, False),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": "1"}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": "2"}, False),
    ],
)
async def test_a_headers_exchange_matches_headers(rig, arguments, properties, matches):
    await rig.declare(rig.conn(), "q")
    await bound(rig, "amq.headers", "", **arguments)
    found = await rig.publish("amq.headers", "k", b"", properties=tuple(properties.items()))
    assert bool(found) is matches


async def test_headers_with_a_place_of_their_own_match_too(rig):
    await rig.declare(rig.conn(), "q")
    await bound(rig, "amq.match", "", **{"ce-type": "t"})
    native = {"amqp": {"properties": b"", "mapped": {"ce-type": "t"}}}
    assert await rig.publish("amq.match", "", b"", native=native)
    assert not await rig.publish("amq.match", "", b"")


async def test_a_header_binding_that_means_nothing_is_refused(rig):
    await rig.declare(rig.conn(), "q")
    for match in ("most", 1, None, ["all"]):
        await refused(Cause.PRECONDITION, bound(rig, "amq.headers", "", **{"x-match": match}))


async def test_unbinding_ends_one_binding_alone(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await bound(rig, "amq.topic", "a.x")
    await bound(rig, "amq.topic", "a.#")
    unbind = UnbindQueue(queue="q", exchange="amq.topic", routing_key="a.#")
    await rig.request(conn, unbind)
    await rig.request(conn, unbind)
    assert await rig.publish_to("a/y", b"") == []
    assert len(await rig.publish_to("a/x", b"")) == 1
    await refused(Cause.NOT_FOUND, bound(rig, "nowhere", "k"))
    await refused(Cause.NOT_FOUND, bound(rig, "amq.topic", "k", "nobody"))
    assert "'nowhere'" in await refused(Cause.NOT_FOUND, bound(rig, "nowhere", "k", "nobody"))  # as RabbitMQ says
    await refused(Cause.FORBIDDEN, bound(rig, "", "k"))


async def test_a_message_is_once_in_a_queue_however_many_bindings_match(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    for key in ("a.#", "a.b", "#", "*.b"):
        await bound(rig, "amq.topic", key)
    await rig.publish_to("a/b", b"once")
    assert (await rig.declare(conn, "q", passive=True)).messages == 1


async def test_exchanges_that_exist_can_be_published_to_and_no_others(rig):
    await exchange(rig, "x.y:z", "topic", durable=True)
    await rig.publish("x.y:z", "k", b"")
    with pytest.raises(Refusal) as info:
        await rig.publish("nowhere", "k", b"")
    assert info.value.cause is Cause.NOT_FOUND
    await exchange(rig, "x.y:z", "topic", durable=True)
    await exchange(rig, "x.y:z", "", passive=True)
    await refused(Cause.PRECONDITION, exchange(rig, "x.y:z", "direct", durable=True))
    await refused(Cause.NOT_FOUND, exchange(rig, "nowhere", "", passive=True))
    await refused(Cause.FORBIDDEN, exchange(rig, "amq.mine", "direct"))
    await refused(Cause.FORBIDDEN, exchange(rig, "", "direct"))
    await refused(Cause.PRECONDITION, exchange(rig, "w", "x-delayed-message"))
    await refused(Cause.PRECONDITION, exchange(rig, "w", "direct", arguments={"alternate-exchange": 1}))
    await exchange(rig, "per%cent", "direct")
    await rig.publish("per%cent", "k", b"")


async def test_deleting_an_exchange_takes_its_bindings_along(rig):
    conn = rig.conn()
    await rig.declare(conn, "q", durable=True)
    await exchange(rig, "d", "direct", durable=True)
    await bound(rig, "d", "k")
    delete = DeleteExchange(name="d", if_unused=True)
    await refused(Cause.PRECONDITION, rig.request(conn, delete))
    await rig.request(conn, DeleteExchange(name="d"))
    await rig.request(conn, delete)
    await refused(Cause.FORBIDDEN, rig.request(conn, DeleteExchange(name="amq.topic")))
    await exchange(rig, "d", "direct", durable=True)
    assert await rig.publish("d", "k", b"") == []


async def test_an_auto_delete_exchange_goes_with_its_last_binding(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await exchange(rig, "d", "direct", auto_delete=True)
    await bound(rig, "d", "k")
    await rig.request(conn, UnbindQueue(queue="q", exchange="d", routing_key="k"))
    await refused(Cause.NOT_FOUND, exchange(rig, "d", "", passive=True))


async def test_deleting_a_queue_says_how_much_was_in_it(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1", b"2")
    await refused(Cause.PRECONDITION, rig.request(conn, DeleteQueue(name="q", if_empty=True)))
    assert await rig.request(conn, DeleteQueue(name="q")) == 2
    assert await rig.request(conn, DeleteQueue(name="q")) == 0
    assert await rig.publish("", "q", b"lost") == []
    assert (await rig.declare(conn, "q")).messages == 0


async def test_purging_leaves_what_is_leased(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    await rig.publish("", "q", b"1", b"2", b"3")
    got = await rig.request(conn, GetMessage(queue="q"))
    assert got.remaining == 2
    assert await rig.request(conn, PurgeQueue(name="q")) == 2
    await rig.settle(conn, "q", "requeue", got.leased.offsets[0])
    got = await rig.request(conn, GetMessage(queue="q"))
    assert (got.leased.messages[0].body, got.leased.deliveries) == (b"1", [1])


async def test_what_is_durable_survives_a_restart(rig):
    conn = rig.conn()
    await exchange(rig, "lasting", "direct", durable=True)
    await exchange(rig, "passing", "direct")
    for name, durable in (("d", True), ("t", False)):
        await rig.declare(conn, name, durable=durable)
        for at in ("lasting", "passing"):
            await bound(rig, at, "k", name)
    await rig.publish("lasting", "k", b"kept")
    await rig.restart()
    conn = rig.conn()
    assert (await rig.declare(conn, "d", durable=True)).messages == 1
    await refused(Cause.NOT_FOUND, rig.declare(conn, "t", passive=True))
    await refused(Cause.NOT_FOUND, exchange(rig, "passing", "", passive=True))
    assert len(await rig.publish("lasting", "k", b"")) == 1
    await exchange(rig, "passing", "direct")
    assert await rig.publish("passing", "k", b"") == []
    assert (await rig.declare(conn, "t")).messages == 0


async def test_a_deleted_queue_stays_deleted(rig):
    conn = rig.conn()
    await rig.declare(conn, "q", durable=True)
    await rig.publish("", "q", b"old")
    await rig.request(conn, DeleteQueue(name="q"))
    await rig.restart()
    conn = rig.conn()
    await refused(Cause.NOT_FOUND, rig.declare(conn, "q", passive=True))
    assert (await rig.declare(conn, "q", durable=True)).messages == 0


async def test_an_exclusive_queue_is_its_connections_alone(rig):
    mine, other = rig.conn(), rig.conn()
    await rig.declare(mine, "q", exclusive=True)
    for request in (DeleteQueue(name="q"), PurgeQueue(name="q"), GetMessage(queue="q")):
        await refused(Cause.CONFLICT, rig.request(other, request))
    await refused(Cause.CONFLICT, rig.declare(other, "q", exclusive=True))
    await refused(Cause.CONFLICT, bound(rig, "amq.topic", "k"))
    await refused(Cause.CONFLICT, rig.consume(other, "q"))
    assert (await rig.declare(mine, "q", exclusive=True)).name == "q"
    await rig.lose(mine)
    await rig.declare(other, "q")


async def test_an_exclusive_queue_of_a_connection_that_is_gone_already_does_not_stay(rig):
    late = rig.conn()
    await rig.lose(late)
    await rig.declare(late, "q", exclusive=True)
    await refused(Cause.NOT_FOUND, rig.declare(rig.conn(), "q", passive=True))


async def test_a_message_is_for_the_queues_that_its_address_and_bindings_say(rig):
    await rig.declare(rig.conn(), "q")
    await bound(rig, "amq.topic", "a.#")
    messages = [Message("a/b"), Message("b/b"), Message("$amqp//q")]
    assert [len(rig.router.named_queues(message)) for message in messages] == [1, 0, 1]
