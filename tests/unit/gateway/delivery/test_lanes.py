"""Fan-out over several logs: a lane for each, logs that join, and logs that cannot be reached."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.delivery.interest import QUEUES_MARKED_MAX, Interest
from gateway.domain.cursor import beginning_of, by_log, cursor_of, earlier, end_of, later
from gateway.port.adapter import SubscriptionId
from store.api.message import Message
from store.format.frame import LogOffset, Position, origin_of
from tests.support.gateway.fanout_rig import FanoutTasks, Receiver
from tests.support.gateway.memory_log import MemoryLog

pytestmark = pytest.mark.anyio


class StoreOfLogs:
    group = 0

    def __init__(self, groups):
        self.logs = {group: MemoryLog(group) for group in groups}


class LanesRig(FanoutTasks):
    """The fan-out of several logs in memory."""

    def __init__(self, groups=(0, 1), **options):
        super().__init__(StoreOfLogs(groups), **options)
        self.logs = self.store.logs

    def join(self, *patterns, credit=1 << 30, start=None):
        receiver = Receiver(credit)
        subscriber, begun = self.subscribe(receiver, *patterns, start=start)
        return subscriber, receiver, begun


@pytest.fixture(autouse=True, scope="module")
def soon():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("gateway.delivery.catch_up", "gateway.delivery.fanout"):
            patch.setattr(f"{name}.RETRY_MIN_S", 0)
            patch.setattr(f"{name}.RETRY_MAX_S", 0)
        yield


def m(body, address="t"):
    return Message(address, body)


async def test_a_live_subscriber_hears_every_log():
    rig = LanesRig()
    _, receiver, begun = rig.join("t")
    assert begun == (Position(0, 0), Position(origin_of(1), 0))
    rig.logs[0].write(m(b"a"))
    rig.logs[1].write(m(b"b"))
    rig.logs[0].write(m(b"c"))
    assert receiver.bodies == [b"a", b"b", b"c"]
    assert not rig.tasks


async def test_who_is_behind_in_one_log_is_live_in_the_other():
    rig = LanesRig()
    subscriber, receiver, _ = rig.join("t", credit=1)
    rig.logs[1].write(m(b"1"), m(b"2"), m(b"3"))
    assert receiver.bodies == [b"1"]
    receiver.credit = 1
    rig.logs[0].write(m(b"a"))
    assert receiver.bodies == [b"1", b"a"]
    assert rig.fanout.behind_count == 1
    assert rig.fanout.reached(subscriber) == (
        Position(rig.logs[0].end, 0),
        Position(rig.logs[1].frames[0].start, 1),
    )
    receiver.credit = 10
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert receiver.of(1) == [b"1", b"2", b"3"]
    assert rig.fanout.behind_count == 0


async def test_a_log_that_has_much_to_say_leaves_the_others_their_turn():
    rig = LanesRig()
    subscriber, receiver, _ = rig.join("t", credit=0)
    for log in rig.logs.values():
        log.write(*[m(b"%d" % n) for n in range(10)])
    for _ in range(4):
        receiver.credit = 2
        rig.fanout.wake(subscriber)
        await rig.settle()
    assert (len(receiver.of(0)), len(receiver.of(1))) == (4, 4)


async def test_one_log_out_of_reach_holds_up_nobody_in_another():
    rig = LanesRig()
    subscriber, receiver, _ = rig.join("t", credit=0)
    rig.logs[0].write(m(b"a"))
    rig.logs[1].write(m(b"b"))
    rig.logs[1].down = True
    receiver.credit = 100
    rig.fanout.wake(subscriber)
    while receiver.bodies != [b"a"]:
        await asyncio.sleep(0)
    rig.logs[0].write(m(b"c"))
    assert receiver.bodies == [b"a", b"c"]
    rig.logs[1].down = False
    await rig.settle()
    assert receiver.bodies == [b"a", b"c", b"b"]


async def test_a_log_that_joins_is_read_from_its_beginning_by_who_was_there():
    rig = LanesRig(groups=(0,))
    _, receiver, begun = rig.join("t")
    assert begun == (Position(0, 0),)
    log = rig.logs[3] = MemoryLog(3)
    log.write(m(b"before we heard of it"))
    rig.fanout.changed()
    log.write(m(b"live"))
    await rig.settle()
    assert receiver.of(3) == [b"before we heard of it", b"live"]
    _, late, begun = rig.join("t")
    assert begun == (Position(0, 0), Position(log.end, 0))
    assert late.got == []


async def test_who_subscribes_first_when_a_log_has_joined_begins_at_its_end():
    rig = LanesRig(groups=(0,))
    rig.join("other")
    rig.logs[1] = MemoryLog(1)
    rig.logs[1].write(m(b"past"))
    _, receiver, begun = rig.join("t")
    assert begun[1] == Position(rig.logs[1].end, 0)
    await rig.settle()
    assert receiver.got == []


async def test_a_cursor_that_says_nothing_of_a_log_begins_there_at_its_beginning():
    rig = LanesRig()
    rig.logs[0].write(m(b"a"))
    rig.logs[0].write(m(b"b"))
    rig.logs[1].write(m(b"c"))
    start = (Position(rig.logs[0].frames[1].start, 0),)
    _, receiver, begun = rig.join("t", start=start)
    await rig.settle()
    assert begun == (*start, Position(origin_of(1), 0))
    assert sorted(receiver.bodies) == [b"b", b"c"]


async def test_a_log_that_is_gone_is_no_longer_followed():
    rig = LanesRig()
    subscriber, receiver, _ = rig.join("t", credit=0)
    gone = rig.logs[1]
    gone.write(m(b"x"))
    del rig.logs[1]
    rig.fanout.changed()
    assert not gone.listeners
    assert rig.fanout.behind_count == 0
    receiver.credit = 9
    rig.logs[0].write(m(b"a"))
    await rig.settle()
    assert receiver.bodies == [b"a"]
    assert rig.fanout.reached(subscriber) == (Position(rig.logs[0].end, 0),)


async def test_a_log_never_reached_begins_where_it_ends_when_it_is():
    rig = LanesRig()
    log = rig.logs[1]
    log.unknown = log.down = True
    log.write(m(b"past"))
    kept = Position(log.frames[0].start, 0)
    subscriber, receiver, begun = rig.join("t")
    assert begun == (Position(0, 0), end_of(1))
    assert rig.fanout.reached(subscriber) == (Position(0, 0),)
    _, resumed, _ = rig.join("t", start=(Position(0, 0), kept))
    rig.logs[0].write(m(b"a"))
    log.unknown = log.down = False
    await rig.settle()
    log.unheard.clear()
    log.write(m(b"b"))
    assert receiver.bodies == [b"a", b"b"]
    assert resumed.bodies == [b"a", b"past", b"b"]
    assert rig.fanout.reached(subscriber) == (Position(rig.logs[0].end, 0), Position(log.end, 0))


async def test_who_comes_before_a_log_that_has_joined_is_reached_has_all_of_it():
    rig = LanesRig(groups=(0,))
    _, early, _ = rig.join("t")
    log = rig.logs[1] = MemoryLog(1)
    log.unknown = log.down = True
    rig.fanout.changed()
    assert rig.fanout.now() == (Position(0, 0), beginning_of(1))
    _, late, begun = rig.join("t")
    assert begun == (Position(0, 0), beginning_of(1))
    log.write(m(b"x"))
    log.unknown = log.down = False
    await rig.settle()
    log.unheard.clear()
    log.write(m(b"y"))
    assert early.bodies == late.bodies == [b"x", b"y"]


async def test_the_first_frames_of_a_log_say_where_it_was():
    rig = LanesRig()
    log = rig.logs[1]
    log.write(m(b"past"))
    log.unknown = True
    _, receiver, _ = rig.join("t")
    log.write(m(b"now"))
    log.unknown = False
    await rig.settle()
    assert receiver.bodies == [b"now"]


async def test_what_a_tail_leaves_out_is_read_from_the_log():
    rig = LanesRig()
    subscriber, receiver, _ = rig.join("t")
    log = rig.logs[1]
    log.write(m(b"1"))
    log.down = True
    log.write(m(b"2"))
    log.unheard.clear()
    log.down = False
    log.write(m(b"3"))
    await rig.settle()
    log.write(m(b"4"))
    assert receiver.bodies == [b"1", b"2", b"3", b"4"]
    assert not subscriber.behind


async def test_queues_of_topics_not_heard_of_yet_may_concern_anybody():
    known = {16: 0, 17: 0}
    rig = LanesRig(groups=(0,), queues_of=lambda _: [16], group_of=known.get)
    _, receiver, _ = rig.join("t/#")
    rig.logs[0].write(m(b"a", "t/1"), queue=16)
    rig.logs[0].write(m(b"b", "t/1"), queue=17)  # known, and of another topic
    rig.logs[0].write(m(b"c", "t/1"), queue=5000)
    rig.logs[0].write(m(b"d", "u/1"), queue=5000)
    assert receiver.bodies == [b"a", b"c"]


async def test_catching_up_reads_everything_while_topics_may_be_missing():
    heard = [False, True]

    async def ask():
        return heard.pop(0)

    rig = LanesRig(queues_of=lambda _: [16, 17], group_of=lambda queue: queue - 16, barrier=ask)
    subscriber, receiver, _ = rig.join("t", credit=0)
    rig.logs[1].write(m(b"a"), queue=17)
    for _ in range(2):
        rig.logs[1].write(m(b"b"), m(b"c"), queue=17)
        receiver.credit = 1
        rig.fanout.wake(subscriber)
        await rig.settle()
    assert rig.logs[1].scanned == [None, [17]]


async def test_whoever_returns_reads_anew_while_the_old_reading_ends():
    rig = LanesRig()
    subscriber, receiver, _ = rig.join("t", credit=0)
    rig.logs[0].write(m(b"old"))
    receiver.credit = 10
    rig.fanout.wake(subscriber)
    rig.fanout.leave(subscriber)
    rig.fanout.subscribe(subscriber, SubscriptionId(5), "t", None)
    await rig.settle()
    rig.logs[0].write(m(b"new"))
    assert receiver.bodies == [b"new"]
    assert rig.fanout.behind_count == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("credit"), st.integers(0, 4), st.none()),
        st.tuples(st.just("turn"), st.integers(0, 3), st.none()),
        st.tuples(st.just("down"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("join"), st.integers(1, 2), st.none()),
        st.tuples(st.just("again"), st.none(), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_every_log_comes_once_and_in_order_whatever_joins_and_goes_away(steps):
    async def history():
        rig = LanesRig(groups=(0,))
        subscriber, receiver, _ = rig.join("#", credit=0)
        sent = {group: [] for group in range(3)}
        before = []  # messages that earlier connections have received
        for what, value, more in steps:
            if what == "write" and value in rig.logs:
                bodies = [b"%d" % (len(sent[value]) + n) for n in range(more)]
                sent[value] += bodies
                rig.logs[value].write(*map(m, bodies))
            elif what == "credit":
                receiver.credit += value
                rig.fanout.wake(subscriber)
            elif what == "turn":
                for _ in range(value):
                    await asyncio.sleep(0)
            elif what == "down" and value in rig.logs:
                rig.logs[value].down = more
                if not more:
                    rig.logs[value].hear()
            elif what == "join":
                rig.logs.setdefault(value, MemoryLog(value))
                rig.fanout.changed()
            elif what == "again":  # on another connection, from where the first one was
                cursor = rig.fanout.reached(subscriber)
                rig.fanout.leave(subscriber)
                before.append(receiver)
                subscriber, receiver, _ = rig.join("#", credit=0, start=cursor)
        for log in rig.logs.values():
            log.down = False
            log.hear()
        receiver.credit = 1 << 30
        for _ in range(2):
            rig.fanout.wake(subscriber)
            await rig.settle()
        before.append(receiver)
        for group in rig.logs:
            assert [body for one in before for body in one.of(group)] == sent[group]

    asyncio.run(history())


# ---- cursors and interest


def at(group, frame, row=0):
    return Position(LogOffset(origin_of(group) + frame), row)


def test_cursors_are_compared_log_by_log():
    assert later((at(0, 5), at(1, 1)), (at(0, 3), at(1, 2), at(4, 9))) == (at(0, 5), at(1, 2), at(4, 9))
    assert earlier((at(0, 5), at(1, 1)), (at(0, 3), at(1, 2), at(4, 9))) == (at(0, 3), at(1, 1))
    assert earlier((at(0, 5),), ()) == (at(0, 5),)
    assert cursor_of(by_log([at(2, 1), at(0, 1)])) == (at(0, 1), at(2, 1))


def test_the_end_of_a_log_gives_way_to_any_position_in_it():
    assert later((end_of(1),), (at(1, 7),)) == (at(1, 7),)
    assert later((at(1, 7),), (end_of(1),)) == (at(1, 7),)
    assert later((), (end_of(1),)) == (end_of(1),)
    assert beginning_of(1) < at(1, 7) < end_of(1) < beginning_of(2)


def test_interest_is_marked_queue_by_queue():
    asked = []

    def known(queue):
        asked.append(queue)
        return queue < 5000

    interest = Interest(lambda pattern: {"a": [20, 3000], "b": [21], "#": None}[pattern], known)

    def concerns(*queues, patterns=("a",)):
        return interest.concerns(np.array(queues, np.uint32), patterns)

    assert concerns(20)
    assert concerns(19, 3000)
    assert not concerns(21, 1, 2)
    assert not concerns(4000)
    assert not concerns(4000)
    assert concerns(5000)
    assert concerns(QUEUES_MARKED_MAX)
    assert not concerns()
    assert len(asked) == len(set(asked))
    interest.forget()
    assert concerns(21, patterns=("b",))
    interest.forget()
    assert concerns(4000, patterns=("b", "#"))


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_log_that_has_lost_its_end_goes_on_where_it_does(fresh):
    """After an unclean election: subscribers were past what is written now."""
    rig = LanesRig()
    log = rig.logs[0]
    if fresh:  # a subscriber that begins then has received no frame
        for n in range(5):
            log.write(m(b"%d" % n))
    _, live, _ = rig.join("t")
    slow, waiting, _ = rig.join("t", credit=0 if fresh else 3)
    if not fresh:
        for n in range(5):
            log.write(m(b"%d" % n))
    log.lose(3)
    if not fresh:  # a repeat is none the less
        log.listeners[0](log.frames[-1:])
    log.write(m(b"new"), epoch=2)
    log.write(m(b"newer"), epoch=2)
    assert live.bodies == [*(b"%d" % n for n in range(0 if fresh else 5)), b"new", b"newer"]
    waiting.credit = 10
    rig.fanout.wake(slow)
    await rig.settle()
    assert waiting.bodies == [*([] if fresh else [b"0", b"1", b"2"]), b"new", b"newer"]
