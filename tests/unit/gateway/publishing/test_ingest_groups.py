"""Ingest over several store groups: which frame a message is in, when its publisher is answered, and with what."""

import asyncio
import random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.client import Group, GroupConfig, Replica, Topic
from controller.api.commands import AddGroup, ClusterLimits, CreateTopic, MoveQueue, NameQueue
from controller.node.local import LocalController
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Publish, Token
from gateway.port.marks import Marks
from gateway.port.tickets import timer_id
from gateway.publishing.delayed import cancel_timer
from gateway.publishing.ingest import FRAME_ROWS
from gateway.publishing.routing.router import SPREAD, Router
from store.api.message import Message, decode
from store.base.errors import AppendOutcomeUnknown, NoSuchTimer, StoreOverloaded, StoreUnreachable, TimersFull
from store.format.frame import FIRST_QUEUE, ROW_EXTRA, ROWS_DTYPE, group_of
from store.format.records import KV_QUEUE, TIMERS_QUEUE, KvPut
from store.format.records import decode as decode_record
from tests.support.gateway.ingest_groups import message, publish_marked, two_groups
from tests.support.gateway.ingest_rig import SpreadRig
from tests.support.process.examples import examples

pytestmark = pytest.mark.anyio


@pytest.fixture
async def controller(tmp_path):
    async with two_groups(tmp_path) as controller:
        yield controller


async def test_each_group_gets_a_frame_and_the_publisher_one_answer(controller):
    rig = SpreadRig(controller)
    assert rig.router.resolve("t/1").group == SPREAD
    (a, b), (c, d) = rig.keys(0, 2), rig.keys(1, 2)
    messages = [message(key, f"{n}".encode()) for n, key in enumerate([a, c, b, d, c, a])]
    rig.publish("p", 1, *messages[:4])
    rig.publish("p", 2, *messages[4:])
    rig.turn()
    assert [len(log.waiting) for log in rig.store.logs.values()] == [1, 1]
    rig.store.logs[0].end_next()
    assert rig.outcome("p") is None
    rig.store.logs[1].end_next()
    found = [rig.outcome("p", 1).stored(4), rig.outcome("p", 2).stored(2)]
    places = [*found[0].values(), *found[1].values()]
    assert [decode(rig.record(place)).body for (place,) in places] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [group_of(place.frame) for (place,) in places] == [0, 1, 0, 1, 1, 0]
    assert rig.counted("t", "stored") == 6
    assert rig.ingest.idle


async def test_a_group_that_refuses_refuses_what_needed_it(controller):
    rig = SpreadRig(controller)
    (a,), (b,) = rig.keys(0), rig.keys(1)
    rig.publish("both", 1, message(a), Message("t/+", b""), message(b), message(a))
    rig.publish("only", 1, message(b))
    rig.publish("other", 1, message(a))
    rig.turn()
    rig.store.logs[0].end_next()
    rig.store.logs[1].end_next(StoreOverloaded("slow"))
    both = rig.outcome("both")
    assert both.error is None
    assert {index: refusal.cause for index, refusal in both.refused.items()} == {1: Cause.MALFORMED, 2: Cause.OVERLOAD}
    assert list(both.stored(4)) == [0, 3]
    assert rig.outcome("only").error.cause is Cause.OVERLOAD
    assert rig.outcome("other").error is None
    assert (rig.counted("t", "stored"), rig.counted("t", "overload")) == (3, 2)
    rig.publish("both", 2, message(a), message(b))
    rig.turn()
    assert [(log.waiting[0][0].producer_id, log.waiting[0][0].sequence) for log in rig.store.logs.values()] == [
        (7, 2),
        (9, 1),
    ]


async def test_when_all_groups_refuse_the_whole_is_refused(controller):
    rig = SpreadRig(controller)
    rig.publish("p", 1, message(*rig.keys(0)), message(*rig.keys(1)))
    rig.turn()
    for log in rig.store.logs.values():
        log.end_next(StoreOverloaded("slow"))
    assert rig.outcome("p").error.cause is Cause.OVERLOAD


