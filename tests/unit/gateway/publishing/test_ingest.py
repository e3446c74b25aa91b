import gc

import numpy as np
import pytest

from controller.api.commands import ClusterLimits, CreateTopic
from controller.node.local import LocalController
from gateway.domain.batch import Batch
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Publish, Token
from gateway.port.tickets import timer_id
from gateway.publishing.ingest import FRAME_ROWS
from gateway.publishing.topic_shares import ANYBODY, creator_of
from store.api.log import Appended
from store.api.message import Message, decode, encode
from store.base.errors import (
    AppendOutcomeUnknown,
    FrameTooLarge,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreOverloaded,
    TimersFull,
    TimerTooFar,
)
from store.format.frame import ROW_EXTRA, ROWS_DTYPE, LogOffset, Position
from store.format.records import KV_QUEUE, TIMERS_QUEUE, KvDelete, KvPut
from store.format.records import decode as decode_record
from tests.support.gateway.ingest_rig import IngestRig, Publisher

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(default_queues=4), now_ms=lambda: 0)
    await controller.do(CreateTopic(name="t"))
    yield IngestRig(controller)
    await controller.close()


def stored(rig):
    return list(rig.log.frames.values())


def publish(rig, publisher, token, *messages):
    rig.ingest.publish(publisher, Publish(messages, Token(token)), 10)


async def test_one_turn_is_one_frame_and_outcomes_keep_their_order(rig):
    a, b = Publisher(), Publisher()
    publish(rig, a, 1, Message("t/1", b"x", device="d1"), Message("t/2", b"y", device="d1"))
    publish(rig, b, 1, Message("t/3", b"z", device="d2"))
    publish(rig, a, 2, Message("t/1", b"w", device="d1"))
    rig.turn()
    assert len(rig.log.waiting) == 1
    assert not a.outcomes
    rig.log.end_next()
    assert list(a.outcomes) == [1, 2]
    assert [outcome.first.row for outcome in (*a.outcomes.values(), *b.outcomes.values())] == [0, 3, 2]
    assert [m.body for m in rig.messages()] == [b"x", b"y", b"z", b"w"]
    assert rig.ingest.idle


@pytest.mark.slow
async def test_what_was_answered_is_gone_at_once_and_leaves_the_collector_nothing(rig):
    publisher = Publisher()
    gc.collect()
    gc.disable()
    try:
        for n in range(20):
            publish(rig, publisher, n, Message("t/1", b"x", device="d1"))
            rig.turn()
            rig.log.end_next()
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert len(publisher.outcomes) == 20


async def test_messages_of_one_key_share_a_queue_of_their_topic(rig):
    publisher = Publisher()
    messages = [Message(f"t/{n}", b"", device=f"d{n % 5}") for n in range(50)]
    publish(rig, publisher, 1, *messages, Message("t/x", b"", device="other", key="d3"))
    rig.turn()
    rig.log.end_all()
    batch = Batch.of(stored(rig)[0])
    queues = {}
    for message, queue in zip(batch.messages, batch.queues, strict=True):
        assert queue in rig.controller.topic("t").queues
        assert queues.setdefault(message.key or message.device, queue) == queue


async def test_mandatory_messages_are_unrouted_by_the_bindings_that_they_were_stored_by(rig):
    rig.router.bind("t/wanted", 1000, key=1)
    publisher = Publisher()
    messages = [Message("t/wanted"), Message("t/late"), Message("none/at/all"), Message("t/late"), Message("t/late")]
    rig.ingest.publish(publisher, Publish(messages, Token(1), mandatory=(0, 1, 2, 4)), 10)
    publish(rig, publisher, 2, Message("t/late"))
    rig.turn()
    rig.ingest.resume("none", Refusal(Cause.NOT_FOUND))
    rig.router.bind("t/late", 1001, key=2)  # before the answer: what is stored is in no queue all the same
    rig.log.end_all()
    assert [list(outcome.unrouted) for outcome in publisher.outcomes.values()] == [[1, 2, 4], []]
    assert list(publisher.outcomes[1].refused) == [2]


