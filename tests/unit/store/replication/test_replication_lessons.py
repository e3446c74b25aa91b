"""Defects of others' replicated logs, in the cores alone. Numbers of issues are Apache RocketMQ's.

Stories of whole clusters are in sim/test_joint_lessons.py.
"""

import pytest

from store.base.errors import NotMaster
from store.format.frame import LogOffset
from store.node.replacing import log_stop, why_diverged
from store.replication.agreement import Acknowledge
from store.replication.effects import Send
from store.replication.epochs import EpochList
from store.replication.errors import NotEnoughInSync
from store.replication.messages import Hello, Welcome, decode, encode
from store.replication.pace import ReplicationPace
from store.replication.replica_core import Stage
from tests.support.store.replication_kit import Following, FrameLog, Leading


def test_an_epoch_without_data_is_replaced_by_one_that_begins_at_the_same_place():
    """A takes epoch 2 at 400, B hears of it; A writes alone and dies; B's epoch 3 begins at 400 too; A comes back."""
    log_of_a, log_of_b = FrameLog().fill(1, 2), FrameLog().fill(1, 2)
    b = Following(2, log_of_b, [(1, 0)])
    a = Leading(2, log_of_a, [(1, 0)], followers=[b]).connect(2)
    assert b.saved[0].entries == ((1, 0), (2, 400))
    a.append(3)
    epochs_of_a = a.master.epochs.entries

    back = Following(2, log_of_a, epochs_of_a, promised=2, confirmed=400)
    leading = Leading(3, log_of_b, b.saved[0].entries, followers=[back])
    assert leading.master.epochs.entries == ((1, 0), (3, 400))
    leading.connect(2)
    assert log_of_a.frames == log_of_b.frames
    assert back.saved == (EpochList.of([(1, 0), (3, 400)]), 3)
    leading.append(2).settle()
    assert log_of_a.frames == log_of_b.frames


def test_offsets_are_never_narrowed():
    """Logs that are more than 4 GiB apart, in the last group there can be."""
    group = (1 << 15) - 1
    origin = group << 48
    far = origin + (5 << 32) + 200
    log = FrameLog(far).fill(3, 2)
    follower = Following(2, FrameLog(far).fill(3, 1), [(2, origin), (3, far)], group=group, confirmed=far)
    leading = Leading(4, log, [(2, origin), (3, far)], followers=[follower], group=group, confirmed=far)
    leading.connect(2).append(3).settle().pass_time(50)
    assert follower.log.frames == log.frames
    assert follower.core.confirmed == leading.master.confirmed == log.end
    hello = Hello(group=group, replica=1, session=9, epoch=4, epochs=((3, origin), (4, far)), first=origin, end=far)
    assert decode(encode(hello)) == hello
    trimmed = Leading(4, FrameLog(far + 200).fill(3, 1), [(3, far)], followers=[Following(2)], group=group)
    behind = Hello(group=group, replica=2, session=9, epoch=3, epochs=((3, far),), first=far, end=far)
    trimmed.master.receive(2, behind, now_ms=0)
    [(_, welcome)] = trimmed.master.take()
    assert isinstance(welcome, Welcome)
    assert welcome.needs_snapshot
    assert welcome.cut_to == far


@pytest.mark.slow
def test_two_milliseconds_of_latency_cost_next_to_nothing():
    """3664: replication that waited for each batch fell from 300 MB/s to 27 MB/s."""

    def took_us(latency_us: int) -> int:
        pace = ReplicationPace(batch_bytes=1 << 20, window_bytes=32 << 20)
        follower = Following(2, pace=pace)
        leading = Leading(followers=[follower], pace=pace).connect(2)
        frames, size = 100, 1 << 20
        leading.append(frames, size=size)
        free_us = now_us = 0  # the link is free again
        arriving: list[tuple[int, object]] = []
        while follower.core.end < leading.log.end or leading.master.confirmed < leading.log.end:
            for _, message in leading.collect():
                free_us = max(now_us, free_us) + size // 300  # 300 MB/s
                arriving.append((free_us + latency_us, message))
            now_us, message = arriving.pop(0)
            leading.now = 1_000 + now_us // 1_000
            follower.core.receive(message, now_ms=leading.now)
            follower.work()
            for sent in follower.sent:
                leading.master.receive(2, sent, now_ms=leading.now)
            follower.sent.clear()
        return now_us

    assert took_us(2_000) < 1.1 * took_us(0)