async def test_a_group_that_is_slow_holds_up_its_own_publishers_alone(controller):
    rig = SpreadRig(controller)
    (a,), (b,) = rig.keys(0), rig.keys(1)
    rig.publish("slow", 1, message(b))
    rig.turn()
    rig.publish("slow", 2, message(a))
    rig.publish("slow", 3, Message("t/+", b""))
    rig.publish("quick", 1, message(a))
    rig.turn()
    rig.store.logs[0].end_next()
    assert rig.outcome("quick") is not None
    assert rig.publishers["slow"].outcomes == {}
    rig.store.logs[1].end_next()
    assert list(rig.publishers["slow"].outcomes) == [1, 2, 3]


async def test_a_group_that_is_not_known_here_is_unavailable(controller):
    rig = SpreadRig(controller, groups=(0,))
    rig.publish("p", 1, message(*rig.keys(1)), message(*rig.keys(0)))
    rig.turn()
    rig.end_all()
    rig.turn()
    assert {i: refusal.cause for i, refusal in rig.outcome("p").refused.items()} == {0: Cause.UNAVAILABLE}


async def test_a_named_queue_in_another_group_gets_a_copy(controller):
    rig = SpreadRig(controller)
    here, there = [await controller.do(NameQueue(name=name)) for name in ("q0", "q1")]
    assert (here.group, there.group) == (0, 1)
    rig.router.bind("t/#", here.number, key="here", group=here.group)
    rig.router.bind("t/#", there.number, key="there", group=there.group)
    (a,), (b,) = rig.keys(0), rig.keys(1)
    rig.publish("p", 1, message(a, b"a"), message(b, b"b"))
    rig.turn()
    rig.end_all()
    for group, queue, bodies in ((0, here, [b"a", b"b"]), (1, there, [b"a", b"b"])):
        (frame,) = rig.store.logs[group].frames.values()
        rows = np.flatnonzero(frame.rows["queue"] == queue.number).tolist()
        assert [decode(frame.record(row)).body for row in rows] == bodies
        assert (frame.rows["flags"][rows] & ROW_EXTRA != 0).all()
        assert sum(frame.rows["flags"] & ROW_EXTRA == 0) == 1
    assert sorted(rig.named) == [here.number, there.number]
    first, second = rig.outcome("p").stored(2).values()
    assert [group_of(at.frame) for at in first] == [0, 1]
    assert [group_of(at.frame) for at in second] == [1, 0]


async def test_what_is_in_one_log_and_not_in_the_other_may_not_simply_be_sent_again(controller):
    rig = SpreadRig(controller)
    queue = await controller.do(NameQueue(name="q0"))
    queue = await controller.do(NameQueue(name="q1"))
    rig.router.bind("t/#", queue.number, key="q", group=queue.group)
    rig.publish("p", 1, message(*rig.keys(0)), message(*rig.keys(1)))
    rig.turn()
    rig.store.logs[0].end_next()
    rig.store.logs[1].end_next(StoreOverloaded("slow"))
    assert {i: refusal.cause for i, refusal in rig.outcome("p").refused.items()} == {}
    assert rig.outcome("p").error.cause is Cause.UNKNOWN


async def test_a_retained_message_is_kept_at_home(controller):
    rig = SpreadRig(controller)
    (b,) = rig.keys(1)
    rig.publish("p", 1, message(b, b"kept", retain=True))
    rig.turn()
    assert [frame.row_count for log in rig.store.logs.values() for frame, _ in log.waiting] == [1, 1]
    rig.store.logs[1].end_next()
    assert rig.outcome("p") is None
    rig.store.logs[0].end_next()
    (frame,) = rig.store.logs[0].frames.values()
    assert frame.rows["queue"].tolist() == [KV_QUEUE]
    change = decode_record(frame.record(0))
    assert isinstance(change, KvPut)
    assert decode(change.value).body == b"kept"
    assert rig.outcome("p").error is None