async def test_the_limit_is_for_the_body(rig):
    publisher = Publisher()
    publish(
        rig, publisher, 1, Message("t/1", b"x" * 1000, properties=(("k", "v" * 1000),)), Message("t/1", b"x" * 1001)
    )
    rig.turn()
    rig.log.end_all()
    assert list(publisher.outcomes[1].refused) == [1]


async def test_messages_for_very_many_queues_share_a_frame_with_nobody(rig):
    for number in range(FRAME_ROWS + 1):
        rig.router.bind("t/many", 1000 + number, key=number)
    a, b = Publisher(), Publisher()
    publish(rig, a, 1, Message("t/1", b"x"))
    publish(rig, b, 1, Message("t/many", b"y"))
    publish(rig, a, 2, Message("t/1", b"z"))
    rig.turn()
    assert [frame.row_count for frame, _ in rig.log.waiting] == [1, FRAME_ROWS + 2, 1]
    rig.log.end_all()
    assert list(a.outcomes) == [1, 2]


async def test_ids_and_long_names_are_not_remembered(rig):
    publisher = Publisher()
    publish(rig, publisher, 1, Message("t/" + "x" * 300, b"", device="d" * 300, id="an id"))
    rig.turn()
    rig.log.end_all()
    assert not rig.router.routes
    assert "an id" not in rig.router.hashes
    assert "d" * 300 not in rig.router.hashes


async def test_a_refused_message_leaves_the_others_in(rig):
    publisher = Publisher()
    publish(
        rig,
        publisher,
        1,
        Message("t/1", b"x"),
        Message("t/+", b""),
        Message("$SYS/x", b""),
        Message("t/2", b"y" * 2000),
        Message("$amqp/none/x", b""),
        Message("t/2", b"y"),
    )
    rig.turn()
    rig.log.end_all()
    [outcome] = publisher.outcomes.values()
    assert {index: refusal.cause for index, refusal in outcome.refused.items()} == {
        1: Cause.MALFORMED,
        2: Cause.FORBIDDEN,
        3: Cause.TOO_LARGE,
        4: Cause.NOT_FOUND,
    }
    assert [m.body for m in rig.messages()] == [b"x", b"y"]


async def test_an_answer_that_needs_no_write_still_waits_its_turn(rig):
    publisher = Publisher()
    publish(rig, publisher, 1, Message("t/1", b"x"))
    rig.turn()
    publish(rig, publisher, 2, Message("", b""))
    rig.turn()
    assert not publisher.outcomes
    rig.log.end_all()
    assert list(publisher.outcomes) == [1, 2]


async def test_a_missing_topic_is_asked_for_and_everything_waits_behind_it(rig):
    publisher = Publisher()
    publish(rig, publisher, 1, Message("t/1", b"1"))
    publish(rig, publisher, 2, Message("new/1", b"2"))
    publish(rig, publisher, 3, Message("t/1", b"3"))
    rig.turn()
    assert rig.wanted == ["new"]
    publish(rig, publisher, 4, Message("t/1", b"4"))
    rig.turn()
    rig.log.end_all()
    assert list(publisher.outcomes) == [1]
    await rig.controller.do(CreateTopic(name="new"))
    rig.ingest.resume("new", None)
    rig.log.end_all()
    assert [m.body for m in rig.messages()] == [b"1", b"2", b"3", b"4"]
    assert list(publisher.outcomes) == [1, 2, 3, 4]


async def test_a_topic_too_many_for_one_user_is_made_for_another(rig):
    """Of several that publish to it first, only those are refused whose share is used up."""
    publishers = [Publisher(), Publisher()]
    for publisher, name in zip(publishers, ("eve", ""), strict=True):
        publisher.principal = Principal(name=name)
        publish(rig, publisher, 1, Message("new/1", name.encode()))
    rig.turn()
    rig.ingest.resume("new", Refusal(Cause.QUOTA, "full"), creator="user eve")
    assert (rig.wanted, rig.creators) == (["new", "new"], ["user eve", ANYBODY])
    await rig.controller.do(CreateTopic(name="new"))
    rig.ingest.resume("new", None, creator=ANYBODY)
    rig.log.end_all()
    [refused], [stored] = [publisher.outcomes.values() for publisher in publishers]
    assert {index: refusal.cause for index, refusal in refused.refused.items()} == {0: Cause.QUOTA}
    assert stored.first is not None
    assert [m.body for m in rig.messages()] == [b""]


