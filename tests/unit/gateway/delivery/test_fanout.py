import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.delivery.fanout import Fanout
from gateway.domain.batch import Batch
from gateway.domain.filters import matches
from gateway.port.adapter import SubscriptionId
from store.api.message import encode
from store.base.errors import CorruptFrame, ReplicaIncomplete, StoreError
from store.format.frame import ROW, LogOffset, Position, UnplacedFrame
from tests.support.gateway.fanout_rig import FanoutRig, message
from tests.support.store.store_kit import placed

pytestmark = pytest.mark.anyio


async def test_live_subscribers_get_what_matches_with_all_their_subscriptions():
    rig = FanoutRig()
    _, everything = rig.join("#", "t/+")
    _, some = rig.join("t/1")
    rig.log.write(message("t/1", b"a"), message("t/2", b"b"), message("u", b"c"))
    assert everything.got == [(b"a", (0, 1)), (b"b", (0, 1)), (b"c", (0,))]
    assert some.bodies == [b"a"]
    assert not rig.tasks


async def test_a_slow_subscriber_falls_back_to_the_log_and_catches_up():
    rig = FanoutRig()
    subscriber, slow = rig.join("#", credit=3)
    _, quick = rig.join("#")
    for n in range(10):
        rig.log.write(message("t", b"%d" % n), message("t", b"%d'" % n))
    assert slow.bodies == [b"0", b"0'", b"1"]
    assert len(quick.got) == 20
    assert rig.fanout.behind_count == 1
    slow.credit = 4
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert len(slow.got) == 7
    assert subscriber.behind
    slow.credit = 1 << 30
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert slow.bodies == quick.bodies
    assert not subscriber.behind
    rig.log.write(message("t", b"live"))
    assert slow.bodies[-1] == b"live"


async def test_a_subscriber_with_a_cursor_reads_the_past_first():
    rig = FanoutRig()
    for n in range(6):
        rig.log.write(message("t", b"%d" % n), message("t", b"%d'" % n))
    _, receiver = rig.join("#", start=(Position(rig.log.frames[3].start, 1),))
    rig.log.write(message("t", b"new"))
    await rig.settle()
    assert receiver.bodies == [b"3'", b"4", b"4'", b"5", b"5'", b"new"]


async def test_a_start_beyond_the_end_of_the_log_is_now():
    rig = FanoutRig()
    rig.log.write(message("a", b"before"))
    subscriber, slow = rig.join("a", credit=1, start=(Position(LogOffset(1 << 40), 0),))
    for n in range(3):
        rig.log.write(message("a", b"%d" % n))
    slow.credit = 10
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert slow.bodies == [b"0", b"1", b"2"]


async def test_a_new_subscription_of_a_slow_subscriber_gets_nothing_older_than_itself():
    rig = FanoutRig()
    subscriber, receiver = rig.join("a", credit=0)
    rig.log.write(message("a", b"1"), message("b", b"2"))
    rig.fanout.subscribe(subscriber, SubscriptionId(9), "b", None)
    rig.log.write(message("a", b"3"), message("b", b"4"))
    receiver.credit = 100
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert receiver.got == [(b"1", (0,)), (b"3", (0,)), (b"4", (9,))]


async def test_a_new_subscription_of_a_live_subscriber_brings_nothing_again():
    rig = FanoutRig()
    subscriber, receiver = rig.join("a")
    rig.log.write(message("a", b"1"), message("b", b"2"))
    rig.fanout.subscribe(subscriber, SubscriptionId(9), "b", None)
    await rig.settle()
    rig.log.write(message("a", b"3"), message("b", b"4"))
    assert receiver.got == [(b"1", (0,)), (b"3", (0,)), (b"4", (9,))]
    assert rig.log.scanned == []


async def test_who_has_left_gets_nothing_and_the_tail_is_let_go():
    rig = FanoutRig()
    subscriber, receiver = rig.join("#", credit=0)
    rig.log.write(message("a", b"1"))
    rig.fanout.leave(subscriber)
    assert not rig.log.listeners
    assert rig.fanout.behind_count == 0
    rig.log.write(message("a", b"2"))
    _, later = rig.join("#")
    rig.log.write(message("a", b"3"))
    await rig.settle()
    assert receiver.got == []
    assert later.bodies == [b"3"]


async def test_where_a_subscriber_is_moves_with_the_tail_only_while_it_is_live():
    rig = FanoutRig()
    subscriber, receiver = rig.join("#", credit=1)
    rig.log.write(message("a", b"1"))
    assert rig.fanout.reached(subscriber) == (Position(rig.log.confirmed, 0),)
    rig.log.write(message("b", b"2"), message("b", b"3"))
    assert rig.fanout.reached(subscriber) == (Position(rig.log.frames[1].start, 0),)
    receiver.credit = 1
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert rig.fanout.reached(subscriber) == (Position(rig.log.frames[1].start, 1),)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.sampled_from(["a", "b", "a/b"]), min_size=1, max_size=3)),
        st.tuples(st.just("credit"), st.integers(0, 4)),
        st.tuples(st.just("turn"), st.integers(0, 3)),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(deadline=None)