async def test_a_message_for_later_waits_in_each_log_that_has_a_queue_for_it(controller):
    rig = SpreadRig(controller)
    await controller.do(NameQueue(name="q0"))
    queue = await controller.do(NameQueue(name="q1"))
    rig.router.bind("t/#", queue.number, key="q", group=queue.group)
    (a,) = rig.keys(0)
    later = message(a, deliver_at_ms=5000, retain=True)
    rig.publish("p", 1, message(a), later)
    rig.turn()
    rig.end_all()
    places = rig.outcome("p").stored(2)[1]
    held = [decode_record(rig.record(place)) for place in places]
    queues = [np.frombuffer(record.rows, ROWS_DTYPE)["queue"].tolist() for record in held]
    assert [group_of(place.frame) for place in places] == [0, 1]
    assert queues[0][0] in controller.topic("t").queues
    assert queues[0][1:] == [KV_QUEUE]
    assert queues[1] == [queue.number]
    timer = timer_id(later, places)
    assert timer == "~".join(f"1388-{place.frame:x}.{place.row:x}" for place in places)

    asked = []

    class Cancelling:
        async def cancel(self, one):
            if "-" not in one:
                raise NoSuchTimer(one)
            asked.append(one)
            return len(asked) == 1

    assert await cancel_timer(SimpleNamespace(timers=Cancelling()), timer) is True
    assert asked == timer.split("~")
    with pytest.raises(Refusal):
        await cancel_timer(SimpleNamespace(timers=Cancelling()), "~".join(["x"] * 100))


async def test_a_timer_that_one_log_does_not_admit_is_in_none(controller):
    rig = SpreadRig(controller)
    (a,) = rig.keys(1)
    rig.store.logs[0].refused_timers = TimersFull("full")
    rig.publish("p", 1, message(a, deliver_at_ms=5000, retain=True))
    rig.turn()
    assert not any(log.waiting for log in rig.store.logs.values())
    assert rig.outcome("p").refused[0].cause is Cause.QUOTA
    assert rig.ingest.idle


async def test_a_missing_topic_takes_back_what_was_added_for_every_group(controller):
    rig = SpreadRig(controller)
    (a,), (b,) = rig.keys(0), rig.keys(1)
    rig.publish("p", 1, message(a, b"1"))
    rig.publish("p", 2, message(a, b"2"), message(b, b"3"), message(a, b"4", address="new/1"))
    rig.turn()
    assert rig.wanted == ["new"]
    assert [frame.row_count for log in rig.store.logs.values() for frame, _ in log.waiting] == [1]
    rig.end_all()
    await controller.do(CreateTopic(name="new"))
    rig.ingest.resume("new", None)
    rig.end_all()
    frames = [frame for log in rig.store.logs.values() for frame in log.frames.values()]
    assert sorted(decode(frame.record(row)).body for frame in frames for row in range(len(frame.rows))) == [
        b"1",
        b"2",
        b"3",
        b"4",
    ]


async def test_messages_for_very_many_queues_share_frames_with_nobody(controller):
    rig = SpreadRig(controller)
    (b,) = rig.keys(1)
    for number in range(FRAME_ROWS + 1):
        rig.router.bind("t/many", 1000 + number, key=number)
    rig.publish("p", 1, message(b))
    rig.publish("p", 2, message(b, address="t/many"))
    rig.publish("p", 3, message(b))
    rig.turn()
    assert [frame.row_count for frame, _ in rig.store.logs[1].waiting] == [1, 2]
    assert [frame.row_count for frame, _ in rig.store.logs[0].waiting] == [FRAME_ROWS + 1]
    rig.end_all()
    assert list(rig.publishers["p"].outcomes) == [1, 2, 3]


async def test_closed_queues_get_nothing_and_other_keys_stay_where_they_are(controller):
    rig = SpreadRig(controller)
    before = rig.router.resolve("t/1").queues
    moved = await controller.do(MoveQueue(number=before[0], group=1))
    after = rig.router.resolve("t/1")
    assert before[0] not in after.queues
    assert after.queues[1:] == before[1:]
    assert rig.router.groups[after.queues[0]] == 1
    assert set(moved.closed) == {before[0]}


class Zones:
    """A controller of two groups that have masters in different zones."""

    home = 0

    def watch(self, listener):
        pass

    def topic(self, name):
        config = {"prefer": "zone"} if name == "near" else {}
        return Topic(name=name, queues=(16, 17, 18, 19), groups=(0, 1, 0, 1), config=config)

    def groups(self):
        return [
            Group(number=0, replicas=(Replica(id=1, node="n", address="", zone="a"),), master=1),
            Group(number=1, replicas=(Replica(id=2, node="m", address="", zone="b"),), master=2),
            Group(number=2, replicas=(Replica(id=3, node="o", address="", zone="b"),)),
        ]