def test_whose_a_topic_is():
    guest, device = Principal(name="guest", guest=True), Principal(name="ada", device="d")
    assert [creator_of(who) for who in (Principal(name=""), guest, device, None)] == [
        ANYBODY,
        ANYBODY,
        "user ada",
        "",
    ]


async def test_a_topic_that_cannot_be_made_refuses_its_messages_only(rig):
    publisher = Publisher()
    publish(rig, publisher, 1, Message("new/1", b"1"), Message("t/1", b"2"), Message("newer/1", b"3"))
    rig.turn()
    rig.ingest.resume("new", Refusal(Cause.QUOTA, "full"))
    assert rig.wanted == ["new", "newer"]
    await rig.controller.do(CreateTopic(name="newer"))
    rig.ingest.resume("newer", None)
    rig.log.end_all()
    [outcome] = publisher.outcomes.values()
    assert {index: refusal.cause for index, refusal in outcome.refused.items()} == {0: Cause.QUOTA}
    assert [m.body for m in rig.messages()] == [b"2", b"3"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [(StoreOverloaded(), Cause.OVERLOAD), (StoreFull(), Cause.OVERLOAD), (AppendOutcomeUnknown(), Cause.UNKNOWN)],
)
async def test_what_the_store_refuses_is_refused_with_its_cause(rig, error, cause):
    publisher = Publisher()
    publish(rig, publisher, 1, Message("t/1", b"x"))
    rig.turn()
    rig.log.end_next(error)
    assert publisher.outcomes[1].error.cause is cause


async def test_a_publisher_is_not_told_which_file_the_store_has_failed_on(rig):
    publisher = Publisher()
    publish(rig, publisher, 1, Message("t/1", b"x"))
    rig.turn()
    rig.log.end_next(StoreFailed("[Errno 5] Input/output error: '/data/store/log/0.log'"))
    assert publisher.outcomes[1].error.cause is Cause.UNAVAILABLE
    assert "/" not in publisher.outcomes[1].error.detail


async def test_a_refusal_that_comes_early_is_told_in_its_turn_and_begins_another_sequence(rig):
    publisher = Publisher()
    for token in range(3):
        publish(rig, publisher, token, Message("t/1", b"%d" % token))
        rig.turn()
    (_, first), (_, second), (_, third) = rig.log.waiting
    second(StoreOverloaded())
    assert not publisher.outcomes
    first(Appended(LogOffset(0)))
    assert list(publisher.outcomes) == [0, 1]
    third(Appended(LogOffset(100)))
    assert [outcome.error is None for outcome in publisher.outcomes.values()] == [True, False, True]
    rig.log.waiting.clear()
    publish(rig, publisher, 3, Message("t/1", b"3"))
    rig.turn()
    assert (rig.log.waiting[0][0].producer_id, rig.log.waiting[0][0].sequence) == (8, 1)


async def test_named_queues_get_rows_and_no_copies(rig):
    rig.router.bind("t/#", 900, key="all")
    rig.router.bind("t/#", 900, key="all again")
    rig.router.bind("t/1", 901, predicate=lambda m: m.body == b"x", key="some")
    publisher = Publisher()
    publish(rig, publisher, 1, Message("t/1", b"x"), Message("t/1", b"y"))
    rig.turn()
    rig.log.end_all()
    rows = stored(rig)[0].rows
    extra = rows[rows["flags"] & ROW_EXTRA != 0]
    assert extra["queue"].tolist() == [900, 901, 900]
    assert [decode(stored(rig)[0].record(row)).body for row in (2, 3, 4)] == [b"x", b"x", b"y"]
    assert len(Batch.of(stored(rig)[0]).messages) == 2
    assert sorted(rig.named) == [900, 901]
    rig.router.unbind("all")
    rig.router.unbind("all again")
    assert rig.router.named_queues(Message("t/1", b"x")) == [901]