def test_what_is_refused_says_so_before_anything_is_stored():
    leading = Leading(min_in_sync=2, followers=[Following(2)])
    assert isinstance(leading.master.refusal, NotEnoughInSync)
    leading.connect(2)
    assert leading.master.refusal is None
    leading.master.fenced(2)
    assert isinstance(leading.master.refusal, NotMaster)
    assert leading.master.refusal.retriable


def test_readers_do_not_see_what_one_replica_has_and_another_has_not():
    """A reader of the faster replica would have seen what a failover to the slower one takes away."""
    fast, slow = Following(2), Following(3)
    leading = Leading(followers=[fast, slow], min_in_sync=2).connect(2, 3)
    leading.append(2).settle().pass_time(50)
    assert fast.core.confirmed == 400
    slow.lazy = True
    leading.append(2).settle().pass_time(200)
    assert fast.core.flushed == 800
    assert fast.core.confirmed == slow.core.confirmed == leading.master.confirmed == 400

    elected = Leading(
        2,
        FrameLog().fill(1, 2),
        [(1, 0)],
        followers=[Following(2, fast.log, fast.saved[0].entries, promised=1, confirmed=400)],
    )
    elected.connect(2)
    assert fast.log.end == 400


def test_a_replica_with_data_that_was_confirmed_and_is_nowhere_else_stands_still(caplog):
    """Unless unclean elections are allowed, somebody has to look at this; its log had one line, at level info."""
    follower = Following(2, FrameLog().fill(1, 3), [(1, 0)], confirmed=600)
    leading = Leading(2, FrameLog().fill(1, 2), [(1, 0)], followers=[follower]).connect(2)
    assert follower.core.stage is Stage.DIVERGED
    assert follower.core.diverged_at == LogOffset(400)
    assert len(follower.log.frames) == 3
    log_stop(follower.core, "the master lacks frames")
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [("ERROR", why_diverged(follower.core))]
    assert "from 400 to 600" in caplog.text
    assert "headgate store dump" in caplog.text
    follower.core.connect(leading.master.epoch, session=7, now_ms=1)
    follower.work()
    assert follower.sent == []
    assert len(follower.closed) == 2


def test_with_unclean_elections_it_starts_from_a_snapshot():
    follower = Following(2, FrameLog().fill(1, 3), [(1, 0)], confirmed=600, unclean_election=True)
    Leading(2, FrameLog().fill(1, 2), [(1, 0)], followers=[follower]).connect(2)
    assert follower.snapshots == [2]
    assert follower.core.diverged_at == LogOffset(400)  # for the log: the rest is lost with it


@pytest.mark.parametrize("done", range(3))
def test_a_crash_while_the_log_is_cut_leaves_nothing_that_passes_for_something_else(done):
    """First the log, then the list: an epoch that lists what was written in another would be kept for good."""
    leading = Leading(3, FrameLog().fill(1, 2), [(1, 0)]).append(4)
    log = FrameLog().fill(1, 2).fill(2, 3)
    before = Following(2, log, [(1, 0), (2, 400)], promised=2)
    before.core.connect(3, session=5, now_ms=0)
    hello = next(effect.message for effect in before.core.take() if isinstance(effect, Send))
    leading.master.configure({1: False, 2: False}, min_in_sync=1, acknowledge=Acknowledge.ALL_IN_SYNC)
    leading.master.receive(2, hello, now_ms=0)
    [(_, welcome)] = leading.master.take()
    before.core.receive(welcome, now_ms=0)
    [prepare] = before.core.take()
    saved = before.saved[0]
    if done > 0:
        log.cut(prepare.cut_to)
    if done > 1:
        saved = prepare.epochs

    after = Following(2, log, saved.entries, promised=3)
    leading.followers[2] = after
    leading.connect(2)
    assert log.frames == leading.log.frames