def test_messages_without_a_key_stay_in_their_zone_where_a_topic_prefers_it():
    assert Router(Zones(), zone="b").resolve("near/1").near == (17, 19)
    assert Router(Zones(), zone="a").resolve("near/1").near == (16, 18)
    everywhere = (16, 17, 18, 19)
    assert Router(Zones(), zone="b").resolve("far/1").near == everywhere
    assert Router(Zones(), zone="c").resolve("near/1").near == everywhere
    assert Router(Zones()).resolve("near/1").near == everywhere
    rig = SpreadRig(Zones(), zone="b")
    rig.publish("p", 1, *[Message("near/1", b"", device=f"d{n}") for n in range(20)])
    rig.turn()
    assert not rig.store.logs[0].waiting
    rig.publish("p", 2, *[Message("near/1", b"", key=f"d{n}") for n in range(20)])
    rig.turn()
    assert rig.store.logs[0].waiting


def test_what_is_stored_once_goes_to_the_same_log_from_every_zone():
    places = []
    for zone in ("a", "b"):
        rig = SpreadRig(Zones(), zone=zone)
        for n in range(8):
            effect = Publish([Message("near/1", b"", device=f"d{n}")], Token(n + 1), once=n + 1)
            rig.ingest.publish(rig.publisher("p"), effect, 10)
        rig.turn()
        places.append([len(log.waiting) for log in rig.store.logs.values()])
    assert places[0] == places[1]
    assert all(places[0])


ERRORS = (StoreOverloaded("slow"), StoreUnreachable("gone"), AppendOutcomeUnknown("perhaps"))


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(seed=st.integers(0, 1 << 30), groups=st.integers(1, 3))
def test_whatever_comes_of_frames_every_message_is_accounted_for(tmp_path_factory, seed, groups):
    async def history():
        chance = random.Random(seed)
        controller = LocalController.open(
            tmp_path_factory.mktemp("controller"), limits=ClusterLimits(default_queues=5), now_ms=lambda: 0
        )
        try:
            for group in range(groups):
                await controller.do(AddGroup(number=group, config=GroupConfig()))
            for topic in ("t", "u"):
                await controller.do(CreateTopic(name=topic))
            queues = [await controller.do(NameQueue(name=f"q{n}")) for n in range(groups)]
            rig = SpreadRig(controller, groups=range(groups))
            for n, queue in enumerate(queues):
                rig.router.bind(f"t/{n}/#", queue.number, key=n, group=queue.group)
            run(rig, chance, {queue.number: f"t/{n}/" for n, queue in enumerate(queues)})
        finally:
            await controller.close()

    asyncio.run(history())


def run(rig, chance, bound):
    sent, tokens = {}, 0
    for _ in range(chance.randrange(4, 25)):
        what = chance.random()
        if what < 0.5:
            tokens += 1
            messages = []
            for n in range(chance.randrange(5)):
                address = chance.choice(["t/1/a", "t/0/b", "u/1", "t/+", "t/2"])
                later = chance.choice([None, None, None, 9])
                fields = {"retain": chance.random() < 0.2, "deliver_at_ms": later, "device": f"d{chance.randrange(9)}"}
                messages.append(Message(address, f"{tokens}.{n}".encode(), protocol="mqtt", **fields))
            who = chance.choice("ab")
            sent[who, tokens] = messages
            rig.publish(who, tokens, *messages)
        elif what < 0.75:
            rig.turn()
        else:
            log = chance.choice(list(rig.store.logs.values()))
            if log.waiting:
                log.end_next(chance.choice([None, None, None, *ERRORS]))
    rig.turn()
    rig.end_all()
    rig.turn()
    assert rig.ingest.idle
    stored = 0
    for (who, token), messages in sent.items():
        outcome = rig.outcome(who, token)
        places = outcome.stored(len(messages)) if outcome.error is None else {}
        stored += len(places)
        assert set(places) | set(outcome.refused) == (set() if outcome.error else set(range(len(messages))))
        for index, (own, *copies) in places.items():
            check(rig, messages[index], own, copies, bound)
    assert stored == sum(rig.counted(topic, "stored") for topic in ("t", "u"))
    for group, log in rig.store.logs.items():
        queues = {queue for frame in log.frames.values() for queue in frame.rows["queue"].tolist()}
        assert {rig.router.groups[queue] for queue in queues if queue >= FIRST_QUEUE} <= {group}