async def test_a_retained_message_travels_with_its_change_of_the_kv(rig):
    publisher = Publisher()
    retained = Message("t/1", b"x", retain=True), Message("t/1", b"", retain=True)
    publish(rig, publisher, 1, *retained, Message("t/1", b"y"), Message("t/1", b""))
    rig.turn()
    rig.log.end_all()
    frame = stored(rig)[0]
    records = [decode_record(frame.record(row)) for row in np.flatnonzero(frame.rows["queue"] == KV_QUEUE).tolist()]
    assert isinstance(records[0], KvPut)
    assert decode(records[0].value).body == b"x"
    assert records[1:] == [KvDelete("retained/t/1")], "what is not retained changes nothing"


async def test_a_long_turn_is_cut_into_frames_with_ascending_sequences(rig):
    publisher = Publisher()
    for token in range(3):
        publish(rig, publisher, token, *[Message("t/1", b"")] * FRAME_ROWS)
    rig.turn()
    frames = [frame for frame, _ in rig.log.waiting]
    assert [frame.sequence for frame in frames] == [1, 2, 3]
    assert {frame.producer_id for frame in frames} == {7}
    assert all(len(np.frombuffer(frame.rows, ROWS_DTYPE)) == FRAME_ROWS for frame in frames)
    rig.log.end_all()
    assert list(publisher.outcomes) == [0, 1, 2]


# ---- messages to be delivered later


async def test_a_message_for_later_is_one_record_of_the_timers(rig):
    rig.router.bind("t/#", 900, key="all")
    rig.router.bind("t/#", 901, lambda message: message.type == "wanted", key="some")
    publisher = Publisher()
    later = Message("t/1", b"x", deliver_at_ms=5_000, retain=True, type="wanted", key="k", id="own", time_ms=9)
    publish(rig, publisher, 1, Message("t/1", b"a"), later, Message("t/1", b"b"))
    rig.turn()
    rig.log.end_all()
    (frame,) = stored(rig)
    assert [message.body for message in Batch.of(frame).messages] == [b"a", b"b"]
    assert frame.rows["queue"].tolist()[1] == TIMERS_QUEUE
    record = decode_record(frame.record(1))
    assert record.due_ms == 5_000
    rows = np.frombuffer(record.rows, ROWS_DTYPE)
    topic = rig.controller.topic("t")
    assert rows["queue"].tolist()[0] in topic.queues
    assert rows["queue"].tolist()[1:] == [900, 901, KV_QUEUE]
    assert rows["flags"].tolist() == [0, ROW_EXTRA, ROW_EXTRA, 0]
    assert set(rows["time_ms"].tolist()) == {9}
    assert rows["key_hash"][0] == rig.router.key_hash("k")
    assert rows["id_hash"][0] != 0
    assert decode(record.payload[: rows["len"][0]]) == later
    change = decode_record(record.payload[rows["pos"][3] :])
    assert change == KvPut("retained/t/1", encode(later))
    assert [(token, outcome.first.row) for token, outcome in publisher.outcomes.items()] == [(1, 0)]
    assert rig.named == [900]  # by the two that came at once
    assert timer_id(later, [Position(frame.start, 1)]) == f"1388-{frame.start:x}.1"
    assert timer_id(Message("t/1"), [Position(frame.start, 0)]) is None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TimersFull("full"), Cause.QUOTA),
        (TimerTooFar("far"), Cause.MALFORMED),
        (FrameTooLarge("large"), Cause.TOO_LARGE),
        (StoreClosed("closed"), Cause.UNAVAILABLE),
    ],
)
async def test_what_the_store_will_not_keep_until_later_is_refused_alone(rig, error, cause):
    rig.log.refused_timers = error
    publisher = Publisher()
    publish(rig, publisher, 1, Message("t/1", b"a"), Message("t/1", b"x", deliver_at_ms=5), Message("t/1", b"b"))
    rig.turn()
    rig.log.end_all()
    (outcome,) = publisher.outcomes.values()
    assert {index: refusal.cause for index, refusal in outcome.refused.items()} == {1: cause}
    assert [message.body for message in rig.messages()] == [b"a", b"b"]