@given(steps=STEPS, patterns=st.lists(st.sampled_from(["#", "a", "a/#", "+"]), min_size=1, max_size=2, unique=True))
def test_whatever_the_pace_everything_comes_once_and_in_order(steps, patterns):
    async def history():
        rig = FanoutRig()
        subscriber, receiver = rig.join(*patterns, credit=0)
        sent = []
        for what, value in steps:
            if what == "write":
                written = [message(address, b"%d" % (len(sent) + n)) for n, address in enumerate(value)]
                sent += written
                rig.log.write(*written)
            elif what == "credit":
                receiver.credit += value
                rig.fanout.wake(subscriber)
            else:
                for _ in range(value):
                    await asyncio.sleep(0)
        receiver.credit = 1 << 30
        for _ in range(2):
            rig.fanout.wake(subscriber)
            await rig.settle()
        expected = [m.body for m in sent if any(matches(pattern, m.address) for pattern in patterns)]
        assert receiver.bodies == expected

    asyncio.run(history())


async def test_a_log_that_does_not_answer_is_asked_again(monkeypatch):
    rig = FanoutRig()
    monkeypatch.setattr("gateway.delivery.catch_up.RETRY_MIN_S", 0)
    subscriber, receiver = rig.join("#", credit=0)
    rig.log.write(message("a", b"1"))
    scan, failures = rig.log.scan, [OSError("disk"), StoreError("busy")]

    async def failing(*args, **options):
        if failures:
            raise failures.pop()
        return await scan(*args, **options)

    monkeypatch.setattr(rig.log, "scan", failing)
    receiver.credit = 100
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert receiver.bodies == [b"1"]
    assert not subscriber.behind


async def test_a_subscriber_is_led_past_what_is_lost_and_waits_for_what_is_repaired(monkeypatch, capsys):
    rig = FanoutRig()
    monkeypatch.setattr("gateway.delivery.catch_up.RETRY_MIN_S", 0)
    subscriber, receiver = rig.join("#", credit=0)
    for n in range(4):
        rig.log.write(message("a", b"%d" % n))
    hurt, scan, repairing = rig.log.frames[1], rig.log.scan, [ReplicaIncomplete("being repaired")]

    async def damaged(start, queues, *, max_bytes):
        if start.frame == hurt.start:
            if repairing:
                raise repairing.pop()
            raise CorruptFrame(hurt.start, "body checksum", end=hurt.end)
        found, following = await scan(start, queues, max_bytes=max_bytes)
        if hurt in found:
            return found[: found.index(hurt)], hurt.start
        return found, following

    monkeypatch.setattr(rig.log, "scan", damaged)
    receiver.credit = 100
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert receiver.bodies == [b"0", b"2", b"3"]
    assert receiver.lost == [(hurt.start, hurt.end, {0})]
    assert (rig.fanout.damages_passed, repairing, bool(subscriber.behind)) == (1, [], False)
    assert "messages for a subscriber are lost" in capsys.readouterr().out


async def test_frames_that_concern_nobody_are_not_decoded(monkeypatch):
    rig = FanoutRig()
    wanted = {"t/#": [17]}
    rig.fanout = Fanout(rig.log, queues_of=lambda pattern: wanted[pattern], group_of=lambda _: 0, spawn=rig.spawn)
    _, receiver = rig.join("t/#")
    decoded, of = [], Batch.of
    monkeypatch.setattr(Batch, "of", lambda frame: decoded.append(frame) or of(frame))
    rig.log.write(message("t/1", b"elsewhere"))
    assert not decoded
    wanted["t/#"] = [16]
    rig.fanout.changed()
    rig.log.write(message("t/1", b"here"))
    assert len(decoded) == 1
    assert receiver.bodies == [b"here"]


async def test_a_record_that_is_no_message_hides_no_other():
    rig = FanoutRig()
    _, receiver = rig.join("#")
    good = encode(message("t", b"good"))
    rows = b"".join(ROW.pack(16, pos, size, 0, 0, 0, 0, 0) for pos, size in ((0, len(good)), (len(good), 3)))
    rows += ROW.pack(16, 0, len(good), 0, 0, 0, 0, 0)
    unplaced = UnplacedFrame.build(rows, good + b"bad")
    frame = placed(unplaced, rig.log.confirmed)
    batch = Batch.of(frame)
    assert [m.body for m in batch.messages] == [b"good", b"good"]
    assert [batch.position(n).row for n in range(2)] == [0, 2]
    assert not receiver.got