def check(rig, message, own, copies, bound):
    """Checks that an acknowledged message is where its outcome says, and in its named queues."""
    if message.deliver_at_ms is not None:
        held = [decode_record(rig.record(place)) for place in (own, *copies)]
        assert {record.due_ms for record in held} == {9}
        rows = [row for record in held for row in np.frombuffer(record.rows, ROWS_DTYPE)["queue"].tolist()]
    else:
        assert decode(rig.record(own)) == message
        frames = [rig.store.logs[group_of(place.frame)].frames[place.frame] for place in (own, *copies)]
        assert decode(frames[0].record(own.row)) == message
        rows = [
            int(frame.rows["queue"][row])
            for frame in frames
            for row in range(len(frame.rows))
            if frame.rows["queue"][row] not in {TIMERS_QUEUE, KV_QUEUE} and decode(frame.record(row)) == message
        ]
    wanted = {queue for queue, prefix in bound.items() if message.address.startswith(prefix)}
    assert wanted <= set(rows)
    assert sum(queue >= FIRST_QUEUE and queue not in bound for queue in rows) == 1


# ---- marks


def marked(rig, group):
    """Returns the marks in the newest frame of a group: by key, with how many groups have the message."""
    frame = next(reversed(rig.store.logs[group].frames.values()))
    said = {}
    for n, row in enumerate(np.frombuffer(frame.rows, ROWS_DTYPE)):
        change = decode_record(frame.record(n)) if row["queue"] == KV_QUEUE else None
        if change is not None and change.key.startswith("session-marks/"):
            assert change.key not in said
            said[change.key] = msgspec.msgpack.decode(change.value, type=list[tuple[bytes, int]])
    return said


async def test_every_frame_says_which_marked_messages_it_holds(controller):
    rig = SpreadRig(controller)
    (a,), (b,) = rig.keys(0), rig.keys(1)
    messages = [message(a), message(b), message(a), message(b), message(b, retain=True)]
    publish_marked(rig, "p", 1, messages, Marks("session-marks/s/", 3, {1: b"one", 2: b"two", 4: b"four"}))
    rig.end_all()
    assert marked(rig, 0) == {"session-marks/s/3": [(b"two", 1), (b"four", 2)]}  # retained messages are in group 0
    assert marked(rig, 1) == {"session-marks/s/3": [(b"one", 1), (b"four", 2)]}
    assert sorted(rig.outcome("p").stored(5)) == [0, 1, 2, 3, 4]
    assert rig.ingest.idle


async def test_what_is_not_stored_is_not_marked(controller):
    rig = SpreadRig(controller)
    (a,) = rig.keys(0)
    messages = [message(a), message(a, address="t/+"), message(a), message(a)]
    denied = {0: Refusal(Cause.FORBIDDEN)}
    publish_marked(rig, "p", 1, messages, Marks("session-marks/s/", 0, {0: b"0", 1: b"1", 3: b"3"}), denied=denied)
    rig.end_all()
    assert marked(rig, 0) == {"session-marks/s/0": [(b"3", 1)]}
    assert sorted(rig.outcome("p").refused) == [0, 1]
    publish_marked(rig, "p", 2, [message(a)], None)
    rig.end_all()
    assert marked(rig, 0) == {}


async def test_frames_that_a_log_has_already_are_not_stored_again(controller):
    rig = SpreadRig(controller)
    (b,) = rig.keys(1)
    rig.publish("other", 1, message(b))
    marks = Marks("session-marks/s/", 0, {0: b"m"}, frozenset({1}))
    publish_marked(rig, "p", 1, [message(b, retain=True)], marks)
    assert [len(log.waiting) for log in rig.store.logs.values()] == [1, 1]
    assert rig.outcome("p") is None
    rig.end_all()
    assert marked(rig, 0) == {"session-marks/s/0": [(b"m", 2)]}
    assert marked(rig, 1) == {}
    assert rig.outcome("p").error is None
    assert rig.outcome("p").refused == {}
    assert rig.outcome("other").error is None
    assert rig.ingest.idle
