"""Bodies in parts, over a real store: what they go to, what keeps them, and what moves them."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from gateway.domain.batch import Batch
from gateway.domain.errors import Cause, Refusal
from gateway.port.bodies import BodyParts, StoredBody, body_size, in_group, parts_of, with_parts
from gateway.port.queues import BindQueue, DeclareExchange, GetMessage, address_of
from gateway.port.streams import FIRST, StreamRead
from gateway.queues.leaving.upkeep import OWNER
from store.api.message import Message, decode
from store.base.errors import StoreError
from store.format.body_parts import PARTS_KEPT_MS, UPLOAD_MS_MAX
from store.format.frame import Position
from store.format.records import PARTS_QUEUE
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio

CHUNKS = [b"a" * 1_000, b"b" * 1_000, b"c" * 500]
BODY = b"".join(CHUNKS)


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, queues=2) as rig:
        yield rig


async def publish(rig, exchange, key, *, chunks=CHUNKS, began_ms=None, **fields):
    """Publishes a body in parts, as the adapter does."""
    bodies, message = rig.queues.bodies, Message(address_of(exchange, key), **fields)
    groups = await bodies.begin(message)
    frames = {group: [] for group in groups}
    for chunk in chunks:
        for group, frame in (await bodies.store_part(groups, chunk)).items():
            frames[group].append(frame)
    message = with_parts(message, BodyParts(sum(map(len, chunks)), frames))
    return await bodies.publish(message, rig.now_ms if began_ms is None else began_ms)


async def body_of(rig, message):
    (frames,) = parts_of(message).frames.values()
    return b"".join([await rig.queues.bodies.read_part(frame) for frame in frames])


async def waiting(rig, queue):
    return (await rig.declare(rig.conn(), queue, passive=True)).messages


async def get(rig, queue):
    return (await rig.request(rig.conn(), GetMessage(queue=queue, settle=True))).leased.messages[0]


async def test_a_queue_gets_the_message_and_its_body_is_read_part_by_part(rig):
    conn = rig.conn()
    await rig.declare(conn, "q")
    assert await publish(rig, "", "q") == StoredBody(queues=1)
    await rig.consume(conn, "q")
    await conn.has(1)
    ((message, offset, _),) = conn.taken
    assert (message.body, body_size(message)) == (b"", len(BODY))
    assert await body_of(rig, message) == BODY
    await rig.settle(conn, "q", "ack", offset)
    assert await waiting(rig, "q") == 0


async def test_all_queues_that_an_exchange_routes_to_share_the_parts(rig):
    for name in ("one", "two"):
        await rig.declare(rig.conn(), name)
        await rig.request(rig.conn(), BindQueue(queue=name, exchange="amq.fanout", routing_key="", arguments={}))
    assert (await publish(rig, "amq.fanout", "k")).queues == 2
    parts = [parts_of(await get(rig, name)) for name in ("one", "two")]
    assert parts[0] == parts[1]


async def test_readers_of_topics_never_meet_it(rig):
    """Subscribers, last values, searches and consumer groups read the queues of topics."""
    heard = []
    rig.store.log.tail(heard.extend)
    await rig.declare(rig.conn(), "q")
    before = {queue: (await rig.store.queues.bounds(queue)).next for queue in rig.controller.topic("$amqp").queues}
    await publish(rig, "", "q")
    assert before == {queue: (await rig.store.queues.bounds(queue)).next for queue in before}
    assert [Batch.of(frame).messages for frame in heard] == [[]] * len(heard)
    assert await rig.store.log.last(rig.router.named_only(Message(address_of("", "q")))[1]) is None


async def test_a_part_is_never_taken_for_a_message(rig):
    forged = msgspec.msgpack.encode(Message("secret/address", b"forged"))
    frames = await rig.queues.bodies.store_part([0], forged)
    record = await rig.store.log.read(Position(frames[0], 0))
    with pytest.raises(msgspec.MsgspecError):
        decode(record)
    assert await rig.queues.bodies.read_part(frames[0]) == forged


async def test_what_no_queue_wants_is_dropped_and_said(rig):
    assert await publish(rig, "", "nobody") == StoredBody(queues=0)
    with pytest.raises(Refusal) as refused:
        await publish(rig, "missing", "k")
    assert refused.value.cause is Cause.NOT_FOUND


@pytest.mark.parametrize("fields", [{"deliver_at_ms": 5_000}, {"retain": True}])
async def test_what_a_body_in_parts_cannot_have_is_refused_before_any_of_it_comes(rig, fields):
    with pytest.raises(Refusal) as refused:
        await rig.queues.bodies.begin(Message("a/b", **fields))
    assert refused.value.cause is Cause.PRECONDITION


async def test_a_body_that_took_longer_than_its_parts_are_kept_for_is_refused(rig):
    await rig.declare(rig.conn(), "q")
    began_ms, rig.now_ms = rig.now_ms, rig.now_ms + UPLOAD_MS_MAX + 1
    with pytest.raises(Refusal) as refused:
        await publish(rig, "", "q", began_ms=began_ms)
    assert refused.value.retriable
    assert UPLOAD_MS_MAX < PARTS_KEPT_MS
    assert await waiting(rig, "q") == 0


async def test_a_full_queue_does_not_take_it(rig):
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await rig.declare(rig.conn(), "q", arguments=arguments)
    assert await publish(rig, "", "q") == StoredBody(queues=1)
    assert await publish(rig, "", "q") == StoredBody(queues=1, overflowed=True)
    assert await waiting(rig, "q") == 1


async def test_a_length_in_bytes_counts_the_body(rig):
    await rig.declare(rig.conn(), "q", arguments={"x-max-length-bytes": 2 * len(BODY)})
    for number in range(4):
        await publish(rig, "", "q", id=str(number))
    await rig.queues.registry.queues["q"].pump.head.trim(OWNER)
    assert await waiting(rig, "q") == 2
    assert (await get(rig, "q")).id == "2"


async def test_a_dead_letter_has_parts_of_its_own(rig):
    """They are as young as the letter is: those of the source may go before it."""
    await rig.declare(rig.conn(), "dead")
    said = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    conn = rig.conn()
    await rig.declare(conn, "q", arguments=said)
    await publish(rig, "", "q")
    await rig.consume(conn, "q")
    await conn.has(1)
    ((message, offset, _),) = conn.taken
    await rig.settle(conn, "q", "reject", offset)
    letter = await get(rig, "dead")
    (before,), (after,) = parts_of(message).frames.values(), parts_of(letter).frames.values()
    assert min(after) > max(before)
    assert await body_of(rig, letter) == BODY
    assert await waiting(rig, "q") == 0


@pytest.mark.parametrize("gone", [True, False])
async def test_a_letter_whose_body_is_lost_is_dropped_and_waits_while_that_is_not_sure(rig, monkeypatch, capsys, gone):
    await rig.declare(rig.conn(), "dead")
    said = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    conn = rig.conn()
    await rig.declare(conn, "q", arguments=said)
    await publish(rig, "", "q")
    await rig.consume(conn, "q")
    await conn.has(1)

    async def nothing(_position):
        return None

    async def behind(start, *_, **_options):
        return [SimpleNamespace(start=start.frame + 1)] if gone else [], start.frame

    monkeypatch.setattr(rig.store.log, "read", nothing)
    monkeypatch.setattr(rig.store.log, "scan", behind)
    if gone:
        await rig.settle(conn, "q", "reject", conn.taken[0][1])
        assert "a part of a body is gone" in capsys.readouterr().out
        assert (await waiting(rig, "q"), await waiting(rig, "dead")) == (0, 0)
        return
    with pytest.raises(StoreError):
        await rig.settle(conn, "q", "reject", conn.taken[0][1])
    monkeypatch.undo()
    assert await body_of(rig, await get(rig, "q")) == BODY  # it is leased again


async def test_a_dead_letter_that_no_queue_takes_is_dropped_with_a_word(rig, capsys):
    await rig.request(rig.conn(), DeclareExchange(name="nowhere", kind="fanout"))
    conn = rig.conn()
    await rig.declare(conn, "q", arguments={"x-dead-letter-exchange": "nowhere"})
    await publish(rig, "", "q")
    await rig.consume(conn, "q")
    await conn.has(1)
    await rig.settle(conn, "q", "reject", conn.taken[0][1])
    assert "no queue takes them" in capsys.readouterr().out
    assert await waiting(rig, "q") == 0


async def test_a_stream_has_it_for_every_reader(rig):
    await rig.declare(rig.conn(), "s", durable=True, arguments={"x-queue-type": "stream"})
    await publish(rig, "", "s")
    for _ in range(2):
        conn = rig.conn()
        await rig.consume(conn, "s", credit=5, limited=True, stream=StreamRead(place=FIRST))
        await conn.has(1)
        assert await body_of(rig, conn.taken[0][0]) == BODY


async def test_it_is_there_after_a_restart(rig, tmp_path):
    await rig.declare(rig.conn(), "q", durable=True)
    await publish(rig, "", "q")
    await rig.restart()
    assert await body_of(rig, await get(rig, "q")) == BODY


async def test_the_parts_are_taken_from_the_log_of_the_queue():
    message = with_parts(Message("a"), BodyParts(3, {0: [1], 5: [2]}))
    assert parts_of(in_group(message, 5)).frames == {5: [2]}
    assert parts_of(in_group(message, 7)) == parts_of(message)
    assert in_group(whole := Message("a", b"x"), 5) is whole
    assert decode(msgspec.msgpack.encode(message)).native["parts"] == [3, {0: [1], 5: [2]}]


async def test_a_queue_that_came_meanwhile_in_another_store_group_refuses_it(rig, monkeypatch):
    await rig.declare(rig.conn(), "q")
    message = with_parts(Message(address_of("", "q")), BodyParts(1, {7: [1]}))
    with pytest.raises(Refusal) as refused:
        await rig.queues.bodies.publish(message, rig.now_ms)
    assert refused.value.retriable


async def test_parts_hold_up_nobody(rig):
    """They are stored beside each other, each in a frame of its own."""
    bodies = rig.queues.bodies
    stored = await asyncio.gather(*(bodies.store_part([0], b"%d" % n) for n in range(50)))
    assert [await bodies.read_part(one[0]) for one in stored] == [b"%d" % n for n in range(50)]
    assert (await rig.store.queues.bounds(PARTS_QUEUE)).next == 50
